"""What an example of a given length costs in a training step, fitted to the steps that were measured.

# T = length of an example in tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from selective_backprop.description import Described

Share = Callable[[list[float]], list[list[float]]]
"""A function that gives this rank's numbers to all ranks, and returns those of every rank."""

_MEMORY = 0.999  # weight of a step compared with the step after it, so that the fit follows a change of speed
_ENOUGH = 7.5  # the fit is used from the eighth step on; steps count a little less as they grow old
_PAUSE = 10.0  # a step that takes this many times longer than the fit says was interrupted, and is left out
_UNIT = 1024.0  # lengths are fitted in this unit, so that T and T^2 are of similar size


class CostFit(Described):
    """Seconds that an example of T tokens takes in a training step: a + b T + c T^2, with a, b, c >= 0.

    In a padded batch every example costs as much as the longest. So a step on n examples, of which the longest has T
    tokens, is fitted as n (a + b T + c T^2). As long as few steps were measured, an example costs its tokens.

    Args:
        coefficients: a, b and c, if they are known. Then nothing is measured, and a run can be repeated exactly.

    >>> fit = CostFit()
    >>> for length in (100, 200, 400) * 4:
    ...     fit.observe(torch.full((8,), length), seconds=8 * (0.001 + 2e-5 * length))
    >>> fit.exchange(lambda numbers: [numbers])
    >>> [round(cost, 6) for cost in fit.costs(torch.tensor([100, 1000])).tolist()]
    [0.003, 0.021]
    """

    def __init__(self, coefficients: Sequence[float] | None = None) -> None:
        if coefficients is not None:
            coefficients = tuple(float(value) for value in coefficients)
            if len(coefficients) != 3 or not all(0 <= value < float("inf") for value in coefficients):
                raise ValueError(
                    f"coefficients must be three numbers >= 0, a, b and c of the cost a + b T + c T^2, got "
                    f"{coefficients}"
                )
            if not any(coefficients):
                raise ValueError("coefficients must not all be 0: examples that cost nothing cannot be compared")
        self.coefficients = coefficients
        self._sums, self._new = torch.zeros(_NUM_SUMS, dtype=torch.float64), torch.zeros(_NUM_SUMS, dtype=torch.float64)
        self._fitted: tuple[float, float, float] | None = None

    @property
    def measures(self) -> bool:
        """Whether `observe` has an effect."""
        return self.coefficients is None

    @property
    def known(self) -> tuple[float, float, float] | None:
        """a, b and c in seconds; None as long as too few steps were measured."""
        return self._fitted if self.coefficients is None else self.coefficients

    def costs(self, lengths: Tensor) -> Tensor:
        """Return the cost of examples of these lengths: (N,) float64, in seconds, or in tokens if not known yet."""
        a, b, c = self.known or (0.0, 1.0, 0.0)
        lengths = lengths.to(torch.float64).clamp(min=1)
        return a + lengths * (b + c * lengths)

    def observe(self, lengths: Tensor, seconds: float) -> None:
        """Count a training step on examples of these lengths. `exchange` brings it into the fit."""
        if not self.measures or not len(lengths) or not seconds > 0:
            return
        longest, per_example = float(lengths.max()), seconds / len(lengths)
        if self.known is not None and per_example > _PAUSE * float(self.costs(torch.tensor([longest]))):
            return
        powers = (longest / _UNIT) ** torch.arange(3, dtype=torch.float64)
        row = torch.cat([powers, torch.tensor([per_example], dtype=torch.float64)])
        self._new = self._new + torch.cat([torch.outer(row, row).flatten(), torch.ones(1, dtype=torch.float64)])

    def exchange(self, share: Share) -> None:
        """Bring the steps that all ranks measured since the last call into the fit, the same on every rank."""
        if not self.measures:
            return
        new = torch.tensor(share(self._new.tolist()), dtype=torch.float64).sum(0)
        self._new = torch.zeros_like(new)
        if float(new[-1]):
            self._sums = self._sums * _MEMORY ** float(new[-1]) + new
            self._fitted = _solve(self._sums) if float(self._sums[-1]) >= _ENOUGH else None

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums, "new": self._new, "fitted": None if self._fitted is None else list(self._fitted)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums, self._new = state["sums"].clone(), state["new"].clone()
        self._fitted = None if state["fitted"] is None else tuple(state["fitted"])


_NUM_SUMS = 17  # products of the row (1, T, T^2, seconds) with itself, and the number of steps


def _solve(sums: Tensor) -> tuple[float, float, float] | None:
    """Find a, b, c >= 0 with the smallest squared error; None if the steps do not tell."""
    products = sums[:-1].view(4, 4)
    matrix, right = products[:3, :3], products[:3, 3]
    best: tuple[float, list[float]] | None = None
    # There are only seven sets of coefficients that may be above 0. Simpler ones come first and win if equally good.
    for size in (1, 2, 3):
        for chosen in combinations((1, 0, 2), size):
            rows = torch.tensor(chosen)
            part = matrix[rows][:, rows]
            if float(torch.linalg.cond(part)) > 1e10:
                continue  # all steps had the same length
            found = torch.linalg.solve(part, right[rows])
            error = float(products[3, 3] - right[rows] @ found)
            if bool((found >= 0).all()) and (best is None or error < best[0] - 1e-9 * float(products[3, 3])):
                values = [0.0, 0.0, 0.0]
                for row, value in zip(chosen, found.tolist(), strict=True):
                    values[row] = value
                best = error, values
    if best is None:
        return None
    a, b, c = best[1]
    return a, b / _UNIT, c / _UNIT**2
