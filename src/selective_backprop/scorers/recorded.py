"""Scores from the record of an earlier run."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop.ledger import LedgerRows
from selective_backprop.scorers.selection_record import SelectionRecord
from selective_backprop.types import Needs, Scorer


class RecordedScorer(Scorer):
    """Scores 1 for examples that the record has in this epoch, and 0 for others. Scores are known before loading.

    Args:
        record: a record of the same data set, at least as long as the run.
    """

    def __init__(self, record: SelectionRecord) -> None:
        if not isinstance(record, SelectionRecord):
            raise TypeError(f"record must be a SelectionRecord, got {type(record).__name__}")
        if not len(record):
            raise ValueError("the record is empty: call record.add(loader) after each epoch of the run to record")
        self.record = record
        self.needs = Needs(ids=True, num_examples=record.num_examples, max_epochs=len(record))

    def plans(self, epoch: int) -> bool:
        return True

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        return self.record.mask(epoch)[ids].to(torch.float32)
