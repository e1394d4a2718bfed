"""What decides the outcome of a run."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from selective_backprop.lab.runs.ranks import number_of_ranks
from selective_backprop.lab.runs.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that decides the outcome of a run, but the data."""

    recipe: Recipe
    method: str
    selectivity: float
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    label_noise: float = 0.0
    """Fraction of training labels that are made wrong."""
    validation: float = 0.0
    """Fraction of the training data to test on, instead of the test set: for choosing settings."""
    length: float | None = None
    """Epochs after which the run ends, its learning rate fully decayed, if not the recipe's; need not be whole."""
    ranks: int = field(default_factory=number_of_ranks)
    """Processes that train together: the recipe's batch is divided among them."""

    def __post_init__(self) -> None:
        size = self.recipe.batch_size
        if size % self.ranks:
            raise ValueError(
                f"the batch of {size} is that of all ranks together, and {self.ranks} ranks cannot have equal parts of "
                f"it: start another number of ranks, or choose a batch_size such as {size + -size % self.ranks}"
            )
        if self.length is not None and self.length <= 0:
            raise ValueError(f"length must be positive, got {self.length}")
        for name in ("label_noise", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    @property
    def epochs(self) -> int:
        """Epochs that are begun."""
        return self.recipe.epochs if self.length is None else math.ceil(self.length)

    def as_json(self) -> dict[str, Any]:
        """Plain data; equal settings give equal data."""
        content = dataclasses.asdict(self) | {"recipe": _plain(dataclasses.asdict(self.recipe))}
        if self.ranks > 1:
            return content | {"batch_size_of_each_rank": self.recipe.batch_size // self.ranks}
        del content["ranks"]  # as folders were before there were ranks
        return content


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
