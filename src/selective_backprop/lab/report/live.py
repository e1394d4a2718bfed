"""The report of runs that are under way: written again as epochs end, for a page that loads itself again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.report.build import Report, build_report, write_report
from selective_backprop.lab.report.figures import Section, Table, Text
from selective_backprop.lab.report.page import render
from selective_backprop.lab.report.runs import Run, find_runs
from selective_backprop.lab.runs.experiment import Entry, Show
from selective_backprop.lab.runs.ranks import is_first
from selective_backprop.lab.runs.training import Record, Settings

_LEAST_SECONDS = 5.0  # between two pages
_LARGEST_SHARE = 0.05  # of the time of an experiment


class LiveReport:
    """Writes report.html into the folder of the runs.

    Args:
        folder: folder of a run, or of several.
        planned: all runs that will be made.
        load: gives the data of a planned run.
    """

    def __init__(self, folder: Path, planned: Sequence[Entry], load: Callable[[Settings], ImageSet]) -> None:
        self.folder, self.file = folder, folder / "report.html"
        self._planned, self._load = planned, load
        self._next = 0.0

    def _data_of(self, run: Run) -> ImageSet:
        for entry in self._planned:
            if (entry.label, entry.settings.seed) == (run.label, run.seed):
                return self._load(entry.settings)
        raise ValueError(f"{run.path} is not one of the runs under way")

    def after(self, show: Show) -> Show:
        """Return a function that shows a finished epoch and then writes the page, unless that was done a moment ago."""

        def show_and_write(entry: Entry, record: Record) -> None:
            show(entry, record)
            began = time.monotonic()
            if not is_first() or began < self._next:
                return
            with suppress(Exception):  # the runs matter more than their report; `finish` meets the error again
                self._write()
            done = time.monotonic()
            self._next = done + max(_LEAST_SECONDS, (done - began) / _LARGEST_SHARE)

        return show_and_write

    def _write(self) -> None:
        runs = find_runs([self.folder])
        progress = progress_of(self._planned, runs)
        made = build_report(runs, load=self._data_of)
        sections = [progress.section(), *made.sections]
        page = render(made.comparisons, made.palette, sections, written=datetime.now().astimezone())
        write_whole({self.file: page.encode()})

    def finish(self) -> Report:
        """Write the last page, which no longer loads itself again."""
        return write_report([self.folder], self.file, load=self._data_of)


# ---- how far runs have come: epochs done, time left, and what has not begun

READING = "Time left is estimated from the epochs that are done, those of the same method first."


@dataclass(frozen=True)
class State:
    """How far one run has come."""

    label: str
    seed: int
    done: int
    epochs: int
    seconds_per_epoch: float | None
    """With evaluation; None before the first epoch."""

    @property
    def finished(self) -> bool:
        return self.done >= self.epochs


@dataclass(frozen=True)
class Progress:
    """How far all runs have come, in the order in which they are made."""

    runs: list[State]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def by_label(self) -> dict[str, list[State]]:
        """Runs of each arm."""
        return {
            label: [run for run in self.runs if run.label == label]
            for label in dict.fromkeys(run.label for run in self.runs)
        }

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the time that all missing epochs take, one after the other; None before the first epoch."""
        known = [run for run in self.runs if run.seconds_per_epoch is not None]
        if not known:
            return None
        return sum((run.epochs - run.done) * self._seconds_per_epoch(run) for run in self.runs if not run.finished)

    def _seconds_per_epoch(self, run: State) -> float:
        alike = [other for other in self.runs if _method(other) == _method(run)]
        for group in ([run], alike, self.runs):
            if known := [other.seconds_per_epoch for other in group if other.seconds_per_epoch is not None]:
                return fmean(known)
        raise AssertionError("at least one run has an epoch")

    def sentence(self) -> str:
        """What is done and what is left, in words."""
        done, total = sum(run.done for run in self.runs), sum(run.epochs for run in self.runs)
        if self.finished:
            count = len(self.runs)
            return f"All runs are finished: {count} run{'' if count == 1 else 's'}, {total} epochs."
        words = [f"**{done} of {total} epochs** are done"]
        words[0] += f", and {sum(run.finished for run in self.runs)} of {len(self.runs)} runs are finished."
        if self.seconds_left is not None:
            words.append(f"Estimated time left: **{in_words(self.seconds_left)}**.")
        if to_come := [label for label, states in self.by_label.items() if not any(run.done for run in states)]:
            words.append(f"Arms to come: {'; '.join(to_come)}.")
        return " ".join(words)

    def section(self) -> Section:
        """For the top of the page: a sentence, and a row for each arm that is not finished."""
        cells = []
        for label, mine in self.by_label.items():
            done, total = sum(run.done for run in mine), sum(run.epochs for run in mine)
            if done < total:
                seeds = f"{sum(run.finished for run in mine)} of {len(mine)}"
                cells.append([label, "under way" if done else "to come", f"{done} of {total}", seeds])
        heading = ["arm", "state", "epochs done", "seeds finished"]
        tables = [Table("progress-of-arms", "Arms that are not finished", heading, cells)] if cells else []
        return Section("progress", "Progress", READING, [Text(self.sentence()), *tables], overview=True)


def _method(run: State) -> str:
    return run.label.partition(", ")[0]


def progress_of(planned: Sequence[Entry], runs: Sequence[Run]) -> Progress:
    """How far these runs have come, with those that have no finished epoch yet."""
    found = {(run.label, run.seed): run for run in runs}
    return Progress([_state(entry, found.get((entry.label, entry.settings.seed))) for entry in planned])


def _state(entry: Entry, run: Run | None) -> State:
    seconds = None if run is None else fmean(sum(record["seconds"].values()) for record in run.records)
    done = 0 if run is None else len(run.records)
    return State(entry.label, entry.settings.seed, done, entry.settings.epochs, seconds)


def in_words(seconds: float) -> str:
    """A duration as people say it.

    >>> in_words(40), in_words(200), in_words(9000)
    ('less than a minute', 'about 3 minutes', 'about 2.5 hours')
    """
    if seconds < 60:
        return "less than a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"
