"""Several runs that take turns, each in its own folder."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.runs.records import RunFolder
from selective_backprop_lab.runs.training import Observer, Record, Settings, Training, advance, check, start


@dataclass(frozen=True, eq=False)
class Entry:
    """A run of an experiment, with its name in tables."""

    label: str
    settings: Settings
    is_alone: bool = False
    """Whether the folder of the experiment is that of the run itself."""
    sizes_of: Entry | None = None
    """The run of a method whose sizes these random subsets have, epoch by epoch."""

    @property
    def folder(self) -> str:
        """The run's folder within the experiment."""
        if self.is_alone:
            return "."
        name = re.sub(r"[^\w@:=,.+-]+", "_", self.label)
        if not name.strip("."):
            raise ValueError(f"a run's label names its folder, which {self.label!r} cannot: choose another label")
        return f"{name}/seed-{self.settings.seed}"

    def with_sizes(self, records: Sequence[Record]) -> Entry:
        """The run of random subsets, once the records of the method's run tell the share of each epoch."""
        shares = [max(1, record["trained"]) / record["offered"] for record in records]
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, options={"shares": shares}))

    def as_json(self) -> dict[str, Any]:
        return self.settings.as_json() | ({} if self.is_alone else {"label": self.label})


Show = Callable[[Entry, Record], None]


@dataclass
class _Run:
    entry: Entry
    training: Training
    folder: RunFolder | None = None
    observers: Sequence[Observer] = ()

    @property
    def share_done(self) -> float:
        return len(self.training.records) / self.entry.settings.epochs


def run_in_turns(
    entries: Sequence[Entry],
    load: Callable[[Settings], ImageSet],
    out: Path | None = None,
    *,
    observers: Callable[[Path, Settings], Sequence[Observer]] = lambda folder, settings: (),
    show: Show = lambda entry, record: None,
) -> dict[Entry, list[Record]]:
    """Train all runs, one epoch each in turn, and do only what is missing in `out`.

    Taking turns makes a machine that slows down or speeds up affect all runs alike.

    Args:
        entries: the runs.
        load: returns the data of a run; called several times per run.
        out: folder of the experiment; None saves nothing.
        observers: makes the observers of a run from its folder and settings.
        show: called after every epoch, and with the last epoch of a run that was finished before.
    """
    labels: dict[str, str] = {}
    for entry in entries:
        if (other := labels.setdefault(entry.folder, entry.label)) != entry.label:
            raise ValueError(f"{other!r} and {entry.label!r} would have the same folder: choose another label for one")
    for entry in entries:
        check(entry.settings, load(entry.settings))
    results: dict[Entry, list[Record]] = {}
    with ExitStack() as stack:
        under_way: list[_Run] = []
        for entry in entries:
            if out is None:
                under_way.append(_Run(entry, start(entry.settings, load(entry.settings))))
                continue
            folder = RunFolder(out / entry.folder, entry.as_json(), load(entry.settings).fingerprint)
            stack.callback(folder.close)
            # A run alone always reads its checkpoint, which tells damaged files and writes lost records again.
            if not entry.is_alone and len(records := folder.records()) == entry.settings.epochs:
                results[entry] = records
                show(entry, records[-1])
            else:
                training = start(entry.settings, load(entry.settings), folder)
                under_way.append(_Run(entry, training, folder, observers(folder.path, entry.settings)))
        while under_way:
            run = min(under_way, key=lambda run: run.share_done)  # the run that is furthest behind
            if run.share_done < 1:  # or it was killed after its last checkpoint and before its last record
                advance(run.training, run.folder, run.observers)
            show(run.entry, run.training.records[-1])
            if run.share_done == 1:
                results[run.entry] = run.training.records
                under_way.remove(run)
    return {entry: results[entry] for entry in entries}
