"""Pruning before training: scores of examples and which examples to drop."""

from selective_backprop.pruning.prune import keep_after_pruning, load_scores, save_scores
from selective_backprop.pruning.scores import average_scores, el2n, grand, last_features, score_examples

__all__ = [
    "average_scores",
    "el2n",
    "grand",
    "keep_after_pruning",
    "last_features",
    "load_scores",
    "save_scores",
    "score_examples",
]
