"""What an epoch of compute takes in seconds with each arm of the leaderboard: is the saving in compute one in time?

    python benchmarks/seconds.py DATA [--seeds 3] [--table]

DATA holds mnist/ and svhn/, each with train.parquet and test.parquet. Let nothing else run on the machine: arms take
turns in one process with one thread, in an order drawn by the seed. Each trains as on the leaderboard, with the
settings chosen there, at the middle length. Runs that are in benchmarks/results/seconds are not repeated; --table
trains nothing. A run that had its core for itself for less than 97% of the time is disturbed, and not in the table.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

from selective_backprop_lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop_lab.leaderboard.running import run_missing
from selective_backprop_lab.leaderboard.tuning import chosen_settings, lengths_of
from selective_backprop_lab.leaderboard.workloads import find_workload
from selective_backprop_lab.study.tables import TextTable

RESULTS = Path(__file__).parent / "results"
WORKLOADS, ARMS = ("mnist-resnet8", "svhn-resnet8"), (PLAIN, RANDOM, DEFAULT.name)
UNDISTURBED = 0.97


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    for name in [] if arguments.table else WORKLOADS:
        workload = find_workload(name)
        data = workload.load(arguments.data, held_out=False)
        run_missing(workload, cells(name, arguments.seeds), data, store(name), show)
    rows = [row(name, arm) for name in WORKLOADS for arm in ARMS]
    print(
        TextTable(
            ["workload", "arm", "seconds per epoch of compute", "against plain training", "seeds"], rows
        ).markdown()
    )


def cells(name: str, seeds: int) -> list[Cell]:
    """The run of each arm with each seed, at the length that costs about as much as plain training's middle one."""
    workload, chosen = find_workload(name), chosen_settings(name, RESULTS / "larger")
    trials = Store(RESULTS / "larger" / f"{name}.tuning.jsonl")
    middle = workload.lengths.index(workload.middle)
    lengths = {arm: lengths_of(workload, arm, chosen[arm], trials)[middle] for arm in ARMS}
    return [Cell(arm, chosen[arm], lengths[arm], seed, False) for seed in range(seeds) for arm in ARMS]


def store(name: str) -> Store:
    return Store(RESULTS / "seconds" / f"{name}.jsonl")


def show(outcome: Outcome, left: int) -> None:
    share = outcome.cpu_seconds / outcome.seconds
    print(f"{outcome.cell.arm}, seed {outcome.cell.seed}: {outcome.seconds:.1f} s, {share:.1%} of it; {left} left")


def row(name: str, arm: str) -> list[str]:
    """Seconds of an arm, and their ratio to plain training's with the same seed: mean, lowest and highest."""
    times, plain = by_seed(name, arm), by_seed(name, PLAIN)
    ratios = [times[seed] / plain[seed] for seed in times if seed in plain]
    if not ratios:
        return [name, arm, "none undisturbed", "", "0"]
    mean = f"{statistics.mean(times.values()):.1f}"
    return [name, arm, mean, "" if arm == PLAIN else spread(ratios), str(len(ratios))]


def by_seed(name: str, arm: str) -> dict[int, float]:
    """Seconds per epoch of compute in the undisturbed runs of an arm, by seed."""
    runs = store(name).outcomes.values()
    quiet = [run for run in runs if run.cell.arm == arm and run.cpu_seconds >= UNDISTURBED * run.seconds]
    return {run.cell.seed: run.seconds / run.compute for run in quiet}


def spread(ratios: Iterable[float]) -> str:
    found = list(ratios)
    return f"{statistics.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})"


if __name__ == "__main__":
    main()
