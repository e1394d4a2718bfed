"""Ranks: the processes that train together, and the messages they send each other about selection.

# k = number of ranks
"""

from __future__ import annotations

import atexit
import hashlib
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """All ranks of the default process group, connected by a second process group for CPU tensors.

    Selection happens on the CPU, so scores need not go back to a GPU to be exchanged. A group of its own keeps these
    messages apart from the exchange of gradients. All ranks must call every method, in the same order.

    Args:
        group: a process group for CPU tensors. It is not kept alive: see `close_groups`.
    """

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.bytes_sent = 0
        """Bytes sent from this rank to others so far. `docs/explanations/scaling.md` reports them."""

    @property
    def group(self) -> Any:
        """The process group."""
        group = self._group()
        if group is None:
            raise RuntimeError(
                "the process group that the loader was made in is closed: make the loader after init_process_group, "
                "and use it before destroy_process_group"
            )
        return group

    def gather(self, values: Tensor, counts: list[int] | None = None) -> list[Tensor]:
        """Return every rank's (n,) tensor, by rank. All have the same dtype; lengths may differ.

        counts: the lengths, if all ranks know them. This saves a message.
        """
        if counts is None:
            counts = [int(count) for count in self._all_gather(torch.tensor([len(values)]))]
        longest = max(counts)
        if not longest:
            return [values] * self.size
        padded = values if len(values) == longest else values.new_zeros(longest)
        padded[: len(values)] = values
        return [row[:count] for row, count in zip(self._all_gather(padded), counts, strict=True)]

    def _all_gather(self, values: Tensor) -> list[Tensor]:
        """Gather (n,) tensors, where n is the same on all ranks."""
        result = [torch.empty_like(values) for _ in range(self.size)]
        self.bytes_sent += values.nbytes * (self.size - 1)
        with self._reporting() as group:
            dist.all_gather(result, values.contiguous(), group=group)
        return result

    def share(self, numbers: list[float]) -> list[list[float]]:
        """Return every rank's numbers, by rank. Each rank gives equally many."""
        values = torch.tensor(numbers, dtype=torch.float64)
        return [received.tolist() for received in self._all_gather(values)]

    def exchange(self, parts: list[Tensor]) -> list[Tensor]:
        """Send part i to rank i. Entry i of the result came from rank i.

        Parts are (n,) tensors of the same dtype; lengths may differ.
        """
        sizes = torch.tensor([len(part) for part in parts])
        coming = torch.empty_like(sizes)
        with self._reporting() as group:
            dist.all_to_all_single(coming, sizes, group=group)
            result = parts[0].new_empty(int(coming.sum()))
            dist.all_to_all_single(result, torch.cat(parts), coming.tolist(), sizes.tolist(), group=group)
        own = parts[self.rank].nbytes
        self.bytes_sent += 8 * (self.size - 1) + sum(part.nbytes for part in parts) - own
        return list(torch.split(result, coming.tolist()))

    def gather_plain(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank. JSON must be able to hold the value, so no code in a message is run."""
        message = torch.frombuffer(bytearray(json.dumps(value, default=str).encode()), dtype=torch.uint8)
        return [json.loads(part.numpy().tobytes()) for part in self.gather(message)]

    @contextmanager
    def _reporting(self) -> Iterator[Any]:
        """Give out the group. Replace torch's error for a broken connection by one that says what to do."""
        group = self.group
        try:
            yield group
        except RuntimeError as error:
            raise lost_another(self.rank, self.size, "agreed on what to train on") from error


class Alone(Ranks):
    """A single process that trains alone: it sends no messages and receives what it gives."""

    def __init__(self) -> None:
        self.rank, self.size, self.bytes_sent = 0, 1, 0

    @property
    def group(self) -> None:
        return None

    def gather(self, values: Tensor, counts: list[int] | None = None) -> list[Tensor]:
        return [values]

    def share(self, numbers: list[float]) -> list[list[float]]:
        return [numbers]

    def gather_plain(self, value: Any) -> list[Any]:
        return [value]

    def exchange(self, parts: list[Tensor]) -> list[Tensor]:
        return parts


def lost_another(rank: int, size: int, doing: str) -> RuntimeError:
    """Make the error to raise when the connection to another rank broke.

    doing: what the ranks were doing, such as "saved a checkpoint".
    """
    return RuntimeError(
        f"rank {rank} of {size} lost another rank while they {doing}: it ended, or did not answer in time. See its own "
        "output for why; start again from the last checkpoint, or let torchrun do so (--max-restarts). If it runs, it "
        "made other calls: all ranks must call save_checkpoint, not rank 0 alone"
    )


def seed_of_rank(seed: int, rank: int) -> int:
    """Derive a seed for one rank. Different seeds or ranks give different results.

    The sum would not do: rank 0 with seed 1 and rank 1 with seed 0 would draw the same numbers.

    >>> len({seed_of_rank(seed, rank) for seed in range(-20, 20) for rank in range(40)})
    1600
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {rank}".encode()).digest()[:8])


def seed_of_process(seed: int) -> int:
    """Derive this process's seed, for what every rank draws by itself. It is `seed` if the process trains alone."""
    alone = not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
    return seed if alone else seed_of_rank(seed, dist.get_rank())


_GROUPS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def close_groups() -> None:
    """Close all groups before the interpreter shuts down.

    A thread of a group frees the tensors of the last message, for which it needs the interpreter. If that has begun to
    shut down, the whole process is aborted. A group waits for its threads when its last reference is gone, which is why
    nothing else of ours may hold one.
    """
    for default in list(_GROUPS):
        with suppress(Exception):  # usually closed already, together with the default group
            dist.destroy_process_group(_GROUPS[default])
        del _GROUPS[default]


def current_ranks() -> Ranks:
    """Return the ranks that this process trains with."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Alone()
    default = dist.group.WORLD
    if default not in _GROUPS:  # one for all loaders: connections are not free
        if not _GROUPS:
            atexit.register(close_groups)
        try:
            _GROUPS[default] = dist.new_group(backend="gloo", timeout=timeout_of(default))
        except RuntimeError as error:
            raise lost_another(dist.get_rank(), dist.get_world_size(), "connected to select together") from error
    return Ranks(_GROUPS[default])


def timeout_of(group: Any) -> timedelta | None:
    """Return how long the group waits for a rank that does not answer: the `timeout=` of `init_process_group`.

    torch has no public way to ask. The options of the group's backend hold the timeout, if the backend has options.
    Otherwise the store through which ranks found each other has it: `init_process_group` gives the store the same
    timeout unless the caller made the store. If neither knows, the result is None: torch's default of half an hour.
    """
    for device in getattr(group, "_device_types", []):
        with suppress(RuntimeError, AttributeError):  # a device without a backend, a backend without options
            timeout = group._get_backend(device).options._timeout
            if isinstance(timeout, timedelta):
                return timeout
    with suppress(RuntimeError, AttributeError):
        store: Any = dist.distributed_c10d._get_default_store()
        timeout = store.timeout
        if isinstance(timeout, timedelta):
            return timeout
    return None


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


Move = tuple[int, int, int]
"""(giving rank, receiving rank, number of examples)"""


def moves_to_even_out(lengths: list[int]) -> list[Move]:
    """Find the moves that make all queues equally long, give or take one, and move as few examples as possible.

    >>> moves_to_even_out([300, 100, 200, 201])
    [(0, 1, 99), (3, 1, 1)]
    """
    mean, extra = divmod(sum(lengths), len(lengths))
    # The longest queues keep the examples that do not divide evenly.
    longest = sorted(range(len(lengths)), key=lambda rank: -lengths[rank])[:extra]
    missing = [mean + (rank in longest) - length for rank, length in enumerate(lengths)]
    moves = []
    takers = [rank for rank, count in enumerate(missing) if count > 0]
    for giver, count in enumerate(missing):
        while count < 0:
            step = min(-count, missing[takers[0]])
            moves.append((giver, takers[0], step))
            missing[takers[0]] -= step
            count += step
            if not missing[takers[0]]:
                takers.pop(0)
    return moves
