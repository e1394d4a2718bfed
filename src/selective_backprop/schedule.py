"""When selection is on: apart from how scores are made and used."""

from __future__ import annotations

from dataclasses import dataclass

from selective_backprop.functional import should_selective_backprop

_ROUNDING = 1e-9  # 23 epochs and 4 of 10 batches must count as 0.9 of 26 epochs, whatever floats make of it


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A warm-up in epochs, a window as fractions of the run, and plain batches in between.

    >>> Schedule(warmup_epochs=1).is_on(0.9, batch_idx=5), Schedule(warmup_epochs=1).is_on(1.0, batch_idx=0)
    (False, True)
    """

    warmup_epochs: float = 0
    """Train on everything for that long at first."""
    start: float = 0.0
    """Fraction of the run at which selection starts."""
    end: float = 1.0
    """Fraction of the run at which it ends; 0 means never on."""
    interrupt: int = 0
    """Every `interrupt`-th candidate batch of an epoch is plain; 0 means none."""

    def __post_init__(self) -> None:
        if self.warmup_epochs < 0:
            raise ValueError(f"warmup_epochs must be >= 0, got {self.warmup_epochs}")
        if not 0 <= self.start <= 1 or not 0 <= self.end <= 1:
            raise ValueError(f"start and end must be fractions of the run in [0, 1], got {self.start} and {self.end}")
        if self.start >= self.end and self.end > 0:
            raise ValueError(f"start must be before end, got {self.start} and {self.end}")
        if not isinstance(self.interrupt, int) or self.interrupt < 0:
            raise ValueError(f"interrupt must be a whole number >= 0, got {self.interrupt!r}")

    @property
    def needs_num_epochs(self) -> bool:
        """Whether the length of the run has to be known."""
        return self.end > 0 and (self.start > 0 or self.end < 1)

    @property
    def never_on(self) -> bool:
        return self.end == 0 or self.interrupt == 1

    def is_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Whether to select from the candidate batch that starts `epochs_done` epochs into the run.

        A run that goes on beyond num_epochs stays as it was at the end of its last one.
        """
        epochs_done += _ROUNDING
        if self.never_on or epochs_done < self.warmup_epochs:
            return False
        if not self.needs_num_epochs:
            return should_selective_backprop(0.0, batch_idx, 0.0, 1.0, self.interrupt)
        if num_epochs is None:
            raise ValueError("a window of training needs num_epochs=")
        duration = min(epochs_done / num_epochs, 1.0)
        end = self.end if self.end < 1 else float("inf")
        return should_selective_backprop(duration, batch_idx, self.start, end, self.interrupt)

    def on_in_epoch(self, epoch: int, num_batches: int | None, num_epochs: int | None = None) -> bool:
        """Whether it is on for any candidate batch of the epoch."""
        if num_batches is None:
            return not self.never_on and epoch >= self.warmup_epochs
        return any(self.is_on(epoch + i / num_batches, i, num_epochs) for i in range(num_batches))


NEVER = Schedule(end=0.0)
