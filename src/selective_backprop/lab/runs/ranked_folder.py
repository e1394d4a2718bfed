"""The folder of a run on several ranks. Only rank 0 reads and writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selective_backprop.distributed.messages import collect, hand_out
from selective_backprop.distributed.ranks import current_ranks
from selective_backprop.lab.runs.ranks import from_first, number_of_ranks
from selective_backprop.lab.runs.records import RunFolder

_OF_EACH = ("loader", "random")  # parts of a checkpoint that differ between ranks; the model and the optimizer do not


class RankedFolder:
    """A `RunFolder` for several ranks, with the same arguments and methods. All ranks call each method together.

    The checkpoint holds the state of rank 0 as that of a single process does. The states of the other ranks are in
    "other_ranks".
    """

    def __init__(self, path: Path, settings: dict[str, Any], data: dict[str, Any] | None = None) -> None:
        self.path = path
        self._opened: list[RunFolder] = []  # on rank 0
        from_first(lambda: self._opened.append(RunFolder(path, settings, data)))

    def close(self) -> None:
        """Release the lock, so that other processes can use the folder."""
        for folder in self._opened:
            folder.close()

    def records(self) -> list[dict[str, Any]]:
        """One record per finished epoch."""
        return from_first(lambda: self._opened[0].records())

    def save(self, checkpoint: dict[str, Any]) -> None:
        others = collect(current_ranks(), {name: checkpoint[name] for name in _OF_EACH})[1:]
        from_first(lambda: self._opened[0].save(checkpoint | {"other_ranks": others}))

    def checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint of this rank, or None."""
        states: list[dict[str, Any]] = []

        def read() -> bool:
            if (saved := self._opened[0].checkpoint()) is not None:
                others = saved.pop("other_ranks")
                states.extend([saved, *(saved | own for own in others)])
            return bool(states)

        found: dict[str, Any] | None = hand_out(current_ranks(), states) if from_first(read) else None
        return found


Folder = RunFolder | RankedFolder


def open_folder(path: Path, settings: dict[str, Any], data: dict[str, Any] | None = None) -> Folder:
    """Open the folder of a run, for this process or for all ranks."""
    kind = RunFolder if number_of_ranks() == 1 else RankedFolder
    return kind(path, settings, data)
