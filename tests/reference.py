"""Slow, obvious versions of what the library computes."""

import math
from collections import deque


def mean_rank_percentile(history, value):
    """Percentile in (0, 1] with ties at the mean of their ranks; the value is in the history."""
    ranks = [rank for rank, other in enumerate(sorted(history), start=1) if other == value]
    return sum(ranks) / len(ranks) / len(history)


class Algorithm2:
    """The paper's CalculateProbability, one loss at a time."""

    def __init__(self, history_size, beta):
        self.history = deque(maxlen=history_size)
        self.beta = beta

    def probability(self, loss):
        self.history.append(loss)
        return mean_rank_percentile(self.history, loss) ** self.beta


def batched_percentiles(losses_before, batch, size):
    """Percentiles of a batch after all of it was added; a batch larger than the history counts whole."""
    window = (list(losses_before) + list(batch))[-max(size, len(batch)) :]
    return [mean_rank_percentile(window, loss) for loss in batch]


def keep_chances(losses_before, batch, size, beta, points=300):
    """Mean of percentile ** beta over each loss's own part of the CDF, after the batch was added; point by point."""
    window = (list(losses_before) + list(batch))[-max(size, len(batch)) :]
    chances = []
    for loss in batch:
        low = sum(other < loss for other in window) / len(window)
        high = sum(other <= loss for other in window) / len(window)
        percentiles = [low + (high - low) * (i + 0.5) / points for i in range(points)]
        chances.append(sum(u**beta for u in percentiles) / points)
    return chances


def capped_shares(weights, total):
    """min(1, c * w) adding up to total, by bisection on c."""
    low, high = 0.0, 1.0
    while sum(min(1.0, high * w) for w in weights) < total - 1e-12 and high < 1e18:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if sum(min(1.0, middle * w) for w in weights) < total:
            low = middle
        else:
            high = middle
    return [min(1.0, high * w) for w in weights]


def squared_distance(logits, target):
    """|| softmax - onehot || ** 2 of one example, from lists."""
    peak = max(logits)
    powers = [math.exp(value - peak) for value in logits]
    softmax = [power / sum(powers) for power in powers]
    return sum((p - (i == target)) ** 2 for i, p in enumerate(softmax))


def variance_reduction(losses):
    """Kath18's tau as the paper defines it: (1 - ||g - u||^2 / sum g_i^2) ** -1/2 for shares g and uniform u."""
    shares = [loss / sum(losses) for loss in losses]
    squares = sum(share**2 for share in shares)
    distance = sum((share - 1 / len(shares)) ** 2 for share in shares)
    return (1 - distance / squares) ** -0.5


def hardest_with_loss_share(losses, share, cap=float("inf")):
    """Positions of the largest losses, taken one by one until they have this share of the total.

    A loss counts by how far it is above the smallest, and for no more than `cap` times the mean.
    """
    losses = [loss - min(losses) for loss in losses]
    counted = [min(loss, cap * sum(losses) / len(losses)) for loss in losses]
    taken, remaining = [], sorted(range(len(losses)), key=lambda i: losses[i])
    while sum(counted[i] for i in taken) < share * sum(counted) - 1e-9:
        taken.append(remaining.pop())
    return taken
