"""Selective-Backprop and its relatives: a chance for every candidate, by its loss."""

from __future__ import annotations

import math
from typing import Literal, Unpack

from torch import Tensor

from selective_backprop.functional import softmax_distance
from selective_backprop.method import Method
from selective_backprop.methods.options import PercentileOptions, ScheduleOptions, percentile_method
from selective_backprop.policies import ClippedScorePolicy, ExpectedPolicy
from selective_backprop.schedules import Schedule
from selective_backprop.scorers import (
    PredictedScorer,
    Scoring,
    StoredScorer,
    exponential_average,
    gaussian_process,
    scorer_from,
)


def selective_backprop(
    selectivity: float | None = None, *, scoring: Scoring = "eval", **options: Unpack[PercentileOptions]
) -> Method:
    """Selective-Backprop: chance of training = (percentile of the loss among the last R) ** beta.

    Each epoch trains on the share of candidates that was asked for, also while losses fall. The rule of the paper to
    the letter, with the last 1,024 losses, is `paper=True`: it then trains on fewer.

    Args:
        selectivity: share of candidates trained on; 1/3 if neither it nor beta is given. The paper: 0.33 for CIFAR-10,
            0.5 for CIFAR-100, 0.25 for SVHN.
        scoring: the selection pass: "eval", "train" (with statistics frozen), "half" resolution, a cheaper copy of the
            model ("folded", "compiled", "int8", "bf16", "fp16"), "pipelined" in the background, several of these joined
            by +, "reuse" of the training pass, or a scorer of your own.
        options: of `PercentilePolicy` (beta, history_size, fixed_size, noise_guard, unbiased, max_weight, paper), of
            `Schedule` (warmup_epochs, start, end, interrupt), and classes=, a label per id, for a history per class.

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
    """Stale-SB: selection passes only every n-th epoch; in between the last scores decide before loading.

    Args:
        selectivity, scoring, options: as for `selective_backprop`.
        every: n. 1 is Selective-Backprop; the paper tries 2 and 3.

    >>> stale_selective_backprop(0.25, every=2).scorer.every
    2
    """
    first_epoch = math.ceil(options.get("warmup_epochs", 0))
    scorer = StoredScorer(scorer_from(scoring), every=every, first_epoch=first_epoch)
    return percentile_method("stale_selective_backprop", scorer, selectivity, options)


def predicted_selective_backprop(
    selectivity: float | None = None,
    *,
    predictor: Literal["average", "gaussian_process"] = "average",
    past_scores: int = 4,
    max_age: int = 3,
    decay: float = 0.5,
    length_scale: float = 3.0,
    noise: float = 0.1,
    scoring: Scoring = "eval",
    **options: Unpack[PercentileOptions],
) -> Method:
    """Selection by losses predicted from each example's past; a selection pass where they are too old.

    Args:
        selectivity, scoring, options: as for `selective_backprop`.
        predictor: "average", exponentially weighted by `decay`, or "gaussian_process" over epochs with
            `length_scale` and `noise`.
        past_scores: how many scores to predict from.
        max_age: epochs after which an example is scored afresh.

    >>> predicted_selective_backprop(predictor="gaussian_process").scorer.max_age
    3
    """
    predictors = {
        "average": lambda: exponential_average(decay),
        "gaussian_process": lambda: gaussian_process(length_scale, noise),
    }
    if predictor not in predictors:
        raise ValueError(f"predictor must be one of {', '.join(predictors)}, got {predictor!r}")
    scorer = PredictedScorer(
        scorer_from(scoring), predictor=predictors[predictor](), past_scores=past_scores, max_age=max_age
    )
    return percentile_method("predicted_selective_backprop", scorer, selectivity, options)


def distance_backprop(
    minimum: float = 0.05, *, scoring: Scoring = "eval", **schedule: Unpack[ScheduleOptions]
) -> Method:
    """The first version of Selective-Backprop: chance = squared L2 distance of softmax and one-hot target.

    Args:
        minimum: the least chance; the distance is clipped to [minimum, 1].
        scoring, schedule: as for `selective_backprop`.

    >>> distance_backprop(0.1).policy.minimum
    0.1
    """

    def squared_distance(outputs: Tensor, targets: Tensor) -> Tensor:
        return softmax_distance(outputs, targets).square()

    scorer = scorer_from(scoring, squared_distance)
    return Method("distance_backprop", scorer, ClippedScorePolicy(minimum=minimum), Schedule(**schedule))


def expected_selective_backprop(
    selectivity: float = 1 / 3,
    *,
    history_size: int | None = None,
    paper: bool = False,
    scoring: Scoring = "eval",
    **schedule: Unpack[ScheduleOptions],
) -> Method:
    """What SB does in expectation: nothing is skipped, all are weighted, in batches 1 / selectivity times larger.

    Slower than plain training: a tool to tell how much of SB's benefit is its weighting, and how much the work
    that it skips.

    Args:
        selectivity, history_size, paper, scoring, schedule: as for `selective_backprop`.

    >>> expected_selective_backprop(0.25).batch_scale
    4.0
    """
    policy = ExpectedPolicy(selectivity=selectivity, history_size=history_size, paper=paper)
    name = "expected_selective_backprop"
    return Method(name, scorer_from(scoring), policy, Schedule(**schedule), batch_scale=1 / selectivity)
