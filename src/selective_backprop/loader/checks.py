"""What SelectiveLoader refuses, at construction and not halfway through a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from selective_backprop.description import describe, differences, differing
from selective_backprop.distributed.agreement import gather
from selective_backprop.distributed.ranks import Ranks
from selective_backprop.distributed.team import Team
from selective_backprop.inference import is_sharded
from selective_backprop.loader.index_stream import num_candidates
from selective_backprop.loader.source import Source
from selective_backprop.method import Method, require_method
from selective_backprop.scorers import ForwardScorer
from selective_backprop.types import Scorer

STATE_VERSION = 4

_STATE_KEYS = {"method", "ranks", "in_epoch", "batch_size", "transform", "selector", "ledger", "stats", "feedback"}

_logger = logging.getLogger(__name__)


def check_arguments(loader: Any, model: Any, method: Any, *, batch_size: int | None, num_epochs: int | None) -> None:
    """Raise for arguments that cannot work by themselves."""
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be a DataLoader or another iterable of batches, got {type(loader).__name__}")
    if getattr(loader, "_is_accelerate_prepared", False):
        raise TypeError(
            "this loader went through accelerator.prepare, which reads ahead and hides the sampler: pass the "
            "DataLoader itself, and prepare only the model and the optimizer"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    require_method(method)
    _check_whole("batch_size", batch_size)
    _check_whole("num_epochs", num_epochs)
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"the model has lazy modules whose parameters have no shape yet ({', '.join(lazy[:3])}), and scoring must "
            "not be what gives them one: call the model on one batch before you make the optimizer and the loader"
        )
    if method.schedule.needs_num_epochs and num_epochs is None:
        raise ValueError(f"{method.name} selects in a window of training: pass num_epochs=, the length of the run")
    if method.scorer.needs.training_pass and (batch_size is not None or method.batch_scale != 1):
        raise ValueError(
            f"{method.name} with forward reuse trains on part of each candidate batch, as it comes: leave out "
            "batch_size=, and make the DataLoader's batches 1 / selectivity times larger"
        )
    max_epochs = method.scorer.needs.max_epochs
    if max_epochs is not None and num_epochs is not None and num_epochs > max_epochs:
        raise ValueError(f"this {method.name} is for runs of at most {max_epochs} epochs, got num_epochs={num_epochs}")


def check_numbers(*, seed: Any, scope: Any, total_batches: Any, loader: Any) -> None:
    """Raise for options of the wrong kind."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number, got {seed!r}")
    if scope not in ("global", "local"):
        raise ValueError(f"scope must be 'global' or 'local', got {scope!r}")
    _check_whole("total_batches", total_batches)
    if total_batches is None:
        return
    try:
        length = len(loader)
    except TypeError:
        return
    if length != total_batches:
        raise ValueError(
            f"total_batches is for loaders without a length; this one has {length} batches, and total_batches is "
            f"{total_batches}: leave it out"
        )


