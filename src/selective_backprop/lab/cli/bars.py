"""Progress of runs on stderr: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from selective_backprop.lab.cli.screen import Screen, console

if TYPE_CHECKING:
    from selective_backprop.lab.runs.experiment import Entry
    from selective_backprop.lab.runs.training import Record


def describe(record: Record, epochs: int) -> str:
    """Describe an epoch in one line."""
    speed = record["offered"] / sum(record["seconds"].values())
    share = record["trained"] / record["offered"]
    return (
        f"epoch {record['epoch'] + 1}/{epochs}  error {record['test_error']:.2%}  selectivity {share:.2f}  "
        f"{speed:,.0f} examples/s"
    )


class Bars:
    """Progress bars: one per label, over all its seeds."""

    def __init__(self, screen: Screen, seeds: int = 1) -> None:
        self.screen, self.seeds = screen, seeds
        self.live = sys.stderr.isatty() and not screen.quiet
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
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
        if self.screen.quiet:
            return
        label, seed, epochs = entry.label, entry.settings.seed, entry.settings.epochs
        state = (f"seed {seed}  " if self.seeds > 1 else "") + describe(record, epochs)
        if not self.live:
            print(f"{label}: {state}", file=sys.stderr, flush=True)
            return
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=epochs * self.seeds, state="")
        done = self._epochs_done.setdefault(label, {})
        done[seed] = record["epoch"] + 1
        self._progress.update(self._tasks[label], completed=sum(done.values()), state=state.partition("  select")[0])
