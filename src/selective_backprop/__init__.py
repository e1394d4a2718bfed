"""Train neural networks faster by choosing which examples to learn from."""

from selective_backprop import functional, testing
from selective_backprop.history import LossHistory
from selective_backprop.ledger import Ledger
from selective_backprop.loader import SelectiveLoader
from selective_backprop.methods import (
    random_backprop,
    selective_backprop,
    stale_selective_backprop,
    top_k,
    traditional,
)
from selective_backprop.policies import PercentilePolicy, TopKPolicy, UniformPolicy
from selective_backprop.progress import step_by_progress
from selective_backprop.schedule import Schedule
from selective_backprop.scorers import ConstantScorer, ForwardScorer, StoredScorer
from selective_backprop.types import Batch, Candidates, Method, Policy, Scorer, Selection, Task

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Candidates",
    "ConstantScorer",
    "ForwardScorer",
    "Ledger",
    "LossHistory",
    "Method",
    "PercentilePolicy",
    "Policy",
    "Schedule",
    "Scorer",
    "Selection",
    "SelectiveLoader",
    "StoredScorer",
    "Task",
    "TopKPolicy",
    "UniformPolicy",
    "functional",
    "random_backprop",
    "selective_backprop",
    "stale_selective_backprop",
    "step_by_progress",
    "testing",
    "top_k",
    "traditional",
]
