"""The command selective-backprop demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selective_backprop_lab.cli.command import command, stopping_says
from selective_backprop_lab.cli.compare import standings_as_json, tell_standings
from selective_backprop_lab.cli.options import Seeds, parse_lengths
from selective_backprop_lab.cli.screen import OutputOptions, Screen

SMALL = (
    "These are 898 digits to train on and 899 to test on, where one test image is 0.11% of error: enough to see how a "
    "comparison works, too small to decide anything. What to try next, with a published data set as parquet files, and "
    "with your own images, a folder per class:"
)
NEXT = (
    "  selective-backprop compare --recipe fashion_mnist_small --data-dir DATA",
    "  selective-backprop compare --dataset FOLDER --model resnet20",
)


@command
def demo(
    output: OutputOptions,
    epochs: Annotated[
        str, typer.Option(help="Lengths of the runs, rising: each method gets a run of each.")
    ] = "4,8,16",
    seeds: Seeds = 4,
    report: Annotated[Path, typer.Option(help="File for the report.")] = Path("selective-backprop-demo/report.html"),
) -> None:
    """Compare two methods with plain training and random subsets on scikit-learn's digits: two minutes on two cores.

    It prints how much compute each method saves and which one won, and writes a report.

    Examples:

    `selective-backprop demo`

    `selective-backprop demo --epochs 2,4,8 --seeds 2`
    """
    from selective_backprop_lab.cli.bars import Bars
    from selective_backprop_lab.runs.time_left import TimeLeft
    from selective_backprop_lab.study.demo import NUM_TEST, planned, run
    from selective_backprop_lab.study.standing import alerts, saved, winner
    from selective_backprop_lab.study.tables import READING

    screen, lengths = Screen(output), parse_lengths(epochs)
    if len(lengths) < 2:
        raise ValueError(
            f"--epochs takes two lengths or more, such as 4,8,16, because one makes no curve: got {epochs}"
        )
    by_seed = planned(lengths, seeds)
    with (
        Bars(screen, TimeLeft([entry for entries in by_seed for entry in entries])) as bars,
        stopping_says("the demo keeps nothing: run it again to start anew"),
    ):
        found = run(by_seed, report, show=bars.show)
    words, plural = [saved(found), winner(found), *alerts(found)], "" if seeds == 1 else "s"
    title = f"digits, {', '.join(map(str, lengths))} epochs, {seeds} seed{plural}"
    reading = READING.format(split="test set", size=NUM_TEST, seeds=seeds, plural=plural)
    tell_standings(screen, title, found, [*words, reading, SMALL, *NEXT, f"report: {report.resolve()}"])
    screen.result(
        {"dataset": "digits", "saved": words[0], "epochs": lengths, "seeds": seeds}
        | standings_as_json(found, words[1:])
        | {"report": report.resolve()}
    )
