"""Packing: documents that share a row, as a data set, as batches of their own, and back as packed inputs.

# D = documents of a batch, T = longest document
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from selective_backprop.rows import Layout, take
from selective_backprop.types import Batch

LENGTHS = "seq_lengths"
"""The column in which TRL keeps the lengths of the documents in a packed row."""
ROW = "row"
"""The column with the number of a document's row in the user's data set."""
_SAME = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator")
_SAME_WITH_WORKERS = ("prefetch_factor", "persistent_workers")


class Packed:
    """A packed data set, taken apart: its documents, and which of them share a row.

    Args:
        packed: the rows, with the lengths of their documents.

    If packed rows know the rows of the user's data set, documents are in that order.

    >>> rows = {"input_ids": [[1, 2, 3], [4, 5]], "seq_lengths": [[2, 1], [2]], "row": [[1, 1, 0], [2, 2]]}
    >>> packed = Packed(Dataset.from_dict(rows))
    >>> packed.documents["input_ids"][:], [members.tolist() for members in packed.members]
    ([[3], [1, 2], [4, 5]], [[1, 0], [2]])
    """

    def __init__(self, packed: Dataset) -> None:
        counts = numpy.asarray(_counts(packed))
        documents = packed.with_format("arrow").map(_documents, batched=True, remove_columns=packed.column_names)
        ids = numpy.arange(len(documents))
        if ROW in documents.column_names:
            order = numpy.argsort(documents.with_format("numpy")[ROW][:], kind="stable")
            documents = documents.select(order)
            ids[order] = numpy.arange(len(documents))
        self.documents = documents.with_format(None)
        """One row per document."""
        self.members = numpy.split(ids, numpy.cumsum(counts)[:-1])
        """The documents of each packed row."""

    @property
    def documents_per_row(self) -> float:
        return len(self.documents) / len(self.members)

    def loader(self, rows: DataLoader[Any], collate: Any) -> DataLoader[Any]:
        """Make a loader of documents from a loader of packed rows: the same batches, taken apart."""
        sampler = _MemberSampler(rows.batch_sampler, self.members, self.documents_per_row)
        return _like(rows, self.documents, sampler, collate)


class _MemberSampler:
    """A batch sampler that replaces packed rows by their documents."""

    def __init__(self, batch_sampler: Any, members: list[Any], documents_per_row: float) -> None:
        self.batch_sampler = batch_sampler
        self._members = members
        self.batch_size = math.ceil(batch_sampler.batch_size * documents_per_row)
        """Documents in a training batch: as many as a batch of packed rows has on average."""

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.batch_sampler:
            yield numpy.concatenate([self._members[row] for row in rows]).tolist()

    def __getattr__(self, name: str) -> Any:
        if name == "batch_sampler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)


def _like(loader: DataLoader[Any], dataset: Any, batch_sampler: Any, collate: Any) -> DataLoader[Any]:
    """Make a DataLoader with the workers and the randomness of another one."""
    names = _SAME + (_SAME_WITH_WORKERS if loader.num_workers else ())
    options = {name: getattr(loader, name) for name in names}
    return DataLoader(dataset, batch_sampler=batch_sampler, collate_fn=collate, **options)


class DocumentCollator:
    """Collates documents one per row, padded, where TRL's collator would join them into one long row.

    Args:
        collator: TRL's.
    """

    def __init__(self, collator: Any) -> None:
        self._collator = dataclasses.replace(collator, padding_free=False, pad_to_multiple_of=None)

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        if LENGTHS in examples[0]:
            examples = [document for row in examples for document in _cut(row)]
        batch: dict[str, Any] = self._collator(examples)
        return batch


def _cut(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Cut a packed row into its documents."""
    begin = 0
    for length in row[LENGTHS]:
        part = slice(begin, begin + length)
        yield {name: row[name][part] for name in ("input_ids", "labels") if name in row}
        begin += length


def flat(examples: dict[str, Tensor], collator: Any) -> dict[str, Any]:
    """Join padded documents into one row without padding, as TRL's collator does."""
    inside = examples["attention_mask"].bool()
    row = {name: examples[name][inside].tolist() for name in ("input_ids", "labels")}
    joined: dict[str, Any] = collator([row | {LENGTHS: lengths_of(examples).tolist()}])
    return joined


def lengths_of(examples: dict[str, Tensor]) -> Tensor:
    """Return (D,) the number of tokens of each document."""
    return examples["attention_mask"].sum(1)


def by_document(tokens: Tensor, lengths: Tensor, fill: float = 0) -> Tensor:
    """Cut what a causal model predicts of one long row, from its second token on, into documents: (D, T).

    fill: the value of first tokens, which are not predicted, and of padding.

    >>> import torch
    >>> by_document(torch.tensor([[2, 3, 4, 5]]), torch.tensor([2, 3]))
    tensor([[0, 2, 0],
            [3, 4, 5]])
    """
    row = F.pad(tokens[0], (1, 0), value=fill)[: int(lengths.sum())]
    parts = row.split(lengths.tolist())  # type: ignore[no-untyped-call]
    return pad_sequence(parts, batch_first=True, padding_value=fill)


def parts_within(batch: Batch, budget: int, num_parts: int | None = None) -> list[Batch]:
    """Divide a batch of documents into parts of at most `budget` tokens, in order.

    num_parts: divide it into this many parts instead, even if fewer would do.
    """
    ends, total = [], 0
    lengths = lengths_of(batch.data).tolist()
    for i, length in enumerate(lengths):
        if total and total + length > budget:
            ends.append(i)
            total = 0
        total += length
    bounds = [0, *ends, len(lengths)]
    while num_parts is not None and len(bounds) - 1 < num_parts:
        # The part with the most documents is halved.
        widest = max(range(len(bounds) - 1), key=lambda i: bounds[i + 1] - bounds[i])
        bounds.insert(widest + 1, (bounds[widest] + bounds[widest + 1]) // 2)
    if len(bounds) == 2:
        return [batch]
    return [_rows_of(batch, slice(begin, end)) for begin, end in itertools.pairwise(bounds)]


def _rows_of(batch: Batch, rows: slice) -> Batch:
    layout = Layout(batch.data, len(batch))
    data = layout.batch([take(column, rows) for column in layout.columns(batch.data, len(batch))])
    ids = None if batch.ids is None else batch.ids[rows]
    return Batch(data, ids, batch.weights[rows], batch.probabilities[rows])


def _counts(packed: Dataset) -> Any:
    """Return how many documents each packed row has."""
    lengths = packed.with_format("arrow").select_columns([LENGTHS])[:].column(LENGTHS)
    return pyarrow.compute.list_value_length(lengths).to_numpy()


def _documents(table: pyarrow.Table) -> pyarrow.Table:
    """Cut packed rows into documents, without a copy of their tokens."""
    lengths = pyarrow.compute.list_flatten(table.column(LENGTHS)).to_numpy()
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths)])
    columns = {}
    for name in table.column_names:
        if name == LENGTHS:
            continue
        tokens = table.column(name).combine_chunks().flatten()
        if isinstance(tokens, pyarrow.ChunkedArray):
            tokens = tokens.combine_chunks()
        if name == ROW:
            columns[name] = tokens.take(pyarrow.array(offsets[:-1]))
        else:
            columns[name] = pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), tokens)
    return pyarrow.table(columns)
