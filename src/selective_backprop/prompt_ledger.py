"""The ledger of prompts: what the rewards of their rollouts say about each of them.

# P = prompts, G = rollouts of a prompt, n = prompts of an update
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selective_backprop.distributed.ledger import AnyLedger, make_ledger
from selective_backprop.distributed.ranks import current_ranks
from selective_backprop.ledger import Column, Event, LedgerRows
from selective_backprop.losses import as_ids, as_numbers
from selective_backprop.options import require_numbers
from selective_backprop.saved import write_table

SMALLEST_VARIANCE = 1e-8
"""Rewards with a smaller variance differ by rounding alone."""
NAME = "prompt"
"""Name of the column of a ledger that holds what is known about prompts."""


def prompt_column(*, half_life: float = 100, right_at: float = 0.5) -> dict[str, Column]:
    """Declare the column that makes a ledger a ledger of prompts.

    Args:
        half_life: number of steps after which a rollout counts half.
        right_at: if all rewards of a group are equal, they are right from this reward on, and wrong below it.
    """
    for name, value in (("half_life", half_life), ("right_at", right_at)):
        require_numbers(**{name: value})
        if value != value:
            raise ValueError(f"{name} must be a number, got {value}")
    if not half_life > 0:
        raise ValueError(f"half_life must be a number of steps > 0, got {half_life}")
    return {NAME: Column("rewards", _Fading(half_life, right_at), width=4, fill=0)}


@dataclass(frozen=True)
class _Fading:
    """Adds a group of rollouts to what is known. What is known fades with the steps since then."""

    half_life: float
    right_at: float

    def __call__(self, rows: Tensor, event: Event) -> Tensor:
        count, mean, variance, run = rows.unbind(1)
        size, new_mean, new_variance = event.values.unbind(1)
        steps = (event.epochs - event.epochs_before).clamp(min=0).to(torch.float32)
        count = count * 0.5 ** (steps / self.half_life)
        share = size / (count + size)
        change = new_mean - mean
        variance = (1 - share) * variance + share * new_variance + share * (1 - share) * change.square()
        # A run of groups that are all right counts up from 0, one of groups that are all wrong counts down.
        sign = torch.where(new_mean >= self.right_at, 1.0, -1.0)
        run = torch.where(new_variance > SMALLEST_VARIANCE, 0.0, sign * (run * sign).clamp(min=0) + sign)
        return torch.stack([count + size, mean + share * change, variance, run], dim=1)


@dataclass(frozen=True)
class PromptRows:
    """What is known about P prompts, row by row."""

    rollouts: Tensor
    """(P,) Number of rollouts seen, where older ones count less."""
    mean: Tensor
    """(P,) Mean of their rewards: the pass rate, if rewards are 0 or 1. 0 if none was seen."""
    variance: Tensor
    """(P,) Variance of their rewards."""
    run: Tensor
    """(P,) How many groups in a row had equal rewards, up to the last one: z if they were right, -z if wrong."""
    step: Tensor
    """(P,) The step at which the prompt was last seen; -1 if never."""

    @staticmethod
    def of(rows: LedgerRows | Any) -> PromptRows:
        """Read the rows of a ledger that has the column of prompts."""
        rollouts, mean, variance, run = getattr(rows, NAME).unbind(1)
        return PromptRows(rollouts, mean, variance, run, rows.score_epoch)

    @property
    def is_seen(self) -> Tensor:
        return self.step >= 0

    def save(self, file: str | Path) -> None:
        """Write all columns to a CSV file, one row per prompt."""
        columns = {field.name: getattr(self, field.name).tolist() for field in fields(self)}
        write_table(file, {"id": range(len(self.step)), **columns})


class PromptLedger:
    """One row per prompt: rollouts seen, mean and variance of their rewards, run of groups without variance, last step.

    Older rollouts count less, because the model changes. Pass the reward that says whether an answer is right, such as
    the accuracy, and not a sum with rewards for form or length: a prompt would look unsolved while its answers are
    right.

    Args:
        prompts: number of prompts, or the ledger of a `SelectiveSampler` whose method chooses prompts.
        half_life: number of steps after which a rollout counts half. An update is a step.
        right_at: if all rewards of a group are equal, they are right from this reward on, and wrong below it.

    With several ranks, each holds a part of the rows, and all must call the constructor, `rows` and `whole`.

    >>> ledger = PromptLedger(3)
    >>> ledger.update([2, 0], [[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    >>> rows = ledger.whole()
    >>> rows.mean.tolist(), rows.run.tolist(), rows.step.tolist()
    ([0.25, 0.0, 1.0], [0.0, 0.0, 1.0], [0, -1, 0])
    """

    def __init__(self, prompts: int | AnyLedger, *, half_life: float = 100, right_at: float = 0.5) -> None:
        if isinstance(prompts, bool) or (isinstance(prompts, int) and prompts < 1):
            raise ValueError(f"prompts must be a number of prompts >= 1, or a ledger of prompts, got {prompts!r}")
        if isinstance(prompts, int):
            columns = prompt_column(half_life=half_life, right_at=right_at)
            prompts = make_ledger(prompts, current_ranks(), columns)
        elif NAME not in getattr(prompts, "columns", ()):
            raise ValueError(
                f"prompts must be a number of prompts, or the ledger of a sampler with a method of sb.rl, got "
                f"{'a ledger of losses' if hasattr(prompts, 'columns') else repr(prompts)}"
            )
        self.ledger: AnyLedger = prompts
        """The columns, as any ledger has them."""
        self.num_steps = 1 + int(self.ledger.whole().score_epoch.max())
        """Number of steps so far."""

    def __len__(self) -> int:
        return len(self.ledger)

    def update(self, ids: Any, rewards: Any) -> None:
        """Record a step's rewards.

        Args:
            ids: (n,) the prompts, or (n * G,) the prompt of each rollout.
            rewards: (n, G) the rewards of each prompt's rollouts, or (n * G,) one reward per rollout.
        """
        self.ledger.record_rewards(*grouped(ids, rewards, len(self)), self.num_steps)
        self.num_steps += 1

    def rows(self, ids: Tensor) -> PromptRows:
        """Look up these prompts, row by row."""
        ids = as_ids(ids, "ids")
        _require_prompts(ids, len(self))
        return PromptRows.of(self.ledger.rows(ids))

    def whole(self) -> PromptRows:
        """Return what is known about every prompt, by id."""
        return PromptRows.of(self.ledger.whole())

    def state_dict(self) -> dict[str, Any]:
        return self.ledger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ledger.load_state_dict(state)
        self.num_steps = 1 + int(self.ledger.whole().score_epoch.max())


def grouped(ids: Any, rewards: Any, num_prompts: int) -> tuple[Tensor, Tensor]:
    """Return the prompts of an update, each once, and (n, 3) the number, mean and variance of their rewards.

    >>> grouped([4, 7, 4, 7], [1.0, 0.0, 0.0, 0.0], 10)
    (tensor([4, 7]), tensor([[2.0000, 0.5000, 0.2500],
            [2.0000, 0.0000, 0.0000]]))
    """
    ids, rewards = as_ids(ids, "ids"), as_numbers(rewards, "rewards").to("cpu", torch.float64)
    if ids.dim() != 1 or rewards.dim() not in (1, 2) or len(ids) != len(rewards):
        raise ValueError(
            f"there must be one id per row of rewards: got ids of shape {tuple(ids.shape)} and rewards of shape "
            f"{tuple(rewards.shape)}. With several processes, gather the rewards first, or pass each process's own ids"
        )
    _require_prompts(ids, num_prompts)
    if rewards.dim() == 2:
        if not rewards.shape[1] and len(ids):
            raise ValueError("the prompts have no rewards: each needs those of at least two rollouts")
        ids, rewards = ids.repeat_interleave(rewards.shape[1]), rewards.flatten()
    bad = ids[~rewards.isfinite()].unique()
    if len(bad):
        raise ValueError(
            f"the rewards of the prompts {bad[:5].tolist()} are not finite: a NaN would stay in the ledger. Check your "
            "reward function, or leave these rollouts out"
        )
    prompts, group = ids.unique(return_inverse=True)
    size = group.bincount(minlength=len(prompts)).to(torch.float64)
    if bool((size < 2).any()):
        raise ValueError(
            f"the prompts {prompts[size < 2][:5].tolist()} have a single rollout: whether rewards differ takes at "
            "least two generations per prompt"
        )
    mean = torch.zeros(len(prompts), dtype=torch.float64).index_add_(0, group, rewards) / size
    variance = torch.zeros_like(mean).index_add_(0, group, (rewards - mean[group]).square()) / size
    return prompts, torch.stack([size, mean, variance], dim=1).to(torch.float32)


def _require_prompts(ids: Tensor, num_prompts: int) -> None:
    """Raise if ids are not of these prompts."""
    wrong = ids[(ids < 0) | (ids >= num_prompts)]
    if len(wrong):
        raise ValueError(
            f"the ids {wrong[:5].tolist()} are not from 0 to {num_prompts - 1}: this ledger is for {num_prompts} "
            "prompts, and an id is the number of a prompt's row in that data set"
        )
