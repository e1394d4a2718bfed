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
    from selective_backprop.lab.leaderboard.board import Board, Cost
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
    if found.settled:
        raise ValueError(f"{workload} has the settings of a paper and is not tuned: leaderboard run {workload}")
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
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="LABEL",
            help="Run this arm only; repeatable. For an arm with a function of your own, LABEL=MODULE:FUNCTION.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train, such as cuda. Records say which device it was.")] = "cpu",
) -> None:
    """Run every arm at its chosen setting, at every length, with every seed, on the test set.

    After a stop, the same command does what is missing. The workloads with a paper's recipe need a GPU and no tuning.

    Examples:

    `selective-backprop leaderboard run mnist --data-dir data`

    `selective-backprop leaderboard run cifar10-resnet18 --device cuda`
    """
    from selective_backprop.lab.leaderboard.records import Store
    from selective_backprop.lab.leaderboard.running import estimate_hours, find_device, run_missing
    from selective_backprop.lab.leaderboard.workloads import find_workload
    from selective_backprop.lab.runs.methods import split_label

    screen = Screen(output)
    found, where = find_workload(workload), find_device(device)
    chosen = chosen_settings(workload, records)
    if not chosen:
        raise ValueError(f"no settings are chosen in {records}: run leaderboard tune {workload} first")
    named = [split_label(text)[0] or text for text in arm or []]
    if unknown := [name for name in named if name not in chosen]:
        raise ValueError(f"no settings are chosen for {', '.join(unknown)}: there are {', '.join(chosen)}")
    wanted = {name: chosen[name] for name in named or chosen}
    _require_named(wanted, arm or [], records)
    data = found.load(data_dir, held_out=False)
    trials = Store(records / f"{workload}.tuning.jsonl")
    cells = test_cells(found, wanted, seeds or found.seeds, trials)
    store = Store(records / f"{workload}.jsonl")
    if left := store.missing(cells):
        hours = estimate_hours(found, left, data, where)
        screen.note(f"{len(left)} runs take about {hours:.1f} hours on {device}, by the time of a few batches")
    show = lambda outcome, left: screen.note(_line(outcome, left))  # noqa: E731
    run_missing(found, cells, data, store, show, device=where)
    screen.result({"workload": workload, "runs": len(cells), "records": records})


