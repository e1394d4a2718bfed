"""Train neural networks faster by choosing which examples to learn from.

Here is what a training script names. Parts to build methods of your own from are in the modules `functional`, `losses`,
`policies`, `pruning`, `schedules`, `scorers`, `testing` and `types`.
"""

from selective_backprop import functional, losses, policies, pruning, schedules, scorers, testing, types
from selective_backprop.advice.advise import advise
from selective_backprop.batches.padding import pad_to_longest
from selective_backprop.checkpoint.saving import load_checkpoint, save_checkpoint
from selective_backprop.loader.selective_loader import SelectiveLoader
from selective_backprop.losses import mean_of_largest, token_cross_entropy
from selective_backprop.method import Method
from selective_backprop.methods import (
    composer_backprop,
    diet,
    distance_backprop,
    diverse,
    expected_selective_backprop,
    infobatch,
    kath18,
    ledger_backprop,
    predicted_selective_backprop,
    random_backprop,
    recorded_backprop,
    reducible_loss,
    repeated_random,
    second_difference,
    selective_backprop,
    seta,
    stale_selective_backprop,
    tail_sft,
    top_k,
    traditional,
)
from selective_backprop.methods.length_cost import LengthCost
from selective_backprop.progress import step_by_progress
from selective_backprop.pruning import SelectionRecord, average_scores
from selective_backprop.scorers import proxy

__version__ = "0.1.0"

__all__ = [
    "LengthCost",
    "Method",
    "SelectionRecord",
    "SelectiveLoader",
    "advise",
    "average_scores",
    "composer_backprop",
    "diet",
    "distance_backprop",
    "diverse",
    "expected_selective_backprop",
    "functional",
    "infobatch",
    "kath18",
    "ledger_backprop",
    "load_checkpoint",
    "losses",
    "mean_of_largest",
    "pad_to_longest",
    "policies",
    "predicted_selective_backprop",
    "proxy",
    "pruning",
    "random_backprop",
    "recorded_backprop",
    "reducible_loss",
    "repeated_random",
    "save_checkpoint",
    "schedules",
    "scorers",
    "second_difference",
    "selective_backprop",
    "seta",
    "stale_selective_backprop",
    "step_by_progress",
    "tail_sft",
    "testing",
    "token_cross_entropy",
    "top_k",
    "traditional",
    "types",
]
