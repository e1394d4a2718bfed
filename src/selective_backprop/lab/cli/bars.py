"""Progress of runs: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

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

    def __init__(self, console: Console, seeds: int = 1) -> None:
        self.console, self.seeds = console, seeds
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._epochs_done: dict[str, dict[int, int]] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, entry: Entry, record: Record) -> None:
        """Move the run's bar after an epoch, or print a line if this is no terminal."""
        label, seed, epochs = entry.label, entry.settings.seed, entry.settings.epochs
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=epochs * self.seeds, state="")
        done = self._epochs_done.setdefault(label, {})
        done[seed] = record["epoch"] + 1
        state = f"seed {seed}  {describe(record, epochs)}" if self.seeds > 1 else describe(record, epochs)
        self._progress.update(self._tasks[label], completed=sum(done.values()), state=state)
        if not self.console.is_terminal:
            print(f"{label}: {state}", flush=True)


@contextmanager
def stopping_says(console: Console, how_to_go_on: str) -> Iterator[None]:
    """On Ctrl-C, end the command and print how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"stopped; {how_to_go_on}", markup=False)
        raise typer.Exit(130) from None
