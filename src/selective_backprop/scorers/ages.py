"""Makes training losses that were recorded in different epochs comparable.

# N = candidates, P = points of a distribution
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

Ages = Literal["as_recorded", "mean", "quantile"]
"""How losses of different ages are compared; see `AgeCorrection`."""

_POINTS = 257


class AgeCorrection:
    """Maps losses that were recorded in earlier epochs to what they would be in the latest one.

    Losses fall while a model learns, so a loss that was recorded long ago looks harder than it is. The correction
    compares the losses of an epoch, those of all examples that were trained on in it, with those of the latest epoch.
    The losses of an epoch are summed up when it is seen first: all of them are still in the ledger then. Losses of the
    latest epoch stay as they are.

    Args:
        ages: "as_recorded" changes nothing. "mean" multiplies a loss by the mean of the latest epoch over that of its
            own epoch; if there are negative losses, it adds the difference of the means. "quantile" maps a loss to the
            loss that has the same rank in the latest epoch, by interpolation between 257 quantiles.

    >>> correction = AgeCorrection("mean")
    >>> correction(torch.tensor([4.0, 2.0, 1.0, 3.0]), torch.tensor([0, 0, 1, 1])).tolist()     # means 3 and 2
    [2.666..., 1.333..., 1.0, 3.0]
    """

    def __init__(self, ages: Ages) -> None:
        if ages not in get_args(Ages):
            raise ValueError(f"ages must be one of {', '.join(get_args(Ages))}, got {ages!r}")
        self.ages = ages
        # By epoch: (P,) float64 rising quantiles, or (1,) the mean.
        self._points: dict[int, Tensor] = {}

    def __call__(self, losses: Tensor, epochs: Tensor) -> Tensor:
        """Return the losses as of the latest epoch. epochs: (N,) when each was recorded; -1 if the loss is NaN."""
        if self.ages == "as_recorded" or not len(losses):
            return losses
        counts = torch.bincount(epochs + 1)[1:]
        present = counts.nonzero().flatten().tolist()
        if not present:
            return losses
        for epoch in present:
            if epoch not in self._points:
                self._points[epoch] = self._summary(losses[epochs == epoch])
        self._points = {epoch: self._points[epoch] for epoch in present}
        return (self._by_mean if self.ages == "mean" else self._by_quantile)(losses, epochs, present)

    def _summary(self, losses: Tensor) -> Tensor:
        losses = losses.to(torch.float64)
        if self.ages == "mean":
            return losses.mean()[None]
        places = torch.linspace(0, len(losses) - 1, _POINTS, dtype=torch.float64)
        ordered, below = losses.sort().values, places.floor().to(torch.int64)
        return ordered[below].lerp(ordered[places.ceil().to(torch.int64)], places - below)

    def _by_mean(self, losses: Tensor, epochs: Tensor, present: list[int]) -> Tensor:
        means = torch.ones(present[-1] + 2, dtype=torch.float64)  # the last place is for epoch -1
        for epoch in present:
            means[epoch] = self._points[epoch]
        latest = float(means[present[-1]])
        means[-1] = latest
        if bool((losses < 0).any()) or latest <= 0 or bool((means <= 0).any()):
            return losses + (latest - means)[epochs].to(losses.dtype)
        return losses * (latest / means)[epochs].to(losses.dtype)

    def _by_quantile(self, losses: Tensor, epochs: Tensor, present: list[int]) -> Tensor:
        result, latest = losses.clone(), self._points[present[-1]]
        for epoch in present[:-1]:
            rows, points = (epochs == epoch).nonzero().flatten(), self._points[epoch]
            values = losses[rows].to(torch.float64)
            above = torch.searchsorted(points, values).clamp_(1, _POINTS - 1)
            low, high = points[above - 1], points[above]
            part = ((values - low) / (high - low).clamp(min=1e-300)).clamp_(0, 1)
            result[rows] = latest[above - 1].lerp(latest[above], part).to(losses.dtype)
        return result

    def state_dict(self) -> dict[str, Any]:
        return {"points": dict(self._points)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._points = dict(state["points"])