@leaderboard_app.command()
@command
def show(
    output: OutputOptions,
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
    into: Annotated[
        list[Path] | None,
        typer.Option(
            help="A page whose part between the comments `leaderboard` and `/leaderboard` is replaced by the tables, "
            "and between `results` and `/results` by what is saved; repeatable."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for a chart of each workload, and one of all, as SVG.")
    ] = None,
    evidence: Annotated[Path | None, typer.Option(help="File for what `advise` knows of each method, as JSON.")] = None,
) -> None:
    """Print the leaderboard of all records in a folder as Markdown, or put it into a page.

    Example: `selective-backprop leaderboard show benchmarks/results/larger --into docs/leaderboard.md`
    """
    from selective_backprop.files.writing import write_whole
    from selective_backprop.lab.leaderboard.chart import frontier_chart, overview_chart
    from selective_backprop.lab.leaderboard.page import RESULTS, TABLES, put_into, savings, tables
    from selective_backprop.lab.leaderboard.records import Store

    screen, boards = Screen(output), read_boards(records)
    names = [one.workload for one in boards]
    for one in boards:
        chosen = chosen_settings(one.workload, records)
        if lacking := [arm for arm in chosen if one.place(arm) is None]:
            warn(
                f"{one.workload} has no runs of {', '.join(lacking)} at the chosen setting, so the tables lack them: "
                f"run leaderboard run {one.workload}"
            )
    trials = {name: list(Store(records / f"{name}.tuning.jsonl").outcomes.values()) for name in names}
    in_seconds = read_boards(records, "cpu_seconds")
    for page in into or []:
        images = os.path.relpath(figures, page.parent) if figures else None
        text = tables(boards, in_seconds, trials, images)
        parts = {TABLES: f"\n{text}", RESULTS: savings(boards).markdown()}
        write_whole({page: put_into(page.read_text(), parts).encode()})
        screen.say(f"leaderboard: {page}")
    if not into and not output.json:
        typer.echo(tables(boards, in_seconds, trials))  # as it is: lines of Markdown must not be broken
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        charts = {figures / f"leaderboard-{one.workload}.svg": frontier_chart(one) for one in boards}
        write_whole(charts | {figures / "leaderboard.svg": overview_chart(boards)})
    if evidence is not None:
        write_whole({evidence: (json.dumps(evidence_by_method(boards), indent=1) + "\n").encode()})
    screen.result({"workloads": [_as_json(one) for one in boards]})


@leaderboard_app.command()
@command
def check(
    output: OutputOptions,
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
) -> None:
    """Check records before you send them in: whole seeds, settings of the protocol, and costs that can be.

    Example: `selective-backprop leaderboard check leaderboard`
    """
    from selective_backprop.lab.leaderboard.checking import faults
    from selective_backprop.lab.leaderboard.records import Store
    from selective_backprop.lab.leaderboard.workloads import WORKLOADS

    screen, found, runs = Screen(output), [], 0
    for name in WORKLOADS:
        store, trials = (Store(records / f"{name}{end}.jsonl") for end in ("", ".tuning"))
        if store.outcomes:
            runs += len(store.outcomes)
            found += [f"{name}: {fault}" for fault in faults(name, store, trials, chosen_settings(name, records))]
    if not runs:
        raise ValueError(f"{records} holds no runs of the leaderboard: run leaderboard run first")
    if found:
        raise ValueError("\n".join([f"{len(found)} faults in {runs} records:", *found]))
    screen.say(f"{runs} records are in order")
    screen.result({"records": records, "runs": runs})


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
        for arm in (DEFAULT, *ARMS.values()):
            place = one.place(arm.name)
            interval = None if place is None else place.against_both("middle")
            if place is not None and interval is not None:
                method = MethodSpec.parse(arm.trials[0].replace("{proxy}", "strided_cnn_tiny")).method
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


def read_boards(records: Path, cost: Cost = "compute") -> list[Board]:
    """The board of every workload that has runs on the test set."""
    from selective_backprop.lab.leaderboard.board import make_board
    from selective_backprop.lab.leaderboard.records import Store
    from selective_backprop.lab.leaderboard.workloads import WORKLOADS

    found = []
    for name in (*WORKLOADS, "digits"):
        chosen = chosen_settings(name, records)
        outcomes = Store(records / f"{name}.jsonl").outcomes.values()
        current = [one for one in outcomes if chosen.get(one.cell.arm) == one.cell.setting]
        current = whole_seeds(current)
        if current:
            found.append(make_board(name, current, cost))
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


def chosen_settings(workload: str, records: Path) -> Chosen:
    """The setting of each arm: from a paper where the workload has them, else what tuning chose."""
    from selective_backprop.lab.leaderboard.workloads import find_workload

    if settled := find_workload(workload).settled:
        return {arm: setting for arm, (setting, _) in settled.items()}
    return _read_chosen(records / f"{workload}.chosen.json")


def _require_named(chosen: Chosen, arms: Sequence[str], records: Path) -> None:
    """Raise if a setting from a file would run code that the command line does not name."""
    from selective_backprop.lab.runs.methods import functions_in

    for arm, setting in chosen.items():
        for name in functions_in(setting):
            if not any(name in functions_in(text) for text in arms):
                raise ValueError(
                    f"{records} names {name}, and to use it would run its code. If you trust it, name it on the "
                    f"command line too: --arm {arm}={name}"
                )


def _read_chosen(file: Path) -> Chosen:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _line(outcome: Outcome, left: int) -> str:
    cell = outcome.cell
    return (
        f"{cell.arm} ({cell.setting}), {cell.length} epochs, seed {cell.seed}: error {outcome.error:.2%} with "
        f"{outcome.compute:.2f} epochs of compute, {outcome.cpu_seconds:.1f} s; {left} runs left"
    )
