"""The commands selective-backprop leaderboard tune, run and show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selective_backprop_lab.cli.command import command, make_app
from selective_backprop_lab.cli.screen import OutputOptions, Screen, warn

if TYPE_CHECKING:
    from selective_backprop_lab.leaderboard.records import Outcome
    from selective_backprop_lab.leaderboard.tuning import Chosen

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
    from selective_backprop_lab.leaderboard.arms import ARMS, PLAIN, own_arm, tuned
    from selective_backprop_lab.leaderboard.records import Store
    from selective_backprop_lab.leaderboard.tuning import add_chosen
    from selective_backprop_lab.leaderboard.tuning import tune as choose_settings
    from selective_backprop_lab.leaderboard.workloads import find_workload

    screen, found = Screen(output), find_workload(workload)
    if found.settled:
        raise ValueError(f"{workload} has the settings of a paper and is not tuned: leaderboard run {workload}")
    data = found.load(data_dir, held_out=True)
    store = Store(records / f"{workload}.tuning.jsonl")
    arms = [ARMS[PLAIN], own_arm(arm)] if arm else tuned(found)
    chosen = choose_settings(found, arms, data, store, lambda outcome, left: screen.note(_line(outcome, left)))
    add_chosen(workload, records, chosen)
    for name, setting in chosen.items():
        screen.say(f"{name}: {setting}")
    screen.result({"workload": workload, "chosen": chosen})


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
    from selective_backprop_lab.leaderboard.records import Store
    from selective_backprop_lab.leaderboard.running import estimate_seconds, find_device, run_missing
    from selective_backprop_lab.leaderboard.tuning import chosen_settings, test_cells
    from selective_backprop_lab.leaderboard.workloads import find_workload
    from selective_backprop_lab.runs.methods import split_label
    from selective_backprop_lab.runs.time_left import in_words

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
        time = in_words(estimate_seconds(found, left, data, where))
        screen.note(f"{len(left)} runs take {time} on {device}, by the time of a few batches")
    show = lambda outcome, left: screen.note(_line(outcome, left))  # noqa: E731
    run_missing(found, cells, data, store, show, device=where)
    screen.result({"workload": workload, "runs": len(cells), "records": records})


@command
def show(
    output: OutputOptions,
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
) -> None:
    """Print the leaderboard of all records in a folder as Markdown.

    Example: `selective-backprop leaderboard show benchmarks/results/larger`
    """
    from selective_backprop_lab.files.reading import visible
    from selective_backprop_lab.leaderboard.board import read_boards, read_trials
    from selective_backprop_lab.leaderboard.page import tables
    from selective_backprop_lab.leaderboard.tuning import chosen_settings

    screen = Screen(output)
    if not records.is_dir():
        screen.say(f"there are no records in {records} yet: `leaderboard run WORKLOAD` makes some")
        screen.result({"workloads": []})
        return
    boards = read_boards(records)
    for one in boards:
        chosen = chosen_settings(one.workload, records)
        if lacking := [arm for arm in chosen if one.place(arm) is None]:
            warn(
                f"{one.workload} has no runs of {', '.join(lacking)} at the chosen setting, so the tables lack them: "
                f"run leaderboard run {one.workload}"
            )
    if not output.json:
        in_seconds, trials = read_boards(records, "cpu_seconds"), read_trials(boards, records)
        # Not by the screen, which breaks lines: Markdown needs them whole.
        typer.echo(visible(tables(boards, in_seconds, trials)))
    screen.result({"workloads": boards})


@command
def check(
    output: OutputOptions,
    records: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("leaderboard"),
) -> None:
    """Check records before you send them in: whole seeds, settings of the protocol, and costs that can be.

    Example: `selective-backprop leaderboard check leaderboard`
    """
    from selective_backprop_lab.leaderboard.checking import faults
    from selective_backprop_lab.leaderboard.records import Store
    from selective_backprop_lab.leaderboard.tuning import chosen_settings
    from selective_backprop_lab.leaderboard.workloads import WORKLOADS

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


leaderboard_app = make_app(
    "Tune and run every method on the same workloads.", tune=tune, run=run, show=show, check=check
)


def _require_named(chosen: Chosen, arms: Sequence[str], records: Path) -> None:
    """Raise if a setting from a file would run code that the command line does not name."""
    from selective_backprop_lab.runs.methods import functions_in

    for arm, setting in chosen.items():
        for name in functions_in(setting):
            if not any(name in functions_in(text) for text in arms):
                raise ValueError(
                    f"{records} names {name}, and to use it would run its code. If you trust it, name it on the "
                    f"command line too: --arm {arm}={name}"
                )


def _line(outcome: Outcome, left: int) -> str:
    cell = outcome.cell
    return (
        f"{cell.arm} ({cell.setting}), {cell.length} epochs, seed {cell.seed}: error {outcome.error:.2%} with "
        f"{outcome.compute:.2f} epochs of compute, {outcome.cpu_seconds:.1f} s; {left} runs left"
    )
