"""Checks: what cannot work with fine-tuning is refused when the trainer is made."""

from __future__ import annotations

from typing import Any

import pyarrow.compute
from datasets import Dataset
from torch import nn

_LOOKED_AT = 256  # examples that are looked at for labels


def check_tokenizer(tokenizer: Any) -> None:
    """Raise if the tokenizer has no token to pad with."""
    inner = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
    if inner is not None and getattr(inner, "pad_token", "") is None and getattr(inner, "eos_token", "") is None:
        raise ValueError(
            "your tokenizer has neither a pad token nor an end-of-text token, so sequences of different lengths cannot "
            "share a batch: set tokenizer.pad_token, for example tokenizer.add_special_tokens({'pad_token': '<pad>'})"
        )


def check_not_empty(dataset: Any) -> None:
    """Raise if there is nothing to train on."""
    if isinstance(dataset, Dataset) and not len(dataset):
        raise ValueError("train_dataset has no examples: check the split and the filters that you made it with")


def check_packing(args: Any) -> None:
    """Raise if packing loses the boundaries of documents."""
    if args.packing and args.packing_strategy == "wrapped":
        raise ValueError(
            "packing_strategy='wrapped' cuts documents anywhere and forgets where they begin, but a loss is needed for "
            "each document: use packing_strategy='bfd' or 'bfd_split', or packing=False"
        )


def check_labels(dataset: Any) -> None:
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


def check_lengths(dataset: Any, model: nn.Module, args: Any) -> None:
    """Raise if a sequence is longer than the model can take."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1 or not isinstance(dataset, Dataset) or not len(dataset):
        return
    column = "seq_lengths" if "seq_lengths" in dataset.column_names else "input_ids"
    if column not in dataset.column_names or (args.max_length is not None and args.max_length <= limit):
        return
    values = dataset.with_format("arrow").select_columns([column])[:].column(column)
    flatten, count = pyarrow.compute.list_flatten, pyarrow.compute.list_value_length
    longest = pyarrow.compute.max(flatten(values) if column == "seq_lengths" else count(values)).as_py()
    if longest > limit:
        raise ValueError(
            f"a training sequence has {longest} tokens, but the model takes {limit} (max_position_embeddings): set "
            f"max_length={limit} in SFTConfig, or use a model for longer texts"
        )
