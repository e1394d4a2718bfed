"""Methods that choose prompts, for `SelectiveSampler`. Every prompt comes once before any comes again."""

from __future__ import annotations

from typing import TypedDict, Unpack

from selective_backprop.method import Method
from selective_backprop.policies import ClippedScorePolicy, TopKPolicy, UniformPolicy
from selective_backprop.scorers.prompts import GresoScorer, MasteryScorer, NearHalfScorer, PromptScorer


class LedgerOptions(TypedDict, total=False):
    """Options of `PromptLedger`."""

    half_life: float
    right_at: float


def uniform(**ledger: Unpack[LedgerOptions]) -> Method:
    """Generate from every prompt once per epoch, in random order: the baseline.

    Args:
        ledger: options of `PromptLedger`: half_life and right_at.

    >>> uniform().name
    'uniform'
    """
    return Method("uniform", PromptScorer(**ledger), UniformPolicy(selectivity=1))


def greso(*, easy: float = 1 / 12, hard: float = 1 / 6, **ledger: Unpack[LedgerOptions]) -> Method:
    """GRESO: after z groups in a row with equal rewards, a prompt is skipped with the chance 1 - p^z.

    p is one number for prompts that were all right, and another for prompts that were all wrong. The paper moves them
    by one percent after every step. Here they are solved for when an epoch is planned, so that such prompts make up the
    shares asked for.

    Args:
        easy: share of an epoch for prompts whose last groups were all right.
        hard: share of an epoch for prompts whose last groups were all wrong.
        ledger: options of `PromptLedger`: half_life and right_at.

    >>> greso(easy=0.1).scorer.easy
    0.1

    Zheng et al. 2025, https://arxiv.org/abs/2506.02177.
    """
    return Method("greso", GresoScorer(easy=easy, hard=hard, **ledger), ClippedScorePolicy(minimum=0))


def retire_mastered(*, at: float = 0.9, recheck: float = 0.1, **ledger: Unpack[LedgerOptions]) -> Method:
    """Leave out prompts from a pass rate on, and check a few of them again in every epoch.

    The paper drops them for good. Here one that is no longer mastered comes back.

    Args:
        at: mean reward from which a prompt is left out.
        recheck: share of an epoch for prompts that were left out; 0 never checks them.
        ledger: options of `PromptLedger`: half_life and right_at.

    >>> retire_mastered(at=0.8).scorer.at
    0.8

    Khatri et al. 2025, https://arxiv.org/abs/2510.13786.
    """
    return Method("retire_mastered", MasteryScorer(at=at, recheck=recheck, **ledger), ClippedScorePolicy(minimum=0))


def near_half(selectivity: float = 0.5, *, target: float = 0.5, **ledger: Unpack[LedgerOptions]) -> Method:
    """MoPPS: generate from the prompts whose pass rate, drawn from its Beta posterior, is nearest to one half.

    The paper chooses among some prompts before every step. Here an epoch is planned from all of them.

    Args:
        selectivity: share of the prompts that an epoch generates from.
        target: the pass rate to be near to.
        ledger: options of `PromptLedger`: half_life and right_at.

    >>> near_half(0.25).policy.selectivity
    0.25

    Qu et al. 2025, https://arxiv.org/abs/2507.04632.
    """
    return Method("near_half", NearHalfScorer(target=target, **ledger), TopKPolicy(selectivity=selectivity))
