"""Checks whether an epoch selected the share of candidates that the user asked for, or nothing at all."""

from __future__ import annotations

import logging

from selective_backprop.method import Method
from selective_backprop.types import Policy

_logger = logging.getLogger(__name__)
_FAR = 0.1  # tolerated deviation, as a fraction of the share asked for
_BEYOND_CHANCE = 4  # tolerated deviation, in standard deviations of independent draws


class ShareCheck:
    """Counts what the policy selects, and logs a line once if an epoch's share is far from the one asked for.

    It also says why an epoch is trained on as a whole, if the method chose so, and logs that once.

    Candidates that are trained on without asking the policy (in a warm-up, outside a window) do not count.

    Args:
        method: the method.
        policy: the run's own policy. Its `selectivity` is the share asked for; if that is None, nothing is checked.
        quiet: log nothing. When ranks select together, all but one are quiet.
    """

    def __init__(self, method: Method, policy: Policy, *, quiet: bool = False) -> None:
        self._asked: float | None = None if quiet else policy.selectivity
        self._method, self._policy = method, policy
        self._warns = not quiet
        self._decided = self._selected = 0

    def count(self, num_candidates: int, num_selected: int) -> None:
        """Count a selection: the policy selected num_selected of num_candidates."""
        self._decided += num_candidates
        self._selected += num_selected

    def why_all(self, epoch: int, why_no_scores: str | None) -> str:
        """Say why a planned epoch trains on everything; "" if it does not, or if the user asked for it.

        Args:
            epoch: number of the epoch, from 0.
            why_no_scores: why the scorer has no scores on purpose, if so.
        """
        method = self._method
        if method.policy.selectivity is not None or not method.scorer.needs.training_losses:
            return ""
        if self._decided:
            reason = self._policy.explanation() if self._selected >= self._decided else None
            if reason is not None and self._warns:
                self._warns = False
                _logger.warning(
                    "%s trains on everything in epoch %d: %s. It decides anew before every epoch",
                    method.name,
                    epoch + 1,
                    reason,
                )
        elif epoch == 0:
            reason = "losses become known in the first epoch"
        elif method.schedule.needs_num_epochs or method.schedule.warmup_epochs > epoch:
            reason = "selection is off, by the method's start=, end= or warmup_epochs="
        else:
            reason = why_no_scores or "no candidate has a loss from an earlier epoch"
        return f"trained on everything in epoch {epoch + 1}: {reason}" if reason is not None else ""

    def end_epoch(self, epoch: int) -> None:
        """Log a line if the epoch's share is far from the one asked for, and start counting anew."""
        decided, selected = self._decided, self._selected / self._method.batch_scale
        self._decided = self._selected = 0
        if self._asked is None or not decided:
            return
        expected, missing = self._asked * decided, abs(selected - self._asked * decided)
        if missing <= max(_FAR * expected, _BEYOND_CHANCE * (expected * (1 - self._asked)) ** 0.5):
            return
        advice = self._policy.explanation() or (
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
