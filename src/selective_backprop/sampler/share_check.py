"""Checks whether an epoch selected the share of candidates that the user asked for, or nothing at all."""

from __future__ import annotations

import logging

from selective_backprop.method import Method

_logger = logging.getLogger(__name__)
_FAR = 0.1  # tolerated deviation, as a fraction of the share asked for
_BEYOND_CHANCE = 4  # tolerated deviation, in standard deviations of independent draws


class ShareCheck:
    """Counts what the policy selects, and logs a line once if an epoch's share is far from the one asked for.

    It also logs once why an epoch was trained on as a whole, if the policy chose so.

    Candidates that are trained on without asking the policy (in a warm-up, outside a window) do not count.

    Args:
        method: its policy's `selectivity` is the share asked for. If that is None, nothing is checked.
        quiet: log nothing. When ranks select together, all but one are quiet.
    """

    def __init__(self, method: Method, *, quiet: bool = False) -> None:
        self._asked: float | None = None if quiet else method.policy.selectivity
        self._method = method
        self._explains_all = not quiet
        self._explanation: str | None = None
        self._decided = self._selected = 0

    def count(self, num_candidates: int, num_selected: int, explanation: str | None = None) -> None:
        """Count a selection: the policy selected num_selected of num_candidates, for the reason given."""
        self._explanation = explanation
        self._decided += num_candidates
        self._selected += num_selected

    def end_epoch(self, epoch: int) -> None:
        """Log a line if the epoch's share is far from the one asked for, and start counting anew."""
        decided, selected = self._decided, self._selected / self._method.batch_scale
        self._decided = self._selected = 0
        everything = decided > 0 and selected >= decided and self._method.policy.selectivity is None
        if everything and self._explains_all and self._explanation is not None:
            self._explains_all = False
            _logger.info(
                "%s trained on everything in epoch %d: %s. It decides anew before every epoch",
                self._method.name,
                epoch + 1,
                self._explanation,
            )
        if self._asked is None or not decided:
            return
        expected, missing = self._asked * decided, abs(selected - self._asked * decided)
        if missing <= max(_FAR * expected, _BEYOND_CHANCE * (expected * (1 - self._asked)) ** 0.5):
            return
        advice = self._explanation or (
            "ask for another selectivity, or use larger candidate batches, until stats.selectivity fits"
        )
        _logger.warning(
            "%s was asked to select %.3f of the candidates, and selected %.3f of %d in epoch %d: %s",
            self._method.name,
            self._asked,
            selected / decided,
            decided,
            epoch + 1,
            advice,
        )
        self._asked = None  # once is enough
