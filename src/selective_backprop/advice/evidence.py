"""What the leaderboard showed: how many times more compute plain training or random subsets need for a method's error.

The numbers are in leaderboard.json beside this file, of all methods on small workloads, and in growth.json, which a
study of growing data sets wrote.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Evidence:
    """A method on the leaderboard."""

    multipliers: dict[str, float]
    """Compute multiplier by workload, the lower of those against plain training and against random subsets."""

    @property
    def median(self) -> float:
        """Median over workloads. Bounds count as numbers."""
        return median(self.multipliers.values())

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
    multipliers = _read("leaderboard.json").get(name)
    return Evidence(multipliers) if multipliers else None


@dataclass(frozen=True)
class Measured:
    """The ledger's compute multiplier with a number of training examples."""

    examples: int
    multiple: float
    ends: tuple[float, float] | None = None
    """95% interval over seeds; None for a single seed."""

    def __str__(self) -> str:
        spread = "one seed" if self.ends is None else f"{self.ends[0]:.2f} to {self.ends[1]:.2f}"
        return f"{self.multiple:.2f} ({spread}) with {self.examples:,} examples"


GROWTH_EPOCHS = 6
"""Length of plain training at whose error the growth is told."""


def growth(examples: int | None, measured: Sequence[Measured] | None = None) -> str:
    """How the ledger's multiplier grew with the data in our one study of it, and where so many examples would stand.

    >>> growth(20, [Measured(10, 1.0), Measured(40, 2.0, (1.5, 2.5))]).partition("; ")[2]
    'for your 20 examples that makes about 1.41.'
    """
    known = measured or _growth()
    first, last = known[0], known[-1]
    told = f"On SVHN with a ResNet-8 it was {first} and {last}"
    if examples is None:
        return f"{told}."
    if not first.examples <= examples <= last.examples:
        side = "fewer" if examples < first.examples else "more"
        return f"{told}; you have {side}, {examples:,}."
    below, above = next(pair for pair in pairwise(known) if pair[0].examples <= examples <= pair[1].examples)
    share = math.log(examples / below.examples) / math.log(above.examples / below.examples)
    between = below.multiple ** (1 - share) * above.multiple**share
    return f"{told}; for your {examples:,} examples that makes about {between:.2f}."


def _growth() -> list[Measured]:
    rows = [row for row in _read("growth.json") if row["epochs"] == GROWTH_EPOCHS]
    return [Measured(row["examples"], row["multiple"], tuple(row["ends"]) if row["ends"] else None) for row in rows]


@functools.cache
def _read(name: str) -> Any:
    return json.loads((importlib.resources.files(__package__) / name).read_text())
