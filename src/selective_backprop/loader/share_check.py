"""Whether an epoch selected the share of the candidates that was asked for."""

from __future__ import annotations

import logging

from selective_backprop.method import Method

_logger = logging.getLogger(__name__)
_FAR = 0.1  # of the share asked for
_BEYOND_CHANCE = 4  # standard deviations of as many coins


class ShareCheck:
    """Counts what the policy decides about, and logs one line, once, if an epoch's share is far from the one asked for.

    Candidates that are trained on without asking the policy (in a warm-up, outside a window) do not count.

    Args:
        method: whose policy's `selectivity` is what was asked for; without one, nothing is checked.
        quiet: for all ranks but one where they select together: one line is enough.
    """

    def __init__(self, method: Method, *, quiet: bool = False) -> None:
        self._asked: float | None = None if quiet else method.policy.selectivity
        self._method = method
        self._decided = self._selected = 0

    def count(self, num_candidates: int, num_selected: int) -> None:
        """The policy selected so many of so many."""
        self._decided += num_candidates
        self._selected += num_selected

    def end_epoch(self, epoch: int) -> None:
        """Say so if the epoch's share is not what was asked for, and begin to count the next one's."""
        decided, selected = self._decided, self._selected / self._method.batch_scale
        self._decided = self._selected = 0
        if self._asked is None or not decided:
            return
        expected, missing = self._asked * decided, abs(selected - self._asked * decided)
        if missing <= max(_FAR * expected, _BEYOND_CHANCE * (expected * (1 - self._asked)) ** 0.5):
            return
        if self._method.policy.paper:
            advice = (
                "the rule of the paper does so while losses fall or rise: leave out paper=True to get what you ask for"
            )
        else:
            advice = "ask for another selectivity, or use larger candidate batches, until loader.stats.selectivity fits"
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
