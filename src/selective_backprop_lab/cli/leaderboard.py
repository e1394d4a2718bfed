"""The commands selective-backprop leaderboard tune, run, show and check."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selective_backprop_lab.cli.command import command, make_app
from selective_backprop_lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    import torch

    from selective_backprop_lab.leaderboard.records import Outcome
    from selective_backprop_lab.leaderboard.running import Show
    from selective_backprop_lab.leaderboard.workloads import Workload

Names = Annotated[
    list[str], typer.Argument(help="Workloads, such as cifar10-w16; all for the whole board; digits to try it out.")
]
DataFolder = Annotated[
    Path | None,
    typer.Option(envvar="SELECTIVE_BACKPROP_DATA", help="Folder with the data sets. The digits need none."),
]
Records = Annotated[
    Path, typer.Option("--records", help="Folder of the records; runs that are there are not repeated.")
]
Device = Annotated[str, typer.Option(help="Where to train, such as cuda. Records say which device it was.")]
AllowChanges = Annotated[
    bool, typer.Option("--allow-changes", help="Run code with changes that are not committed. Records say so.")
]


@command
def tune(
    output: OutputOptions,
    workloads: Names,
    data_dir: DataFolder = None,
    records: Records = Path("leaderboard"),
    device: Device = "cpu",
    allow_changes: AllowChanges = False,
) -> None:
    """Choose the learning rates of plain training and of random subsets on held-out training examples.

    `leaderboard run` does this by itself. All other arms take the rate of plain training.

    Example: `selective-backprop leaderboard tune cifar10-w16 --data-dir data`
    """
    from selective_backprop_lab.leaderboard.running import run_missing
    from selective_backprop_lab.leaderboard.tuning import chosen_rates, stores, trials

    screen, where = Screen(output), _find_device(device)
    _require_committed(allow_changes)
    chosen = {}
    for name, workload in _found(workloads).items():
        _, tried = stores(records, name)
        run_missing(workload, trials(workload), tried, data_dir, where, _shown(screen, name))
        chosen[name] = chosen_rates(workload, tried)
        screen.say(f"{name}: {', '.join(f'{arm} {rate:g} times the rate' for arm, rate in chosen[name].items())}")
    screen.result({"rates": chosen})


@command
def run(
    output: OutputOptions,
    workloads: Names,
    data_dir: DataFolder = None,
    records: Records = Path("leaderboard"),
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of seeds; default: as planned.")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="ARM",
            help="Run this arm only, and random subsets of its sizes; repeatable. Or an arm of your own, such as "
            "mine=ledger:loss_share=0.8,longer=1.5, which is trained for 1.5 times as many epochs.",
        ),
    ] = None,
    device: Device = "cpu",
    allow_changes: AllowChanges = False,
) -> None:
    """Tune the baselines, then run every arm at every length with every seed, on the test set.

    All workloads have the first seed before any has the second; those with fewer seeds come last. After a stop,
    the same command goes on.

    Examples:

    `selective-backprop leaderboard run all --data-dir data`

    `selective-backprop leaderboard run cifar10-94 --device cuda`
    """
    from selective_backprop_lab.leaderboard.running import run_missing
    from selective_backprop_lab.leaderboard.tuning import cells_of, chosen_rates, stores, trials
    from selective_backprop_lab.runs.methods import split_label
    from selective_backprop_lab.study.standing import AS

    screen, where = Screen(output), _find_device(device)
    _require_committed(allow_changes)
    found = {name: _with_arms(workload, arm or []) for name, workload in _found(workloads).items()}
    wanted = [split_label(text)[0] or text for text in arm or []]
    most = max(workload.seeds for workload in found.values())
    for turn in range(seeds or most):
        for name, workload in found.items():
            seed = turn if seeds else turn + workload.seeds - most
            if seed < 0:
                continue
            store, tried = stores(records, name)
            run_missing(workload, trials(workload), tried, data_dir, where, _shown(screen, name))
            cells = cells_of(workload, chosen_rates(workload, tried), seed)
            cells = [cell for cell in cells if cell.arm.removeprefix(AS) in (wanted or workload.arms)]
            run_missing(workload, cells, store, data_dir, where, _shown(screen, name))
    screen.result({"workloads": list(found), "records": records})


@command
def show(
    output: OutputOptions,
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
) -> None:
    """Print the leaderboard of all records in a folder as Markdown.

    Example: `selective-backprop leaderboard show benchmarks/results/board`
    """
    from selective_backprop_lab.files.reading import visible
    from selective_backprop_lab.leaderboard.board import read_boards
    from selective_backprop_lab.leaderboard.page import tables

    screen, boards = Screen(output), read_boards(records)
    if not boards:
        screen.say(f"there are no complete runs in {records} yet: `leaderboard run WORKLOAD` makes some")
    elif not output.json:
        # Not by the screen, which breaks lines: Markdown needs them whole.
        typer.echo(visible(tables(boards)))
    screen.result({one.name: {"compute": one.compute, "seconds": one.seconds} for one in boards})


@command
def check(
    output: OutputOptions,
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
) -> None:
    """Check records before you send them in: whole seeds, settings of the protocol, committed code, possible costs.

    Example: `selective-backprop leaderboard check leaderboard`
    """
    from selective_backprop_lab.leaderboard.board import faults
    from selective_backprop_lab.leaderboard.tuning import stores
    from selective_backprop_lab.leaderboard.workloads import WORKLOADS, find_workload

    screen, found, runs = Screen(output), [], 0
    for name in (*WORKLOADS, "digits"):
        workload, (store, tried) = find_workload(name), stores(records, name)
        if store.outcomes:
            runs += len(store.outcomes)
            found += [f"{name}: {fault}" for fault in faults(workload, store, tried)]
    if not runs:
        raise ValueError(f"{records} holds no runs of the leaderboard: run leaderboard run first")
    if found:
        raise ValueError("\n".join([f"{len(found)} faults in {runs} records:", *found]))
    screen.say(f"{runs} records are in order")
    screen.result({"records": records, "runs": runs})


leaderboard_app = make_app(
    "Run every method and its baselines on the same workloads.", tune=tune, run=run, show=show, check=check
)


def _found(names: list[str]) -> dict[str, Workload]:
    from selective_backprop_lab.leaderboard.workloads import BOARD, find_workload

    return {name: find_workload(name) for given in names for name in (BOARD if given == "all" else [given])}


def _with_arms(workload: Workload, texts: list[str]) -> Workload:
    """The workload with the user's own arms among these too."""
    from selective_backprop_lab.leaderboard.records import Cell
    from selective_backprop_lab.leaderboard.running import settings_of
    from selective_backprop_lab.names import unknown
    from selective_backprop_lab.runs.methods import make_method, split_label

    arms = dict(workload.arms)
    for label, setting in map(split_label, texts):
        if label:
            arms[label] = setting
            settings = settings_of(workload, Cell(label, setting, 1.0, workload.lengths[0], 0))
            make_method(settings.method, settings.selectivity, settings.options)  # or a mistake shows after hours
        elif setting not in arms:
            raise unknown("arm", setting, arms)
    return dataclasses.replace(workload, arms=arms)


def _find_device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def _require_committed(allow_changes: bool) -> None:
    from selective_backprop_lab.leaderboard.records import CHANGED, made_with

    if not allow_changes and str(made_with()["commit"]).endswith(CHANGED):
        raise ValueError("the code has changes that are not committed: commit them, or give --allow-changes")


def _shown(screen: Screen, name: str) -> Show:
    from selective_backprop_lab.runs.time_left import in_words

    def show(outcome: Outcome, left: int, seconds: float) -> None:
        cell = outcome.cell
        told = f"error {outcome.error:.2%} with {outcome.compute:.2f} epochs of compute, {outcome.seconds:.1f} s"
        after = f"; {left} runs left, {in_words(seconds)}" if left else ""
        screen.note(f"{name}, {cell.arm}, rate {cell.rate:g}, length {cell.length}, seed {cell.seed}: {told}{after}")

    return show
