"""Policies: scores in, selection out."""

from selective_backprop.policies.below_mean import BelowMeanPolicy
from selective_backprop.policies.clipped_score import ClippedScorePolicy
from selective_backprop.policies.expected import ExpectedPolicy
from selective_backprop.policies.grouped import GroupedPolicy
from selective_backprop.policies.history import LossHistory
from selective_backprop.policies.importance import ImportancePolicy
from selective_backprop.policies.loss_share import LossSharePolicy
from selective_backprop.policies.percentile import PercentilePolicy
from selective_backprop.policies.top_k import TopKPolicy
from selective_backprop.policies.uniform import UniformPolicy
from selective_backprop.types import Policy

__all__ = [
    "BelowMeanPolicy",
    "ClippedScorePolicy",
    "ExpectedPolicy",
    "GroupedPolicy",
    "ImportancePolicy",
    "LossHistory",
    "LossSharePolicy",
    "PercentilePolicy",
    "Policy",
    "TopKPolicy",
    "UniformPolicy",
]
