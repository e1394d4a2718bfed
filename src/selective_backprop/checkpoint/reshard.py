"""Divides the saved states of a loader among another number of ranks than saved them.

# k = ranks that saved, B = training batch of a rank
"""

from __future__ import annotations

import itertools
import math
from typing import Any, TypeVar

import torch
from torch import Tensor

from selective_backprop.dynamics.log import divide
from selective_backprop.loader.queue import Piece
from selective_backprop.loader.stats import COMBINATIONS
from selective_backprop.sampler.id_batches import IdBatch, IdBatches, training_batch_sizes

State = dict[str, Any]
T = TypeVar("T")


def redeal(states: list[State], rank: int, size: int, batch_size: int | None = None) -> State:
    """Make the state with which `rank` of `size` resumes, from the states that k ranks saved.

    What was selected and not trained on yet, and what the epoch has still to offer, is dealt out evenly and in order:
    nothing is lost or doubled. What all ranks have in common stays as it is. What each has of its own, such as
    generators that differ, goes on with the rank of the same number; one that is new takes over from another. The
    ledger is left out.

    Args:
        states: what `SelectiveLoader.state_dict` returned on each rank that saved.
        rank: the rank that resumes.
        size: number of ranks that resume.
        batch_size: B from now on; by default as saved.
    """
    first, own = states[0], states[rank % len(states)]
    for other, state in enumerate(states):
        for name in ("version", "method", "batch_size"):
            if state[name] != first[name]:
                raise ValueError(_not_together(name, first[name], state[name], other))
        for name, value in {"epoch": state["epochs"]["epoch"], "in_epoch": _in_epoch(state)}.items():
            expected = {"epoch": first["epochs"]["epoch"], "in_epoch": _in_epoch(first)}[name]
            if value != expected:
                raise ValueError(_not_together(name, expected, value, other))
    size_of_batch = first["batch_size"] if batch_size is None else batch_size
    under_way = _epoch(states, rank, size, size_of_batch) if _in_epoch(first) else None
    queued = sum(under_way["queue"]["lengths"][rank : rank + 1]) if under_way and "queue" in under_way else 0
    return {
        **first,
        "ranks": {"rank": rank, "size": size},
        "batch_size": size_of_batch,
        "epochs": {**first["epochs"], "under_way": under_way},
        "parts": {
            **own["parts"],
            "generator": _generators([[state["parts"]["generator"]] for state in states], rank)[0],
        },
        "selector": own["selector"],
        "transform": own["transform"],
        "generators": _generators([state["generators"] for state in states], rank),
        "stats": _stats([state["stats"] for state in states], rank, size, queued=queued),
        "reported": _reported([state["reported"] for state in states], rank, size),
        "losses": deal([step for state in states for step in state["losses"]], size)[rank],
        "dynamics": None if first["dynamics"] is None else divide([state["dynamics"] for state in states], rank, size),
    }


def _in_epoch(state: State) -> bool:
    return state["epochs"]["under_way"] is not None


def _not_together(name: str, first: Any, other: Any, rank: int) -> str:
    return f"{name} is {first} on rank 0 and {other} on rank {rank}: their states were not saved at the same time"


def deal(items: list[T], size: int) -> list[list[T]]:
    """Cut the items into `size` consecutive lists whose lengths differ by at most one.

    >>> deal([1, 2, 3, 4, 5], 2), deal([1], 3)
    ([[1, 2, 3], [4, 5]], [[1], [], []])
    """
    return [items[begin:end] for begin, end in _bounds(len(items), size)]


