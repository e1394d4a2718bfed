"""What ranks do together that may fail on one of them: then it fails on all, and none waits for it in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from selective_backprop.distributed.messages import gather as gather
from selective_backprop.distributed.ranks import Ranks

T = TypeVar("T")


@contextmanager
def together(ranks: Ranks, failed: str = "failed") -> Iterator[None]:
    """What this block does on every rank; it must not talk to the others meanwhile. By all ranks.

    Where it raises, that error goes on. The other ranks raise, too, and say which one failed and why.

    failed: the verb for it, such as "could not start".
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    problems = gather(ranks, None if failure is None else _sentence(failure))
    if failure is not None:
        raise failure
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise RuntimeError(f"rank {rank} {failed}: {problem}")


def _sentence(error: Exception) -> str:
    """What the error says, with its kind where the message was not written for users of this library."""
    return str(error) if isinstance(error, (ValueError, TypeError)) else f"{type(error).__name__}: {error}"


def all_do(ranks: Ranks, work: Callable[[], T]) -> T:
    """work() on every rank, which must not talk to the others meanwhile."""
    with together(ranks):
        return work()


def first_does(ranks: Ranks, work: Callable[[], Any]) -> Any:
    """work() on rank 0, and its result, of what JSON knows, on all."""
    result = all_do(ranks, lambda: work() if ranks.rank == 0 else None)
    return gather(ranks, result)[0]
