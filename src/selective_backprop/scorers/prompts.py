"""Scores of prompts for reinforcement learning, by the rewards that their rollouts had.

# N = candidates, z = run of groups with equal rewards
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from selective_backprop.ledger import LedgerRows
from selective_backprop.options import require_numbers
from selective_backprop.prompt_ledger import PromptRows, prompt_column
from selective_backprop.types import Needs, Scorer

_logger = logging.getLogger(__name__)
_LEAST = 0.1  # share of the prompts that an epoch keeps, whatever their rewards


class PromptScorer(Scorer):
    """Scores prompts by the rewards of their rollouts, before anything is generated. By itself it keeps them all.

    A prompt that was never seen has no score, so it comes first. With several ranks, each goes by its own candidates.

    Args:
        half_life, right_at: as for `PromptLedger`.
    """

    score_name = "chance"

    def __init__(self, *, half_life: float = 100, right_at: float = 0.5) -> None:
        self.half_life, self.right_at = half_life, right_at
        self.needs = Needs(ids=True, rewards=True, columns=prompt_column(half_life=half_life, right_at=right_at))

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        prompts = PromptRows.of(rows)
        if epoch >= 2 and len(ids) and not bool(prompts.is_seen.any()):
            raise RuntimeError(
                "the method chooses prompts by their rewards, but got none in two epochs: call "
                "sampler.update(rewards, ids=ids) after every generation"
            )
        return self.score_prompts(prompts, epoch).masked_fill(~prompts.is_seen, float("nan"))

    def score_prompts(self, prompts: PromptRows, epoch: int) -> Tensor:
        """Return (N,) the score of each prompt. Those that were never seen get none, whatever this returns."""
        return torch.ones_like(prompts.mean)


class ChanceScorer(PromptScorer, ABC):
    """Scores a prompt by its chance to be generated from. No epoch keeps less than a tenth of the prompts.

    If the chances come to less, all others come back with the same chance, so that the pool never drains.
    """

    _told = False

    @abstractmethod
    def chances(self, prompts: PromptRows) -> Tensor:
        """Return (N,) the chance of each prompt."""

    def score_prompts(self, prompts: PromptRows, epoch: int) -> Tensor:
        chances = self.chances(prompts).masked_fill(~prompts.is_seen, 1.0)
        expected, least = float(chances.sum()), _LEAST * len(chances)
        if expected >= least:
            return chances
        if not self._told:
            self._told = True
            _logger.warning(
                "the rewards of %d prompts leave %.1f to learn from: others come back at random, so that an epoch has "
                "%.0f%% of them",
                len(chances),
                expected,
                100 * _LEAST,
            )
        return chances + (1 - chances) * (least - expected) / (len(chances) - expected)


class GresoScorer(ChanceScorer):
    """Scores a prompt by its chance to be generated from: p^z after z groups with equal rewards.

    Args:
        easy: share of an epoch's prompts whose last groups were all right.
        hard: share of an epoch's prompts whose last groups were all wrong.
        half_life, right_at: as for `PromptLedger`.
    """

    def __init__(self, *, easy: float, hard: float, half_life: float = 100, right_at: float = 0.5) -> None:
        super().__init__(half_life=half_life, right_at=right_at)
        require_numbers(easy=easy, hard=hard)
        for name, share in (("easy", easy), ("hard", hard), ("easy + hard", easy + hard)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be a share of an epoch in [0, 1), got {share}")
        self.easy, self.hard = easy, hard

    def chances(self, prompts: PromptRows) -> Tensor:
        run, open_ = prompts.run, prompts.run == 0
        chances = open_.to(torch.float32)
        # So many prompts with equal rewards come to one that teaches.
        each = int(open_.sum()) / (1 - self.easy - self.hard)
        for is_closed, share in ((run > 0, self.easy), (run < 0, self.hard)):
            z = run[is_closed].abs()
            chances[is_closed] = base_for(z, share * each) ** z
        return chances


def base_for(runs: Tensor, expected: float) -> float:
    """Solve sum(p ** runs) = expected for p, in [0, 1].

    >>> round(base_for(torch.tensor([1.0, 1.0, 2.0]), 1.25), 3)
    0.5
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if float((middle**runs).sum()) > expected else (middle, high)
    return high


class MasteryScorer(ChanceScorer):
    """Scores a prompt by its chance to be generated from: 1, or after it was mastered the chance to be checked again.

    Args:
        at: mean reward from which a prompt counts as mastered.
        recheck: share of an epoch's prompts that are mastered ones, to see whether they still are.
        half_life, right_at: as for `PromptLedger`.
    """

    def __init__(self, *, at: float, recheck: float, half_life: float = 100, right_at: float = 0.5) -> None:
        super().__init__(half_life=half_life, right_at=right_at)
        require_numbers(at=at, recheck=recheck)
        if not 0 <= recheck < 1:
            raise ValueError(f"recheck must be a share of an epoch in [0, 1), got {recheck}")
        self.at, self.recheck = at, recheck

    def chances(self, prompts: PromptRows) -> Tensor:
        mastered = (prompts.mean >= self.at) & prompts.is_seen
        others = len(mastered) - int(mastered.sum())
        again = others * self.recheck / (1 - self.recheck) / max(1, int(mastered.sum()))
        return torch.where(mastered, min(1.0, again), 1.0)


class NearHalfScorer(PromptScorer):
    """Scores a prompt by how near a draw from the posterior of its pass rate is to the target.

    The posterior is Beta(1 + right, 1 + wrong), where older rollouts count less. The draws follow from the epoch's
    number alone.

    Args:
        target: the pass rate to be near to.
        half_life, right_at: as for `PromptLedger`. Rewards must be from 0 to 1.
    """

    score_name = "nearness to the target"

    def __init__(self, *, target: float, half_life: float = 100, right_at: float = 0.5) -> None:
        super().__init__(half_life=half_life, right_at=right_at)
        require_numbers(target=target)
        if not 0 < target < 1:
            raise ValueError(f"target must be a pass rate between 0 and 1, got {target}")
        self.target = target

    def score_prompts(self, prompts: PromptRows, epoch: int) -> Tensor:
        rate = prompts.mean
        if bool(((rate < -1e-4) | (rate > 1 + 1e-4)).any()):
            raise ValueError(
                f"near_half takes rewards for a pass rate, from 0 to 1, and the means are from {float(rate.min()):.3g} "
                f"to {float(rate.max()):.3g}: pass the accuracy, not a sum of rewards"
            )
        right = (prompts.rollouts * rate.clamp(0, 1)).double().numpy()
        wrong = prompts.rollouts.double().numpy() - right
        drawn = np.random.default_rng(epoch).beta(1 + right, 1 + wrong.clip(min=0))
        return torch.from_numpy(-np.abs(drawn - self.target)).to(torch.float32)
