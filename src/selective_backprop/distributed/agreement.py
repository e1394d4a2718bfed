"""Steps that all ranks take together. If one rank fails, all ranks raise, so that none waits for it forever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from selective_backprop.distributed.ranks import Ranks

T = TypeVar("T")


@contextmanager
def fails_on_all(ranks: Ranks, failed: str = "failed") -> Iterator[None]:
    """Run a block on every rank. If it raises on one rank, all ranks raise. All ranks must enter it.

    The rank that failed raises its own error. The others raise one that says which rank failed and why. The block
    must not send messages between ranks.

    failed: the verb for the error, such as "could not start".
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    problems = ranks.gather_plain(None if failure is None else _sentence(failure))
    if failure is not None:
        raise failure
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise RuntimeError(f"rank {rank} {failed}: {problem}")


def _sentence(error: Exception) -> str:
    """Return the error's message. ValueError and TypeError come from this library's checks and need no name."""
    return str(error) if isinstance(error, (ValueError, TypeError)) else f"{type(error).__name__}: {error}"


def all_do(ranks: Ranks, work: Callable[[], T]) -> T:
    """Run work() on every rank; see `fails_on_all`. All ranks must call this."""
    with fails_on_all(ranks):
        return work()


def first_does(ranks: Ranks, work: Callable[[], Any]) -> Any:
    """Run work() on rank 0 and return its result on all ranks. JSON must be able to hold the result."""
    result = all_do(ranks, lambda: work() if ranks.rank == 0 else None)
    return ranks.gather_plain(result)[0]
