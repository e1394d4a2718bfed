"""Checks that SelectiveLoader makes when it is constructed or loads a state, so that no run fails halfway through."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from selective_backprop.batches.padding import PadToLongest
from selective_backprop.description import describe, differing
from selective_backprop.distributed.ranks import Ranks
from selective_backprop.distributed.team import Team
from selective_backprop.inference import is_sharded
from selective_backprop.loader.source import AnySource, IndexedSource
from selective_backprop.loader.user_samplers import num_candidates
from selective_backprop.method import Method, require_method
from selective_backprop.sampler.checks import check_method_of_run, check_rank, check_saved_by, check_seed, check_whole
from selective_backprop.scorers import ForwardScorer
from selective_backprop.scorers.base import fresh_of

STATE_VERSION = 1

_STATE_KEYS = {"method", "ranks", "batch_size", "epochs", "parts", "selector", "ledger", "stats", "losses"} | {
    *("dynamics", "reported", "transform", "stream", "learned_length", "generators")
}

_logger = logging.getLogger(__name__)


def check_arguments(
    loader: Any, model: Any, method: Any, *, batch_size: int | None, num_epochs: int | None, seed: Any
) -> None:
    """Raise if the loader, the model, the method or a size cannot work, or the method needs another setting."""
    if inspect.isfunction(loader) or inspect.ismethod(loader):
        raise TypeError(
            f"loader must be a DataLoader or another iterable of batches, got the function {loader.__name__}: if it "
            f"yields batches, call it, {loader.__name__}(); if each call returns one batch, pass "
            f"sb.BatchFunction({loader.__name__}, num_batches)"
        )
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be a DataLoader or another iterable of batches, got {type(loader).__name__}")
    if getattr(loader, "_is_accelerate_prepared", False):
        raise TypeError(
            "your loader went through accelerator.prepare, which reads ahead and hides the sampler: pass the "
            "DataLoader itself, and prepare only the model and the optimizer"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    require_method(method)
    check_whole("batch_size", batch_size)
    check_whole("num_epochs", num_epochs)
    check_seed(seed)
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"your model has lazy modules whose parameters have no shape before the first batch "
            f"({', '.join(lazy[:3])}): call the model on one batch before you make the optimizer and the loader"
        )


def check_batch_tokens(
    batch_tokens: int | None, *, batch_size: int | None, pad: Any, method: Method, ranks: Ranks
) -> None:
    """Raise if training batches cannot be made by tokens."""
    check_whole("batch_tokens", batch_tokens)
    if batch_tokens is None:
        return
    if batch_size is not None:
        raise ValueError(
            f"a training batch has {batch_size} examples by batch_size= or {batch_tokens} tokens by batch_tokens=: "
            "leave out one of them"
        )
    if not isinstance(pad, PadToLongest):
        raise ValueError(
            "batch_tokens= must know where padding is: pass pad=sb.pad_to_longest(...) with the fill value of each "
            'sequence of a batch, such as {"input_ids": 0, "attention_mask": 0, "labels": -100}'
        )
    if method.batch_scale != 1:
        raise ValueError(f"{method.name} decides the size of training batches itself: leave out batch_tokens=")
    if ranks.size > 1:
        raise ValueError(
            f"batch_tokens= works in a single process, but this run has {ranks.size} ranks, which must take equally "
            "many batches: pass batch_size= instead"
        )


def check_functions(**functions: Any) -> None:
    """Raise if one of the user's functions cannot be called."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, got {function!r:.100}")


def check_on_stats(on_stats: Any) -> None:
    """Raise if the function for statistics cannot work."""
    if on_stats is not None and not callable(on_stats):
        raise TypeError(f"on_stats must be a function of a dict, got {on_stats!r:.100}")
    check_whole("on_stats.every", getattr(on_stats, "every", None))


def check_source(
    source: AnySource, method: Method, ranks: Ranks, transform: Any = None, *, num_epochs: int | None
) -> None:
    """Raise if the method or the transform cannot work with the user's loader."""
    if getattr(transform, "takes_ids", False) and source.num_examples is None:
        raise ValueError(
            "your transform takes the ids of examples, and your loader has no ids: only a DataLoader over a map-style "
            "data set, with automatic batching, has them. Use a transform of the batch alone"
        )
    if method.needs_ids and source.num_examples is None:
        raise ValueError(
            f"{method.name} must know the id of each example, and your loader has no ids: only a DataLoader over a "
            "map-style data set, with automatic batching, has them. If a framework wrapped yours, as Fabric's "
            "setup_dataloaders does, pass the DataLoader itself. Methods that need no ids, such as "
            "selective_backprop, work with your loader"
        )
    if source.num_batches == 0 and (ranks.size == 1 or not source.is_pruned):
        raise ValueError("the loader is empty: it has no batch to offer")
    too_long = isinstance(source, IndexedSource) and not source.can_be_planned
    if too_long and method.scorer.needs.ids and method.plans_epochs:
        count = num_candidates(source.user_loader)
        raise ValueError(
            f"your sampler has {count:,} indices per epoch, for a data set of {source.num_examples:,} examples. That "
            f"is too long for {method.name}, which decides about a whole epoch before it loads it. Make an epoch one "
            "pass over the data set, with shuffle=True or RandomSampler(data, replacement=True, "
            "num_samples=len(data)), and train for several epochs; or use a method that decides batch by batch, such "
            "as selective_backprop"
        )
    check_method_of_run(method, source.num_examples, num_epochs)


