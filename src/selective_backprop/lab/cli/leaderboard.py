"""The commands selective-backprop leaderboard tune, run and show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.cli.options import told_plainly
from selective_backprop.lab.leaderboard.arms import ARMS, DEFAULT, PLAIN, own_arm
from selective_backprop.lab.leaderboard.chart import frontier_chart
from selective_backprop.lab.leaderboard.page import END, START, put_into, tables
from selective_backprop.lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop.lab.leaderboard.running import run_missing
from selective_backprop.lab.leaderboard.standing import Standing, standing
from selective_backprop.lab.leaderboard.tuning import Chosen, lengths_of
from selective_backprop.lab.leaderboard.tuning import tune as choose_settings
from selective_backprop.lab.leaderboard.workloads import WORKLOADS, Workload, find_workload
from selective_backprop.lab.runs.choices import Choice

leaderboard_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Tune and run every method on the same workloads."
)
WorkloadName = Annotated[str, typer.Argument(help=f"One of {', '.join(WORKLOADS)}; or digits, to try it out.")]
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
        help="Add an arm of your own: LABEL=METHOD[@SELECTIVITY][:OPTION=VALUE,...]. Repeat it with up to five more "
        "settings without a label, to be tried for the same arm.",
    ),
]


@leaderboard_app.command()
def tune(
    workload: WorkloadName, data_dir: DataFolder = None, records: Records = Path("leaderboard"), arm: OwnArm = None
) -> None:
    """Choose the settings of every arm on held-out training examples, with six trials each.

    Example: `selective-backprop leaderboard tune mnist --data-dir data`
    """
    with told_plainly():
        found = find_workload(workload)
        data = found.load(data_dir, held_out=True)
        store = Store(records / f"{workload}.tuning.jsonl")
        arms = [ARMS[PLAIN], own_arm(arm)] if arm else list(ARMS.values())
        chosen = choose_settings(found, arms, data, store, _tell)
        file = records / f"{workload}.chosen.json"
        both = _read_chosen(file) | chosen
        write_whole({file: (json.dumps(both, indent=1) + "\n").encode()})
    for name, setting in chosen.items():
        typer.echo(f"{name}: {setting}")


@leaderboard_app.command()
def run(
    workload: WorkloadName,
    data_dir: DataFolder = None,
    records: Records = Path("leaderboard"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; default: as planned.")] = None,
    arm: Annotated[list[str] | None, typer.Option("--arm", help="Run this arm only; repeatable.")] = None,
) -> None:
    """Run every arm at its chosen setting, at every length, with every seed, on the test set.

    After a stop, the same command does what is missing. Example: `selective-backprop leaderboard run mnist --data-dir
    data`
    """
    with told_plainly():
        found, file = find_workload(workload), records / f"{workload}.chosen.json"
        chosen = _read_chosen(file)
        if not chosen:
            raise ValueError(f"{file} does not exist, so no settings are chosen: run leaderboard tune {workload} first")
        if unknown := [name for name in arm or [] if name not in chosen]:
            raise ValueError(f"no settings are chosen for {', '.join(unknown)}: there are {', '.join(chosen)}")
        data = found.load(data_dir, held_out=False)
        trials = Store(records / f"{workload}.tuning.jsonl")
        cells = test_cells(found, {name: chosen[name] for name in arm or chosen}, seeds or found.seeds, trials)
        run_missing(found, cells, data, Store(records / f"{workload}.jsonl"), _tell)


@leaderboard_app.command()
def show(
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
    into: Annotated[
        Path | None, typer.Option(help=f"A page whose part between {START} and {END} is replaced by the tables.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for a chart of each workload, as SVG.")] = None,
    evidence: Annotated[Path | None, typer.Option(help="File for what `advise` knows of each method, as JSON.")] = None,
) -> None:
    """Print the leaderboard of all records in a folder, or put it into a page.

    Example: `selective-backprop leaderboard show benchmarks/results/leaderboard --into docs/leaderboard.md`
    """
    with told_plainly():
        standings = read_standings(records)
        names = [one.workload for one in standings]
        trials = {name: list(Store(records / f"{name}.tuning.jsonl").outcomes.values()) for name in names}
        text = tables(standings, trials)
        if into is None:
            typer.echo(text)
        else:
            write_whole({into: put_into(into.read_text(), text).encode()})
            typer.echo(f"leaderboard: {into}")
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            write_whole({figures / f"leaderboard-{one.workload}.svg": frontier_chart(one) for one in standings})
        if evidence is not None:
            write_whole({evidence: (json.dumps(evidence_by_method(standings), indent=1) + "\n").encode()})


def evidence_by_method(standings: Sequence[Standing]) -> dict[str, dict[str, float]]:
    """Each method's multiplier at the middle error by workload; of several arms of a method the last counts.

    The last arm of the ledger is the one at its defaults.
    """
    found: dict[str, dict[str, float]] = {}
    for one in standings:
        for arm in (*ARMS, DEFAULT.name):
            place = one.place(arm)
            interval = None if place is None else place.against_both("middle")
            if place is not None and interval is not None:
                method = Choice.parse(place.setting.replace("{proxy}", "strided_cnn_tiny")).method
                found.setdefault(method, {})[one.workload] = round(interval.multiple.value, 3)
    return found


def test_cells(workload: Workload, chosen: Chosen, seeds: int, trials: Store) -> list[Cell]:
    """All runs on the test set."""
    return [
        Cell(arm, setting, length, seed, False)
        for seed in range(seeds)
        for arm, setting in chosen.items()
        for length in lengths_of(workload, arm, setting, trials)
    ]


def read_standings(records: Path) -> list[Standing]:
    """The standing of every workload that has runs on the test set."""
    found = []
    for name in (*WORKLOADS, "digits"):
        chosen = _read_chosen(records / f"{name}.chosen.json")
        outcomes = Store(records / f"{name}.jsonl").outcomes.values()
        current = [one for one in outcomes if chosen.get(one.cell.arm) == one.cell.setting]
        current = whole_seeds(current)
        if current:
            found.append(standing(name, current))
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


def _tell(outcome: Outcome, left: int) -> None:
    cell = outcome.cell
    typer.echo(
        f"{cell.arm} ({cell.setting}), {cell.length} epochs, seed {cell.seed}: error {outcome.error:.2%} with "
        f"{outcome.compute:.2f} epochs of compute, {outcome.cpu_seconds:.1f} s; {left} runs left",
        err=True,
    )
