"""Methods side by side on one recipe, with the baselines that make the comparison fair."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.runs.choices import Choice
from selective_backprop.lab.runs.experiment import Entry, Results, Show, run_in_turns
from selective_backprop.lab.runs.recipes import Recipe
from selective_backprop.lab.runs.training import Observer, Settings
from selective_backprop.lab.study.curves import Curve

Curves = dict[str, list[Curve]]
"""By label; of each label by seed."""


def settings_for(choice: Choice, recipe: Recipe, **more: object) -> Settings:
    """Settings of a run with this method. Options that a recipe has (lr, epochs, ...) change the recipe.

    >>> from selective_backprop.lab.runs.recipes import find_recipe
    >>> settings = settings_for(Choice.parse("ledger:loss_share=0.8,lr=0.2"), find_recipe("digits"))
    >>> settings.recipe.lr, settings.options
    (0.2, {'loss_share': 0.8})
    """
    of_recipe = {field.name for field in dataclasses.fields(Recipe)} - {"method", "selectivity"}
    changes = {name: value for name, value in choice.options.items() if name in of_recipe}
    options = {name: value for name, value in choice.options.items() if name not in of_recipe}
    settings = Settings(
        recipe=recipe.with_(**changes),
        method=choice.method,
        selectivity=recipe.selectivity if choice.selectivity is None else choice.selectivity,
        options=options,
    )
    return dataclasses.replace(settings, **more)  # type: ignore[arg-type]


def compare(
    choices: Sequence[Choice],
    recipe: Recipe,
    load: Callable[[Settings], ImageSet],
    out: Path | None = None,
    *,
    seeds: int = 2,
    budgets: Sequence[str] = (),
    budget_times: Sequence[float] = (1.0,),
    budget_by: Sequence[str] = ("compute", "time"),
    label_noise: float = 0.0,
    validation: float = 0.0,
    observers: Callable[[Path, Settings], Sequence[Observer]] = lambda folder, settings: (),
    show: Show = lambda entry, record: None,
) -> Curves:
    """Train every method with every seed, and baselines within the budget of some of them.

    Args:
        choices: the methods.
        recipe: of all runs, but for what a choice changes.
        load, out, observers, show: as for `run_in_turns`.
        seeds: runs per method.
        budgets: labels of methods. For each, Traditional and repeated random are trained within the same compute
            and within the same time, their schedules fully decayed.
        budget_times: multiples of those budgets; other than 1 of the compute alone.
        budget_by: what counts as the same. For methods without selection passes both come to nearly the same.
        label_noise, validation: of `Settings`.
    """
    curves: Curves = {}
    for seed in range(seeds):
        more = {"seed": seed, "label_noise": label_noise, "validation": validation}
        entries = [Entry(choice.label, settings_for(choice, recipe, **more)) for choice in choices]
        results = run_in_turns(entries, load, out, observers=observers, show=show)
        baselines = [
            entry
            for label in budgets
            for times in budget_times
            for entry in fair_baselines(results, label, times, budget_by)
        ]
        results |= run_in_turns(baselines, load, out, observers=observers, show=show)
        for entry, records in results.items():
            curves.setdefault(entry.label, []).append(Curve.of(records))
    return curves


def fair_baselines(
    results: Results, label: str, times: float = 1.0, by: Sequence[str] = ("compute", "time")
) -> list[Entry]:
    """Traditional and repeated random within the compute and the time of a method, of one seed.

    Time is given as the number of examples that Traditional trained on in it, so that the baseline can be resumed
    and made again exactly. Multiples are of the compute alone.
    """
    _, curve = _find(results, lambda entry: entry.label == label)
    traditional, reference = _find(results, lambda entry: entry.settings.method == "traditional")
    seconds_per_epoch = reference.seconds[-1] / reference.compute[-1]
    spent = {"compute": curve.compute[-1], "time": curve.seconds[-1] / seconds_per_epoch}
    lengths = {f"{label}'s {kind}": spent[kind] for kind in by}
    if times != 1:
        lengths = {f"{times:g}x {label}'s compute": times * spent["compute"]}
    baselines = []
    for budget, length in lengths.items():
        length = round(length, 3)
        shorter = dataclasses.replace(traditional.settings, length=length)
        baselines.append(Entry(f"traditional, {budget}", shorter))
        share = length / traditional.settings.epochs
        if share < 1:  # or it would be Traditional
            random = dataclasses.replace(traditional.settings, method="repeated_random", selectivity=share)
            baselines.append(Entry(f"repeated_random, {budget}", random))
    return baselines


def _find(results: Results, wanted: Callable[[Entry], bool]) -> tuple[Entry, Curve]:
    return next((entry, Curve.of(records)) for entry, records in results.items() if wanted(entry))
