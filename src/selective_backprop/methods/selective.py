"""Selective-Backprop and its variants: the higher a candidate's loss, the higher its chance to be trained on."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from selective_backprop.functional import softmax_distance
from selective_backprop.method import Method
from selective_backprop.methods.options import (
    PercentileOptions,
    ScheduleOptions,
    first_selecting_epoch,
    percentile_method,
)
from selective_backprop.policies import ClippedScorePolicy, ExpectedPolicy
from selective_backprop.schedules import Schedule
from selective_backprop.scorers import Scoring, StoredScorer, scorer_from


def selective_backprop(
    selectivity: float | None = None, *, scoring: Scoring = "eval", **options: Unpack[PercentileOptions]
) -> Method:
    """Selective-Backprop: chance of training = (percentile of the loss among the last R) ** beta.

    Each epoch trains on the share of candidates that was asked for, also while losses fall. With `paper=True` it
    follows the paper's rule to the letter, with the last 1,024 losses, and trains on fewer while losses fall.

    Args:
        selectivity: share of candidates trained on; 1/3 if neither selectivity nor beta is given. The paper uses 0.33
            for CIFAR-10, 0.5 for CIFAR-100 and 0.25 for SVHN.
        scoring: how the selection pass is made: "eval", "train" (with statistics frozen), or "pipelined" in the
            background. Or pass your own scorer. To select within the training pass, without a selection pass, see
            `forward_reuse.SelectiveLoss`.
        options: options of `PercentilePolicy` (beta, history_size, fixed_size, unbiased, max_weight, paper) and of
            `Schedule` (warmup_epochs, start, end, interrupt).

    >>> selective_backprop(beta=1).policy.selectivity
    0.5

    Jiang et al. 2019, https://arxiv.org/abs/1910.00762.
    """
    return percentile_method("selective_backprop", scorer_from(scoring), selectivity, options)


def stale_selective_backprop(
    selectivity: float | None = None,
    *,
    every: int = 3,
    scoring: Scoring = "eval",
    **options: Unpack[PercentileOptions],
) -> Method:
    """Stale-SB: make selection passes only in every n-th epoch. In between, the last scores decide before loading.

    Args:
        selectivity, scoring, options: as for `selective_backprop`.
        every: n, make selection passes in every n-th epoch. With 1 this is Selective-Backprop; the paper tries 2 and 3.

    >>> stale_selective_backprop(0.25, every=2).scorer.every
    2
    """
    first_epoch = first_selecting_epoch(options)
    scorer = StoredScorer(scorer_from(scoring), every=every, first_epoch=first_epoch)
    return percentile_method("stale_selective_backprop", scorer, selectivity, options)


def predicted_selective_backprop(
    selectivity: float | None = None,
    *,
    every: int = 3,
    past_scores: int = 4,
    decay: float = 0.5,
    scoring: Scoring = "eval",
    **options: Unpack[PercentileOptions],
) -> Method:
    """Select by losses that are predicted from each example's past scores, as their exponentially weighted average.

    Every n-th epoch has selection passes, which give new scores.

    Args:
        selectivity, scoring, options: as for `selective_backprop`.
        every: n.
        past_scores: number of past scores to predict from.
        decay: the weight of each score relative to the next newer one.

    >>> predicted_selective_backprop(every=2).scorer.every
    2
    """
    first_epoch = first_selecting_epoch(options)
    scorer = StoredScorer(
        scorer_from(scoring), every=every, first_epoch=first_epoch, decay=decay, past_scores=past_scores
    )
    return percentile_method("predicted_selective_backprop", scorer, selectivity, options)


def distance_backprop(
    *, minimum: float = 0.05, scoring: Scoring = "eval", **schedule: Unpack[ScheduleOptions]
) -> Method:
    """The first version of Selective-Backprop: chance = squared L2 distance of softmax and one-hot target.

    Args:
        minimum: the smallest chance. Distances are clipped to [minimum, 1].
        scoring, schedule: as for `selective_backprop`.

    >>> distance_backprop(minimum=0.1).policy.minimum
    0.1
    """

    def squared_distance(outputs: Tensor, targets: Tensor) -> Tensor:
        return softmax_distance(outputs, targets).square()

    scorer = scorer_from(scoring, squared_distance)
    return Method("distance_backprop", scorer, ClippedScorePolicy(minimum=minimum), Schedule(**schedule))


def expected_selective_backprop(
    selectivity: float = 1 / 3, *, scoring: Scoring = "eval", **schedule: Unpack[ScheduleOptions]
) -> Method:
    """Train on what SB trains on in expectation: all candidates are kept, each weighted by its chance in SB.

    Training batches are 1 / selectivity times larger. This is slower than plain training. It is a tool to find out how
    much of SB's benefit comes from its weighting and how much from the work that it skips.

    Args:
        selectivity, scoring, schedule: as for `selective_backprop`.

    >>> expected_selective_backprop(0.25).batch_scale
    4.0
    """
    policy = ExpectedPolicy(selectivity=selectivity)
    name = "expected_selective_backprop"
    return Method(name, scorer_from(scoring), policy, Schedule(**schedule), batch_scale=1 / selectivity)
