"""Progress of runs on stderr: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from selective_backprop.lab.cli.screen import Screen, width_of

if TYPE_CHECKING:
    from selective_backprop.lab.runs.experiment import Entry
    from selective_backprop.lab.runs.training import Record

_BAR, _TIME = 12, 7  # columns
_LINES_LEFT = 4  # of the terminal, below the bars


def describe(record: Record, epochs: int) -> list[str]:
    """Describe an epoch in one line: in words, more briefly, and as briefly as possible."""
    speed = record["offered"] / sum(record["seconds"].values())
    share = record["trained"] / record["offered"]
    place, error = f"epoch {record['epoch'] + 1}/{epochs}", f"error {record['test_error']:.2%}"
    return [
        f"{place}  {error}  selectivity {share:.2f}  {speed:,.0f} examples/s",
        f"{place}  {error}",
        f"{record['epoch'] + 1}/{epochs} {record['test_error']:.2%}",
    ]


class _State(ProgressColumn):
    """The longest description that leaves room for the label and the bar."""

    def __init__(self, width: int) -> None:
        super().__init__(Column(no_wrap=True))
        self.width = width
        self.longest_label = 0

    def render(self, task: Task) -> Text:
        room = self.width - self.longest_label - _BAR - _TIME - 3
        states: list[str] = task.fields["states"]
        return Text(next((state for state in states if len(state) <= room), states[-1]))


class Bars:
    """Progress bars: one per label, over all its seeds."""

    def __init__(self, screen: Screen, seeds: int = 1) -> None:
        self.screen, self.seeds = screen, seeds
        self.live = sys.stderr.isatty() and not screen.quiet
        console = Console(stderr=True, width=width_of(sys.stderr))
        self._lines = console.height - _LINES_LEFT
        self._state = _State(console.width)
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(bar_width=_BAR),
            self._state,
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        self._progress = Progress(*columns, console=console, disable=not self.live)
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
        states = describe(record, epochs)
        if self.seeds > 1:
            states = [*(f"seed {seed}  {state}" for state in states[:2]), *states[1:]]
        if not self.live:
            print(f"{label}: {states[0]}", file=sys.stderr, flush=True)
            return
        if label not in self._tasks:
            self._make_room()
            self._tasks[label] = self._progress.add_task(label, total=epochs * self.seeds, states=[""])
            self._state.longest_label = max(len(name) for name in self._tasks)
        done = self._epochs_done.setdefault(label, {})
        done[seed] = record["epoch"] + 1
        fields: dict[str, Any] = {"completed": sum(done.values()), "states": states}
        self._progress.update(self._tasks[label], visible=True, **fields)

    def _make_room(self) -> None:
        """Hide the oldest bar that is full, if there are more bars than lines."""
        shown = [task for task in self._progress.tasks if task.visible]
        finished = [task for task in shown if task.finished]
        if len(shown) >= self._lines and finished:
            self._progress.update(finished[0].id, visible=False)
