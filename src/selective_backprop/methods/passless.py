"""Methods without a selection pass."""

from __future__ import annotations

from typing import Unpack

from selective_backprop.method import Method
from selective_backprop.methods.options import (
    OF_PERCENTILES,
    PercentileOptions,
    ScheduleOptions,
    method_with,
    percentile_method,
)
from selective_backprop.policies import BelowMeanPolicy, ClippedScorePolicy, LossSharePolicy, TopKPolicy, UniformPolicy
from selective_backprop.schedules import NEVER, Schedule
from selective_backprop.scorers import ConstantScorer, LeastSelectedScorer, RecordedScorer, TrainingLossScorer
from selective_backprop.scorers.selection_record import SelectionRecord


def traditional() -> Method:
    """Train on everything, always.

    >>> traditional().name
    'traditional'
    """
    return Method("traditional", ConstantScorer(), UniformPolicy(selectivity=1), NEVER)


def random_backprop(selectivity: float = 1 / 3, **schedule: Unpack[ScheduleOptions]) -> Method:
    """Random-Backprop: every candidate has the same chance. What is not chosen is not even loaded.

    Args:
        selectivity: the chance.
        schedule: as for `selective_backprop`.

    >>> random_backprop(0.5).policy.selectivity
    0.5
    """
    return Method("random_backprop", ConstantScorer(), UniformPolicy(selectivity=selectivity), Schedule(**schedule))


def repeated_random(selectivity: float = 1 / 3, **schedule: Unpack[ScheduleOptions]) -> Method:
    """A new random subset each epoch, without repetition until all have been seen. What selection has to beat.

    An example that waits in the queue when an epoch begins is trained on in it, and not chosen again for it.

    Args:
        selectivity: the share of each epoch.
        schedule: as for `selective_backprop`.

    >>> repeated_random(0.5).policy.selectivity
    0.5

    Okanovic et al. 2023, https://arxiv.org/abs/2305.18424.
    """
    policy = TopKPolicy(selectivity=selectivity)
    return Method("repeated_random", LeastSelectedScorer(), policy, Schedule(**schedule))


def recorded_backprop(record: SelectionRecord, **schedule: Unpack[ScheduleOptions]) -> Method:
    """In each epoch what an earlier run selected in the same one, such as a run by a proxy; the rest is not loaded.

    With the same order of candidates, training batches are the same too, but for weights and for examples that the
    earlier run drew more than once in an epoch. In another order, examples that wait in the queue between two epochs
    count for the second one.

    Args:
        record: of a run at least as long, on the same data set.
        schedule: as for `selective_backprop`.

    >>> import torch
    >>> record = SelectionRecord(3)
    >>> record.add_ids(torch.tensor([0, 2]))
    >>> recorded_backprop(record).scorer.recall(torch.tensor([2, 1]), rows=None, epoch=0).tolist()
    [1.0, 0.0]
    """
    policy = ClippedScorePolicy(minimum=0)
    return Method("recorded_backprop", RecordedScorer(record), policy, Schedule(**schedule))


def ledger_backprop(
    selectivity: float | None = None,
    *,
    loss_share: float | None = None,
    soft: bool = False,
    max_age: int | None = 10,
    **options: Unpack[PercentileOptions],
) -> Method:
    """Selection by the losses of training, with no selection pass at all; what is skipped is not even loaded.

    The first epoch trains on everything. After that each epoch is planned at its start by each example's last
    loss in training, which is refreshed whenever it is trained on.

    Args:
        selectivity: expected share of candidates trained on, each with chance percentile ** beta.
        loss_share: instead of a selectivity, train on the hardest examples, as many as carry this share of the total
            loss. It follows the data: little is trained on where there is much redundancy. 0.95 if neither it nor
            selectivity nor beta is given. No example counts for more than ten times the average, and outliers are
            trained on no more often than others: see `LossSharePolicy`. Losses may be negative: then it is the share
            of how far losses are above the smallest.
        soft: with a loss_share, draw examples with chance percentile ** beta, beta such that the expected share is
            trained on. It takes more examples for the same share, and more compute for the same error.
        max_age: train on every example at least once in this many epochs; None: an example that has become easy may
            never be seen again. For that, an epoch with overdue examples gives out all that it selects: the highest
            losses among the other examples fill its last batch.
        options: as for `selective_backprop`; with a loss_share those of when alone, and classes.

    >>> ledger_backprop(loss_share=0.8).policy.loss_share
    0.8
    """
    scorer = TrainingLossScorer(max_age=max_age)
    if selectivity is None and loss_share is None and "beta" not in options:
        loss_share = 0.95
    if loss_share is None:
        if soft:
            raise ValueError("soft goes with a loss_share: by selectivity or beta everything is drawn by chance anyway")
        return percentile_method("ledger_backprop", scorer, selectivity, options)
    if selectivity is not None or "beta" in options:
        raise ValueError(f"give selectivity, beta or loss_share, got selectivity={selectivity} and {loss_share=}")
    if of_percentiles := [name for name in OF_PERCENTILES if name in options]:
        raise ValueError(f"{', '.join(of_percentiles)} would do nothing with a loss_share: give a selectivity instead")
    return method_with("ledger_backprop", scorer, LossSharePolicy(loss_share=loss_share, soft=soft), options)


def infobatch(
    prune: float = 0.5, *, until: float = 0.875, start: float = 0.0, warmup_epochs: float = 0, interrupt: int = 0
) -> Method:
    """InfoBatch: drop part of the examples below the mean loss, weight their survivors up; all at the end.

    Args:
        prune: chance of dropping an example whose last loss in training is below the mean.
        until: fraction of the run after which everything is trained on.
        start, warmup_epochs, interrupt: of `Schedule`.

    >>> infobatch().schedule.end
    0.875

    Qin et al. 2024, https://arxiv.org/abs/2303.04947.
    """
    schedule = Schedule(end=until, start=start, warmup_epochs=warmup_epochs, interrupt=interrupt)
    return Method("infobatch", TrainingLossScorer(), BelowMeanPolicy(prune=prune), schedule)
