"""Methods without a selection pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from selective_backprop.method import Method
from selective_backprop.methods.options import PercentileOptions, ScheduleOptions, WindowOptions, percentile_method
from selective_backprop.options import require_flags, require_numbers
from selective_backprop.policies import (
    BelowMeanPolicy,
    GroupedPolicy,
    LossSharePolicy,
    TopKPolicy,
    UniformPolicy,
)
from selective_backprop.pruning.prune import labels_by_id
from selective_backprop.schedules import NEVER, Schedule
from selective_backprop.scorers import (
    AuditedLossScorer,
    ConstantScorer,
    LeastSelectedScorer,
    TrainingLossScorer,
)


def traditional() -> Method:
    """Train on everything, always.

    >>> traditional().name
    'traditional'
    """
    return Method("traditional", ConstantScorer(), UniformPolicy(selectivity=1), NEVER)


def random_backprop(selectivity: float = 1 / 3, **schedule: Unpack[ScheduleOptions]) -> Method:
    """Random-Backprop: every candidate has the same chance. Examples that are not selected are not even loaded.

    Args:
        selectivity: the chance of each candidate.
        schedule: as for `selective_backprop`.

    >>> random_backprop(0.5).policy.selectivity
    0.5
    """
    return Method("random_backprop", ConstantScorer(), UniformPolicy(selectivity=selectivity), Schedule(**schedule))


def repeated_random(selectivity: float | Sequence[float] = 1 / 3, **schedule: Unpack[ScheduleOptions]) -> Method:
    """Train on a new random subset in each epoch. No example comes again before all have been trained on.

    This is the baseline that selection has to beat.

    Args:
        selectivity: the share of the data set that an epoch trains on, or one share per epoch. With the shares that
            another method trained on, the subsets are matched: what that method gains beyond them comes from its choice
            of examples, and not from how many it takes in which epoch.
        schedule: as for `selective_backprop`.

    >>> repeated_random(0.5).policy.selectivity, repeated_random([1.0, 0.6, 0.4]).policy.shares
    (0.5, (1.0, 0.6, 0.4))

    Okanovic et al. 2023, https://arxiv.org/abs/2305.18424.
    """
    policy = TopKPolicy(selectivity=selectivity)
    return Method("repeated_random", LeastSelectedScorer(), policy, Schedule(**schedule))


def ledger_backprop(
    *,
    loss_share: float = 0.95,
    cap: float = 20.0,
    keep_at_least: float = 0.1,
    skip_at_least: float = 0.2,
    most_rise: float | None = 0.4,
    max_age: int | None = 10,
    classes: Tensor | Sequence[int] | None = None,
    audit: bool = False,
    **schedule: Unpack[WindowOptions],
) -> Method:
    """Train on the hardest examples by their last training loss, without a selection pass. Others are not even loaded.

    The first epoch trains on everything. Every later epoch trains on the hardest examples that together carry 95% of
    the loss, where no loss counts for more than 20 times the mean. It goes by the last training loss of each example,
    which is renewed whenever the example is trained on.

    Args:
        loss_share: train on the hardest examples, as many as carry this share of the total loss. So the more redundant
            the data is, the fewer examples are trained on. Outliers are trained on no more often than others; see
            `LossSharePolicy`. A loss counts by how far it is above the smallest, so that label smoothing, which puts a
            floor under every loss, changes nothing.
        cap: no loss counts for more than this many times the mean.
        keep_at_least: train on at least this share of the examples in every epoch.
        skip_at_least: train on everything in an epoch that could skip fewer than this share of the examples. Where
            losses are spread evenly, skipping a few examples costs about as much accuracy as it saves compute. 0 skips
            whatever it can.
        most_rise: train on everything from then on, once the loss of examples that were left out has risen by more than
            this share of the mean loss of the easiest 95%, by the median. The network has memorised them then, and
            forgets them; or it follows broken examples. To see it, about 1% of the examples come back in every epoch;
            up to 10% of small data. None for no such rule.
        max_age: train on every example at least once in this many epochs. With None, an example that has become easy
            may never be seen again. An epoch with overdue examples must give out all that it selects, so the highest
            losses among the other examples fill up its last batch.
        classes: one label per id, to select within each class.
        audit: leave alone examples whose label is probably wrong, by an audit of the run before every epoch; see
            `sb.audit`. It is for classification.
        schedule: options of `Schedule`: warmup_epochs, start and end.

    >>> ledger_backprop(loss_share=0.8).policy.loss_share
    0.8
    """
    require_flags(audit=audit)
    scorer = (AuditedLossScorer if audit else TrainingLossScorer)(max_age=max_age, most_rise=most_rise)
    policy = LossSharePolicy(loss_share=loss_share, cap=cap, keep_at_least=keep_at_least, skip_at_least=skip_at_least)
    if classes is None:
        return Method("ledger_backprop", scorer, policy, Schedule(**schedule))
    groups = labels_by_id(classes)
    return Method("ledger_backprop", scorer, GroupedPolicy(policy), Schedule(**schedule), groups=groups)


def ledger_percentile(
    selectivity: float | None = None, *, max_age: int | None = 10, **options: Unpack[PercentileOptions]
) -> Method:
    """Selective-Backprop's rule on training losses: chance = (percentile of the last training loss) ** beta.

    There is no selection pass, and examples that are not drawn are not even loaded. The first epoch trains on
    everything. Every later epoch is planned at its start.

    Args:
        selectivity, options: as for `selective_backprop`.
        max_age: train on every example at least once in this many epochs; None for no limit.

    >>> ledger_percentile(0.25).policy.beta
    3.0
    """
    return percentile_method("ledger_percentile", TrainingLossScorer(max_age=max_age), selectivity, options)


def infobatch(
    *,
    prune: float = 0.5,
    until: float = 0.875,
    start: float = 0.0,
    warmup_epochs: float = 0,
    interrupt: int = 0,
) -> Method:
    """InfoBatch: drop some of the examples with a loss below the mean, and give the others below it a larger weight.

    At the end of the run it trains on everything.

    Args:
        prune: chance of dropping an example whose last training loss is below the mean.
        until: fraction of the run after which everything is trained on.
        start, warmup_epochs, interrupt: options of `Schedule`.

    >>> infobatch().schedule.end
    0.875

    Qin et al. 2024, https://arxiv.org/abs/2303.04947.
    """
    require_numbers(until=until)
    schedule = Schedule(end=until, start=start, warmup_epochs=warmup_epochs, interrupt=interrupt)
    return Method("infobatch", TrainingLossScorer(), BelowMeanPolicy(prune=prune), schedule)
