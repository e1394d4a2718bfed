"""The report of runs that are under way: written again as epochs end, for a page that loads itself again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.report.build import Report, build_report, write_report
from selective_backprop.lab.report.page import render
from selective_backprop.lab.report.progress import progress_of
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
