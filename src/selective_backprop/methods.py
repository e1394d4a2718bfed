"""The named methods, each a few lines of wiring.

| method | scores | policy |
| --- | --- | --- |
| traditional | none | everything |
| selective_backprop | loss of a selection pass | percentile ** beta |
| stale_selective_backprop | the same, every n-th epoch | percentile ** beta |
| random_backprop | none | the same chance for all |
| top_k | loss of a selection pass | the highest of each candidate batch |

Every method but traditional also takes the options of `Schedule`: warmup_epochs, start, end, interrupt.
"""

from __future__ import annotations

import math
from typing import Any

from selective_backprop.no_trace import ScoringMode
from selective_backprop.policies import PercentilePolicy, TopKPolicy, UniformPolicy
from selective_backprop.schedule import NEVER, Schedule
from selective_backprop.scorers import ConstantScorer, ForwardScorer, StoredScorer
from selective_backprop.types import Method


def traditional() -> Method:
    """Train on everything, always.

    >>> traditional().name
    'traditional'
    """
    return Method("traditional", ConstantScorer(), UniformPolicy(selectivity=1), NEVER)


def selective_backprop(
    selectivity: float | None = None,
    *,
    beta: float | None = None,
    history_size: int = 1024,
    scoring: ScoringMode = "eval",
    **schedule: Any,
) -> Method:
    """Selective-Backprop: chance of training = (percentile of the loss among the last R) ** beta.

    Args:
        selectivity: expected share of candidates trained on; 1/3 if neither it nor beta is given. The paper: 0.33
            for CIFAR-10, 0.5 for CIFAR-100, 0.25 for SVHN.
        beta: the exponent itself, 1 / selectivity - 1.
        history_size: R.
        scoring: mode of the selection pass, "eval" or "train" (with statistics frozen).
        schedule: options of `Schedule`, such as warmup_epochs=1.

    >>> selective_backprop(beta=1).policy.selectivity
    0.5

    Jiang et al. 2019, https://arxiv.org/abs/1910.00762.
    """
    policy = _percentile(selectivity, beta, history_size)
    return Method("selective_backprop", ForwardScorer(scoring), policy, Schedule(**schedule))


def stale_selective_backprop(
    selectivity: float | None = None,
    *,
    beta: float | None = None,
    every: int = 3,
    history_size: int = 1024,
    scoring: ScoringMode = "eval",
    **schedule: Any,
) -> Method:
    """Stale-SB: selection passes only every n-th epoch; in between the last scores decide before loading.

    Args:
        selectivity, beta, history_size, scoring, schedule: as for `selective_backprop`.
        every: n. 1 is Selective-Backprop; the paper tries 2 and 3.

    >>> stale_selective_backprop(0.25, every=2).scorer.every
    2
    """
    policy, when = _percentile(selectivity, beta, history_size), Schedule(**schedule)
    scorer = StoredScorer(ForwardScorer(scoring), every=every, first_epoch=math.ceil(when.warmup_epochs))
    return Method("stale_selective_backprop", scorer, policy, when)


def random_backprop(selectivity: float = 1 / 3, **schedule: Any) -> Method:
    """Random-Backprop: every candidate has the same chance. What is not chosen is not even loaded.

    Args:
        selectivity: the chance.
        schedule: options of `Schedule`.

    >>> random_backprop(0.5).policy.selectivity
    0.5
    """
    return Method("random_backprop", ConstantScorer(), UniformPolicy(selectivity=selectivity), Schedule(**schedule))


def top_k(selectivity: float = 1 / 3, *, scoring: ScoringMode = "eval", **schedule: Any) -> Method:
    """The highest losses of each candidate batch, without chance.

    Args:
        selectivity: the share of each candidate batch.
        scoring, schedule: as for `selective_backprop`.

    >>> top_k(0.5).policy.selectivity
    0.5
    """
    return Method("top_k", ForwardScorer(scoring), TopKPolicy(selectivity=selectivity), Schedule(**schedule))


def _percentile(selectivity: float | None, beta: float | None, history_size: int) -> PercentilePolicy:
    if selectivity is None and beta is None:
        selectivity = 1 / 3
    return PercentilePolicy(selectivity=selectivity, beta=beta, history_size=history_size)
