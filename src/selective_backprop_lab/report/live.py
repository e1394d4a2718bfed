"""The report of runs that are under way: written again as epochs end, for a page that loads itself again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.report.images import LoadData, data_of
from selective_backprop_lab.report.page import Report, build_report, write_report
from selective_backprop_lab.report.parts import Notes, Section
from selective_backprop_lab.report.runs import Run, find_runs
from selective_backprop_lab.runs.experiment import Entry, Show
from selective_backprop_lab.runs.time_left import TimeLeft
from selective_backprop_lab.runs.training import Record

_LEAST_SECONDS = 5.0  # between two pages
_LARGEST_SHARE = 0.05  # of the time of an experiment


class LiveReport:
    """Writes report.html into the folder of the runs.

    Args:
        folder: folder of a run, or of several.
        left: the planned runs, and how long they will still take.
        load: gives the data of a run; default: of data that are on this machine.
    """

    def __init__(self, folder: Path, left: TimeLeft, load: LoadData | None = None) -> None:
        self.folder, self.file = folder, folder / "report.html"
        self._left, self._load = left, load or data_of()
        self._next = 0.0

    def after(self, show: Show) -> Show:
        """Return a function that shows a finished epoch and then writes the page, unless that was done a moment ago."""

        def show_and_write(entry: Entry, record: Record) -> None:
            show(entry, record)
            began = time.monotonic()
            if began < self._next:
                return
            with suppress(Exception):  # the runs matter more than their report; `finish` meets the error again
                self._write()
            done = time.monotonic()
            self._next = done + max(_LEAST_SECONDS, (done - began) / _LARGEST_SHARE)

        return show_and_write

    def _write(self) -> None:
        runs = find_runs([self.folder])
        made = build_report(runs, load=self._load)
        sections = [progress(self._left, runs), *made.sections]
        page = replace(made, sections=sections, written=datetime.now().astimezone())
        write_whole({self.file: page.html().encode()})

    def finish(self) -> Report:
        """Write the last page, which no longer loads itself again."""
        return write_report([self.folder], self.file, load=self._load)


# ---- how far runs have come

READING = "Time left is estimated from the epochs that are done, those of the same method first."


def progress(left: TimeLeft, runs: Sequence[Run]) -> Section:
    """For the top of the page: a sentence on what is done and how long the rest will take.

    Args:
        left: the planned runs, and how long they will still take.
        runs: those that have a finished epoch.
    """
    done = {(run.label, run.seed): len(run.records) for run in runs}
    epochs = sum(entry.settings.epochs for entry in left.planned)
    ended = sum(done.get((entry.label, entry.settings.seed)) == entry.settings.epochs for entry in left.planned)
    words = (
        f"**{sum(done.values())} of {epochs} epochs** are done, and {ended} of {len(left.planned)} runs are finished. "
        f"Estimated time left: **{left}**."
    )
    return Section("progress", "Progress", READING, [Notes("done", "", [("", "", words)])], overview=True)
