"""How far runs have come that are still under way: epochs done, time left, and what has not begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from selective_backprop.lab.report.figures import Section, Table, Text
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.runs.experiment import Entry
from selective_backprop.lab.study.estimate import in_words

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
