"""The commands selective-backprop leaderboard tune, run and show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.cli.options import told_plainly
from selective_backprop.lab.leaderboard.arms import ARMS, PLAIN, own_arm
from selective_backprop.lab.leaderboard.page import page
from selective_backprop.lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop.lab.leaderboard.running import run_missing
from selective_backprop.lab.leaderboard.standing import Standing, standing
from selective_backprop.lab.leaderboard.tuning import Chosen
from selective_backprop.lab.leaderboard.tuning import tune as choose_settings
from selective_backprop.lab.leaderboard.workloads import WORKLOADS, Workload, find_workload

leaderboard_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Tune and run every method on the same workloads."
)
WorkloadName = Annotated[str, typer.Argument(help=f"One of {', '.join(WORKLOADS)}.")]
DataFolder = Annotated[Path, typer.Option("--data-dir", help="Folder with the data sets.")]
Records = Annotated[
    Path, typer.Option("--records", help="Folder of the records; runs that are there are not repeated.")
]
OwnArm = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        help="Add an arm of your own: LABEL=METHOD[@SELECTIVITY][:OPTION=VALUE,...]. Repeat it with up to three more "
        "settings without a label, to be tried for the same arm.",
    ),
]


@leaderboard_app.command()
def tune(
    workload: WorkloadName, data_dir: DataFolder, records: Records = Path("leaderboard"), arm: OwnArm = None
) -> None:
    """Choose the settings of every arm on held-out training examples, with four trials each.

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
    data_dir: DataFolder,
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
        cells = test_cells(found, {name: chosen[name] for name in arm or chosen}, seeds or found.seeds)
        run_missing(found, cells, data, Store(records / f"{workload}.jsonl"), _tell)


@leaderboard_app.command()
def show(
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the page to this file (Markdown).")] = None,
) -> None:
    """Print the leaderboard of all records in a folder, or write it as a page.

    Example: `selective-backprop leaderboard show benchmarks/results/leaderboard -o docs/leaderboard.md`
    """
    with told_plainly():
        standings = read_standings(records)
        text = page(standings, records)
        if out is None:
            typer.echo(text)
        else:
            write_whole({out: text.encode()})
            typer.echo(f"leaderboard: {out}")


def test_cells(workload: Workload, chosen: Chosen, seeds: int) -> list[Cell]:
    """All runs on the test set."""
    return [
        Cell(arm, setting, length, seed, False)
        for seed in range(seeds)
        for arm, setting in chosen.items()
        for length in workload.lengths
    ]


def read_standings(records: Path) -> list[Standing]:
    """The standing of every workload that has runs on the test set."""
    found = []
    for name in WORKLOADS:
        chosen = _read_chosen(records / f"{name}.chosen.json")
        outcomes = Store(records / f"{name}.jsonl").outcomes.values()
        current = [one for one in outcomes if chosen.get(one.cell.arm) == one.cell.setting]
        if current:
            found.append(standing(name, current))
    if not found:
        raise ValueError(f"{records} holds no runs of the leaderboard: run leaderboard tune and leaderboard run first")
    return found


def _read_chosen(file: Path) -> Chosen:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _tell(outcome: Outcome, left: int) -> None:
    cell = outcome.cell
    typer.echo(
        f"{cell.arm} ({cell.setting}), {cell.length} epochs, seed {cell.seed}: error {outcome.error:.2%} with "
        f"{outcome.compute:.2f} epochs of compute, {outcome.cpu_seconds:.1f} s; {left} runs left",
        err=True,
    )
