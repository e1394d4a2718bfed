"""Listening: reads each example's loss from the forward pass that trains on it, without a second one.

# N = examples of a pass, T = longest sequence
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.chain.padding import Pad, pad_to_longest
from selective_backprop.integrations import is_missing
from selective_backprop.integrations.transformers import SelectiveTrainer
from selective_backprop.rows import move
from selective_backprop.types import Batch

try:
    import trl  # noqa: F401, so that the error below comes from here, once
except ImportError as error:
    if not is_missing(error, "trl"):
        raise
    raise ImportError("selection in TRL's trainers needs: pip install 'selective-backprop[trl]'") from error

MASKS = {"attention_mask": 0, "completion_mask": 0, "position_ids": 0, "token_type_ids": 0}
"""Entries of a batch that TRL's collators pad with zeros."""


class Losses:
    """The loss for the loader of a trainer that has computed the losses already.

    It takes losses (N,) or (N, T), and targets that are -100 where a loss does not count.
    """

    ignore_index = -100

    def __call__(self, losses: Tensor, targets: Tensor) -> Tensor:
        return losses


class SelectiveTRLTrainer(SelectiveTrainer):
    """Mixin that makes a TRL trainer train on selected examples: `class Mine(SelectiveTRLTrainer, OtherTrainer)`.

    A training step stays TRL's own. A hook reads the model's outputs, from which `losses_of` computes the loss of each
    example. If the method gives weights, the gradients of the outputs are multiplied by them; the loss that TRL logs
    stays the plain mean.

    A subclass says how examples become the model's inputs (`to_inputs`), which loss each of them has (`losses_of`) and
    how weights of examples spread over outputs (`spread`). The defaults are for padded batches, one row per example,
    and a model with a fused head, which returns log-probabilities per token.

    Args:
        args, options: as for the TRL trainer.
        method, reducer, pad: as for SelectiveTrainer.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("loss_fn", Losses())
        super().__init__(*args, **options)

    # ---- what subclasses change

    def to_inputs(self, examples: Any) -> dict[str, Any]:
        """Make the model's inputs from a batch with one row per example."""
        return dict(examples)

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> list[Any]:
        """Run the model to score examples, as a training step does. Returns all outputs that `losses_of` reads."""
        return [model(**inputs, use_cache=False, fused_lm_head=True)]

    def losses_of(self, outputs: list[Any], inputs: dict[str, Any], examples: Any) -> tuple[Tensor, Tensor]:
        """Compute losses from the model's outputs, one row per example, and targets: -100 where a loss does not count.

        Args:
            outputs: what the model returned for these inputs, one entry for each time that it was called.
            inputs: the model's inputs.
            examples: the batch of which `to_inputs` made them.
        """
        fused = first_with(outputs, "log_probs")
        return -fused.log_probs, torch.where(fused.label_mask, 0, -100)

    def spread(self, weights: Tensor, outputs: Tensor, examples: Any) -> Tensor:
        """Return a weight for each entry of the model's outputs, of a shape that can be multiplied with them."""
        return weights.view(-1, *[1] * (outputs.dim() - 1))

    def candidate_collator(self, collator: Any) -> Any:
        """Return the collator of candidates, with one row per example. collator: TRL's."""
        return collator

    # ---- the trainer

    def get_train_dataloader(self) -> Any:
        collator: Any = self.data_collator  # type: ignore[has-type]
        self.data_collator = self.candidate_collator(collator)
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = collator

    def default_pad(self) -> Pad:
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)  # of a processor
        # TRL's collators pad on the right, whatever the tokenizer's side.
        return pad_to_longest({"input_ids": tokenizer.pad_token_id, "labels": -100, **MASKS}, side="right")

    def passes(self, batch: Any) -> list[Any]:
        return [(batch, self.to_inputs(batch.data))]

    def score(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        self.check_length(batch)
        inputs = move(self.to_inputs(batch), self.args.device)
        return self.losses_of(self.forward(model, inputs), inputs, batch)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute TRL's own loss, bit for bit, and record the loss of each example."""
        batch = self.batch
        if batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        weigh = None
        if batch.is_weighted:
            self.selective_loader.weights(batch)
            weigh = functools.partial(self._weigh, batch)
        # self.model is inside `model` if DDP wraps it. Both would hear the same pass.
        with listening([self.model, *self.references()], weigh) as outputs:
            # Past SelectiveTrainer, which would ask for the logits, and TRL would compute them by a second pass.
            loss = super(SelectiveTrainer, self).compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with torch.no_grad():
            self.selective_loader.loss(*self.losses_of(outputs, inputs, batch.data), batch=batch)
        return loss

    def references(self) -> list[nn.Module]:
        """Return other models that the trainer's loss calls, besides the one being trained."""
        return []

    def _weigh(self, batch: Batch, output: Any) -> None:
        """Multiply the gradients that flow into this output by the weights of its examples."""
        for name in ("log_probs", "logits"):
            found = getattr(output, name, None)
            if isinstance(found, Tensor) and found.requires_grad:
                spread = self.spread(batch.weights.to(found), found, batch.data)
                found.register_hook(functools.partial(torch.mul, spread))  # type: ignore[no-untyped-call]


@contextmanager
def listening(models: list[nn.Module], weigh: Callable[[Any], None] | None = None) -> Iterator[list[Any]]:
    """Collect what these models return within the block, in the order of their calls.

    weigh: called with each output while its gradients can still be changed.
    """
    heard: list[Any] = []

    def hear(module: nn.Module, args: Any, output: Any) -> None:
        heard.append(output)
        if weigh is not None:
            weigh(output)

    handles = [model.register_forward_hook(hear) for model in models]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def first_with(outputs: list[Any], name: str) -> Any:
    """Return the first output that has this entry."""
    for output in outputs:
        if getattr(output, name, None) is not None:
            return output
    raise ValueError(
        f"the model's training pass returned no {name}, so the loss of each example is not known: this trainer needs "
        "a TRL whose trainers compute log-probabilities by a fused head, trl>=1.16"
    )
