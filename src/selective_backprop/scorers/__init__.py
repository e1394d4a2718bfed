"""Scorers: where scores come from and how old they are."""

from selective_backprop.scorers.audited import AuditedLossScorer
from selective_backprop.scorers.base import FreshScorer
from selective_backprop.scorers.constant import ConstantScorer
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.scorers.names import Scoring, scorer_from
from selective_backprop.scorers.pipelined import PipelinedScorer
from selective_backprop.scorers.proxies import ProxyScorer, proxy
from selective_backprop.scorers.stored import StoredScorer
from selective_backprop.scorers.training import LeastSelectedScorer, TrainingLossScorer
from selective_backprop.types import Scorer

__all__ = [
    "AuditedLossScorer",
    "ConstantScorer",
    "ForwardScorer",
    "FreshScorer",
    "LeastSelectedScorer",
    "PipelinedScorer",
    "ProxyScorer",
    "Scorer",
    "Scoring",
    "StoredScorer",
    "TrainingLossScorer",
    "proxy",
    "scorer_from",
]
