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
    from selective_backprop.lab.study.frontier import Interval
    from selective_backprop.lab.study.standing import LabelledRuns, Standings

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

LOOK = "This is only a look. The same command without --quick goes on from these runs, with more seeds and lengths."


@command
def compare(
    options: ComparisonOptions,
    output: OutputOptions,
    method: Methods = None,
    seeds: Seeds = 3,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            metavar="",
            help="Only look: ledger (or each --method), plain training and random subsets, one seed, one length.",
        ),
    ] = False,
    no_baselines: Annotated[
        bool,
        typer.Option("--no-baselines", metavar="", help="Leave out the baselines: plain training and random subsets."),
    ] = False,
    label_noise: LabelNoise = 0.0,
    out: RunsFolder = Path("runs/compare"),
) -> None:
    """Train several methods with several seeds, and print how much compute each of them saves.

    Each method is measured by its compute multiplier: how many times more compute is needed for the same error without
    it, by plain training or by random subsets of the data, whichever needs less. If an option of a method is a setting
    of the recipe (lr, ...), it changes the recipe for that method only. After a stop, run the same command again, also
    with more seeds or methods, or without --quick: it does only what is missing.

    Examples:

    `selective-backprop compare --quick`

    `selective-backprop compare --method sb@0.25 --method ledger --epochs 3,6,12 --seeds 5`

    `selective-backprop compare --method "EL2N + SB=diet:scores=el2n.pt,prune=0.25" --method sb`

    `selective-backprop compare --recipe svhn_small --data-dir data --epochs 2,4,8 --out runs/svhn`
    """
    from selective_backprop.files.writing import write_whole
    from selective_backprop.lab.cli.bars import Bars
    from selective_backprop.lab.report import data_of
    from selective_backprop.lab.report.live import LiveReport
    from selective_backprop.lab.runs.records import read_records
    from selective_backprop.lab.runs.time_left import TimeLeft
    from selective_backprop.lab.study.comparison import Design, train_all
    from selective_backprop.lab.study.standing import alerts, standings, winner
    from selective_backprop.lab.study.tables import READING, arms_table, method_table

    screen, chosen = Screen(output), options.chosen()
    lengths = [chosen.epochs] if quick and options.epochs is None else options.lengths(chosen)
    specs = checked_methods(method or (["ledger"] if quick else DEFAULT_METHODS), chosen)
    if quick and len(lengths) > 1:
        raise ValueError(f"--quick takes one length, got --epochs {options.epochs}")
    seeds = 1 if quick else seeds
    shares = () if no_baselines else (0.5, 1.0) if quick else Design.baselines
    design = Design(specs, chosen, lengths, shares, options.more_settings() | {"label_noise": label_noise})
    if no_baselines and not design.methods:
        raise ValueError("--no-baselines leaves nothing to train: give a --method other than traditional")
    observers, load = options.observers(), cached_loader(options.data_dir)
    by_seed = [design.entries(seed) for seed in range(seeds)]
    entries = [entry for entries in by_seed for entry in entries]
    num_test = len(load(entries[0].settings).test_labels)
    done = sum(len(read_records(out / entry.folder)) for entry in entries)
    screen.note(f"{len(entries)} runs, {sum(entry.settings.epochs for entry in entries) - done} epochs are left to do")
    left = TimeLeft(entries)
    live = LiveReport(out, left, data_of(options.data_dir))
    with Bars(screen, left) as bars, stopping_says(f"run the same command to go on: {out}"):
        arms = train_all(by_seed, load, out, observers=observers, show=live.after(bars.show))
    split = "validation split" if options.validation else "test set"
    texts = {"split": split, "size": num_test, "seeds": seeds, "plural": "" if seeds == 1 else "s"}
    found = standings(arms)
    table = method_table(found)
    words = [NO_BASELINES] if no_baselines else [winner(found), *([LOOK] if quick else alerts(found))]
    markdown = [
        *words,
        f"## Methods\n\n{table.markdown()}",
        READING.format(**texts),
        f"## Every length\n\n{arms_table(arms, found.targets).markdown()}\n",
    ]
    write_whole({out / "tables.md": "\n\n".join(markdown).encode()})
    title = f"{chosen.dataset}, {chosen.model}, {', '.join(map(str, sorted(lengths)))} epochs"
    screen.table(title + (": a look" if quick else ""), table.heading, table.rows, spare=("compute", "error"))
    for sentence in words:
        screen.say(sentence.replace("**", ""))
    screen.say(READING.format(**texts))
    screen.say()
    screen.say(f"runs and tables: {out}")
    screen.result(
        {"dataset": chosen.dataset, "model": chosen.model, "epochs": sorted(lengths), "seeds": seeds}
        | standings_as_json(found, words)
        | {"arms": [_arm_as_json(arm) for arm in arms]}
        | {"out": out, "tables": out / "tables.md", "report": live.file}
    )
    finish_report(live, screen)  # last, so that an error in the report cannot hide the tables


def standings_as_json(found: Standings, words: list[str]) -> dict[str, Any]:
    """The outcome of a comparison as plain data."""
    verdict, *warnings = [sentence.replace("**", "") for sentence in words]
    methods = [
        {
            "name": one.name,
            "method": one.method,
            "multiplier_to_plain": {name: interval_as_json(found) for name, found in one.plain.items()},
            "multiplier_to_random": {name: interval_as_json(found) for name, found in one.random.items()},
            "verdict": {target: str(one.verdict(target)) for target in found.targets if not one.is_plain},
        }
        for one in found.methods
    ]
    return {"verdict": verdict, "warnings": warnings, "targets": found.targets, "methods": methods}


def _arm_as_json(arm: LabelledRuns) -> dict[str, Any]:
    return {
        "label": arm.label,
        "method": arm.method,
        "error": arm.compute.error,
        "errors": arm.compute.errors,
        "compute": arm.compute.cost,
        "seconds": None if arm.seconds is None else arm.seconds.cost,
    }


def interval_as_json(interval: Interval) -> dict[str, Any]:
    """A multiplier with its interval as plain data."""
    low, high = (None if end is None else end.value for end in (interval.low, interval.high))
    return {"value": interval.multiple.value, "bound": str(interval.multiple.bound), "low": low, "high": high}


def checked_methods(texts: list[str], recipe: Recipe) -> list[MethodSpec]:
    """Parse all methods and make each once, so that a wrong one fails now and not after hours."""
    from selective_backprop.lab.runs.methods import make_method, parse_methods
    from selective_backprop.lab.study.comparison import settings_for

    specs = parse_methods(texts)
    for spec in specs:
        settings = settings_for(spec, recipe)
        make_method(settings.method, settings.selectivity, settings.options)
    return specs
