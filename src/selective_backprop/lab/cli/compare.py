"""The command selective-backprop compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.cli.bars import Bars, stopping_says
from selective_backprop.lab.cli.options import (
    ComparisonOptions,
    LabelNoise,
    RunsFolder,
    Seeds,
    cached_loader,
    told_plainly,
    with_option_groups,
)
from selective_backprop.lab.cli.report import data_of, tell_left_out
from selective_backprop.lab.report import write_report
from selective_backprop.lab.runs.choices import Choice, make_method, name_choices
from selective_backprop.lab.runs.ranks import is_first
from selective_backprop.lab.runs.recipes import Recipe
from selective_backprop.lab.study.comparison import Design, Results, settings_for
from selective_backprop.lab.study.comparison import compare as run_comparison
from selective_backprop.lab.study.curves import AXES, FACTORS
from selective_backprop.lab.study.estimate import in_words, seconds_left
from selective_backprop.lab.study.plan import write_plan
from selective_backprop.lab.study.standing import alerts, standings, winner
from selective_backprop.lab.study.tables import READING, SPEED_READING, TextTable, speed_up_table, standing_table

Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="A method as [LABEL=]NAME[@SELECTIVITY][:OPTION=VALUE,...]; repeatable. Default: well-known ones.",
    ),
]

DEFAULT_METHODS = ["sb", "stale:every=3", "ledger", "kath18", "random", "infobatch"]
NO_BASELINES = (
    "Plain training and random subsets were left out (--no-baselines), so nothing here shows that a method pays."
)


@with_option_groups
def compare(
    options: ComparisonOptions,
    method: Methods = None,
    seeds: Seeds = 3,
    baselines: Annotated[
        bool,
        typer.Option("--baselines/--no-baselines", help="Also run the baselines: plain training and random subsets."),
    ] = True,
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Error to reach in the table of speed-ups, as a multiple of plain training's final error; repeatable."
        ),
    ] = None,
    label_noise: LabelNoise = 0.0,
    out: RunsFolder = Path("runs/compare"),
) -> None:
    """Train several methods with several seeds, and print how much compute each of them saves.

    Each method is measured by its compute multiplier: how many times more compute plain training needs for the same
    error, with its learning rate fully decayed within the budget. Random subsets are measured in the same way. If an
    option of a method is a setting of the recipe (lr, ...), it changes the recipe for that method only. After a stop,
    run the same command again, also with more seeds or methods: it does only what is missing. `torchrun` runs it on
    several ranks, as for `train`.

    Examples:

    `selective-backprop compare`

    `selective-backprop compare --method sb@0.25 --method ledger --epochs 3,6,12 --seeds 5`

    `selective-backprop compare --method "EL2N + SB=diet:scores=el2n.pt,prune=0.25" --method sb`

    `selective-backprop compare --recipe svhn_small --data-dir data --epochs 2,4,8 --out runs/svhn`
    """
    console = Console()
    with told_plainly():
        chosen = options.chosen()
        lengths, choices = options.lengths(chosen), parse_methods(method or DEFAULT_METHODS, chosen)
        factors = check_targets(target)
        more: dict[str, object] = {"label_noise": label_noise, "validation": options.validation}
        design = Design(choices, chosen, lengths, baselines, more)
        if not baselines and not design.methods:
            raise ValueError("--no-baselines leaves nothing to train: give a --method other than traditional")
        observers, load = options.observers(), cached_loader(options.data_dir)
        entries = [entry for seed in range(seeds) for entry in design.entries(seed)]
        num_test = len(load(entries[0].settings).test_labels)
        epochs_left, seconds = seconds_left(entries, load, out)
        console.print(
            f"{len(entries)} runs. At most {epochs_left:.0f} epochs of compute are left to do, which takes about "
            f"{in_words(seconds)}, estimated from a few measured steps",
            highlight=False,
        )
        if is_first():
            write_plan(out, entries)
        with Bars(console, seeds) as bars, stopping_says(console, f"run the same command to go on: {out}"):
            results = run_comparison(design, load, out, seeds=seeds, observers=observers, show=bars.show)
        split = "validation split" if options.validation else "test set"
        texts = {"split": split, "size": num_test, "seeds": seeds, "plural": "" if seeds == 1 else "s"}
        found = standings(results.arms())
        first = standing_table(found)
        speeds = _speed_tables(results, design, factors)
        words = [winner(found), *alerts(found)] if baselines else [NO_BASELINES]
        if is_first():
            with_clock = standing_table(found, clock=baselines)
            markdown = [*words, f"## Compute multipliers\n\n{with_clock.markdown()}", READING.format(**texts)]
            markdown += [f"## {title}\n\n{table.markdown()}" for title, table in speeds.items()]
            markdown += [SPEED_READING] if speeds else []
            write_whole({out / "tables.md": "\n\n".join([*markdown, ""]).encode()})
    title = f"{chosen.dataset}, {chosen.model}, {', '.join(map(str, sorted(lengths)))} epochs"
    console.print(first.rich(f"Compute multipliers: {title}"))
    for sentence in words:
        console.print(sentence.replace("**", ""), markup=False, highlight=False)
    console.print(READING.format(**texts), highlight=False)
    for name, table in speeds.items():
        console.print(table.rich(f"{name}: {title}"))
    if speeds:
        console.print(SPEED_READING, highlight=False)
    console.print(f"runs and tables: {out}")
    if not is_first():
        return
    with told_plainly():  # last, so that an error in the report cannot hide the tables
        tell_left_out(write_report([out], out / "report.html", load=data_of(options.data_dir)))
    console.print(f"report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _speed_tables(results: Results, design: Design, factors: list[float]) -> dict[str, TextTable]:
    if design.reference not in results.curves:
        return {}
    return {f"Speed-up in {axis}": speed_up_table(results.curves, design.reference, axis, factors) for axis in AXES}


def check_targets(target: list[float] | None) -> list[float]:
    """Check the multiples of plain training's final error. Default: the usual ones."""
    if any(not factor >= 1 for factor in target or []):
        raise ValueError(f"--target must be a multiple of plain training's final error of at least 1, got {target}")
    return target or list(FACTORS)


def parse_methods(texts: list[str], recipe: Recipe) -> list[Choice]:
    """Parse all methods and make each once, so that a wrong one fails now and not after hours."""
    choices = name_choices(texts)
    for choice in choices:
        settings = settings_for(choice, recipe)
        make_method(settings.method, settings.selectivity, settings.options)
    return choices
