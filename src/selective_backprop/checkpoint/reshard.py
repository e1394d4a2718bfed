"""Divides the saved states of a loader among another number of ranks than saved them.

# k = ranks that saved, B = training batch of a rank
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from selective_backprop.distributed.ledger import Write
from selective_backprop.dynamics.log import divide
from selective_backprop.ledger import Column, Ledger
from selective_backprop.loader.queue import Piece
from selective_backprop.sampler.id_batches import IdBatch, IdBatches, training_batch_sizes
from selective_backprop.sampler.stats import COMBINATIONS

State = dict[str, Any]
T = TypeVar("T")


def redeal(
    states: list[State], rank: int, size: int, batch_size: int | None = None, generators: list[Tensor] | None = None
) -> State:
    """Make the state with which `rank` of `size` resumes, from the states that k ranks saved.

    What was selected and not trained on yet, and what the epoch has still to offer, is dealt out evenly and in order:
    nothing is lost or doubled. What all ranks have in common stays as it is. What each has of its own, such as
    generators that differ, goes on with the rank of the same number; one that is new takes over from another. The
    ledger is left out; see `redeal_ledger`.

    Args:
        states: what `SelectiveLoader.state_dict` returned on each rank that saved.
        rank: the rank that resumes.
        size: number of ranks that resume.
        batch_size: B from now on; by default as saved.
        generators: states of the generators of this rank's DataLoader. They stay if as many were not saved: one process
            shuffles by a generator, several ranks by a DistributedSampler, which has none.
    """
    first, own = states[0], states[rank % len(states)]
    _require_same_moment(states)
    batch_size = first["batch_size"] if batch_size is None else batch_size
    under_way = None if first["epochs"]["under_way"] is None else _epoch(states, rank, size, batch_size)
    saved = _generators([_drawn(state) for state in states], rank)
    queued = under_way["queue"]["lengths"][rank] if under_way is not None and "queue" in under_way else 0
    return {
        **first,
        "ranks": {"rank": rank, "size": size},
        "batch_size": batch_size,
        "epochs": {**first["epochs"], "under_way": under_way},
        **{name: own[name] for name in ("parts", "selector", "transform", "stream")},
        "learned_length": None,  # each rank may have another share of the stream now
        "generators": saved if generators is None or len(saved) == len(generators) else generators,
        "stats": _stats([state["stats"] for state in states], rank, size, queued=queued),
        "reported": _stats([state["reported"] for state in states], rank, size),
        "losses": deal([step for state in states for step in state["losses"]], size)[rank],
        "dynamics": None if first["dynamics"] is None else divide([state["dynamics"] for state in states], rank, size),
    }


def redeal_ledger(states: list[State], rank: int, size: int, columns: Mapping[str, Column]) -> State:
    """Make the state of the ledger with which `rank` of `size` resumes.

    Args:
        states: what the ledger's `state_dict` returned on each rank that saved.
        rank: the rank that resumes.
        size: number of ranks that resume.
        columns: the declared columns of the ledger.
    """
    blocks = [state.get("block", state) for state in states]
    writes = [write for state in states for write in state.get("writes", [])]
    total = sum(len(block["loss"]) for block in blocks)
    begin, end = (min(number * -(-total // size), total) for number in (rank, rank + 1))
    own = {name: _rows([block[name] for block in blocks], begin, end) for name in blocks[0]}
    if size > 1:
        return {"num_examples": total, "block": own, "writes": deal(writes, size)[rank]}
    ledger = Ledger(total, columns)
    ledger.load_state_dict(own)
    for write in writes:
        Write(*write).apply(ledger)
    return ledger.state_dict(copy=False)


def _rows(parts: list[Tensor], begin: int, end: int) -> Tensor:
    """Return rows of a tensor that is in parts, without joining all of them."""
    found, passed = [], 0
    for part in parts:
        found.append(part[max(0, begin - passed) : max(0, end - passed)])
        passed += len(part)
    return torch.cat(found)


def _require_same_moment(states: list[State]) -> None:
    """Raise if ranks did not save these states together."""

    def moment(state: State) -> State:
        under_way = state["epochs"]["under_way"]
        batches = None if under_way is None else under_way["given"]
        named = {name: state[name] for name in ("version", "method", "batch_size")}
        return {**named, "epoch": state["epochs"]["epoch"], "number of batches in the epoch": batches}

    first = moment(states[0])
    for rank, state in enumerate(states):
        for name, value in moment(state).items():
            if value != first[name]:
                raise ValueError(
                    f"{name} is {first[name]} on rank 0 and {value} on rank {rank}: their states were not saved at the "
                    "same time"
                )


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
    loaded = sum(epoch["place"]["position"] - len(_loaded_ahead(epoch)) for epoch in epochs) // size
    began_with = _stats([epoch["began_with"] for epoch in epochs], rank, size, queued=0)
    if first["kind"] == "planned":
        batches = _cut_anew(IdBatches.join(in_turn), rank, size, batch_size)
        own: State = {"ready": []}
        if first["offered"] is not None:  # else one process passes the user's own batches
            counts = {name: deal_count([one[name] for one in epochs], rank, size) for name in ("offered", "counted")}
            own |= {"planned": loaded + len(batches), **counts}
        most = len(batches)
    else:
        batches = IdBatches.join(in_turn[rank::size])
        queue = _queue_state([epoch["queue"] for epoch in epochs], rank, size)
        own = {"queue": queue, "round": loaded, "ahead": None}
        most = -(-len(in_turn) // size)
    place = {"position": loaded, "total": loaded + most, "batches": batches.state_dict(), "drawn": None}
    return {**first, **own, "place": place, "began_with": began_with}


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
    counts = [end - begin for begin, end in bounds]
    largest = batch_size or max([1, *left.sizes.tolist()])
    sizes = training_batch_sizes(counts[rank], largest, drop_last=False, counts=counts)
    begin = bounds[rank][0]
    rows = slice(begin, begin + int(sizes.sum()))
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


def _drawn(state: State) -> list[Tensor]:
    """Return the states of a rank's generators after its sampler has drawn the whole epoch."""
    under_way = state["epochs"]["under_way"]
    drawn: list[Tensor] | None = None if under_way is None else under_way["place"].get("drawn")
    return state["generators"] if drawn is None else drawn


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


def _stats(states: list[State], rank: int, size: int, *, queued: int | None = None) -> State:
    """Make the statistics with which `rank` of `size` resumes. Each is combined as it declares (`Combination`).

    queued: the length of the rank's queue; by default a part of what was queued when the statistics were taken.
    """

    def combine(name: str) -> Any:
        values = [state[name] for state in states]
        how = COMBINATIONS[name]
        if how == "count" or (how == "queue" and queued is None):
            return deal_count(values, rank, size)
        if how == "sums":
            return {key: sum(value[key] for value in values) / size for key in values[0]}
        if how == "longest":
            return {key: max(value[key] for value in values) for key in values[0]}
        return queued if how == "queue" else values[0]

    return {name: combine(name) for name in states[0]}


def deal_count(counts: list[int], rank: int, size: int) -> int:
    """Return this rank's part of the sum of counts. The parts of all ranks add up to that sum.

    >>> [deal_count([3, 4], rank, 3) for rank in range(3)]
    [3, 2, 2]
    """
    total = sum(counts)
    return total // size + (rank < total % size)
