"""The command selective-backprop compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop_lab.cli.command import command
from selective_backprop_lab.cli.options import (
    ComparisonOptions,
    LabelNoise,
    RunsFolder,
    Seeds,
    cached_loader,
    checked_methods,
)
from selective_backprop_lab.cli.report import finish_report
from selective_backprop_lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop_lab.study.standing import Standings

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
    from selective_backprop_lab.cli.bars import train_with_bars
    from selective_backprop_lab.files.writing import write_whole
    from selective_backprop_lab.runs.records import epochs_done
    from selective_backprop_lab.study.comparison import Design
    from selective_backprop_lab.study.standing import alerts, standings, winner
    from selective_backprop_lab.study.tables import READING, arms_table, method_table

    screen, chosen = Screen(output), options.chosen()
    lengths = [chosen.epochs] if quick and options.lengths is None else options.lengths_of(chosen)
    specs = checked_methods(method or (["ledger"] if quick else DEFAULT_METHODS), chosen)
    if quick and len(lengths) > 1:
        raise ValueError(f"--quick takes one length, got --epochs {options.lengths}")
    seeds = 1 if quick else seeds
    shares = (0.5, 1.0) if quick else Design.baselines
    design = Design(specs, chosen, lengths, shares, options.more_settings() | {"label_noise": label_noise})
    load = cached_loader(options.data_dir)
    by_seed = [design.entries(seed) for seed in range(seeds)]
    entries = [entry for entries in by_seed for entry in entries]
    num_test = len(load(entries[0].settings).test_labels)
    done = sum(epochs_done(out / entry.folder) for entry in entries)
    screen.note(f"{len(entries)} runs, {sum(entry.settings.epochs for entry in entries) - done} epochs are left to do")
    arms, live = train_with_bars(screen, options, by_seed, load, out)
    split = "validation split" if options.validation else "test set"
    reading = READING.format(split=split, size=num_test, seeds=seeds, plural="" if seeds == 1 else "s")
    found = standings(arms)
    words = [winner(found), *([LOOK] if quick else alerts(found))]
    markdown = [
        *words,
        f"## Methods\n\n{method_table(found).markdown()}",
        reading,
        f"## Every length\n\n{arms_table(arms, found.targets).markdown()}\n",
    ]
    write_whole({out / "tables.md": "\n\n".join(markdown).encode()})
    title = f"{chosen.dataset}, {chosen.model}, {', '.join(map(str, sorted(lengths)))} epochs"
    tell_standings(screen, title + (": a look" if quick else ""), found, [*words, reading])
    screen.say()
    screen.say(f"runs and tables: {out}")
    screen.result(
        {"dataset": chosen.dataset, "model": chosen.model, "epochs": sorted(lengths), "seeds": seeds}
        | standings_as_json(found, words)
        | {"arms": arms, "out": out, "tables": out / "tables.md", "report": live.file}
    )
    finish_report(live, screen)  # last, so that an error in the report cannot hide the tables


def tell_standings(screen: Screen, title: str, found: Standings, words: list[str]) -> None:
    """Print the table of a comparison, and sentences about it."""
    from selective_backprop_lab.study.tables import method_table

    table = method_table(found)
    screen.table(title, table.heading, table.rows, spare=("compute", "error"))
    for sentence in words:
        screen.say(sentence.replace("**", ""))


def standings_as_json(found: Standings, words: list[str]) -> dict[str, Any]:
    """The outcome of a comparison."""
    verdict, *warnings = [sentence.replace("**", "") for sentence in words]
    return {"verdict": verdict, "warnings": warnings, "targets": found.targets, "methods": found.methods}
