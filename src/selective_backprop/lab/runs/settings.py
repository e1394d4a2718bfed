"""Settings of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from selective_backprop.lab.runs.ranks import number_of_ranks
from selective_backprop.lab.runs.recipes import RECIPES, Decay, Recipe


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
    length: float | None = None
    """Epochs after which the run ends with its learning rate fully decayed, possibly a fraction. None: the recipe's."""
    record: str | None = None
    """What the loader records beside the ledger, for audits: "dynamics", or nothing."""
    ranks: int = field(default_factory=number_of_ranks)
    """Number of processes that train together. The recipe's batch is divided among them."""

    def __post_init__(self) -> None:
        size = self.recipe.batch_size
        if size % self.ranks:
            raise ValueError(
                f"the batch of {size} is divided among all ranks, and {self.ranks} ranks cannot have equal parts of "
                f"it: start another number of ranks, or choose a batch_size such as {size + -size % self.ranks}"
            )
        if self.length is not None and self.length <= 0:
            raise ValueError(f"length must be positive, got {self.length}")
        for name in ("label_noise", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    @property
    def epochs(self) -> int:
        """Epochs that the run begins; the last one may be cut short."""
        return self.recipe.epochs if self.length is None else math.ceil(self.length)

    def as_json(self) -> dict[str, Any]:
        """The settings as plain data. Equal settings give equal data."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return content


def settings_of(config: Any) -> Settings:
    """Make the settings from what `Settings.as_json` gave, as config.json of a run holds it. Raises ValueError.

    >>> from selective_backprop.lab.runs.recipes import find_recipe
    >>> settings = Settings(recipe=find_recipe("cifar10"), method="traditional", selectivity=1.0, label_noise=0.1)
    >>> settings_of(settings.as_json()) == settings
    True
    """
    try:
        recipe = dict(config["recipe"])
        decay = recipe.pop("decay")
        decay = Decay(**(decay | {"milestones": tuple(decay["milestones"])}))
        known = {item.name for item in dataclasses.fields(Settings)} - {"recipe"}
        rest = {name: value for name, value in config.items() if name in known}
        return Settings(recipe=Recipe(**recipe, decay=decay), **({"ranks": 1} | rest))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"config.json is not that of a run ({error!r})") from None


def command_options(settings: Settings) -> list[str]:
    """Options of `selective-backprop train` that give this recipe, seed and data, without the method.

    What a command cannot say, such as another learning rate, is left out.

    >>> from selective_backprop.lab.runs.recipes import find_recipe
    >>> recipe = find_recipe("svhn_small").with_(epochs=3, model="resnet20")
    >>> command_options(Settings(recipe=recipe, method="traditional", selectivity=1.0, label_noise=0.1))
    ['--recipe', 'svhn_small', '--model', 'resnet20', '--epochs', '3', '--label-noise', '0.1']
    """
    recipe, named = settings.recipe, ("dataset", "model", "epochs")

    def differences(base: Recipe) -> int:
        fields = (item.name for item in dataclasses.fields(Recipe))
        free = ("method", "selectivity", "options", "source")
        return sum(getattr(base, name) != getattr(recipe, name) for name in fields if name not in free)

    name = min(RECIPES, key=lambda name: differences(RECIPES[name]))
    found = ["--recipe", name] if name != "digits" else []
    for item in named:
        if getattr(RECIPES[name], item) != getattr(recipe, item):
            found += [f"--{item}", str(getattr(recipe, item))]
    for flag, value in (
        ("--label-noise", settings.label_noise),
        ("--validation", settings.validation),
        ("--seed", settings.seed),
    ):
        found += [flag, f"{value:g}"] if value else []
    return found
