"""The arms of the leaderboard: each method with the settings that are tried for it, equally many for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selective_backprop_lab.leaderboard.workloads import Workload
from selective_backprop_lab.runs.methods import split_label

TRIALS = 6
"""Settings that are tried for each arm."""
RATES = (0.5, 1.0, 2.0)
"""Factors on the recipe's learning rate that every method tries."""
PLAIN_RATES = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0)
"""Plain training has no other setting to try, so it tries more rates."""
PLAIN, RANDOM = "plain", "repeated random"


@dataclass(frozen=True)
class Arm:
    """A method of the leaderboard with the settings to try, each written as on the command line.

    `{proxy}` stands for the workload's small network.
    """

    name: str
    trials: tuple[str, ...]


def _tried(name: str, *settings: str) -> Arm:
    """An arm that tries every rate with each of two settings."""
    return Arm(name, tuple(f"{text}{',' if ':' in text else ':'}rate={rate:g}" for text in settings for rate in RATES))


# The ledger as it was when its other arms were tuned, and without the rules that train on everything.
_ALWAYS = "cap=10,keep_at_least=0,skip_at_least=0,most_rise=None"

ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(PLAIN, tuple(f"traditional:rate={rate:g}" for rate in PLAIN_RATES)),
        _tried(RANDOM, "repeated_random@0.333", "repeated_random@0.667"),
        _tried("Random-Backprop", "random@0.333", "random@0.667"),
        _tried("SB", "sb@0.333", "sb@0.5"),
        _tried("Stale-SB", "stale@0.333:every=3", "stale@0.5:every=3"),
        _tried("top_k", "top_k@0.333", "top_k@0.5"),
        _tried("top_k, proxy", "top_k@0.333:proxy={proxy},warmup_epochs=1", "top_k@0.5:proxy={proxy},warmup_epochs=1"),
        _tried(
            "proxy filter",  # the proxy learns from its own selection, as in cifar10-airbench
            "top_k@0.5:proxy={proxy},train_share=0.5",
            "top_k@0.5:proxy={proxy},train_share=0.5,warmup_epochs=1",
        ),
        _tried("InfoBatch", "infobatch:prune=0.5", "infobatch:prune=0.75"),
        _tried("Kath18", "kath18@0.333", "kath18@0.5"),
        _tried("ledger", *(f"ledger:loss_share={share},{_ALWAYS}" for share in (0.95, 0.8))),
    )
}
"""The arms by name. Plain training and repeated random subsets are the baselines."""

DEFAULT = Arm("ledger, default", ("ledger:cap=20,keep_at_least=0.1,skip_at_least=0.2,most_rise=0.4,rate=1",))
"""The method that we recommend first. The setting states its defaults, so that records of other defaults differ."""
_NO_RULES = Arm("ledger, no rules", (f"ledger:{_ALWAYS},rate=1",))


def tuned(workload: Workload) -> list[Arm]:
    """The arms that are tuned on a workload."""
    arms = [ARMS[name] for name in workload.arms or ARMS]
    return [_rates_of(arm) for arm in arms] if workload.tune_rates_only else arms


def _rates_of(arm: Arm) -> Arm:
    """The arm with its last selectivity at the three rates that all arms try."""
    at_rate = {text.partition("rate=")[2]: text for text in arm.trials}
    return Arm(arm.name, tuple(at_rate[f"{rate:g}"] for rate in RATES))


def untuned(workload: Workload) -> list[Arm]:
    """Arms without any tuning of their own: they take the rate of plain training."""
    return [DEFAULT, _NO_RULES] if workload.arms is None else [DEFAULT]


def own_arm(texts: Sequence[str]) -> Arm:
    """Make an arm from methods as on the command line; the first one has a label.

    >>> own_arm(["mine=sb@0.25", "sb@0.5:rate=2"])
    Arm(name='mine', trials=('sb@0.25', 'sb@0.5:rate=2'))
    """
    label, first = split_label(texts[0])
    if not label:
        raise ValueError(f"give your arm a name, as in mine={texts[0]}: got {texts[0]!r}")
    if len(texts) > TRIALS:
        raise ValueError(f"every arm has at most {TRIALS} settings to try, got {len(texts)} for {label!r}")
    return Arm(label, (first, *texts[1:]))
