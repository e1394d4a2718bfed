"""Compare the ledger with plain training and random subsets on a larger network and more data than the leaderboard has.

    python benchmarks/larger.py DATA RECORDS [mnist | svhn | svhn-resnet20]

DATA holds mnist/ and svhn/, each with train.parquet and test.parquet. A ResNet-8 of 75,000 parameters, and on SVHN
also a ResNet-20 of 270,000, train on 40,000 half-size images. The leaderboard has smaller networks and less data, so
that it can compare many methods. First, on 10,000 held-out training examples, plain training and random subsets try
three learning rates each. The ledger takes the rate of plain training, and its defaults. Then every arm is trained at
every length with every seed, and tested once. Records go into the folder RECORDS; runs that are there are not
repeated. Multipliers are those of the leaderboard. One thread.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from selective_backprop.lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop.lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop.lab.leaderboard.running import run_missing
from selective_backprop.lab.leaderboard.standing import TARGETS, Standing, standing
from selective_backprop.lab.leaderboard.workloads import Workload
from selective_backprop.lab.runs.recipes import Decay, Recipe, find_recipe

TUNING_SEED = 1000
RATES = (0.5, 1.0, 2.0)
LENGTHS = {PLAIN: (2, 3, 4, 6, 8), RANDOM: (6, 9, 12, 18), DEFAULT.name: (4, 6, 8, 12)}
"""Epochs of candidates. Random subsets are thirds; where they end, plain training goes on."""
FURTHER = {("svhn-resnet20", DEFAULT.name): (20,)}
"""A length at about the compute of the longest plain run, as on the leaderboard, where the others may end too early."""
TUNED_AT = {PLAIN: 4, RANDOM: 12}
"""Lengths at which rates are chosen: four epochs of compute."""


def _workload(title: str, recipe: Recipe, *, seeds: int = 5, standardize: bool = False) -> Workload:
    return Workload(
        title=title,
        recipe=recipe,
        train_size=40_000,
        lengths=LENGTHS[PLAIN],
        seeds=seeds,
        proxy="none",
        standardize=standardize,
    )


_deeper = find_recipe("svhn_small").with_(model="resnet20", decay=Decay(kind="triangle"))

WORKLOADS = {
    "mnist": _workload("MNIST, 14x14, 40,000 examples, ResNet-8", find_recipe("mnist_small")),
    "svhn": _workload("SVHN (re-cropped), 16x16, 40,000 examples, ResNet-8", find_recipe("svhn_small")),
    "svhn-resnet20": _workload(
        "SVHN (re-cropped), 16x16, standardized, 40,000 examples, ResNet-20", _deeper, seeds=4, standardize=True
    ),
}


def show(outcome: Outcome, left: int) -> None:
    cell = outcome.cell
    print(
        f"{cell.setting}, {cell.length} epochs, seed {cell.seed}: {100 * outcome.error:.2f}% at {outcome.compute:.2f}, "
        f"{left} runs left",
        flush=True,
    )


def choose(workload: Workload, data: Path, store: Store) -> dict[str, str]:
    """Choose the rates of plain training and random subsets by held-out error."""
    tried = {
        PLAIN: [f"traditional:rate={rate:g}" for rate in RATES],
        RANDOM: [f"repeated_random@0.333:rate={rate:g}" for rate in RATES],
    }
    cells = [
        Cell(arm, setting, TUNED_AT[arm], TUNING_SEED, held_out=True)
        for arm, settings in tried.items()
        for setting in settings
    ]
    if store.missing(cells):
        run_missing(workload, cells, workload.load(data, held_out=True), store, show)
    errors = {cell.setting: store.outcomes[cell].error for cell in cells}
    chosen = {arm: min(settings, key=lambda setting: errors[setting]) for arm, settings in tried.items()}
    rate = chosen[PLAIN].rpartition("=")[2]
    return chosen | {DEFAULT.name: DEFAULT.trials[0].replace("rate=1", f"rate={rate}")}


def measure(name: str, chosen: dict[str, str], data: Path, store: Store) -> list[Outcome]:
    """Train and test every arm at every length with every seed."""
    workload = WORKLOADS[name]
    cells = [
        Cell(arm, setting, length, seed, held_out=False)
        for seed in range(workload.seeds)
        for arm, setting in chosen.items()
        for length in LENGTHS[arm] + FURTHER.get((name, arm), ())
    ]
    if store.missing(cells):
        run_missing(workload, cells, workload.load(data, held_out=False), store, show)
    return [store.outcomes[cell] for cell in cells]


def table(found: Standing, chosen: dict[str, str]) -> str:
    """Errors and compute of all arms, and the multipliers of the ledger."""
    lines = [f"| {found.workload} | error at compute |", "| --- | --- |"]
    for place in found.places:
        points = ", ".join(f"{100 * point.error:.2f}% at {point.cost:.2f}" for point in place.points)
        lines.append(f"| `{chosen[place.arm]}`, {place.seeds} seeds | {points} |")
    lines += ["", f"| {found.workload} | error | M to plain training | M to random subsets |"]
    lines.append("| --- | ---: | ---: | ---: |")
    ledger = found.place(DEFAULT.name)
    assert ledger is not None
    for target in TARGETS:
        multipliers = f"{ledger.plain[target].short()} | {ledger.random[target].short()}"
        lines.append(f"| {target} | {100 * found.targets[target]:.2f}% | {multipliers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("records", type=Path, help="folder of the records")
    parser.add_argument("names", nargs="*", help="workloads; all if none is given")
    options = parser.parse_args()
    if unknown := set(options.names) - WORKLOADS.keys():
        parser.error(f"there is no workload {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    tables = []
    for name in options.names or WORKLOADS:
        chosen = choose(WORKLOADS[name], options.data, Store(options.records / f"{name}.tuning.jsonl"))
        outcomes = measure(name, chosen, options.data, Store(options.records / f"{name}.jsonl"))
        tables.append(table(standing(name, outcomes), chosen))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
