"""The command selective-backprop demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selective_backprop.lab.cli.command import command, stopping_says
from selective_backprop.lab.cli.compare import standings_as_json
from selective_backprop.lab.cli.options import Seeds
from selective_backprop.lab.cli.screen import OutputOptions, Screen

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
    epochs: Annotated[int, typer.Option(min=2, help="Epochs to train each method.")] = 12,
    seeds: Seeds = 4,
    report: Annotated[Path, typer.Option(help="File for the report.")] = Path("selective-backprop-demo/report.html"),
) -> None:
    """Compare three methods with plain training and random subsets on scikit-learn's digits: two minutes on two cores.

    It prints how much compute each method saves and which one won, and writes a report.

    Examples:

    `selective-backprop demo`

    `selective-backprop demo --epochs 6 --seeds 2`
    """
    from selective_backprop.lab.cli.bars import Bars
    from selective_backprop.lab.study.demo import NUM_TEST, run
    from selective_backprop.lab.study.standing import alerts, winner
    from selective_backprop.lab.study.tables import READING, standing_table

    screen = Screen(output)
    with Bars(screen, seeds) as bars, stopping_says("the demo keeps nothing: run it again to start anew"):
        found = run(epochs, seeds, report, show=bars.show)
    words, table = [winner(found), *alerts(found)], standing_table(found)
    screen.table(f"digits, {epochs} epochs, {seeds} seed{'' if seeds == 1 else 's'}", table.heading, table.rows)
    for sentence in words:
        screen.say(sentence.replace("**", ""))
    screen.say(READING.format(split="test set", size=NUM_TEST, seeds=seeds, plural="" if seeds == 1 else "s"))
    screen.say(SMALL)
    for line in NEXT:
        screen.say(line)
    screen.say(f"report: {report.resolve()}")
    screen.result(
        {"dataset": "digits", "epochs": epochs, "seeds": seeds}
        | standings_as_json(found, words)
        | {"report": report.resolve()}
    )
