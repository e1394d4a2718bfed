"""Settings of a run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from selective_backprop.checks import check_seed
from selective_backprop.options import require_numbers
from selective_backprop_lab.runs.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the outcome of a run, except the data."""

    recipe: Recipe
    method: str
    selectivity: float
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    label_noise: float = 0.0
    """Fraction of training labels that are replaced by wrong ones."""
    validation: float = 0.0
    """Fraction of the training data to test on instead of the test set, to choose settings."""
    record: str | None = None
    """What the loader records beside the ledger, for audits: "dynamics", or nothing."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require_numbers(label_noise=self.label_noise, validation=self.validation)
        for name in ("label_noise", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    @property
    def epochs(self) -> int:
        return self.recipe.epochs

    def as_json(self) -> dict[str, Any]:
        """The settings as plain data. Equal settings give equal data."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return content
