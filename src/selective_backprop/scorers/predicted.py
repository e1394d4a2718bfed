"""Scores that are predicted from each example's past scores, instead of a selection pass.

# N = candidates, H = past scores kept
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from selective_backprop.ledger import LedgerRows
from selective_backprop.scorers.wrapping import Wrapping
from selective_backprop.types import Needs, Scorer

Predictor = Callable[[Tensor, int], Tensor]
"""A function from the (H,) epochs of past scores, newest first, and the epoch to predict, to (H,) weights. The
prediction is the weighted sum of the past scores."""


def exponential_average(decay: float) -> Predictor:
    """Predict the exponentially weighted average of the past scores. The newest counts most.

    >>> exponential_average(decay=0.5)(torch.tensor([4, 2]), 5).tolist()
    [0.666..., 0.333...]
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay must be in [0, 1), got {decay}")

    def weights(epochs: Tensor, now: int) -> Tensor:
        powers = decay ** torch.arange(len(epochs), dtype=torch.float64)
        return powers / powers.sum()

    return weights


def gaussian_process(length_scale: float, noise: float) -> Predictor:
    """Predict the posterior mean of a Gaussian process over epochs, around the mean of the example's past scores.

    The kernel is exp(-(s - t)^2 / 2 length_scale^2), and `noise` is the noise variance relative to that of the signal.
    Weights depend only on epochs, so one small linear solve serves all examples that were scored in the same epochs.

    >>> gaussian_process(length_scale=3, noise=1e-6)(torch.tensor([4, 2]), 4).round(decimals=3).tolist()
    [1.0, 0.0]
    """
    if length_scale <= 0 or noise <= 0:
        raise ValueError(f"length_scale and noise must be positive, got {length_scale} and {noise}")

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-((a[:, None] - b[None, :]) ** 2) / (2 * length_scale**2))

    def gains(epochs: Tensor, now: int) -> Tensor:
        times = epochs.to(torch.float64)
        covariance = kernel(times, times) + noise * torch.eye(len(times), dtype=torch.float64)
        gain = torch.linalg.solve(covariance, kernel(times, torch.tensor([now], dtype=torch.float64))).flatten()
        weights: Tensor = gain + (1 - gain.sum()) / len(times)
        return weights

    return gains


class PredictedScorer(Wrapping):
    """Predicts the score of each example from its past scores. Without recent ones, the example is loaded and scored.

    Args:
        fresh: scores loaded candidates.
        predictor: `exponential_average(...)` or `gaussian_process(...)`.
        past_scores: H, the number of past scores to predict from.
        max_age: number of epochs after which an example is scored anew.
    """

    def __init__(self, fresh: Scorer, *, predictor: Predictor, past_scores: int = 4, max_age: int = 3) -> None:
        if past_scores < 1:
            raise ValueError(f"past_scores must be at least 1, got {past_scores}")
        if not max_age >= 1:  # also if it is NaN
            raise ValueError(f"max_age must be at least 1 epoch, got {max_age}")
        super().__init__(fresh)
        self.predictor = predictor
        self.past_scores = past_scores
        self.max_age = max_age
        self.needs = Needs(ids=True, selection_pass=True, past_scores=past_scores)

    def plans(self, epoch: int) -> bool:
        return True

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        scores, epochs = rows.scores, rows.score_epochs
        newest = epochs[:, 0]
        known = ((newest > epoch - self.max_age) & (newest >= 0)).nonzero().flatten()
        scores, epochs = scores.index_select(0, known), epochs.index_select(0, known)
        predicted = torch.full((len(ids),), float("nan"))
        # Examples scored in the same epochs have the same weights. Usually these are all examples.
        while len(known):
            times = epochs[0]
            same = (epochs == times).all(1)
            past = times[times >= 0]
            weights = self.predictor(past, epoch).to(torch.float32)
            predicted[known[same]] = scores[same][:, : len(past)] @ weights
            known, scores, epochs = known[~same], scores[~same], epochs[~same]
        return predicted
