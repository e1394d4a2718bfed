"""Pruning before training: scores of examples, which examples to drop, and records of what a run selected."""

from selective_backprop.pruning.prune import keep_after_pruning, load_scores, save_scores
from selective_backprop.pruning.scores import average_scores, el2n, grand, last_features, score_examples
from selective_backprop.scorers.selection_record import SelectionRecord

__all__ = [
    "SelectionRecord",
    "average_scores",
    "el2n",
    "grand",
    "keep_after_pruning",
    "last_features",
    "load_scores",
    "save_scores",
    "score_examples",
]
