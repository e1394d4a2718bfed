"""Compare the cap and the limit on forgetting of `ledger_backprop` on held-out training examples.

    python benchmarks/ledger_defaults.py DATA RECORDS

DATA holds mnist/, svhn/ and cifar10/, each with train.parquet and test.parquet. No test set is used: errors are on the
10,000 training examples that the leaderboard holds out. Records of runs go into the folder RECORDS, a file for each
workload; runs that are there are not repeated. Tables of all runs are printed at the end. It runs on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import NamedTuple

from selective_backprop.lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop.lab.leaderboard.running import run_missing
from selective_backprop.lab.leaderboard.workloads import Workload, find_workload
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.study.frontier import Budget, Frontier


class Plan(NamedTuple):
    """What is run on a workload."""

    workload: Workload
    rate: float
    """Factor on the recipe's learning rate."""
    plain: tuple[int, ...]
    """Lengths of plain training, in epochs."""
    ledger: dict[str, tuple[int, ...]]
    """Lengths for each setting of the ledger."""
    seeds: tuple[int, ...] = (2001, 2002)

    def cells(self) -> list[Cell]:
        """All runs, seed by seed."""
        settings = {f"traditional:rate={self.rate:g}": self.plain}
        settings |= {f"ledger:{options},rate={self.rate:g}": lengths for options, lengths in self.ledger.items()}
        return [
            Cell("held out", setting, length, seed, held_out=True)
            for seed in self.seeds
            for setting, lengths in settings.items()
            for length in lengths
        ]


_tiny = find_workload("mnist")
_resnet = dataclasses.replace(_tiny, recipe=find_recipe("mnist_small"), train_size=30_000)
_caps = [f"cap={cap},keep_at_least=0,most_rise=0.2" for cap in (10, 20, 30, 100)]
_rises = [f"cap=100,keep_at_least=0,most_rise={rise}" for rise in (0.1, 0.2, None)]
_three = (2001, 2002, 2003)

PLANS = {
    "mnist-resnet": Plan(_resnet, 1.0, (2, 3, 4, 6, 8), dict.fromkeys(_caps, (8, 14))),
    "mnist-resnet-3-wrong": Plan(
        dataclasses.replace(_resnet, label_noise=0.03), 1.0, (4, 6, 8), dict.fromkeys(_caps, (8, 14))
    ),
    "mnist": Plan(_tiny, 1.5, (2, 3, 4, 6, 10, 16), dict.fromkeys(_caps, (4, 6, 10, 16)), _three),
    "mnist-3-wrong": Plan(
        dataclasses.replace(_tiny, label_noise=0.03),
        1.5,
        (2, 3, 4, 6, 10, 16),
        dict.fromkeys(_caps, (4, 6, 10, 16)),
        _three,
    ),
    "mnist-noisy": Plan(find_workload("mnist-noisy"), 2.0, (4, 6, 10), dict.fromkeys(_rises, (8, 12))),
    "svhn": Plan(find_workload("svhn"), 1.0, (4, 6, 8, 12), dict.fromkeys(_rises, (8, 12))),
    "cifar10": Plan(find_workload("cifar10"), 1.0, (30,), dict.fromkeys(_rises, (30,))),
}


def table(name: str, outcomes: list[Outcome]) -> str:
    """Error, compute and multiplier against plain training, as means over seeds."""
    groups: dict[tuple[bool, str, int], list[Outcome]] = {}
    for one in outcomes:
        is_ledger = one.cell.setting.startswith("ledger")
        groups.setdefault((is_ledger, one.cell.setting, one.cell.length), []).append(one)
    arms = {
        key: Budget(tuple(one.error for one in runs), tuple(one.compute for one in runs))
        for key, runs in sorted(groups.items())
    }
    plain = Frontier([arm for (is_ledger, _, _), arm in arms.items() if not is_ledger])
    lines = [f"| {name} | epochs | error | compute | M to plain training |", "| --- | ---: | ---: | ---: | ---: |"]
    for (is_ledger, setting, length), arm in arms.items():
        spread = f" ± {100 * statistics.stdev(arm.errors):.2f}" if len(arm.errors) > 1 else ""
        multiple = str(plain.multiple(arm)) if is_ledger else ""
        lines.append(f"| `{setting}` | {length} | {100 * arm.error:.2f}%{spread} | {arm.cost:.2f} | {multiple} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("records", type=Path, help="folder of the records")
    options = parser.parse_args()
    tables = []
    for name, plan in PLANS.items():
        cells, store = plan.cells(), Store(options.records / f"{name}.jsonl")
        if store.missing(cells):
            run_missing(plan.workload, cells, plan.workload.load(options.data, held_out=True), store)
        tables.append(table(name, [store.outcomes[cell] for cell in cells]))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
