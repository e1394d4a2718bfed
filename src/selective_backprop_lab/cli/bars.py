"""Progress of runs on stderr: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from selective_backprop_lab.cli.command import stopping_says
from selective_backprop_lab.cli.screen import Screen, console
from selective_backprop_lab.files.reading import visible

if TYPE_CHECKING:
    from selective_backprop_lab.cli.options import RunOptions
    from selective_backprop_lab.data.datasets import ImageSet
    from selective_backprop_lab.report.live import LiveReport
    from selective_backprop_lab.runs.experiment import Entry
    from selective_backprop_lab.runs.time_left import TimeLeft
    from selective_backprop_lab.runs.training import Record, Settings
    from selective_backprop_lab.study.standing import LabelledRuns

    Load = Callable[[Settings], ImageSet]


def describe(record: Record, epochs: int) -> str:
    """Describe an epoch in one line."""
    speed = record["offered"] / sum(record["seconds"].values())
    share = record["trained"] / record["offered"]
    return (
        f"epoch {record['epoch'] + 1}/{epochs}  error {record['test_error']:.2%}  selectivity {share:.2f}  "
        f"{speed:,.0f} examples/s"
    )


class Bars:
    """Progress bars: one per label, over all its seeds. Below them stands how long all runs will still take."""

    def __init__(self, screen: Screen, left: TimeLeft) -> None:
        self.screen, self.left = screen, left
        self.seeds = len({entry.settings.seed for entry in left.planned})
        self.live = sys.stderr.isatty() and not screen.quiet
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[state]}"),
        )
        self._progress = Progress(*columns, console=console(stderr=True), disable=not self.live)
        self._tasks: dict[str, TaskID] = {}
        self._epochs_done: dict[str, dict[int, int]] = {}

    def __enter__(self) -> Bars:
        if self.live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:  # rich before 14 ends even disabled bars with an empty line
            self._progress.stop()

    def show(self, entry: Entry, record: Record) -> None:
        """Move the run's bar after an epoch, or print a line if this is no terminal."""
        self.left.note(entry, record)
        if self.screen.quiet:
            return
        label, seed, epochs = visible(entry.label), entry.settings.seed, entry.settings.epochs
        state = (f"seed {seed}  " if self.seeds > 1 else "") + describe(record, epochs)
        if not self.live:
            print(f"{label}: {state}  {self.left} left", file=sys.stderr, flush=True)
            return
        done = self._epochs_done.setdefault(label, {})
        done[seed] = record["epoch"] + 1
        self._move(label, sum(done.values()), epochs * self.seeds, state.partition("  select")[0])
        all_done = sum(sum(of_label.values()) for of_label in self._epochs_done.values())
        total = sum(planned.settings.epochs for planned in self.left.planned)
        self._move("", all_done, total, f"{self.left} left")

    def _move(self, label: str, done: int, total: int, state: str) -> None:
        """Move a bar, and make it if it is new. The one of all runs, which has no label, stays the last."""
        if label not in self._tasks:
            if label and "" in self._tasks:
                self._progress.remove_task(self._tasks.pop(""))
            self._tasks[label] = self._progress.add_task(label or "all runs", total=total, state="")
        self._progress.update(self._tasks[label], completed=done, state=state)


def train_with_bars(
    screen: Screen, options: RunOptions, by_seed: Sequence[Sequence[Entry]], load: Load, out: Path
) -> tuple[list[LabelledRuns], LiveReport]:
    """Train all runs of every seed into a folder, with bars and a report that grows with them."""
    from selective_backprop_lab.report import data_of
    from selective_backprop_lab.report.live import LiveReport
    from selective_backprop_lab.runs.time_left import TimeLeft
    from selective_backprop_lab.study.comparison import train_all

    left = TimeLeft([entry for entries in by_seed for entry in entries])
    live = LiveReport(out, left, data_of(options.data_dir))
    with Bars(screen, left) as bars, stopping_says(f"run the same command to go on: {out}"):
        arms = train_all(by_seed, load, out, observers=options.observers(), show=live.after(bars.show))
    return arms, live
