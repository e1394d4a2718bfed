"""What an epoch's plan trains on besides what was selected, so that its training batches fill.

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
    """Adds the highest scores that were not selected, where too few were selected; on all ranks together."""

    batch_size: int
    """B."""
    num_waiting: int
    """Examples that wait at the epoch's start, on all ranks."""
    generator: torch.Generator
    """Decides ties."""
    ranks: Ranks

    def choose(self, scores: Tensor, chances: Tensor, *, num_selected: int, must_train: bool, known: bool) -> Tensor:
        """Positions of the candidates to add, among those that were not selected; to be called by all ranks.

        Args:
            scores: of the candidates that were not selected.
            chances: with which they might have been. Those without a chance come after the others, outliers last.
            num_selected: how many were.
            must_train: candidates of this epoch have to be trained on in it, so that none may wait at its end.
            known: it is decided about all candidates; otherwise nobody can say yet how many will be selected.
        """
        told = self.ranks.share([num_selected, len(scores), must_train, not known])
        selected, left, must, unknown = (int(sum(numbers)) for numbers in zip(*told, strict=True))
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
        # Ranks that select together have the same generator, and have to leave it in the same state.
        seed = int(torch.randint(2**62, (), generator=self.generator))
        generator = torch.Generator().manual_seed(seed + self.ranks.rank)
        best = _best(scores, chances, min(missing, len(scores)), generator)
        lots = torch.rand(len(best), generator=generator, dtype=torch.float64)
        rows = torch.stack([lots, scores[best].double(), _preference(scores, chances)[best].double()], dim=1)
        counts = [min(missing, int(count)) for _, count, *_ in told]
        ranking = torch.cat(self.ranks.gather(rows.flatten(), [3 * count for count in counts])).view(-1, 3)
        order = torch.arange(len(ranking))
        for column in ranking.unbind(1):  # the last one counts most
            order = order[column[order].argsort(descending=True, stable=True)]
        first = sum(counts[: self.ranks.rank])
        mine = order[:missing] - first
        return best[mine[(mine >= 0) & (mine < len(best))]]


def num_missing(num_examples: int, step: int, *, whole_batches: bool) -> int:
    """How many examples to add to those that an epoch has to give out: for one batch, or for a whole number of them.

    >>> num_missing(20, 64, whole_batches=False), num_missing(70, 64, whole_batches=False)
    (44, 0)
    >>> num_missing(70, 64, whole_batches=True)
    58
    """
    return -num_examples % step if whole_batches else max(0, step - num_examples)


_NONE = torch.empty(0, dtype=torch.int64)


def _preference(scores: Tensor, chances: Tensor) -> Tensor:
    """What to add first: 2 for candidates with a chance, 1 for those without, 0 for outliers.

    An outlier lost a draw on purpose: it must not come in by another door.
    """
    outliers = functional.is_outlier(functional.loss_above_smallest(scores))
    return (1 + (chances > 0).to(torch.int64)).masked_fill(outliers, 0)


def _best(scores: Tensor, chances: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Positions of the candidates to add: by preference, and the highest scores among equals."""
    preference, found = _preference(scores, chances), []
    for level in (2, 1, 0):
        level_positions = (preference == level).nonzero().flatten()
        num_added = min(count, len(level_positions))
        found.append(level_positions[functional.highest(scores[level_positions], num_added, generator)[0]])
        count -= num_added
    return torch.cat(found)
