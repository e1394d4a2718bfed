"""Methods side by side on one recipe, with the baselines that make the comparison fair."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from selective_backprop.functional import selectivity_from_beta
from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.runs.experiment import Entry, Show, run_in_turns
from selective_backprop_lab.runs.methods import RECIPE_SETTINGS, MethodSpec, has_beta
from selective_backprop_lab.runs.recipes import Recipe
from selective_backprop_lab.runs.training import Observer, Settings
from selective_backprop_lab.study.curves import Curve
from selective_backprop_lab.study.standing import AS, PLAIN, RANDOM, LabelledRuns


def settings_for(spec: MethodSpec, recipe: Recipe, **more: object) -> Settings:
    """Settings of a run with this method. Options that a recipe has (lr, epochs, ...) change the recipe.

    The recipe's own method gets the recipe's options where the spec has none.

    >>> from selective_backprop_lab.runs.recipes import find_recipe
    >>> settings = settings_for(MethodSpec.parse("ledger:loss_share=0.8,lr=0.2"), find_recipe("digits"))
    >>> settings.recipe.lr, settings.options
    (0.2, {'loss_share': 0.8})
    """
    changes = {name: value for name, value in spec.options.items() if name in RECIPE_SETTINGS}
    options = {name: value for name, value in spec.options.items() if name not in RECIPE_SETTINGS}
    if spec.method == recipe.method:
        options = recipe.options | options
    selectivity = recipe.selectivity if spec.selectivity is None else spec.selectivity
    if has_beta(spec.method, options):
        selectivity = selectivity_from_beta(options["beta"])
    settings = Settings(
        recipe=recipe.with_(**changes),
        method=spec.method,
        selectivity=selectivity,
        options=options,
    )
    return dataclasses.replace(settings, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Design:
    """The runs of a comparison, apart from their seeds.

    Args:
        specs: the methods. Plain training without options of its own is a baseline, and left out here.
        recipe: the recipe of all runs. A spec may change it for its own runs.
        epochs: how long each method is trained; a run of its own for each, with its learning rate fully decayed.
        baselines: lengths of plain training, as fractions of the methods' length if they have one only; random subsets
            are trained with as much compute. Empty: no baselines.

    >>> from selective_backprop_lab.runs.recipes import find_recipe
    >>> design = Design([MethodSpec.parse("sb")], find_recipe("digits"), epochs=[8])
    >>> [entry.label for entry in design.entries(seed=0)][2:5]
    ['traditional, 6 epochs', 'repeated_random, 2 epochs of compute', 'repeated_random, 4 epochs of compute']
    """

    specs: Sequence[MethodSpec]
    recipe: Recipe
    epochs: Sequence[int]
    baselines: Sequence[float] = (0.25, 0.5, 0.75, 1.0)
    more: dict[str, object] = field(default_factory=dict)
    """Further settings of all runs: label_noise, validation."""

    @property
    def methods(self) -> list[MethodSpec]:
        """Methods that are not baselines."""
        return [spec for spec in self.specs if spec.method != PLAIN or spec.options]

    @property
    def budgets(self) -> list[int]:
        """Epochs of compute that the baselines get, rising."""
        if len(self.epochs) > 1:
            return sorted(set(self.epochs))
        return sorted({max(1, round(share * self.epochs[0])) for share in self.baselines})

    def entries(self, seed: int) -> list[Entry]:
        """All runs of a seed, short ones first: they give a first answer early."""
        methods = self._methods(seed)
        matched = [
            Entry(f"{AS}{one.label}", dataclasses.replace(one.settings, method=RANDOM, options={}), sizes_of=one)
            for one in methods
            if self.baselines and one.settings.method not in (PLAIN, RANDOM)
        ]
        found = [(entry.settings.epochs, entry) for entry in (*self._baselines(seed), *methods, *matched)]
        return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]

    def _methods(self, seed: int) -> list[Entry]:
        several = len(self.epochs) > 1
        return [
            Entry(
                f"{spec.label}, {_epochs(epochs)}" if several else spec.label,
                settings_for(spec, self.recipe.with_(epochs=epochs), seed=seed, **self.more),
            )
            for epochs in sorted(set(self.epochs))
            for spec in self.methods
        ]

    def _baselines(self, seed: int) -> list[Entry]:
        if not self.baselines:
            return []
        longest, entries = self.budgets[-1], []
        for epochs in self.budgets:
            plain = settings_for(MethodSpec(PLAIN, PLAIN), self.recipe.with_(epochs=epochs), seed=seed, **self.more)
            entries.append(Entry(f"{PLAIN}, {_epochs(epochs)}", plain))
            if epochs < longest:  # or it would be plain training
                full = dataclasses.replace(plain, recipe=self.recipe.with_(epochs=longest))
                random = dataclasses.replace(full, method=RANDOM, selectivity=epochs / longest)
                entries.append(Entry(f"{RANDOM}, {_epochs(epochs)} of compute", random))
        return entries


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def train_all(
    by_seed: Sequence[Sequence[Entry]],
    load: Callable[[Settings], ImageSet],
    out: Path | None = None,
    *,
    observers: Callable[[Path, Settings], Sequence[Observer]] = lambda folder, settings: (),
    show: Show = lambda entry, record: None,
) -> list[LabelledRuns]:
    """Train everything, one seed after the other and short runs first; only what is missing in `out`.

    Runs of the same length take turns epoch by epoch, so that drift of the machine hits all alike. Random subsets of
    the methods' sizes come after the methods, whose sizes they have.

    Args:
        by_seed: the runs of each seed.
        load, out, observers, show: as for `run_in_turns`.
    """
    curves: dict[tuple[str, str], list[Curve]] = {}
    for entries in by_seed:
        for epochs in sorted({entry.settings.epochs for entry in entries}):
            turn = [entry for entry in entries if entry.settings.epochs == epochs]
            first = [entry for entry in turn if entry.sizes_of is None]
            done = run_in_turns(first, load, out, observers=observers, show=show)
            then = [entry.with_sizes(done[entry.sizes_of]) for entry in turn if entry.sizes_of is not None]
            done |= run_in_turns(then, load, out, observers=observers, show=show)
            for entry, records in done.items():
                curves.setdefault((entry.label, entry.settings.method), []).append(Curve.of(records))
    return [LabelledRuns.of(label, method, runs, clock=True) for (label, method), runs in curves.items()]