def check_audit(audit: Any, source: AnySource) -> None:
    """Raise if training dynamics cannot be recorded for the user's loader."""
    if not isinstance(audit, bool):
        raise TypeError(f"audit must be True or False, got {audit!r}")
    if audit and source.num_examples is None:
        raise ValueError(
            "audit=True writes down what training says about each example, so it must know their ids, and your loader "
            "has none: only a DataLoader over a map-style data set, with automatic batching, has them"
        )


def check_ranks(model: nn.Module, method: Method, ranks: Ranks) -> None:
    """Raise if the model or the method does not work with several ranks."""
    if ranks.size == 1:
        return
    scorer = method.scorer
    if is_sharded(model) and scorer.needs.selection_pass and not isinstance(fresh_of(scorer), ForwardScorer):
        raise ValueError(
            f"your model is sharded by FSDP, which runs it on all ranks together, so {method.name} can score only with "
            "the model itself, not with a copy of it: use scoring='eval', scoring='train' or a scale factor"
        )


def to_agree_on(source: AnySource, method: Method, *, batch_size: int | None, **options: Any) -> dict[str, Any]:
    """Collect, by name, the settings that must be equal on all ranks, for `agree`.

    options: further options of the loader. Numbers and strings are compared. Other options, such as a transform, must
        be given on all ranks or on none.
    """
    import selective_backprop  # here, because it imports this module

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


def agree(team: Team, source: AnySource, agreed: dict[str, Any]) -> tuple[int | None, int | None]:
    """Raise if the ranks differ in settings that must be equal. All ranks must call this.

    Ranks with different settings would wait for each other forever, or train on other examples than the method says.
    Returns the number of candidate batches and of candidates per epoch, each on the rank that has the most; None if a
    rank does not know its number.
    """
    mine = {"agreed": agreed, "num_batches": source.num_batches, "batch_size": source.batch_size or 0}
    mine["num_candidates"] = source.num_candidates
    answers = team.ranks.gather_plain(mine)
    for rank, other in enumerate(answers):
        if found := differing(answers[0]["agreed"], other["agreed"]):
            raise ValueError(_disagreement(rank, found))
    batches = [other["num_batches"] for other in answers]
    num_batches = None if None in batches else max(batches)
    if num_batches == 0:
        raise ValueError("the loader is empty: it has no batch to offer, on any rank")
    # A lower bound. If each rank has its share of the data, it is below the size of the data set, even if shares are
    # padded to equal sizes.
    offered = sum(((count or 0) - 1) * other["batch_size"] for count, other in zip(batches, answers, strict=True))
    if team.size > 1 and team.is_first and source.num_examples and offered >= source.num_examples:
        _logger.warning(
            "each of the %d ranks goes through all %d examples, so an epoch offers every example %d times, as it would "
            "without selection. To divide them among ranks: DataLoader(data, sampler=DistributedSampler(data), ...)",
            team.size,
            source.num_examples,
            team.size,
        )
    candidates = [other["num_candidates"] for other in answers]
    return num_batches, None if None in candidates else max(candidates)


def _disagreement(rank: int, found: list[tuple[str, str, str]]) -> str:
    """Say which options differ between rank 0 and this rank, by their short names: max_age, not scorer.max_age."""
    (name, first, other), *more = [_by_own_name(*difference) for difference in found]
    text = f"all ranks need the same {name}; rank 0 has {first}, rank {rank} has {other}"
    if name != "method" and more:  # if methods differ, their options do too, and need not be listed
        text += f". They also differ in {', '.join(f'{name} ({one} and {two})' for name, one, two in more[:4])}"
    return text


def _by_own_name(path: str, one: str, two: str) -> tuple[str, str, str]:
    part, _, name = path.rpartition(".")
    if name in ("true", "shape", "checksum"):  # the parts of a tensor's description
        return part.rpartition(".")[2], f"{name} {one}", f"{name} {two}"
    return name, one, two


def check_state(
    state: dict[str, Any], method: Method, source: AnySource, *, batch_size: int | None, team: Team
) -> None:
    """Raise if a saved state does not fit, before anything is loaded from it."""
    check_saved_by(state, method, _STATE_KEYS, STATE_VERSION, "loader")
    check_rank(
        state,
        team,
        ", because each has other examples in its queue. To resume with another number of ranks, use save_checkpoint "
        "and load_checkpoint",
    )
    if None not in (batch_size, state["batch_size"]) and batch_size != state["batch_size"]:
        raise ValueError(
            f"the state was saved with training batches of {state['batch_size']}, but this loader's have {batch_size} "
            "examples: pass the same batch_size="
        )
    if state["transform"] is not None and not hasattr(source.transform, "load_state_dict"):
        raise ValueError(
            "the state was saved with a transform that has a state, but this loader's transform has no "
            "load_state_dict: pass the same transform="
        )
    generators = source.generators()
    if len(generators) != len(state["generators"]):
        raise ValueError(
            f"the state was saved with {len(state['generators'])} random generators in the DataLoader and its "
            f"samplers, but your DataLoader has {len(generators)}: make it the same way as in the saved run"
        )
    under_way = state["epochs"]["under_way"]
    if under_way is not None and ("batches" in under_way["place"]) != isinstance(source, IndexedSource):
        raise ValueError(
            "the state was saved in the middle of an epoch of another kind of loader: resume with the same kind, with "
            "or without ids"
        )
