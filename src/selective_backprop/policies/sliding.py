"""SeTa's rule: a window of groups that slides from easy to hard."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.options import require_numbers
from selective_backprop.types import Policy, Selection


class SlidingWindowPolicy(Policy):
    """Cut candidates into groups of similar scores, and keep a random part of the groups in a window.

    k-means makes the groups, which are ordered by score. In epoch t the window begins at group t mod (k - w + 1), so it
    slides from easy to hard and starts over. Each candidate in the window is kept with the chance 1 - prune. At the end
    of the run the window holds all groups. The policy is made for whole epochs: groups are those of one selection.

    Args:
        prune: r, the share that is left out at random, in [0, 1).
        groups: k, the number of groups.
        window: w, the number of groups in the window.
        until: fraction of the run after which only the random part is left out. The epoch in which it lies counts as
            after it.

    >>> policy = SlidingWindowPolicy(prune=0, groups=3, window=2)
    >>> policy.begin_epoch(1, num_epochs=10)
    >>> policy.select(torch.tensor([5.1, 0.2, 0.1, 9.0, 5.0]), torch.Generator()).positions.tolist()
    [0, 3, 4]

    Zhou et al. 2025, https://arxiv.org/abs/2503.13385.
    """

    def __init__(self, *, prune: float = 0.1, groups: int = 5, window: int = 4, until: float = 0.875) -> None:
        require_numbers(prune=prune, until=until)
        if not 0 <= prune < 1:
            raise ValueError(f"prune must be in [0, 1), got {prune}")
        for name, number in {"groups": groups, "window": window}.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {number!r}")
        if window > groups:
            raise ValueError(
                f"window must be at most the number of groups, got a window of {window} with {groups} groups"
            )
        if not 0 < until <= 1:
            raise ValueError(f"until must be a fraction of the run in (0, 1], got {until}")
        self.prune, self.groups, self.window, self.until = prune, groups, window, until
        self._epoch, self._at_end = 0, False

    def begin_epoch(self, epoch: int, num_epochs: int | None) -> None:
        if num_epochs is None and self.until < 1 and self.window < self.groups:
            raise ValueError(
                f"the window holds all groups after {self.until:g} of the run: pass num_epochs=, the length of the run"
            )
        self._epoch = epoch
        self._at_end = num_epochs is not None and epoch + 1 > self.until * num_epochs + 1e-9

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        size = len(scores)
        keep = torch.ones(size, dtype=torch.bool)
        if self.window < self.groups and not self._at_end:
            number = functional.groups_of_similar(scores, self.groups)
            first = self._epoch % (self.groups - self.window + 1)
            keep = (number >= first) & (number < first + self.window)
            if not bool(keep.any()):  # if there are fewer different scores than groups
                keep = number == number.max()
        num_drawn = size if self.prune == 0 else max(1, round((1 - self.prune) * size))
        drawn = torch.ones(size, dtype=torch.bool)
        if num_drawn < size:
            drawn = torch.zeros(size, dtype=torch.bool)
            drawn[torch.randperm(size, generator=generator)[:num_drawn]] = True
        positions = (keep & drawn).nonzero().flatten()
        return Selection(positions, torch.ones(len(positions)), keep.to(torch.float64) * (num_drawn / max(1, size)))
