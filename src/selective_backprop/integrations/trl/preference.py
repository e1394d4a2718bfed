"""Trainers of preference pairs: an example is a chosen and a rejected answer, which are selected together.

# N = pairs, T = longest sequence
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trl import DPOTrainer, RewardTrainer

from selective_backprop.integrations.trl.listening import SelectiveTRLTrainer, first_with

SEQUENCES = ("input_ids", "attention_mask", "completion_mask")
"""The columns of a batch that have a row for each answer: all chosen ones, then all rejected ones."""


class PairCollator:
    """Collates a batch with one row per pair, (N, T, 2), from TRL's, which has a row per answer, (2N, T)."""

    def __init__(self, collator: Any) -> None:
        self._collator = collator

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self._collator(examples)
        wrong = [name for name, value in batch.items() if name not in SEQUENCES and len(value) != len(examples)]
        if wrong:
            raise ValueError(
                f"the batches have the entries {wrong}, and which of their rows belong to which pair is not known: "
                "selection works for pairs of texts"
            )
        return {name: paired(value) if name in SEQUENCES else value for name, value in batch.items()}


def paired(rows: Tensor) -> Tensor:
    """Put the chosen and the rejected row of each pair together: (2N, T) to (N, T, 2)."""
    return torch.stack(rows.chunk(2), dim=-1)


def unpaired(pairs: Tensor) -> Tensor:
    """Undo `paired`.

    >>> torch.equal(unpaired(paired(torch.arange(12).view(4, 3))), torch.arange(12).view(4, 3))
    True
    """
    return torch.cat(pairs.unbind(-1))


class _SelectivePairs(SelectiveTRLTrainer):
    def candidate_collator(self, collator: Any) -> Any:
        return PairCollator(collator)

    def to_inputs(self, examples: Any) -> dict[str, Any]:
        return {name: unpaired(value) if name in SEQUENCES else value for name, value in examples.items()}

    def spread(self, weights: Tensor, outputs: Tensor, examples: Any) -> Tensor:
        return super().spread(weights.repeat(2), outputs, examples)


class SelectiveRewardTrainer(_SelectivePairs, RewardTrainer):  # type: ignore[misc]
    """A RewardTrainer that trains on the pairs that the method selects, scored by their loss.

    Args:
        args, options: as for RewardTrainer.
        method: how to select.
    """

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> list[Any]:
        return [model(**inputs, use_cache=False)]

    def losses_of(self, outputs: list[Any], inputs: dict[str, Any], examples: Any) -> tuple[Tensor, Tensor]:
        chosen, rejected = first_with(outputs, "logits").logits.squeeze(-1).float().chunk(2)
        losses = -F.logsigmoid(chosen - rejected - inputs.get("margin", 0.0))
        if (coefficient := self.args.center_rewards_coefficient) is not None:
            losses = losses + coefficient * (chosen + rejected).square()
        return losses, torch.zeros_like(losses, dtype=torch.int64)


class SelectiveDPOTrainer(_SelectivePairs, DPOTrainer):  # type: ignore[misc]
    """A DPOTrainer that trains on the pairs that the method selects.

    Pairs are scored by DPO's own loss, -log sigmoid(beta * margin), whatever `loss_type` they are trained with. The
    reference's log-probabilities come from the training step, or from the data set with precompute_ref_log_probs=True,
    which also makes a selection pass cheaper.

    Args:
        args, options: as for DPOTrainer.
        method: how to select.
    """

    def references(self) -> list[nn.Module]:
        return [] if self.ref_model is None else [self.ref_model]

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> list[Any]:
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
        names = ("completion_mask", "ref_chosen_logps", "ref_rejected_logps")
        rest = {name: value for name, value in inputs.items() if name not in names}
        outputs = [model(**rest, labels=labels, use_cache=False, fused_lm_head=True)]
        if "ref_chosen_logps" not in inputs:
            reference = model if self.ref_model is None else self.ref_model  # DPO disables the adapter of `model`
            outputs.append(_Reference(self.compute_ref_log_probs(reference, inputs)))
        return outputs

    def losses_of(self, outputs: list[Any], inputs: dict[str, Any], examples: Any) -> tuple[Tensor, Tensor]:
        policy, *others = [output for output in outputs if getattr(output, "log_probs", None) is not None]
        margins = _margin(policy.log_probs.sum(1).chunk(2))
        if "ref_chosen_logps" in inputs:
            margins = margins - _margin((inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]))
        else:
            margins = margins - _margin(others[-1].log_probs.sum(1).chunk(2))
        losses = -F.logsigmoid(self.beta * margins)
        return losses, torch.zeros_like(losses, dtype=torch.int64)


class _Reference:
    """Log-probabilities of the reference model, in the form of a model's output."""

    def __init__(self, chosen_and_rejected: tuple[Tensor, Tensor]) -> None:
        self.log_probs = torch.cat(chosen_and_rejected)[:, None]


def _margin(chosen_and_rejected: Any) -> Any:
    chosen, rejected = chosen_and_rejected
    return chosen - rejected
