"""What the leaderboard showed: how many times more compute plain training or random subsets need for a method's error.

The numbers are in leaderboard.json beside this file. `selective-backprop leaderboard show --evidence` writes it.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Evidence:
    """A method on the leaderboard."""

    multipliers: dict[str, float]
    """Compute multiplier by workload, the lower of those against plain training and against random subsets."""

    @property
    def median(self) -> float:
        """Median over workloads. Bounds count as numbers."""
        return median(self.multipliers.values())

    @property
    def loses(self) -> bool:
        """Whether plain training or random subsets did better on most workloads."""
        return self.median < 1

    def __str__(self) -> str:
        """
        >>> str(Evidence({"a": 0.5, "b": 1.25, "c": 2.0}))
        '1.25 (0.50 to 2.00 on 3 workloads)'
        """
        values = self.multipliers.values()
        return f"{self.median:.2f} ({min(values):.2f} to {max(values):.2f} on {len(values)} workloads)"


def evidence_of(name: str) -> Evidence | None:
    """What is known about a method, by its name; None for one that was never on the leaderboard.

    >>> evidence_of("mine") is None
    True
    """
    multipliers = _table().get(name)
    return Evidence(multipliers) if multipliers else None


@functools.cache
def _table() -> dict[str, dict[str, float]]:
    file = importlib.resources.files(__package__) / "leaderboard.json"
    found: dict[str, dict[str, float]] = json.loads(file.read_text())
    return found
