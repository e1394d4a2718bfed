"""Train neural networks faster by choosing which examples to learn from."""

from selective_backprop import functional, testing
from selective_backprop.advice.advise import Advice, advise
from selective_backprop.advice.costs import Costs
from selective_backprop.batches.padding import pad_to_longest
from selective_backprop.checkpoint.saving import load_checkpoint, save_checkpoint
from selective_backprop.ledger import Ledger, LedgerRows
from selective_backprop.loader.selective_loader import SelectiveLoader
from selective_backprop.losses import mean_of_largest, token_cross_entropy
from selective_backprop.method import Method
from selective_backprop.methods import (
    composer_backprop,
    diet,
    distance_backprop,
    expected_selective_backprop,
    infobatch,
    kath18,
    ledger_backprop,
    predicted_selective_backprop,
    random_backprop,
    recorded_backprop,
    reducible_loss,
    repeated_random,
    selective_backprop,
    stale_selective_backprop,
    top_k,
    traditional,
)
from selective_backprop.policies import (
    BelowMeanPolicy,
    ClippedScorePolicy,
    ExpectedPolicy,
    GroupedPolicy,
    ImportancePolicy,
    LossSharePolicy,
    PercentilePolicy,
    TopKPolicy,
    UniformPolicy,
)
from selective_backprop.policies.history import LossHistory
from selective_backprop.progress import step_by_progress
from selective_backprop.pruning.prune import keep_after_pruning, load_scores, overlap, rank_correlation, save_scores
from selective_backprop.pruning.records import SelectionRecord
from selective_backprop.pruning.scores import average_scores, el2n, grand, score_examples
from selective_backprop.schedules import Guard, Schedule, VariableStart
from selective_backprop.scorers import (
    AutocastCopy,
    ConstantScorer,
    FoldedCopy,
    ForwardScorer,
    FreshScorer,
    Int8Copy,
    LeastSelectedScorer,
    ModelCopy,
    PipelinedScorer,
    PredictedScorer,
    ProxyScorer,
    RecordedScorer,
    ReducibleLossScorer,
    StoredScorer,
    TrainingLossScorer,
    TrainingPassScorer,
    exponential_average,
    gaussian_process,
)
from selective_backprop.scorers.proxy import proxy
from selective_backprop.types import Batch, Candidates, Needs, Policy, Scorer, Selection, Task

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "AutocastCopy",
    "Batch",
    "BelowMeanPolicy",
    "Candidates",
    "ClippedScorePolicy",
    "ConstantScorer",
    "Costs",
    "ExpectedPolicy",
    "FoldedCopy",
    "ForwardScorer",
    "FreshScorer",
    "GroupedPolicy",
    "Guard",
    "ImportancePolicy",
    "Int8Copy",
    "LeastSelectedScorer",
    "Ledger",
    "LedgerRows",
    "LossHistory",
    "LossSharePolicy",
    "Method",
    "ModelCopy",
    "Needs",
    "PercentilePolicy",
    "PipelinedScorer",
    "Policy",
    "PredictedScorer",
    "ProxyScorer",
    "RecordedScorer",
    "ReducibleLossScorer",
    "Schedule",
    "Scorer",
    "Selection",
    "SelectionRecord",
    "SelectiveLoader",
    "StoredScorer",
    "Task",
    "TopKPolicy",
    "TrainingLossScorer",
    "TrainingPassScorer",
    "UniformPolicy",
    "VariableStart",
    "advise",
    "average_scores",
    "composer_backprop",
    "diet",
    "distance_backprop",
    "el2n",
    "expected_selective_backprop",
    "exponential_average",
    "functional",
    "gaussian_process",
    "grand",
    "infobatch",
    "kath18",
    "keep_after_pruning",
    "ledger_backprop",
    "load_checkpoint",
    "load_scores",
    "mean_of_largest",
    "overlap",
    "pad_to_longest",
    "predicted_selective_backprop",
    "proxy",
    "random_backprop",
    "rank_correlation",
    "recorded_backprop",
    "reducible_loss",
    "repeated_random",
    "save_checkpoint",
    "save_scores",
    "score_examples",
    "selective_backprop",
    "stale_selective_backprop",
    "step_by_progress",
    "testing",
    "token_cross_entropy",
    "top_k",
    "traditional",
]
