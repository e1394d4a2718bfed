"""Topping up: adds examples to an epoch's selection when too few are selected to fill a training batch.

# B = training batch of a rank, k = number of ranks
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.distributed.ranks import Ranks


@dataclass(frozen=True)
class TopUp:
    """If too few candidates are selected, adds those with the highest scores among the others, over all ranks."""

    batch_size: int
    """B."""
    num_waiting: int
    """Number of examples on all ranks that wait in the queue when the epoch begins."""
    generator: torch.Generator
    """Breaks ties between equal scores."""
    ranks: Ranks

    def choose(self, scores: Tensor, chances: Tensor, *, num_selected: int, must_train: bool, known: bool) -> Tensor:
        """Choose which candidates to add: positions among those that were not selected. All ranks must call this.

        Args:
            scores: scores of the candidates that were not selected.
            chances: the selection probability that each of them had. Candidates with a probability of 0 are added
                after the others, and outliers last.
            num_selected: number of candidates that were selected.
            must_train: whether this epoch's candidates must be trained on within it, so that none may wait at its end.
            known: whether all candidates are decided about. If not, the number of selected ones is not known yet, and
                nothing is added.
        """
        answers = self.ranks.share([num_selected, len(scores), must_train, not known])
        selected, left, must, unknown = (int(sum(numbers)) for numbers in zip(*answers, strict=True))
        if unknown:
            return _NONE
        step = self.batch_size * self.ranks.size
        missing = min(left, num_missing(self.num_waiting + selected, step, whole_batches=must > 0))
        if missing == left:
            return torch.arange(len(scores))
        if not missing:
            return _NONE
        if self.ranks.size == 1:
            return _best(scores, chances, missing, self.generator)
        # Ranks that select together have equal generators, which must stay equal: each draws one number from them.
        seed = int(torch.randint(2**62, (), generator=self.generator))
        generator = torch.Generator().manual_seed(seed + self.ranks.rank)
        best = _best(scores, chances, min(missing, len(scores)), generator)
        lots = torch.rand(len(best), generator=generator, dtype=torch.float64)
        rows = torch.stack([lots, scores[best].double(), _preference(scores, chances)[best].double()], dim=1)
        counts = [min(missing, int(count)) for _, count, *_ in answers]
        ranking = torch.cat(self.ranks.gather(rows.flatten(), [3 * count for count in counts])).view(-1, 3)
        order = torch.arange(len(ranking))
        for column in ranking.unbind(1):  # stable sorts: the last column counts most
            order = order[column[order].argsort(descending=True, stable=True)]
        first = sum(counts[: self.ranks.rank])
        mine = order[:missing] - first
        return best[mine[(mine >= 0) & (mine < len(best))]]


def num_missing(num_examples: int, step: int, *, whole_batches: bool) -> int:
    """Count the examples to add so that they fill at least one step, or, with whole_batches, a whole number of steps.

    step: examples in one training batch of every rank.

    >>> num_missing(20, 64, whole_batches=False), num_missing(70, 64, whole_batches=False)
    (44, 0)
    >>> num_missing(70, 64, whole_batches=True)
    58
    """
    return -num_examples % step if whole_batches else max(0, step - num_examples)


_NONE = torch.empty(0, dtype=torch.int64)


def _preference(scores: Tensor, chances: Tensor) -> Tensor:
    """Rank candidates by what to add first: 2 for those that could have been selected, 1 for others, 0 for outliers.

    The policy gives outliers a low chance on purpose, so they are the last to be added.
    """
    outliers = functional.is_outlier(functional.loss_above_smallest(scores))
    return (1 + (chances > 0).to(torch.int64)).masked_fill(outliers, 0)


def _best(scores: Tensor, chances: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Find the `count` candidates to add first: by preference, then by the highest score. Returns positions."""
    preference, found = _preference(scores, chances), []
    for level in (2, 1, 0):
        level_positions = (preference == level).nonzero().flatten()
        num_added = min(count, len(level_positions))
        found.append(level_positions[functional.highest(scores[level_positions], num_added, generator)[0]])
        count -= num_added
    return torch.cat(found)
