"""TailSFT: leave out the examples whose loss has fallen most since the start of training."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from selective_backprop.method import Method
from selective_backprop.methods.options import ScheduleOptions
from selective_backprop.policies import TopKPolicy
from selective_backprop.schedules import Schedule
from selective_backprop.scorers import FallScorer, ReducibleLossScorer, Scorer, Scoring, scorer_from


def tail_sft(
    selectivity: float = 0.75,
    *,
    fresh: bool = False,
    reference: nn.Module | Tensor | str | None = None,
    max_age: int | None = 10,
    scoring: Scoring = "eval",
    **schedule: Unpack[ScheduleOptions],
) -> Method:
    """Leave out the examples whose loss fell most since the start: they are fitted already.

    It is made for fine-tuning for a few epochs. Use a loss per token and `reducer="mean"`, so that long texts and short
    ones compare; `SelectiveTrainer` does so by itself.

    Without `fresh`, the losses of training decide before an epoch is loaded, at no cost. The first two epochs train on
    everything, because two losses make a fall; with reference losses only the first one does. With `fresh`, a selection
    pass scores each candidate batch from the first epoch on.

    Args:
        selectivity: share of the examples to keep: in an epoch, or with fresh in each candidate batch.
        fresh: score candidates anew. It needs a reference.
        reference: what the model knew at the start: its loss of each example, by id, or with fresh also a copy of the
            model. The default is each example's first loss in training.
        max_age: without fresh, train on every example at least once in this many epochs; None for no limit.
        scoring: with fresh, as for `selective_backprop`.
        schedule: as for `selective_backprop`.

    >>> tail_sft(0.9).policy.selectivity
    0.9
    """
    if fresh and reference is None:
        raise ValueError(
            "fresh=True compares with the loss at the start, which training alone does not tell: pass reference=, a "
            "copy of the model as it is now (copy.deepcopy(model)) or its loss of each example, by id"
        )
    if not fresh and not (reference is None or isinstance(reference, Tensor)):
        raise TypeError(
            f"without fresh=True the reference must be a tensor of losses, one per id, got {type(reference).__name__}: "
            "pass fresh=True, or compute the losses first"
        )
    scorer: Scorer
    if fresh:
        scorer = ReducibleLossScorer(scorer_from(scoring), reference)  # type: ignore[arg-type]
    else:
        assert reference is None or isinstance(reference, Tensor)
        scorer = FallScorer(reference=reference, max_age=max_age)
    return Method("tail_sft", scorer, TopKPolicy(selectivity=selectivity), Schedule(**schedule))
