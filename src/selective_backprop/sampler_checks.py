"""Checks that SelectiveSampler makes when it is constructed, so that no run fails halfway through."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from torch.utils.data import BatchSampler

from selective_backprop.checks import check_seed, check_whole
from selective_backprop.losses import as_ids
from selective_backprop.method import Method, require_method
from selective_backprop.scorers.audited import AuditedLossScorer


def check_arguments(source: Any, *, seed: Any, **numbers: Any) -> None:
    """Raise if the source of ids or a number cannot work."""
    for name, value in numbers.items():
        check_whole(name, value)
    check_seed(seed)
    if isinstance(source, int):
        check_whole("source, the size of the data set,", source)
        if numbers["num_examples"] not in (None, source):
            raise ValueError(f"source is a data set of {source} examples, but num_examples={numbers['num_examples']}")
        return
    if hasattr(source, "update") and hasattr(source, "ledger"):
        raise TypeError("source is a SelectiveSampler already: pass the sampler inside it, or the size of the data set")
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


def check_planned(method: Any, *, batch_size: int | None) -> None:
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


def length_at_most(source: Any, method: Method, num_ranks: int) -> int:
    """Return the most ids that an epoch of one rank can have."""
    if not isinstance(source, int):
        return len(source)
    return (source if method.keep is None else int(method.keep.sum())) // num_ranks
