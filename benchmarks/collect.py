"""Copy what matters of comparisons into the repository, and print their tables.

    python benchmarks/collect.py benchmarks/results/DATE-comparisons mnist=OUT/mnist svhn=OUT/svhn ...

It copies settings, environment and records of every complete run, without the paths of this machine. Checkpoints and
ledgers are not copied. Then it prints the tables of the results in Markdown. Without NAME=FOLDER it only prints the
tables of what was collected before.
"""

import argparse
import json
import shutil
from pathlib import Path

from selective_backprop.lab.study.comparison import Results
from selective_backprop.lab.study.curves import Curve
from selective_backprop.lab.study.frontier import Budget, compute_multiplier
from selective_backprop.lab.study.standing import PLAIN, RANDOM, LabelledRuns, error_of
from selective_backprop.lab.study.tables import TextTable

KEPT = ("config.json", "environment.json", "records.jsonl")


def collect(out: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for run in sorted(path.parent for path in out.glob("*/seed-*/records.jsonl")):
        folder = target / run.relative_to(out)
        folder.mkdir(parents=True)
        command = json.loads((run / "environment.json").read_text())["command"]
        places = {command[command.index("--data-dir") + 1]: "DATA", str(out.parent): "OUT"}
        for name in KEPT:
            text = (run / name).read_text()
            for place, word in places.items():  # by the words that stand for them in the commands
                text = text.replace(place, word)
            (folder / name).write_text(text)
    shutil.copy(out / "tables.md", target / "tables.md")


def arms_of(folder: Path) -> list[LabelledRuns]:
    """All complete runs in the folder, by label."""
    results = Results()
    for path in sorted(folder.glob("*/seed-*/records.jsonl")):
        config = json.loads((path.parent / "config.json").read_text())
        records = [json.loads(line) for line in path.read_text().splitlines()]
        label = config.get("label") or path.parent.parent.name
        results.curves.setdefault(label, []).append(Curve.of(records))
        results.methods[label] = config["method"]
    return results.arms()


def multipliers(arms: list[LabelledRuns]) -> dict[str, list[str]]:
    """Of every arm the multipliers against plain training and random subsets at its own error: it has one length."""
    plain, random = (_frontier([arm.compute for arm in arms if arm.method == name]) for name in (PLAIN, RANDOM))
    if random and plain:
        random.append(max(plain, key=lambda budget: budget.cost))  # random subsets of everything are plain training
    return {
        arm.label: [
            "frontier"
            if arm.method == own
            else compute_multiplier(found, [arm.compute]).short()
            if found
            else "not run"
            for own, found in ((PLAIN, plain), (RANDOM, random))
        ]
        for arm in arms
    }


def _frontier(budgets: list[Budget]) -> list[Budget]:
    """Lengths with several seeds, or all if there are none, by rising cost."""
    return sorted([b for b in budgets if len(b.errors) > 1] or budgets, key=lambda budget: budget.cost)


def summary(workloads: dict[str, list[LabelledRuns]]) -> str:
    """A table of all workloads, then one for each."""
    found = {name: multipliers(arms) for name, arms in workloads.items()}
    methods = [arm.label for arms in workloads.values() for arm in arms if arm.method not in (PLAIN, RANDOM)]
    rows = [[label, *(" / ".join(of.get(label, [])) for of in found.values())] for label in dict.fromkeys(methods)]
    parts = [TextTable(["M to plain / to random", *workloads], rows).markdown()] if rows else []
    for name, arms in workloads.items():
        heading = ["method", "error", "compute", "M to plain", "M to random"]
        cells = [[arm.label, error_of(arm.compute), f"{arm.compute.cost:.2f}", *found[name][arm.label]] for arm in arms]
        parts += [f"## {name}", TextTable(heading, cells).markdown()]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("comparisons", nargs="*", help="NAME=FOLDER")
    arguments = parser.parse_args()
    for text in arguments.comparisons:
        name, _, folder = text.partition("=")
        collect(Path(folder), arguments.results / name)
    folders = sorted(path for path in arguments.results.iterdir() if path.is_dir())
    print(summary({folder.name: arms_of(folder) for folder in folders}))


if __name__ == "__main__":
    main()
