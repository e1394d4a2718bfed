"""The report of runs that are under way: written again as epochs end, for a page that loads itself again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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
        label = run.config.get("label") or run.method  # without what tells it from others on the page
        for entry in self._planned:
            if (entry.label, entry.settings.seed) == (label, run.seed):
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
        made = build_report(runs, load=self._data_of)
        sections = [progress(self._planned, runs), *made.sections]
        page = render(made.comparisons, made.palette, sections, written=datetime.now().astimezone())
        write_whole({self.file: page.encode()})

    def finish(self) -> Report:
        """Write the last page, which no longer loads itself again."""
        return write_report([self.folder], self.file, load=self._data_of)


# ---- how far runs have come: epochs done, time left, and what has not begun

READING = "Time left is estimated from the epochs that are done, those of the same method first."


def progress(planned: Sequence[Entry], runs: Sequence[Run]) -> Section:
    """For the top of the page: a sentence, and a row for each arm that is not finished.

    Args:
        planned: all runs that will be made.
        runs: those that have a finished epoch.
    """
    done = {(run.label, run.seed): len(run.records) for run in runs}
    seconds: dict[str, list[float]] = {}
    for run in runs:
        for name in (_method(run.label), ""):
            seconds.setdefault(name, []).extend(sum(record["seconds"].values()) for record in run.records)
    arms: dict[str, list[tuple[int, int]]] = {}  # epochs done and epochs in all, for each seed
    left = 0.0
    for entry in planned:
        finished, epochs = done.get((entry.label, entry.settings.seed), 0), entry.settings.epochs
        arms.setdefault(entry.label, []).append((finished, epochs))
        left += (epochs - finished) * fmean(seconds.get(_method(entry.label)) or seconds[""])
    all_done, all_epochs = (
        sum(counts) for counts in zip(*(pair for seeds in arms.values() for pair in seeds), strict=True)
    )
    cells, ended = [], 0
    for label, seeds in arms.items():
        finished, epochs = map(sum, zip(*seeds, strict=True))
        whole = sum(one == of for one, of in seeds)
        ended += whole
        if finished < epochs:
            state = "under way" if finished else "to come"
            cells.append([label, state, f"{finished} of {epochs}", f"{whole} of {len(seeds)}"])
    words = (
        f"**{all_done} of {all_epochs} epochs** are done, and {ended} of {len(planned)} runs are finished. "
        f"Estimated time left: **{in_words(left)}**."
    )
    heading = ["arm", "state", "epochs done", "seeds finished"]
    table = Table("progress-of-arms", "Arms that are not finished", heading, cells)
    return Section("progress", "Progress", READING, [Text(words), table], overview=True)


def _method(label: str) -> str:
    return label.partition(", ")[0]


def in_words(seconds: float) -> str:
    """A duration as people say it.

    >>> in_words(40), in_words(200), in_words(9000)
    ('less than a minute', 'about 3 minutes', 'about 2.5 hours')
    """
    if seconds < 60:
        return "less than a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"
