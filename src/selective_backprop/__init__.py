"""Train neural networks faster by choosing which examples to learn from."""

from selective_backprop import functional, testing
from selective_backprop.advice import Advice, advise
from selective_backprop.costs import Costs
from selective_backprop.example_scores import average_scores, el2n, grand, score_examples
from selective_backprop.guard import Guard
from selective_backprop.history import LossHistory
from selective_backprop.ledger import Ledger
from selective_backprop.loader import SelectiveLoader
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
from selective_backprop.progress import step_by_progress
from selective_backprop.pruning import keep_after_pruning, load_scores, overlap, rank_correlation, save_scores
from selective_backprop.recording import SelectionRecord
from selective_backprop.schedule import Schedule, VariableStart
from selective_backprop.scorers import (
    ConstantScorer,
    ForwardScorer,
    FreshScorer,
    LeastSelectedScorer,
    PipelinedScorer,
    PredictedScorer,
    ProxyScorer,
    RecordedScorer,
    ReducibleLossScorer,
    StoredScorer,
    TrainingLossScorer,
    exponential_average,
    gaussian_process,
)
from selective_backprop.scorers.proxy import proxy
from selective_backprop.types import (
    Batch,
    Candidates,
    Method,
    Needs,
    Policy,
    Scorer,
    Selection,
    Task,
)

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Batch",
    "BelowMeanPolicy",
    "Candidates",
    "ClippedScorePolicy",
    "ConstantScorer",
    "Costs",
    "ExpectedPolicy",
    "ForwardScorer",
    "FreshScorer",
    "GroupedPolicy",
    "Guard",
    "ImportancePolicy",
    "LeastSelectedScorer",
    "Ledger",
    "LossHistory",
    "LossSharePolicy",
    "Method",
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
    "load_scores",
    "overlap",
    "predicted_selective_backprop",
    "proxy",
    "random_backprop",
    "rank_correlation",
    "recorded_backprop",
    "reducible_loss",
    "repeated_random",
    "save_scores",
    "score_examples",
    "selective_backprop",
    "stale_selective_backprop",
    "step_by_progress",
    "testing",
    "top_k",
    "traditional",
]
