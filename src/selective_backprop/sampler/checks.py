"""Checks that SelectiveSampler makes when it is constructed or loads a state, so that no run fails halfway through."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from selective_backprop.description import describe, differing
from selective_backprop.distributed.ranks import Ranks
from selective_backprop.distributed.team import Team
from selective_backprop.losses import as_ids
from selective_backprop.method import Method, require_method
from selective_backprop.scorers.audited import AuditedLossScorer
from selective_backprop.scorers.base import require_one_each

STATE_VERSION = 1

_STATE_KEYS = {"method", "ranks", "num_examples", "ledger", "now"}


def check_arguments(source: Any, *, batch_size: Any, num_epochs: Any, seed: Any, num_examples: Any) -> None:
    """Raise if the source of ids or a number cannot work."""
    check_whole("batch_size", batch_size)
    check_whole("num_epochs", num_epochs)
    check_whole("num_examples", num_examples)
    check_seed(seed)
    if isinstance(source, int):
        check_whole("source, the size of the data set,", source)
        if num_examples not in (None, source):
            raise ValueError(f"source is a data set of {source} examples, but num_examples={num_examples}")
        return
    if isinstance(source, BatchSampler):
        raise TypeError(
            "source must yield single ids, got a batch sampler: pass the sampler inside it, and put your batch sampler "
            "around SelectiveSampler"
        )
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, list | tuple | range):
        raise TypeError(
            f"source must be the size of the data set or a sampler of ids, got {type(source).__name__}: for a data "
            "set, pass len(data)"
        )
    if not isinstance(source, Iterable) or not isinstance(source, Sized):
        raise TypeError(
            f"source must be the size of the data set, or a sampler of ids with a length, got {type(source).__name__}"
        )


def check_whole(name: str, value: Any) -> None:
    """Raise if a number of something is not a whole number from 1 on. None: it was not given."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def check_seed(seed: Any) -> None:
    """Raise if a torch.Generator could not take this seed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number, got {seed!r}")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must be from -2**63 to 2**64 - 1, as of any torch.Generator, got {seed}")


def check_method_of_run(method: Any, num_examples: int | None, num_epochs: int | None) -> None:
    """Raise if a method does not fit a data set of this size, or a run of this length. None: not known."""
    if method.needs_num_epochs and num_epochs is None:
        raise ValueError(f"{method.name} selects in a window of training: pass num_epochs=, the length of the run")
    method.scorer.check_run(num_examples, num_epochs)
    for name, values in {"keep": method.keep, "classes": method.groups}.items():
        if values is not None:
            require_one_each(f"{method.name} has {name}", len(values), num_examples)


def size_of(source: Any) -> int:
    """Return the size of the data set, by what the sampler says."""
    if isinstance(source, int):
        return source
    if isinstance(source, range | list | tuple):
        return 1 + max(as_ids(list(source), "source, a list of ids,").flatten().tolist(), default=0)
    for name in ("data_source", "dataset", "weights"):
        value = getattr(source, name, None)
        if isinstance(value, int):
            return value
        if isinstance(value, Sized):
            return len(value)
    indices = getattr(source, "indices", None)  # of a SubsetRandomSampler
    if isinstance(indices, Iterable):
        return 1 + max((int(index) for index in indices), default=0)
    raise ValueError(
        f"your {type(source).__name__} does not say how many examples the data set has: pass num_examples="
    )


def check_method(method: Any, num_examples: int, *, batch_size: int | None, num_epochs: int | None) -> None:
    """Raise if a sampler cannot do what the method needs."""
    require_method(method)
    scorer = method.scorer
    if scorer.needs.selection_pass or not all(scorer.plans(epoch) for epoch in range(2)):
        raise ValueError(
            f"{method.name} needs a selection pass, which a sampler cannot make: it never sees the model. Use "
            "sb.SelectiveLoader, or a method without a selection pass, such as sb.ledger_backprop()"
        )
    if isinstance(scorer, AuditedLossScorer):
        raise ValueError(
            f"{method.name} audits what the model says about each example, and a sampler never sees it: use "
            "sb.SelectiveLoader, or the same method without audit=True"
        )
    if method.batch_scale != 1:
        raise ValueError(
            f"{method.name} decides the size of training batches, but your loader does here: use sb.SelectiveLoader"
        )
    if method.schedule.interrupt > 1 and batch_size is None:
        raise ValueError("interrupt= counts batches of candidates: pass batch_size= to SelectiveSampler")
    check_method_of_run(method, num_examples, num_epochs)


def checked_ids(source: Iterable[Any], num_examples: int) -> Tensor:
    """Draw an epoch's ids from the user's sampler. Raises if they are not ids of the data set."""
    drawn = list(source)
    try:
        ids = torch.tensor(drawn) if drawn else torch.empty(0, dtype=torch.int64)
    except (TypeError, ValueError):
        ids = torch.empty(0)
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"your sampler must yield whole numbers, the ids of examples, got {drawn[:3]!r:.100}")
    if not len(ids):
        raise ValueError("your sampler yielded no ids: an epoch must offer at least one example")
    wrong = ids[(ids < 0) | (ids >= num_examples)]
    if len(wrong):
        raise ValueError(
            f"your sampler yielded the ids {wrong[:5].tolist()}, but the data set has {num_examples} examples: ids are "
            f"from 0 to {num_examples - 1}. If the data set is larger, pass num_examples="
        )
    return ids.to(torch.int64)


def agree(ranks: Ranks, method: Method, **options: Any) -> None:
    """Raise if the ranks differ in settings that must be equal. All ranks must call this."""
    answers = ranks.gather_plain({"method": describe(method), **options})
    for rank, other in enumerate(answers):
        if found := differing(answers[0], other):
            name, first, second = found[0]
            raise ValueError(f"all ranks need the same {name}; rank 0 has {first}, rank {rank} has {second}")


def check_saved_by(state: Any, method: Method, keys: set[str], version: int, what: str) -> None:
    """Raise if a saved state is of another kind or version, is damaged, or was saved by another method.

    Args:
        state: the saved state.
        method: the method of the loader or sampler that is to load it.
        keys: what the state must have.
        version: version of the state's format.
        what: "loader" or "sampler".
    """
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError(
            f"this is not the state of a Selective{what.title()}, which is a dict with a version: got {state!r:.200}"
        )
    if state["version"] != version:
        raise ValueError(
            f"this state has version {state['version']}, expected {version}: it was saved by another version of "
            "selective_backprop. Finish the run with that one, or start it again"
        )
    if missing := keys - state.keys():
        raise ValueError(
            f"this state lacks {', '.join(sorted(missing))}: it is damaged, or not of a Selective{what.title()}"
        )
    if state["method"]["name"] != method.name:
        raise ValueError(
            f"the state was saved by the method {state['method']['name']}, but this {what} has {method.name}"
        )
    if found := differing(state["method"], describe(method)):
        raise ValueError(
            f"the state was saved by {method.name} with other options than this {what}'s. Saved, and here: "
            f"{'; '.join(f'{name}: {saved} and {own}' for name, saved, own in found)}"
        )


def check_rank(state: dict[str, Any], team: Team, why: str = "") -> None:
    """Raise if another rank has saved the state. why: why that matters and what to do, for the error."""
    saved, here = state["ranks"], {"rank": team.rank, "size": team.size}
    if saved != here:
        raise ValueError(
            f"the state was saved by rank {saved['rank']} of {saved['size']}, but this is rank {here['rank']} of "
            f"{here['size']}: each rank saves and loads its own state{why}"
        )


def check_state(state: Any, method: Method, *, num_examples: int, team: Team) -> None:
    """Raise if a saved state does not fit, before anything is loaded from it."""
    check_saved_by(state, method, _STATE_KEYS, STATE_VERSION, "sampler")
    if state["num_examples"] != num_examples:
        raise ValueError(
            f"the state was saved for {state['num_examples']} examples, but this sampler has {num_examples}: was it "
            "saved for another data set, or has this one changed?"
        )
    check_rank(state, team)
