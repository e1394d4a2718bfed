"""The command selective-backprop compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop.lab.cli.command import command, stopping_says
from selective_backprop.lab.cli.options import ComparisonOptions, LabelNoise, RunsFolder, Seeds, cached_loader
from selective_backprop.lab.cli.report import finish_report
from selective_backprop.lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop.lab.runs.methods import MethodSpec
    from selective_backprop.lab.runs.recipes import Recipe
    from selective_backprop.lab.study.comparison import Design, Results
    from selective_backprop.lab.study.frontier import Interval
    from selective_backprop.lab.study.standing import Standing
    from selective_backprop.lab.study.tables import TextTable

Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="METHOD",
        help="A method by name, such as ledger, sb@0.25 or stale:every=2, or with a label of your own, such as "
        "mine=ledger:loss_share=0.8; repeatable; see `list`. Default: well-known ones.",
    ),
]

DEFAULT_METHODS = ["sb", "stale:every=3", "ledger", "kath18", "random", "infobatch"]
NO_BASELINES = (
    "Plain training and random subsets were left out (--no-baselines), so nothing here shows that a method pays."
)


@command
def compare(
    options: ComparisonOptions,
    output: OutputOptions,
    method: Methods = None,
    seeds: Seeds = 3,
    no_baselines: Annotated[
        bool,
        typer.Option("--no-baselines", metavar="", help="Leave out the baselines: plain training and random subsets."),
    ] = False,
    target: Annotated[
        list[float] | None,
        typer.Option(
            metavar="FACTOR",
            help="Error to reach in the table of speed-ups, as a multiple of plain training's final error; repeatable.",
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
    from selective_backprop.files.writing import write_whole
    from selective_backprop.lab.cli.bars import Bars
    from selective_backprop.lab.report.live import LiveReport
    from selective_backprop.lab.runs.ranks import is_first
    from selective_backprop.lab.runs.records import read_records
    from selective_backprop.lab.study.comparison import Design
    from selective_backprop.lab.study.comparison import compare as run_comparison
    from selective_backprop.lab.study.standing import alerts, standings, winner
    from selective_backprop.lab.study.tables import READING, SPEED_READING, standing_table

    screen, chosen = Screen(output), options.chosen()
    lengths, specs = options.lengths(chosen), checked_methods(method or DEFAULT_METHODS, chosen)
    factors = check_targets(target)
    design = Design(specs, chosen, lengths, not no_baselines, options.more_settings() | {"label_noise": label_noise})
    if no_baselines and not design.methods:
        raise ValueError("--no-baselines leaves nothing to train: give a --method other than traditional")
    observers, load = options.observers(), cached_loader(options.data_dir)
    entries = [entry for seed in range(seeds) for entry in design.entries(seed)]
    num_test = len(load(entries[0].settings).test_labels)
    done = sum(len(read_records(out / entry.folder)) for entry in entries)
    screen.note(f"{len(entries)} runs, {sum(entry.settings.epochs for entry in entries) - done} epochs are left to do")
    live = LiveReport(out, entries, load)
    with Bars(screen, seeds) as bars, stopping_says(f"run the same command to go on: {out}"):
        show = live.after(bars.show)
        results = run_comparison(design, load, out, seeds=seeds, observers=observers, show=show)
    split = "validation split" if options.validation else "test set"
    texts = {"split": split, "size": num_test, "seeds": seeds, "plural": "" if seeds == 1 else "s"}
    found = standings(results.arms())
    speeds = _speed_tables(results, design, factors)
    words = [winner(found), *alerts(found)] if not no_baselines else [NO_BASELINES]
    if is_first():
        with_clock = standing_table(found, clock=not no_baselines)
        markdown = [*words, f"## Compute multipliers\n\n{with_clock.markdown()}", READING.format(**texts)]
        markdown += [f"## {title}\n\n{table.markdown()}" for title, table in speeds.items()]
        markdown += [SPEED_READING] if speeds else []
        write_whole({out / "tables.md": "\n\n".join([*markdown, ""]).encode()})
    title = f"{chosen.dataset}, {chosen.model}, {', '.join(map(str, sorted(lengths)))} epochs"
    table = standing_table(found)
    screen.table(f"Compute multipliers: {title}", table.heading, table.rows)
    for sentence in words:
        screen.say(sentence.replace("**", ""))
    screen.say(READING.format(**texts))
    screen.say()
    for name, speed in speeds.items():
        screen.table(f"{name}: {title}", speed.heading, speed.rows)
    if speeds:
        screen.say(SPEED_READING)
    screen.say(f"runs and tables: {out}")
    screen.result(
        {"dataset": chosen.dataset, "model": chosen.model, "epochs": sorted(lengths), "seeds": seeds}
        | standings_as_json(found, words)
        | {"out": out, "tables": out / "tables.md", "report": live.file}
    )
    finish_report(live, screen)  # last, so that an error in the report cannot hide the tables


def standings_as_json(found: list[Standing], words: list[str]) -> dict[str, Any]:
    """The outcome of a comparison as plain data."""
    verdict, *warnings = [sentence.replace("**", "") for sentence in words]
    return {"verdict": verdict, "warnings": warnings, "arms": [_as_json(standing) for standing in found]}


def _as_json(standing: Standing) -> dict[str, Any]:
    arm = standing.runs
    return {
        "label": standing.label,
        "method": arm.method,
        "error": arm.compute.error,
        "errors": arm.compute.errors,
        "compute": arm.compute.cost,
        "seconds": None if arm.seconds is None else arm.seconds.cost,
        "multiplier_to_plain": interval_as_json(standing.plain),
        "multiplier_to_random": interval_as_json(standing.random),
        "multiplier_in_seconds": interval_as_json(standing.seconds),
        "verdict": str(standing.verdict),
        "lossless": standing.lossless,
    }


def interval_as_json(interval: Interval | None) -> dict[str, Any] | None:
    """A multiplier with its interval as plain data."""
    if interval is None:
        return None
    low, high = (None if end is None else end.value for end in (interval.low, interval.high))
    return {"value": interval.multiple.value, "bound": str(interval.multiple.bound), "low": low, "high": high}


def _speed_tables(results: Results, design: Design, factors: list[float]) -> dict[str, TextTable]:
    from selective_backprop.lab.study.curves import AXES
    from selective_backprop.lab.study.tables import speed_up_table

    if design.reference not in results.curves:
        return {}
    return {f"Speed-up in {axis}": speed_up_table(results.curves, design.reference, axis, factors) for axis in AXES}


def check_targets(target: list[float] | None) -> list[float]:
    """Check the multiples of plain training's final error. Default: the usual ones."""
    from selective_backprop.lab.study.curves import FACTORS

    if any(not factor >= 1 for factor in target or []):
        raise ValueError(f"--target must be a multiple of plain training's final error of at least 1, got {target}")
    return target or list(FACTORS)


def checked_methods(texts: list[str], recipe: Recipe) -> list[MethodSpec]:
    """Parse all methods and make each once, so that a wrong one fails now and not after hours."""
    from selective_backprop.lab.runs.methods import make_method, parse_methods
    from selective_backprop.lab.study.comparison import settings_for

    specs = parse_methods(texts)
    for spec in specs:
        settings = settings_for(spec, recipe)
        make_method(settings.method, settings.selectivity, settings.options)
    return specs