def _check_whole(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def check_source(source: Source, method: Method, ranks: Ranks) -> None:
    """Raise where the method and the user's loader do not go together."""
    if method.needs_ids and source.num_examples is None:
        raise ValueError(
            f"{method.name} needs to know examples by id, which only a DataLoader over a map-style data set with "
            "automatic batching can tell: this loader has none. Methods without that need, such as "
            "selective_backprop, work with it"
        )
    if source.num_batches == 0 and (ranks.size == 1 or not source.is_pruned):
        raise ValueError("the loader is empty: it has no batch to offer")
    count = num_candidates(source.user_loader) if source.stream is not None else None
    if count is not None and count > source.longest_plan and _plans_epochs(method):
        raise ValueError(
            f"the sampler has {count:,} indices an epoch, of a data set of {source.num_examples:,}: {method.name} "
            "decides about a whole epoch before it loads it. Make an epoch one pass over the data set, with "
            "shuffle=True or RandomSampler(data, replacement=True, num_samples=len(data)), and count epochs; or use a "
            "method that decides batch by batch, such as selective_backprop"
        )
    by_id = {"keep": method.keep, "classes": method.groups}
    lengths = [(name, len(values)) for name, values in by_id.items() if values is not None]
    for name, length in [*lengths, *(("scores", length) for length in _lengths(method.scorer))]:
        if length != source.num_examples:
            raise ValueError(
                f"{method.name} has {name} for {length} ids, but the data set has {source.num_examples} examples"
            )


def _lengths(scorer: Scorer | None) -> list[int]:
    """For how many ids the scorer, and those that it hands candidates to, have values."""
    if scorer is None:
        return []
    own = scorer.needs.num_examples
    return ([] if own is None else [own]) + _lengths(scorer.fresh)


def _plans_epochs(method: Method) -> bool:
    """Whether it ever decides about an epoch before loading it."""
    return not method.schedule.never_on and any(method.scorer.remembers(epoch) for epoch in range(2))


def check_ranks(model: nn.Module, method: Method, ranks: Ranks) -> None:
    """Raise for what does not work with several ranks."""
    if ranks.size == 1:
        return
    scorer = method.scorer
    if scorer.needs.training_pass:
        raise ValueError(
            f"{method.name} with forward reuse works on one rank: ranks that select different numbers of examples "
            "would weigh each other's gradients wrongly. Leave out scoring='reuse'"
        )
    if is_sharded(model) and scorer.needs.selection_pass and not runs_the_model_alone(scorer):
        raise ValueError(
            f"the model is sharded by FSDP, which runs it on all ranks together: {method.name} can score with the "
            "model itself (scoring='eval', 'train' or a scale factor), not with a copy of it"
        )


def to_agree_on(source: Source, method: Method, *, batch_size: int | None, **options: Any) -> dict[str, Any]:
    """By name, what has to be the same on all ranks, for `agree`.

    options: of the loader. Numbers and words are compared. Of others, such as a transform, only whether there is one.
    """
    import selective_backprop  # which imports this module, and has its version only then

    described = describe(method)
    return {
        "version of selective_backprop": selective_backprop.__version__,
        "method": described.pop("name"),
        **described,
        "batch_size": batch_size or source.batch_size,
        **{name: _brief(value) for name, value in options.items()},
        "number of examples in the data set, whose indices are their ids": source.num_examples,
    }


def _brief(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else "one"


def agree(team: Team, source: Source, agreed: dict[str, Any]) -> int | None:
    """How many candidate batches the rank with most of them has; None if one does not know.

    To be called by all ranks. Raises where they differ in what all have to agree on: ranks that decide differently
    would wait for each other forever, or not train on what the method says.
    """
    own = {"agreed": agreed, "num_batches": source.num_batches, "batch_size": source.batch_size or 0}
    told = gather(team.ranks, own)
    for rank, other in enumerate(told):
        if found := differing(told[0]["agreed"], other["agreed"]):
            raise ValueError(_disagreement(rank, found))
    batches = [other["num_batches"] for other in told]
    num_batches = None if None in batches else max(batches)
    if num_batches == 0:
        raise ValueError("the loader is empty: it has no batch to offer, on any rank")
    # Less than that many when each rank has its share, even if shares are padded to equal sizes.
    offered = sum(((count or 0) - 1) * other["batch_size"] for count, other in zip(batches, told, strict=True))
    if team.size > 1 and team.speaks and source.num_examples and offered >= source.num_examples:
        _logger.warning(
            "each of the %d ranks goes through all %d examples: an epoch offers every one of them %d times, as it "
            "would without selection. To share them: DataLoader(data, sampler=DistributedSampler(data), ...)",
            team.size,
            source.num_examples,
            team.size,
        )
    return num_batches


def _disagreement(rank: int, found: list[tuple[str, str, str]]) -> str:
    """Which option differs between rank 0 and this one, by its own name: max_age, not scorer.max_age."""
    (name, first, other), *more = [_by_own_name(*difference) for difference in found]
    text = f"all ranks need the same {name}; rank 0 has {first}, rank {rank} has {other}"
    if name != "method" and more:  # other methods have other options, too
        text += f". They also differ in {', '.join(f'{name} ({one} and {two})' for name, one, two in more[:4])}"
    return text


def _by_own_name(path: str, one: str, two: str) -> tuple[str, str, str]:
    part, _, name = path.rpartition(".")
    if name in ("true", "shape", "checksum"):  # by which a tensor is described
        return part.rpartition(".")[2], f"{name} {one}", f"{name} {two}"
    return name, one, two


def runs_the_model_alone(scorer: Scorer) -> bool:
    """Whether scores come from forward passes of the model itself, without a copy of it."""
    if scorer.works_ahead:
        return False  # works ahead, by a snapshot of the model
    inner = scorer if scorer.fresh is None else scorer.fresh
    return isinstance(inner, ForwardScorer) and inner.model_copy is None


def check_state(state: dict[str, Any], method: Method, *, batch_size: int | None, transform: Any, team: Team) -> None:
    """Raise, before anything is loaded, for a saved state that does not fit."""
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError(f"this is no state of a SelectiveLoader, which is a dict with a version, but {state!r:.200}")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"this state has version {state['version']}, expected {STATE_VERSION}: it was saved by another version of "
            "selective_backprop. Finish the run with that one, or start it again"
        )
    if missing := _STATE_KEYS - state.keys():
        raise ValueError(f"this state lacks {', '.join(sorted(missing))}: it is damaged")
    if state["method"]["name"] != method.name:
        raise ValueError(f"saved by the method {state['method']['name']}, this loader has {method.name}")
    if found := differences(state["method"], describe(method)):
        raise ValueError(
            f"saved by {method.name} with other options than this loader's. Saved, and here: {'; '.join(found)}"
        )
    saved, own = state["ranks"], {"rank": team.rank, "size": team.size}
    if saved != own:
        raise ValueError(
            f"saved by rank {saved['rank']} of {saved['size']}, this is rank {own['rank']} of {own['size']}: each rank "
            "has its own examples in its queue, and saves and loads its own state. To go on with another number of "
            "ranks, use save_checkpoint and load_checkpoint"
        )
    if None not in (batch_size, state["batch_size"]) and batch_size != state["batch_size"]:
        raise ValueError(f"saved with training batches of {state['batch_size']}, this loader has {batch_size}")
    if state["transform"] is not None and not hasattr(transform, "load_state_dict"):
        raise ValueError("saved with a transform that has a state, which this loader's transform has not")
