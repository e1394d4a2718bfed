"""Scorers: where scores come from and how old they are."""

from selective_backprop.scorers.constant import ConstantScorer
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.scorers.stored import StoredScorer

__all__ = ["ConstantScorer", "ForwardScorer", "StoredScorer"]
