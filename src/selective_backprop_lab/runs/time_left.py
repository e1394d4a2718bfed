"""How long the runs of an experiment will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from selective_backprop_lab.runs.experiment import Entry
from selective_backprop_lab.runs.settings import Settings
from selective_backprop_lab.runs.training import Record


class TimeLeft:
    """Estimates by the clock, from the end of one epoch to the next: tests, files and other work on the machine count.

    Args:
        planned: all runs that will be made.
        clock: the time in seconds.
    """

    def __init__(self, planned: Sequence[Entry], clock: Callable[[], float] = time.monotonic) -> None:
        self.planned = planned
        self._clock, self._last = clock, clock()
        self._done: dict[tuple[str, int], int] = {}
        self._seconds = self._expected = 0.0  # what measured epochs took, and what they were expected to cost

    def note(self, entry: Entry, record: Record) -> None:
        """Learn from an epoch that has just ended. Epochs of an earlier command are only counted."""
        key, now = (entry.label, entry.settings.seed), self._clock()
        before, self._done[key] = self._done.get(key, 0), record["epoch"] + 1
        if self._done[key] == before + 1:
            took = now - self._last
            if not self._seconds:  # before the first epoch, modules are imported and data are read: not so later
                took = min(took, sum(record["seconds"].values()))
            self._seconds += took
            self._expected += _expected(entry.settings)
        self._last = now

    @property
    def seconds(self) -> float | None:
        """Seconds until all runs are finished; None before the first epoch, if there is one to do."""
        left = sum(
            (entry.settings.epochs - self._done.get((entry.label, entry.settings.seed), 0)) * _expected(entry.settings)
            for entry in self.planned
        )
        return left and (left * self._seconds / self._expected if self._seconds else None)

    def __str__(self) -> str:
        return "unknown" if self.seconds is None else in_words(self.seconds)


def _expected(settings: Settings) -> float:
    """What an epoch costs in epochs of plain training, about: nobody knows it of a method before it runs."""
    if settings.method == "traditional":
        return 1.0
    return settings.selectivity if settings.method == "repeated_random" else 0.75


def in_words(seconds: float) -> str:
    """A duration as people say it.

    >>> in_words(40), in_words(70), in_words(200), in_words(9000)
    ('less than a minute', 'about a minute', 'about 3 minutes', 'about 2.5 hours')
    """
    if seconds < 60:
        return "less than a minute"
    if seconds < 90:
        return "about a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"
