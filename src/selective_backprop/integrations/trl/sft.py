"""SelectiveSFTTrainer: TRL's SFTTrainer, trained on selected documents, packed or not."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import SFTTrainer, pack_dataset

from selective_backprop.integrations.trl.listening import SelectiveTRLTrainer
from selective_backprop.integrations.trl.packing import (
    LENGTHS,
    ROW,
    DocumentCollator,
    Packed,
    by_document,
    flat,
    lengths_of,
    parts_within,
)
from selective_backprop.types import Batch

_LOOKED_AT = 256  # examples that are looked at for labels


class SelectiveSFTTrainer(SelectiveTRLTrainer, SFTTrainer):  # type: ignore[misc]
    """An SFTTrainer that trains on the documents that the method selects.

    Everything that SFTConfig says stays as it is: chat templates, completion-only loss, packing, padding-free batches,
    LoRA. Selected documents are packed again; documents that are skipped before loading are never packed. Ids are row
    numbers of your data set; if packing leaves out or splits rows, read them from `documents["row"]`.

    Args:
        args, options: as for SFTTrainer.
        method: how to select, for example `ledger_backprop()`.
        reducer: how the losses of a document's tokens become its score: "mean" (the default), "sum", "max" or a
            function, such as `mean_of_largest(8)`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._packed: Packed | None = None
        dataset = options.get("train_dataset")
        if isinstance(dataset, Dataset) and not len(dataset):
            raise ValueError("train_dataset has no examples: check the split and the filters that you made it with")
        super().__init__(*args, **options)
        _check_labels(self.train_dataset)

    @property
    def documents(self) -> Any:
        """The data set whose rows are selected: the training data, taken apart if it is packed."""
        return self.train_dataset if self._packed is None else self._packed.documents

    # ---- data

    def _prepare_dataset(
        self,
        dataset: Any,
        processing_class: Any,
        args: Any,
        packing: bool,
        formatting_func: Any,
        dataset_name: str,
    ) -> Any:
        """Pack as TRL does, and keep track of where each document comes from."""
        if packing and args.packing_strategy == "wrapped":
            raise ValueError(
                "packing_strategy='wrapped' cuts documents anywhere and forgets where they begin, but a loss is needed "
                "for each document: use packing_strategy='bfd' or 'bfd_split', or packing=False"
            )
        options = (formatting_func, dataset_name)
        if not packing or dataset_name != "train" or not isinstance(dataset, Dataset):
            return super()._prepare_dataset(dataset, processing_class, args, packing, *options)
        # Without a maximal length, which packing applies later, and in order, so that rows stay the user's.
        whole = copy.copy(args)
        whole.max_length, whole.shuffle_dataset = None, False
        documents = super()._prepare_dataset(dataset, processing_class, whole, False, *options)
        documents = documents.select_columns(["input_ids", "labels"]).map(_with_row, with_indices=True)
        if args.shuffle_dataset:
            documents = documents.shuffle(seed=args.seed)
        packed = pack_dataset(documents, args.max_length, args.packing_strategy)
        if args.shuffle_dataset:
            packed = packed.shuffle(seed=args.seed)
        self._packed = Packed(packed)
        return packed.remove_columns(ROW)

    def candidate_collator(self, collator: Any) -> Any:
        return DocumentCollator(collator) if self.padding_free else collator

    def candidate_loader(self, frame: Any) -> Any:
        rows = super().candidate_loader(frame)
        dataset = self.train_dataset
        if self._packed is None and isinstance(dataset, Dataset) and LENGTHS in dataset.column_names:
            self._packed = Packed(dataset)  # the user packed it
        return rows if self._packed is None else self._packed.loader(rows, rows.collate_fn)

    @property
    def candidate_device(self) -> torch.device:
        # Documents are joined on the CPU: on a GPU their lengths would have to be waited for.
        return torch.device("cpu") if self.padding_free else super().candidate_device

    # ---- passes

    def to_inputs(self, examples: Any) -> dict[str, Any]:
        return flat(examples, self.data_collator) if self.padding_free else dict(examples)

    def passes(self, batch: Batch) -> list[Any]:
        if not self.padding_free or self.args.max_length is None:
            return super().passes(batch)
        budget = self.args.per_device_train_batch_size * self.args.max_length
        parts = parts_within(batch, budget)
        if self.args.world_size > 1:
            # Ranks run the model together, so all of them make as many passes.
            counts = self.accelerator.gather(torch.tensor([[len(parts), len(batch)]], device=self.args.device))
            num_parts = min(int(counts[:, 0].max()), int(counts[:, 1].min()))
            parts = parts_within(batch, budget if len(parts) <= num_parts else sys.maxsize, num_parts)
        return [(part, self.to_inputs(part.data)) for part in parts]

    # ---- losses

    def losses_of(self, outputs: list[Any], inputs: dict[str, Any], examples: Any) -> tuple[Tensor, Tensor]:
        losses, targets = super().losses_of(outputs, inputs, examples)
        if not self.padding_free:
            return losses, targets
        lengths = lengths_of(examples)
        return by_document(losses, lengths), by_document(targets, lengths, -100)

    def spread(self, weights: Tensor, outputs: Tensor, examples: Any) -> Tensor:
        if not self.padding_free:
            return super().spread(weights, outputs, examples)
        lengths = lengths_of(examples).to(weights.device)
        row = weights.repeat_interleave(lengths)[: outputs.shape[1]]
        row = torch.nn.functional.pad(row, (0, outputs.shape[1] - len(row)))
        return row.view(1, -1, *[1] * (outputs.dim() - 2))


def _check_labels(dataset: Any) -> None:
    """Raise if the first examples have no token with a label."""
    if not isinstance(dataset, Dataset) or "labels" not in dataset.column_names:
        return
    first = dataset.with_format(None).select_columns(["labels"])[:_LOOKED_AT]["labels"]
    # TRL drops examples that are masked as a whole, and may leave none.
    if all(label == -100 for labels in first for label in labels[1:]):
        which = f"the first {len(first)} training examples have" if first else "the training examples have"
        raise ValueError(
            f"{which} no labels: every token is masked by -100, so there is no loss to select by. Check "
            "completion_only_loss and assistant_only_loss of SFTConfig, and max_length, which may cut off all that is "
            "not masked"
        )


def _with_row(example: dict[str, Any], row: int) -> dict[str, Any]:
    return {ROW: [row] * len(example["input_ids"])}
