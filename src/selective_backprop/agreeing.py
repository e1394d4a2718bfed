"""What ranks do together that may fail on one of them: then it fails on all, and none waits for it in vain."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from selective_backprop.ranks import Ranks

T = TypeVar("T")


def gather(ranks: Ranks | None, value: Any) -> list[Any]:
    """Every rank's value, of what JSON knows; by rank."""
    if ranks is None:
        return [value]
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    return [json.loads(bytes(part.tolist())) for part in ranks.gather(text)]


def all_do(ranks: Ranks | None, work: Callable[[], T]) -> T:
    """work() on every rank, which must not talk to the others meanwhile."""
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    problems = gather(ranks, None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise RuntimeError(f"rank {rank} failed: {problem}")
    return result  # type: ignore[return-value]  # there was no failure


def first_does(ranks: Ranks | None, work: Callable[[], Any]) -> Any:
    """work() on rank 0, and its result, of what JSON knows, on all."""
    is_first = ranks is None or ranks.rank == 0
    result = all_do(ranks, lambda: work() if is_first else None)
    return gather(ranks, result)[0]
