"""Every fault there is, by name. Each is a function of an empty folder, and fails by an error if it is not survived."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.torture import collisions, files, kills, layouts, loaders, ranked_checkpoints, ranks
from tests.torture.runs import METHODS

KILLS, LAYOUTS, COLLISIONS = 50, 30, 20
_KILLS_AT_ONCE = 5


@dataclass(frozen=True)
class Fault:
    """What happens, how often it is tried, and what tries it: returns how often it happened, or None for once."""

    name: str
    times: int
    happen: Callable[[Path], int | None]
    quick: bool = True
    """Whether `make test` has it too; a few are much like others."""
    part: int = 0
    """Of several with this name, which have one row in the table."""


def killed_runs(kills_in_all, seed=0):
    """Killed at moments drawn from a seed, spread over the methods; a few kills at a time, so that progress is kept."""
    share, more = divmod(kills_in_all, len(METHODS))
    counts = {method: share + (number < more) for number, method in enumerate(METHODS)}
    return [
        Fault(f"killed at any moment, {method}", count, partial(_killed, method, count, part, seed), part=part)
        for method, in_all in counts.items()
        for part, count in enumerate(_parts(in_all, _KILLS_AT_ONCE))
    ]


def _killed(method, count, part, seed, scratch):
    return kills.survive_chance(method, scratch, count, seed if part == 0 else f"{seed} {part}")


def _parts(in_all, at_once):
    """As many as there are, some at a time.

    >>> _parts(12, 5)
    [5, 5, 2]
    """
    return [min(at_once, in_all - done) for done in range(0, in_all, at_once)]


def random_layouts(in_all, seed=0):
    """Short runs on 2 to 4 ranks, of data, methods and models drawn from a seed."""
    return [
        Fault("random layout on 2 to 4 ranks", count, partial(layouts.survive, part, count, seed), False, part)
        for part, count in enumerate(_parts(in_all, layouts.AT_ONCE))
    ]


def colliding_saves(in_all, seed=0):
    """Two processes that save to one folder, one of them killed."""
    return [
        Fault(
            "two processes save to one folder", count, partial(collisions.survive, count, f"{seed} {part}"), False, part
        )
        for part, count in enumerate(_parts(in_all, 10))
    ]


def killed_ranks(seed=0):
    """Two ranks that are killed together, or one of them; starting torchrun takes too long for `make test`."""
    return [
        Fault("two ranks, all killed, save_checkpoint", 5, partial(ranks.all_killed, 5, seed), False),
        Fault("one of two ranks killed, save_checkpoint", 3, partial(ranks.one_killed, seed), False),
        Fault("newest save_checkpoint of two ranks damaged", 1, ranked_checkpoints.damaged, False),
    ]


OTHERS = [
    *(
        Fault(f"{what}: {name}", 1, partial(function, name), quick=name == "a bit flipped")
        for what, function in (
            ("checkpoint", files.damaged_checkpoint),
            ("records", files.damaged_records),
        )
        for name in files.DAMAGES
    ),
    Fault("no room for a checkpoint", 1, files.no_room_for_a_checkpoint),
    Fault("disk full", 1, files.full_disk),
    Fault("folder became read-only", 1, files.read_only_folder),
    Fault("NaN in the middle of a run", 1, files.nan_in_the_middle),
    Fault("data grew, shrank, was replaced between runs", 1, files.changed_data),
    *(
        Fault(f"DataLoader worker {name}", 1, partial(loaders.dying_worker, name), quick=name == "is killed")
        for name in loaders.ENDS
    ),
    Fault("state of a loader of more or fewer examples", 1, loaders.changed_data_set),
    Fault("state of a longer stream", 1, loaders.shorter_stream),
    Fault("losses all equal, every method", 1, loaders.equal_losses),
]
