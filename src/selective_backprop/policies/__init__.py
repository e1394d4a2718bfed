"""Policies: scores in, selection out."""

from selective_backprop.policies.percentile import PercentilePolicy
from selective_backprop.policies.top_k import TopKPolicy
from selective_backprop.policies.uniform import UniformPolicy

__all__ = ["PercentilePolicy", "TopKPolicy", "UniformPolicy"]
