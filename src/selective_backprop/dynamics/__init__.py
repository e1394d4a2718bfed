"""Training dynamics: what a run recorded about each example, and what this says about the data."""

from selective_backprop.dynamics import statistics
from selective_backprop.dynamics.auditing import Audit, audit
from selective_backprop.dynamics.log import Dynamics
from selective_backprop.dynamics.values import class_values

__all__ = ["Audit", "Dynamics", "audit", "class_values", "statistics"]
