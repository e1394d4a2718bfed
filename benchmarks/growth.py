"""How the ledger's compute multiplier grows with the number of examples and with the length of training.

    python benchmarks/growth.py DATA [--seeds 3] [--table]

DATA holds svhn/ with train.parquet and test.parquet. Runs that are in benchmarks/results/growth are not repeated;
those on all examples come from benchmarks/results/larger. --table trains nothing. At the end it prints the table, draws
docs/images/growth.svg and writes what `sb.advise` knows. results/growth/PROTOCOL.md says what is run and why.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from selective_backprop_lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop_lab.leaderboard.board import make_board, whole_seeds
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop_lab.leaderboard.running import run_missing
from selective_backprop_lab.leaderboard.tuning import chosen_settings, lengths_of
from selective_backprop_lab.leaderboard.workloads import Workload, find_workload
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.study.frontier import Bound, Interval, compute_multiplier
from selective_backprop_lab.study.standing import lower, random_frontier
from selective_backprop_lab.study.tables import TextTable

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks/results/growth"
LARGER = ROOT / "benchmarks/results/larger"
WORKLOAD, SIZES, WHOLE = "svhn-resnet8", (10_000, 20_000, 40_000), 73_257
LENGTHS = {PLAIN: (2, 3, 4, 6, 8), DEFAULT.name: (2, 3, 4, 6, 8, 12)}
JUDGED = (3, 4, 6, 8)
"""Lengths of plain training at whose error M is read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    whole, chosen = find_workload(WORKLOAD), settings()
    for seeds in [] if arguments.table else range(1, arguments.seeds + 1):  # a seed of all sizes, then the next
        for size in SIZES:
            part = dataclasses.replace(whole, train_size=size)
            run_missing(part, cells(size, chosen, seeds), part.load(arguments.data, held_out=False), store(size), show)
    outcomes = outcomes_by_size()
    found = grown(outcomes)
    text = table(found, {size: len({one.cell.seed for one in runs}) for size, runs in outcomes.items()}).markdown()
    print(text)
    (ROOT / "docs/images/growth.svg").write_text(chart(found))
    rows = ",\n".join(f" {json.dumps(row)}" for row in rows_of(found))
    (ROOT / "src/selective_backprop/advice/growth.json").write_text(f"[\n{rows}\n]\n")


def settings() -> dict[str, str]:
    """The setting of each arm, as it was chosen for all examples."""
    return {arm: text for arm, text in chosen_settings(WORKLOAD, LARGER).items() if arm in (*LENGTHS, RANDOM)}


def outcomes_by_size() -> dict[int, list[Outcome]]:
    """All whole seeds in the records, by the number of examples."""
    chosen = settings()
    stores = {size: store(size) for size in SIZES} | {WHOLE: Store(LARGER / f"{WORKLOAD}.jsonl")}
    found = {}
    for size, of_size in stores.items():
        runs = [one for one in of_size.outcomes.values() if chosen.get(one.cell.arm) == one.cell.setting]
        if whole := whole_seeds(runs, lengths_at(size, chosen)):
            found[size] = whole
    return found


def grown(outcomes: dict[int, list[Outcome]]) -> dict[int, dict[int, Interval]]:
    """The ledger's M by the number of examples and the length of plain training."""
    return {size: multipliers(find_workload(WORKLOAD), runs) for size, runs in outcomes.items()}


def rows_of(found: dict[int, dict[int, Interval]]) -> list[dict[str, Any]]:
    """What `sb.advise` knows."""
    return [row(size, length, one) for size, of_size in found.items() for length, one in of_size.items()]


def store(size: int) -> Store:
    return Store(RECORDS / f"{size}.jsonl")


