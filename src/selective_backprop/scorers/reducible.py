"""Reducible loss: the loss minus that of a reference model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from selective_backprop.inference import device_of, is_sharded, unwrap
from selective_backprop.scorers.base import Wrapping, require_one_each
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.types import Candidates, Needs, Scorer, Task


class ReducibleLossScorer(Wrapping):
    """Scores by the loss minus the loss of a reference model.

    The score is low for examples that are learned already, and for examples that cannot be learned.

    Args:
        fresh: scores with the model being trained.
        reference: a model trained on held-out data; or its loss of each example, by id; or "base" for a model with an
            adapter (PEFT): the base model's own loss, with the adapter disabled. The base model does not change, so the
            loss of an example with an id is computed once.

    Mindermann et al. 2022, https://arxiv.org/abs/2206.07137.
    """

    def __init__(self, fresh: Scorer, reference: nn.Module | Tensor | Literal["base"]) -> None:
        if isinstance(reference, str):
            if reference != "base":
                raise ValueError(
                    f"reference must be a model, a tensor of losses or 'base', the model without its adapter; got "
                    f"{reference!r}"
                )
        elif isinstance(reference, Tensor):
            if reference.dim() != 1 or not bool(torch.isfinite(reference).all()):
                raise ValueError(
                    f"reference losses must be finite, one per id, got shape {tuple(reference.shape)} with "
                    f"{int((~torch.isfinite(reference)).sum())} that are not finite"
                )
        elif not isinstance(reference, nn.Module):
            raise TypeError(f"reference must be a model or a tensor of losses, got {type(reference).__name__}")
        super().__init__(fresh)
        self.score_name = "reducible loss"
        self.reference = reference
        self.needs = Needs(ids=isinstance(reference, Tensor), selection_pass=True)
        self._of_reference = ForwardScorer("eval")
        self._base_losses = torch.empty(0)  # by id, those known so far; NaN where not known

    def __deepcopy__(self, memo: dict[int, object]) -> ReducibleLossScorer:
        # The reference is not copied: it may be large, and it is only read.
        return ReducibleLossScorer(copy.deepcopy(self.fresh, memo), self.reference)

    def check_run(self, num_examples: int | None, num_epochs: int | None) -> None:
        super().check_run(num_examples, num_epochs)
        if isinstance(self.reference, Tensor):
            require_one_each("the reference losses are", len(self.reference), num_examples)

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        losses = self.fresh.score(candidates, task)
        if isinstance(self.reference, str):
            return losses - self._base_loss(candidates, task).to(losses, non_blocking=True)
        if isinstance(self.reference, nn.Module):
            model = unwrap(self.reference)
            if device_of(model) != device_of(task.model):
                raise ValueError(
                    f"the reference model is on {device_of(model)}, but the model being trained is on "
                    f"{device_of(task.model)}: move the reference model there"
                )
            return losses - self._of_reference.score(candidates, Task(model, task.forward, task.loss))
        assert candidates.ids is not None
        return losses - self.reference[candidates.ids].to(losses, non_blocking=True)

    def _base_loss(self, candidates: Candidates, task: Task) -> Tensor:
        """Compute the losses of the model without its adapter, or look them up."""
        model: Any = unwrap(task.model)
        if not hasattr(model, "disable_adapter"):
            raise ValueError(
                f"reference='base' is the loss of the model without its adapter, but your {type(model).__name__} has "
                "none: wrap it by peft.get_peft_model, or pass a reference model"
            )
        ids = candidates.ids
        if ids is not None:
            self._base_losses = _longer(self._base_losses, int(ids.max()) + 1)
            known = self._base_losses[ids]
            # All ranks run a sharded model together, and others may not know the losses of their candidates.
            if not is_sharded(model) and not bool(known.isnan().any()):
                return known
        with _without_adapter(model):
            losses = self._of_reference.score(candidates, task)
        if ids is not None:
            self._base_losses[ids] = losses.detach().to("cpu", torch.float32)
        return losses

    def state_dict(self) -> dict[str, Any]:
        if not isinstance(self.reference, str):
            return super().state_dict()
        return {"fresh": super().state_dict(), "base_losses": self._base_losses.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(self.reference, str):
            super().load_state_dict(state)
            return
        super().load_state_dict(state["fresh"])
        self._base_losses = state["base_losses"].clone()


@contextmanager
def _without_adapter(model: Any) -> Iterator[None]:
    """Disable a PEFT model's adapter within the block. It would leave all weights of the adapter to be trained."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with model.disable_adapter():
            base = getattr(model, "base_model", model)
            trained = [name for name, parameter in base.named_parameters() if parameter.requires_grad]
            if trained:
                raise ValueError(
                    "reference='base' is the loss of a base model that stays as it is, but yours is trained too: "
                    f"{trained[0]} requires gradients ({len(trained)} such). Freeze it, use bias='none' in "
                    "LoraConfig, or pass another reference"
                )
            yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _longer(losses: Tensor, size: int) -> Tensor:
    """Return the losses with room for `size` ids; those that are not known are NaN."""
    if len(losses) >= size:
        return losses
    return torch.cat([losses, torch.full((max(size, 2 * len(losses)) - len(losses),), torch.nan)])
