"""Scores from the record of an earlier run."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop.ledger import LedgerRows
from selective_backprop.scorers.base import require_one_each
from selective_backprop.scorers.selection_record import SelectionRecord
from selective_backprop.types import Needs, Scorer


class RecordedScorer(Scorer):
    """Scores 1 for examples that the record has in this epoch, and 0 for others. Scores are known before loading.

    Args:
        record: a record of the same data set, at least as long as the run.
    """

    needs = Needs(ids=True)

    def __init__(self, record: SelectionRecord) -> None:
        if not isinstance(record, SelectionRecord):
            raise TypeError(f"record must be a SelectionRecord, got {type(record).__name__}")
        if not len(record):
            raise ValueError("the record is empty: call record.add(loader) after each epoch of the run to record")
        self.record = record

    def check_run(self, num_examples: int | None, num_epochs: int | None) -> None:
        require_one_each("the record is", self.record.num_examples, num_examples)
        if num_epochs is not None and num_epochs > len(self.record):
            raise ValueError(f"the record is of a run of {len(self.record)} epochs, got num_epochs={num_epochs}")

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        return self.record.mask(epoch)[ids].to(torch.float32)
