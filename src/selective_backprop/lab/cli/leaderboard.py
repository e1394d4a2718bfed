"""The commands selective-backprop leaderboard tune, run and show."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop.lab.cli.command import command
from selective_backprop.lab.cli.compare import interval_as_json
from selective_backprop.lab.cli.screen import OutputOptions, Screen, warn

if TYPE_CHECKING:
    from selective_backprop.lab.leaderboard.board import Board
    from selective_backprop.lab.leaderboard.records import Cell, Outcome, Store
    from selective_backprop.lab.leaderboard.tuning import Chosen
    from selective_backprop.lab.leaderboard.workloads import Workload

leaderboard_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Tune and run every method on the same workloads."
)
WorkloadName = Annotated[
    str, typer.Argument(help="A workload of the leaderboard, such as mnist; or digits, to try it out.")
]
DataFolder = Annotated[
    Path | None,
    typer.Option(envvar="SELECTIVE_BACKPROP_DATA", help="Folder with the data sets. The digits need none."),
]
Records = Annotated[
    Path, typer.Option("--records", help="Folder of the records; runs that are there are not repeated.")
]
OwnArm = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        metavar="ARM",
        help="Add an arm of your own, such as mine=ledger:loss_share=0.8. Repeat it with up to five more "
        "settings without a label, to be tried for the same arm.",
    ),
]


@leaderboard_app.command()
@command
def tune(
    output: OutputOptions,
    workload: WorkloadName,
    data_dir: DataFolder = None,
    records: Records = Path("leaderboard"),
    arm: OwnArm = None,
) -> None:
    """Choose the settings of every arm on held-out training examples, with six trials each.

    Example: `selective-backprop leaderboard tune mnist --data-dir data`
    """
    from selective_backprop.files.writing import write_whole
    from selective_backprop.lab.leaderboard.arms import ARMS, PLAIN, own_arm, tuned
    from selective_backprop.lab.leaderboard.records import Store
    from selective_backprop.lab.leaderboard.tuning import tune as choose_settings
    from selective_backprop.lab.leaderboard.workloads import find_workload

    screen, found = Screen(output), find_workload(workload)
    data = found.load(data_dir, held_out=True)
    store = Store(records / f"{workload}.tuning.jsonl")
    arms = [ARMS[PLAIN], own_arm(arm)] if arm else tuned(found)
    chosen = choose_settings(found, arms, data, store, lambda outcome, left: screen.note(_line(outcome, left)))
    file = records / f"{workload}.chosen.json"
    both = _read_chosen(file) | chosen
    write_whole({file: (json.dumps(both, indent=1) + "\n").encode()})
    for name, setting in chosen.items():
        screen.say(f"{name}: {setting}")
    screen.result({"workload": workload, "chosen": chosen})


@leaderboard_app.command()
@command
def run(
    output: OutputOptions,
    workload: WorkloadName,
    data_dir: DataFolder = None,
    records: Records = Path("leaderboard"),
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of seeds; default: as planned.")] = None,
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="LABEL", help="Run this arm only; repeatable.")
    ] = None,
) -> None:
    """Run every arm at its chosen setting, at every length, with every seed, on the test set.

    After a stop, the same command does what is missing. Example: `selective-backprop leaderboard run mnist --data-dir
    data`
    """
    from selective_backprop.lab.leaderboard.records import Store
    from selective_backprop.lab.leaderboard.running import run_missing
    from selective_backprop.lab.leaderboard.workloads import find_workload

    screen = Screen(output)
    found, file = find_workload(workload), records / f"{workload}.chosen.json"
    chosen = _read_chosen(file)
    if not chosen:
        raise ValueError(f"{file} does not exist, so no settings are chosen: run leaderboard tune {workload} first")
    if unknown := [name for name in arm or [] if name not in chosen]:
        raise ValueError(f"no settings are chosen for {', '.join(unknown)}: there are {', '.join(chosen)}")
    data = found.load(data_dir, held_out=False)
    trials = Store(records / f"{workload}.tuning.jsonl")
    cells = test_cells(found, {name: chosen[name] for name in arm or chosen}, seeds or found.seeds, trials)
    store = Store(records / f"{workload}.jsonl")
    run_missing(found, cells, data, store, lambda outcome, left: screen.note(_line(outcome, left)))
    screen.result({"workload": workload, "runs": len(cells), "records": records})


@leaderboard_app.command()
@command
def show(
    output: OutputOptions,
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
    into: Annotated[
        Path | None,
        typer.Option(
            help="A page whose part between the comments `leaderboard` and `/leaderboard` is replaced by the tables."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for a chart of each workload, and one of all, as SVG.")
    ] = None,
    evidence: Annotated[Path | None, typer.Option(help="File for what `advise` knows of each method, as JSON.")] = None,
) -> None:
    """Print the leaderboard of all records in a folder as Markdown, or put it into a page.

    Example: `selective-backprop leaderboard show benchmarks/results/leaderboard --into docs/leaderboard.md`
    """
    from selective_backprop.files.writing import write_whole
    from selective_backprop.lab.leaderboard.chart import frontier_chart, overview_chart
    from selective_backprop.lab.leaderboard.page import put_into, tables
    from selective_backprop.lab.leaderboard.records import Store

    screen, boards = Screen(output), read_boards(records)
    names = [one.workload for one in boards]
    for one in boards:
        chosen = _read_chosen(records / f"{one.workload}.chosen.json")
        if lacking := [arm for arm in chosen if one.place(arm) is None]:
            warn(
                f"{one.workload} has no runs of {', '.join(lacking)} at the chosen setting, so the tables lack them: "
                f"run leaderboard run {one.workload}"
            )
    trials = {name: list(Store(records / f"{name}.tuning.jsonl").outcomes.values()) for name in names}
    images = os.path.relpath(figures, into.parent) if figures and into else None
    text = tables(boards, trials, images)
    if into is not None:
        write_whole({into: put_into(into.read_text(), text).encode()})
        screen.say(f"leaderboard: {into}")
    elif not output.json:
        typer.echo(text)  # as it is: lines of Markdown must not be broken
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        charts = {figures / f"leaderboard-{one.workload}.svg": frontier_chart(one) for one in boards}
        write_whole(charts | {figures / "leaderboard.svg": overview_chart(boards)})
    if evidence is not None:
        write_whole({evidence: (json.dumps(evidence_by_method(boards), indent=1) + "\n").encode()})
    screen.result({"workloads": [_as_json(one) for one in boards]})


def _as_json(board: Board) -> dict[str, Any]:
    arms = [
        {"arm": place.arm, "setting": place.setting, "seeds": place.seeds, "cpu_seconds": place.cpu_seconds}
        | {"points": [{"error": point.error, "compute": point.cost} for point in place.points]}
        | {"multipliers_to_plain": {name: interval_as_json(one) for name, one in place.plain.items()}}
        | {"multipliers_to_random": {name: interval_as_json(one) for name, one in place.random.items()}}
        for place in board.places
    ]
    return {"workload": board.workload, "targets": dict(board.targets), "arms": arms}


def evidence_by_method(boards: Sequence[Board]) -> dict[str, dict[str, float]]:
    """Each method's multiplier at the middle error by workload; of several arms of a method the first counts.

    The ledger is the one at its defaults.
    """
    from selective_backprop.lab.leaderboard.arms import ARMS, DEFAULT
    from selective_backprop.lab.runs.methods import MethodSpec

    found: dict[str, dict[str, float]] = {}
    for one in boards:
        for arm in (DEFAULT.name, *ARMS):
            place = one.place(arm)
            interval = None if place is None else place.against_both("middle")
            if place is not None and interval is not None:
                method = MethodSpec.parse(place.setting.replace("{proxy}", "strided_cnn_tiny")).method
                found.setdefault(method, {}).setdefault(one.workload, round(interval.multiple.value, 3))
    return found


def test_cells(workload: Workload, chosen: Chosen, seeds: int, trials: Store) -> list[Cell]:
    """All runs on the test set."""
    from selective_backprop.lab.leaderboard.records import Cell
    from selective_backprop.lab.leaderboard.tuning import lengths_of

    return [
        Cell(arm, setting, length, seed, False)
        for seed in range(seeds)
        for arm, setting in chosen.items()
        for length in lengths_of(workload, arm, setting, trials)
    ]


def read_boards(records: Path) -> list[Board]:
    """The board of every workload that has runs on the test set."""
    from selective_backprop.lab.leaderboard.board import make_board
    from selective_backprop.lab.leaderboard.records import Store
    from selective_backprop.lab.leaderboard.workloads import WORKLOADS

    found = []
    for name in (*WORKLOADS, "digits"):
        chosen = _read_chosen(records / f"{name}.chosen.json")
        outcomes = Store(records / f"{name}.jsonl").outcomes.values()
        current = [one for one in outcomes if chosen.get(one.cell.arm) == one.cell.setting]
        current = whole_seeds(current)
        if current:
            found.append(make_board(name, current))
    if not found:
        raise ValueError(f"{records} holds no runs of the leaderboard: run leaderboard tune and leaderboard run first")
    return found


def whole_seeds(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Leave out seeds for which some arm lacks a run at some length, so that all arms have the same seeds."""
    cells = {(one.cell.arm, one.cell.length) for one in outcomes}
    seeds = {one.cell.seed for one in outcomes}
    done = {(one.cell.arm, one.cell.length, one.cell.seed) for one in outcomes}
    whole = {seed for seed in seeds if all((*cell, seed) in done for cell in cells)}
    return [one for one in outcomes if one.cell.seed in whole]


def _read_chosen(file: Path) -> Chosen:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _line(outcome: Outcome, left: int) -> str:
    cell = outcome.cell
    return (
        f"{cell.arm} ({cell.setting}), {cell.length} epochs, seed {cell.seed}: error {outcome.error:.2%} with "
        f"{outcome.compute:.2f} epochs of compute, {outcome.cpu_seconds:.1f} s; {left} runs left"
    )