def _bounds(total: int, size: int) -> list[tuple[int, int]]:
    ends = [-(-total * i // size) for i in range(size + 1)]
    return list(itertools.pairwise(ends))


# ---- the epoch under way


def _epoch(states: list[State], rank: int, size: int, batch_size: int | None) -> State:
    """Divide what is left of the epoch."""
    epochs = [state["epochs"]["under_way"] for state in states]
    first = epochs[0]
    if any("batches" not in epoch["place"] for epoch in epochs):
        raise ValueError(
            f"saved by {len(states)} ranks in the middle of an epoch, and these are {size}: your loaders have no ids, "
            f"so the rest of the epoch cannot be divided anew. Resume with {len(states)} ranks, or save between epochs"
        )
    # In the order in which they would have come: the first batch of every rank, then the second of every rank.
    remaining = [_remaining(epoch) for epoch in epochs]
    turns = max(map(len, remaining))
    in_turn = [batches[turn] for turn in range(turns) for batches in remaining if turn < len(batches)]
    loaded = sum(epoch["place"]["position"] - len(_loaded_ahead(epoch)) for epoch in epochs)
    place: State = {"position": loaded // size}
    began_with = _stats([epoch["began_with"] for epoch in epochs], rank, size, queued=0)
    if first["kind"] == "planned":
        batches = _cut_anew(IdBatches.join(in_turn), rank, size, batch_size)
        place |= {"total": place["position"] + len(batches), "batches": batches.state_dict()}
        counts = {
            name: None
            if any(epoch[name] is None for epoch in epochs)
            else deal_count([epoch[name] for epoch in epochs], rank, size)
            for name in ("offered", "counted")
        }
        planned = None if first["planned"] is None else place["total"]
        return {**first, "place": place, "began_with": began_with, "planned": planned, "ready": [], **counts}
    totals = [epoch["place"]["total"] for epoch in epochs]
    total = None if None in totals else -(-sum(totals) // size)
    place |= {"total": total, "batches": IdBatches.join(in_turn[rank::size]).state_dict()}
    queue = _queue_state([epoch["queue"] for epoch in epochs], rank, size)
    rounds = {"round": place["position"], "ahead": None}
    return {**first, "place": place, "began_with": began_with, "queue": queue, **rounds}


def _remaining(epoch: State) -> list[IdBatch]:
    """List the batches that are left, with those that were loaded ahead, which are loaded again."""
    return _loaded_ahead(epoch) + list(IdBatches.from_state_dict(epoch["place"]["batches"]))


def _loaded_ahead(epoch: State) -> list[IdBatch]:
    if epoch["kind"] == "planned":
        return [IdBatch(batch["ids"], batch["weights"], batch["probabilities"]) for batch in epoch["ready"]]
    return [] if epoch["ahead"] is None else list(IdBatches.from_state_dict(epoch["ahead"]["asked"]))


def _cut_anew(left: IdBatches, rank: int, size: int, batch_size: int | None) -> IdBatches:
    """Cut the ids that are left into training batches, equally many on every rank."""
    bounds = _bounds(len(left.ids), size)
    rows, most = slice(*bounds[rank]), max(end - begin for begin, end in bounds)
    largest = batch_size or max([1, *left.sizes.tolist()])
    sizes = training_batch_sizes(rows.stop - rows.start, largest, drop_last=False, most=most)
    columns = (None if column is None else column[rows] for column in (left.weights, left.probabilities))
    return IdBatches(left.ids[rows], sizes, *columns)


def _queue_state(queues: list[State], rank: int, size: int) -> State:
    """Join the queues of all ranks and cut them into new ones."""
    pieces = [Piece(*piece) for queue in queues for kind in ("whole", "pieces") for piece in queue[kind]]
    parts: list[list[Piece]] = []
    for begin, end in _bounds(sum(len(piece.weights) for piece in pieces), size):
        part, passed = [], 0
        for piece in pieces:
            own = piece.part(slice(max(0, begin - passed), max(0, end - passed)))
            if len(own.weights):
                part.append(own)
            passed += len(piece.weights)
        parts.append(part)
    layouts = [queue["layout"] for queue in queues if queue["layout"] is not None]
    return {
        "layout": layouts[0] if layouts else None,
        "whole": [],
        "pieces": [list(piece) for piece in parts[rank]],
        "lengths": [sum(len(piece.weights) for piece in part) for part in parts],
        "last_sizes": None,  # found out anew when all ranks know that no candidates are left
    }


# ---- random numbers and counts


def _generators(states: list[list[Tensor]], rank: int) -> list[Tensor]:
    """Choose the states of this rank's generators from those of all ranks that saved.

    If they were the same on all ranks, they stay the same. If not, a new rank must not draw the same numbers as
    another.
    """
    own = states[rank % len(states)]
    if rank < len(states) or all(torch.equal(a, b) for other in states for a, b in zip(other, states[0], strict=True)):
        return own
    result = []
    for state in own:
        generator = torch.Generator()
        generator.set_state(state)
        seed = int(torch.randint(2**62, (), generator=generator)) + rank
        result.append(torch.Generator().manual_seed(seed).get_state())
    return result


def _stats(states: list[State], rank: int, size: int, *, queued: int) -> State:
    """Make the statistics with which `rank` of `size` resumes. Each is combined as it declares (`Combination`)."""
    scored = [state["scored"] for state in states]

    def combine(name: str) -> Any:
        values = [state[name] for state in states]
        how = COMBINATIONS[name]
        if how == "count":
            return deal_count(values, rank, size)
        if how == "sums":
            return {key: sum(value[key] for value in values) / size for key in values[0]}
        if how == "mean of scores":
            return _weighted_mean(values, scored)
        if how == "longest":
            return {key: max(value[key] for value in values) for key in values[0]}
        return queued if how == "queue" else values[0]

    return {name: combine(name) for name in states[0]}


def _reported(states: list[State], rank: int, size: int) -> State:
    """Make the statistics that were reported already."""
    queued = deal_count([state["queued"] for state in states], rank, size)
    return _stats(states, rank, size, queued=queued)


def _weighted_mean(values: list[float], weights: list[int]) -> float:
    """Compute the weighted mean of the values that are known; the first value if none is known or has a weight."""
    pairs = zip(values, weights, strict=True)
    known = [(value, weight) for value, weight in pairs if weight and not math.isnan(value)]
    if not known:
        return values[0]
    # Relative to the first: the mean of equal values is that value, to the bit.
    first = known[0][0]
    return first + sum((value - first) * weight for value, weight in known) / sum(weight for _, weight in known)


def deal_count(counts: list[int], rank: int, size: int) -> int:
    """Return this rank's part of the sum of counts. The parts of all ranks add up to that sum.

    >>> [deal_count([3, 4], rank, 3) for rank in range(3)]
    [3, 2, 2]
    """
    total = sum(counts)
    return total // size + (rank < total % size)