def lengths_at(size: int, chosen: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """The lengths of each arm with so many examples; with all of them, those of the larger workloads."""
    workload = find_workload(WORKLOAD)
    if size == WHOLE:
        trials = Store(LARGER / f"{WORKLOAD}.tuning.jsonl")
        return {arm: lengths_of(workload, arm, text, trials) for arm, text in chosen.items()}
    share = MethodSpec.parse(chosen[RANDOM]).selectivity or 1.0
    return LENGTHS | {RANDOM: tuple(round(length / share) for length in workload.lengths)}


def cells(size: int, chosen: dict[str, str], seeds: int) -> list[Cell]:
    lengths = lengths_at(size, chosen)
    return [
        Cell(arm, text, length, seed, held_out=False)
        for seed in range(seeds)
        for arm, text in chosen.items()
        for length in lengths[arm]
    ]


def show(outcome: Outcome, left: int) -> None:
    cell = outcome.cell
    print(
        f"{cell.arm}, {cell.length} epochs, seed {cell.seed}: {outcome.error:.2%} at {outcome.compute:.2f}; {left} left"
    )


def multipliers(workload: Workload, outcomes: Sequence[Outcome]) -> dict[int, Interval]:
    """The ledger's M against the better baseline, at the error of plain training with each length."""
    board = make_board(WORKLOAD, outcomes)
    plain, random, ledger = (
        next(p.points for p in board.places if p.arm == arm) for arm in (PLAIN, RANDOM, DEFAULT.name)
    )
    errors = {length: point.error for length, point in zip(workload.lengths, plain, strict=True) if length in JUDGED}
    return {
        length: lower(
            compute_multiplier(plain, ledger, error), compute_multiplier(random_frontier(random, plain), ledger, error)
        )
        for length, error in errors.items()
    }


def row(size: int, length: int, interval: Interval) -> dict[str, Any]:
    ends = None if interval.low is None or interval.high is None else [interval.low.value, interval.high.value]
    # Where the ledger missed the error with some draws of seeds, nobody knows the end.
    rounded = None if ends is None else [round(end, 3) if math.isfinite(end) else None for end in ends]
    return {"examples": size, "epochs": length, "multiple": round(interval.multiple.value, 3), "ends": rounded}


def table(found: dict[int, dict[int, Interval]], seeds: dict[int, int]) -> TextTable:
    rows = [
        [f"{size:,}", *(of_size[length].short() for length in JUDGED), str(seeds[size])]
        for size, of_size in found.items()
    ]
    return TextTable(["examples", *(f"{length} epochs" for length in JUDGED), "seeds"], rows)


def chart(found: dict[int, dict[int, Interval]]) -> str:
    """SVG with M against the number of examples, a line for each length of training. Open marks are bounds."""
    rows = []
    for size, of_size in found.items():
        for number, (length, interval) in enumerate(of_size.items()):
            spread = 1 + 0.03 * (
                number - (len(of_size) - 1) / 2
            )  # beside each other, so that intervals can be told apart
            known = {"kind": "number" if interval.multiple.bound is Bound.EXACT else "bound"}
            drawn = row(size, length, interval) | known | {"at": size * spread, "length": f"{length} epochs"}
            low, high = (drawn["multiple"] if end is None else end for end in drawn["ends"] or [None, None])
            rows.append(drawn | {"low": low, "high": high})
    names = [f"{length} epochs" for length in JUDGED]
    scale = {"domain": names, "range": ["#b9cdf0", "#7ea6e8", "#2266cc", "#123a78"]}
    x = {
        "field": "at",
        "type": "quantitative",
        "title": "training examples (SVHN, ResNet-8), on a logarithmic scale",
        "scale": {"type": "log", "domain": [8_500, 88_000], "nice": False},
        "axis": {"values": [*SIZES, WHOLE], "format": ",", "grid": False},
    }
    y = {"field": "multiple", "type": "quantitative", "title": "compute multiplier M", "scale": {"zero": False}}
    color = {
        "field": "length",
        "type": "nominal",
        "scale": scale,
        "legend": {"title": "for the error of plain training with", "orient": "top", "titleLimit": 400},
    }
    filled = {"condition": {"test": "datum.kind == 'number'", "field": "length", "scale": scale}, "value": "white"}
    spec = {
        "width": 560,
        "height": 300,
        "background": "white",
        "padding": 12,
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "rule", "color": "#5b6572"}, "encoding": {"y": {"datum": 1}}},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, "color": color}},
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": color},
            },
            {
                "mark": {"type": "point", "size": 60, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": color, "fill": filled},
            },
        ],
        "config": {"view": {"stroke": None}},
    }
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


if __name__ == "__main__":
    main()
