"""Compare caps of `ledger_backprop` on held-out training examples, with and without wrong labels.

    python benchmarks/ledger_cap.py DATA RECORDS

DATA holds mnist/train.parquet and mnist/test.parquet. No test set is used: errors are on the 10,000 training examples
that the leaderboard holds out. Records of runs go into the folder RECORDS, a file for each workload; runs that are
there are not repeated. The tables of all runs are printed at the end. It runs on one thread, for about half an hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path

from selective_backprop.lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop.lab.leaderboard.running import run_missing
from selective_backprop.lab.leaderboard.workloads import find_workload
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.study.frontier import Arm, Frontier

SEEDS = (2001, 2002, 2003)
CAPS = (10, 100)

_tiny = find_workload("mnist")
_resnet = dataclasses.replace(_tiny, recipe=find_recipe("mnist_small"), train_size=30_000)
WORKLOADS = {
    "resnet": (_resnet, 1.0, 2),
    "resnet, 3% wrong labels": (dataclasses.replace(_resnet, label_noise=0.03), 1.0, 2),
    "strided CNN": (_tiny, 1.5, 3),
    "strided CNN, 3% wrong labels": (dataclasses.replace(_tiny, label_noise=0.03), 1.5, 3),
}
"""The workload, the factor on its learning rate, and the number of seeds."""
PLAIN_LENGTHS = {"resnet": (2, 3, 4, 6, 8), "strided": (2, 3, 4, 6, 10, 16)}
LEDGER_LENGTHS = {"resnet": (8, 14), "strided": (4, 6, 10, 16)}


def planned(name: str, rate: float, seeds: int) -> list[Cell]:
    """Runs of a workload: plain training at several lengths, and the ledger with each cap."""
    network = name.split()[0].rstrip(",")
    settings = {f"traditional:rate={rate:g}": PLAIN_LENGTHS[network]}
    for cap in CAPS:
        settings[f"ledger:cap={cap},keep_at_least=0,rate={rate:g}"] = LEDGER_LENGTHS[network]
    return [
        Cell("cap", setting, length, seed, held_out=True)
        for seed in SEEDS[:seeds]
        for setting, lengths in settings.items()
        for length in lengths
    ]


def table(name: str, outcomes: list[Outcome]) -> str:
    """Error, compute and multiplier against plain training, as means over seeds."""
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.cell.setting, one.cell.length), []).append(one)
    arms = {
        key: Arm(tuple(one.error for one in runs), tuple(one.compute for one in runs)) for key, runs in groups.items()
    }
    plain = Frontier([arm for (setting, _), arm in sorted(arms.items()) if setting.startswith("traditional")])
    lines = [f"| {name} | epochs | error | compute | M to plain training |", "| --- | ---: | ---: | ---: | ---: |"]
    for (setting, length), arm in sorted(arms.items(), key=lambda item: (not item[0][0].startswith("t"), item[0])):
        spread = f" ± {100 * statistics.stdev(arm.errors):.2f}" if len(arm.errors) > 1 else ""
        multiple = "" if setting.startswith("traditional") else str(plain.multiple(arm))
        lines.append(f"| `{setting}` | {length} | {100 * arm.error:.2f}%{spread} | {arm.cost:.2f} | {multiple} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("records", type=Path, help="folder of the records")
    options = parser.parse_args()
    tables = []
    for name, (workload, rate, seeds) in WORKLOADS.items():
        cells = planned(name, rate, seeds)
        store = Store(options.records / f"{name.replace(', ', '-').replace(' ', '-').replace('%', '')}.jsonl")
        data = workload.load(options.data, held_out=True) if store.missing(cells) else None
        tables.append(table(name, run_missing(workload, cells, data, store) if data else list(store.outcomes.values())))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
