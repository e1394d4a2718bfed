"""Methods that choose a fixed number from each candidate batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Unpack

from torch import nn

from selective_backprop.functional import softmax_distance
from selective_backprop.method import Method
from selective_backprop.methods.options import ScheduleOptions
from selective_backprop.options import require_flags
from selective_backprop.policies import ImportancePolicy, PercentilePolicy, TopKPolicy
from selective_backprop.schedules import Schedule, VariableStart
from selective_backprop.scorers import ForwardScorer, ProxyScorer, Scoring, scorer_from
from selective_backprop.scorers.proxies import MakeOptimizer, falling, sgd


def proxy_backprop(
    selectivity: float = 0.5,
    *,
    proxy: nn.Module,
    train_every: int = 1,
    train_share: float = 1.0,
    optimizer: MakeOptimizer = sgd,
    rate: Callable[[float], float] = falling,
    **schedule: Unpack[ScheduleOptions],
) -> Method:
    """Train on the examples of each candidate batch that a small network, trained alongside, finds hardest.

    The proxy sees the very views that are trained on, after your transform. It pays where a pass of the proxy costs
    little beside a training step of your model.

    Args:
        selectivity: the share of each candidate batch to keep.
        proxy: a small network that takes the same batches, and whose outputs fit the same loss.
        train_every, train_share, optimizer, rate: how the proxy learns; see `ProxyScorer`.
        schedule: as for `selective_backprop`.

    >>> proxy_backprop(0.35, proxy=nn.Linear(64, 10)).policy.selectivity
    0.35

    The script that is fastest to 96% on CIFAR-10, airbench96_faster in
    https://github.com/KellerJordan/cifar10-airbench, trains its proxy on every fourth step, on its own selection:
    `train_every=4, train_share=0.5`.
    """
    scorer = ProxyScorer(proxy, train_every=train_every, train_share=train_share, optimizer=optimizer, rate=rate)
    return Method("proxy_backprop", scorer, TopKPolicy(selectivity=selectivity), Schedule(**schedule))


def kath18(
    selectivity: float = 1 / 3,
    *,
    score: Literal["loss", "gradient_norm"] = "loss",
    unbiased: bool = False,
    variable_start: bool = True,
    threshold: float | None = None,
    scoring: Scoring = "eval",
    **schedule: Unpack[ScheduleOptions],
) -> Method:
    """Importance sampling: from each candidate batch, draw a share with replacement, in proportion to the score.

    Candidate batches are called pools here. Give the DataLoader batches of batch_size / selectivity, and batch_size= to
    the SelectiveLoader. The defaults are those of the comparison in the SB paper.

    Args:
        selectivity: training batch size over pool size.
        score: the loss, or "gradient_norm", the norm of the gradient with respect to the outputs.
        unbiased: weight each draw by 1 / (N p), for N candidates and the probability p of the one drawn.
        variable_start: train on everything until the variance reduction tau exceeds the threshold. While selection is
            off, tau is estimated from training losses, if `loader.loss` gives them and the score is the loss; otherwise
            from the scores of one candidate batch in ten. While it is on, tau comes from pools. See `VariableStart`.
        threshold: threshold of tau; by default (B + 3b) / (3b) for pools of B and batches of b. Above it, sampling
            saves more than it costs.
        scoring, schedule: as for `selective_backprop`.

    >>> kath18().schedule.threshold
    2.0

    Katharopoulos and Fleuret 2018, https://arxiv.org/abs/1803.00942.
    """
    measures = {"loss": None, "gradient_norm": softmax_distance}
    if score not in measures:
        raise ValueError(f"score must be one of {', '.join(measures)}, got {score!r}")
    require_flags(variable_start=variable_start)
    policy = ImportancePolicy(selectivity=selectivity, unbiased=unbiased)
    when = Schedule(**schedule)
    if variable_start:
        when = VariableStart(threshold=(1 / selectivity + 3) / 3 if threshold is None else threshold, **schedule)
    return Method("kath18", scorer_from(scoring, measures[score]), policy, when)


def composer_backprop(
    selectivity: float = 0.5,
    *,
    start: float = 0.5,
    end: float = 0.9,
    interrupt: int = 2,
    scale_factor: float = 1.0,
) -> Method:
    """Composer's variant of SB: within a window of the run, select a fixed share of each candidate batch.

    Args:
        selectivity: the share to keep. Composer calls it keep.
        start, end: the window, as fractions of the run.
        interrupt: every interrupt-th candidate batch is trained on as a whole; 0 for none.
        scale_factor: resolution of the images in the selection pass, as a fraction.

    >>> composer_backprop().schedule
    Schedule(warmup_epochs=0, start=0.5, end=0.9, interrupt=2)
    """
    policy = PercentilePolicy(selectivity=selectivity, history_size=1, fixed_size=True)
    when = Schedule(start=start, end=end, interrupt=interrupt)
    return Method("composer_backprop", ForwardScorer(scale_factor=scale_factor), policy, when)


def top_k(selectivity: float = 1 / 3, *, scoring: Scoring = "eval", **schedule: Unpack[ScheduleOptions]) -> Method:
    """Train on the highest losses of each candidate batch, without randomness.

    Args:
        selectivity: the share of each candidate batch to keep.
        scoring, schedule: as for `selective_backprop`.

    >>> top_k(0.5).policy.selectivity
    0.5
    """
    return Method("top_k", scorer_from(scoring), TopKPolicy(selectivity=selectivity), Schedule(**schedule))
