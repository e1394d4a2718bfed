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
from selective_backprop.loader.index_stream import Chunk, chunks_from_state, chunks_to_state
from selective_backprop.loader.queue import Rows
from selective_backprop.loader.stats import COMBINATIONS

State = dict[str, Any]
T = TypeVar("T")
_BEGAN = ("offered", "selected")


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
        for name in ("version", "method", "epoch", "in_epoch", "round", "batch_size"):
            if state[name] != first[name]:
                raise ValueError(
                    f"{name} is {first[name]} on rank 0 and {state[name]} on rank {other}: their states were not saved "
                    "at the same time"
                )
    queues = _deal_queue(states, size)
    source = _source(states, rank, size)
    return {
        **first,
        "ranks": {"rank": rank, "size": size},
        "batch_size": first["batch_size"] if batch_size is None else batch_size,
        "carried": _carried([state["carried"] for state in states], rank),
        "round": source.get("position", 0),
        "queue": _queue_state(states, queues, rank),
        "ahead": None,
        "source": source,
        "transform": own["transform"],
        "selector": {
            **own["selector"],
            "generator": _generators([[state["selector"]["generator"]] for state in states], rank)[0],
        },
        "began": {name: deal_count([state["began"][name] for state in states], rank, size) for name in _BEGAN}
        | {"batches": first["began"]["batches"]},
        "stats": _stats([state["stats"] for state in states], rank, size, queued=_length(queues[rank])),
        "reported": _reported(
            [state["reported"] if "reported" in state else state["stats"] for state in states], rank, size
        ),
        "feedback": {"steps": deal([step for state in states for step in state["feedback"]["steps"]], size)[rank]},
        **({"dynamics": divide([state["dynamics"] for state in states], rank, size)} if "dynamics" in first else {}),
    }


def deal(items: list[T], size: int) -> list[list[T]]:
    """Cut the items into `size` consecutive lists whose lengths differ by at most one.

    >>> deal([1, 2, 3, 4, 5], 2), deal([1], 3)
    ([[1, 2, 3], [4, 5]], [[1], [], []])
    """
    return [items[begin:end] for begin, end in _bounds(len(items), size)]


def _bounds(total: int, size: int) -> list[tuple[int, int]]:
    ends = [-(-total * i // size) for i in range(size + 1)]
    return list(itertools.pairwise(ends))


# ---- the queue of selected examples


def _deal_queue(states: list[State], size: int) -> list[list[Rows]]:
    """Join the queues of all ranks and cut them into new ones."""
    pieces = [Rows(*piece) for state in states for kind in ("whole", "pieces") for piece in state["queue"][kind]]
    queues = []
    for begin, end in _bounds(_length(pieces), size):
        queue, passed = [], 0
        for piece in pieces:
            part = piece.part(slice(max(0, begin - passed), max(0, end - passed)))
            if len(part.weights):
                queue.append(part)
            passed += len(piece.weights)
        queues.append(queue)
    return queues


def _queue_state(states: list[State], queues: list[list[Rows]], rank: int) -> State:
    layouts = [state["queue"]["layout"] for state in states if state["queue"]["layout"] is not None]
    return {
        "layout": layouts[0] if layouts else None,
        "whole": [],
        "pieces": [list(rows) for rows in queues[rank]],
        "lengths": [_length(rows) for rows in queues],
        "moved": states[0]["queue"].get("moved", 0),
    }


def _length(rows: list[Rows]) -> int:
    return sum(len(part.weights) for part in rows)


# ---- the rest of the epoch


def _source(states: list[State], rank: int, size: int) -> State:
    sources = [state["source"] for state in states]
    result: State = {"generators": _generators([source["generators"] for source in sources], rank)}
    if not states[0]["in_epoch"]:
        return result
    if any(source["chunks"] is None for source in sources):
        raise ValueError(
            f"saved by {len(states)} ranks in the middle of an epoch, and these are {size}: your loaders have no ids, "
            f"so the rest of the epoch cannot be divided anew. Resume with {len(states)} ranks, or save between epochs"
        )
    if any("place" in source for source in sources):
        raise ValueError(
            f"saved by {len(states)} ranks in the middle of an epoch of very many candidates, and these are {size}: "
            f"each rank has its own place in its sampler. Resume with {len(states)} ranks, or save between epochs"
        )
    # In the order in which they would have come: the first chunk of every rank, then the second of every rank.
    remaining = [_remaining(state) for state in states]
    turns = max(len(chunks) for chunks in remaining)
    in_turn = [chunks[turn] for turn in range(turns) for chunks in remaining if turn < len(chunks)]
    tails = torch.cat([source["tail"] for source in sources])
    tail = tails.tensor_split(size)[rank]
    loaded = sum(
        source["position"] - (state["ahead"] is not None) for source, state in zip(sources, states, strict=True)
    )
    return result | {
        "position": loaded // size,
        "finished": not in_turn and all(source["finished"] for source in sources),
        "chunks": chunks_to_state(in_turn[rank::size]),
        "tail": tail,
        # If other examples were skipped too, the epoch does not keep everything, and this number does not matter.
        "tail_waiting": len(tail) if sum(source["tail_waiting"] for source in sources) == len(tails) else 0,
        "inner": None,
    }


def _remaining(state: State) -> list[Chunk]:
    """List the chunks that are left, with the one that was loaded ahead, which is loaded again."""
    ahead = [] if state["ahead"] is None else chunks_from_state(state["ahead"]["chunk"])
    return ahead + chunks_from_state(state["source"]["chunks"])


def _carried(states: list[list[Any]], rank: int) -> list[Any]:
    """Divide the counts of carried-over examples. All ranks know the total; of passed ones only the sum matters."""
    starts_empty, num_carried, _ = states[0]
    return [starts_empty, num_carried, sum(state[-1] for state in states) if rank == 0 else 0]


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
