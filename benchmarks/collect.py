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
from selective_backprop.lab.study.standing import Standing, standings, winner
from selective_backprop.lab.study.tables import TextTable, standing_table

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


def standings_of(folder: Path) -> list[Standing]:
    """Standings of all complete runs in the folder."""
    results = Results()
    for path in sorted(folder.glob("*/seed-*/records.jsonl")):
        config = json.loads((path.parent / "config.json").read_text())
        records = [json.loads(line) for line in path.read_text().splitlines()]
        label = config.get("label") or path.parent.parent.name
        results.curves.setdefault(label, []).append(Curve.of(records))
        results.methods[label] = config["method"]
    return standings(results.arms())


def summary(workloads: dict[str, list[Standing]]) -> str:
    """A table of all workloads, then a sentence and a table for each."""
    methods = dict.fromkeys(s.label for found in workloads.values() for s in found if not s.is_baseline)
    rows = []
    for label in methods:
        cells = []
        for found in workloads.values():
            standing = next((s for s in found if s.label == label), None)
            pair = [] if standing is None else [standing.plain, standing.random]
            cells.append(" / ".join("not run" if interval is None else interval.short() for interval in pair))
        rows.append([label, *cells])
    parts = [TextTable(["M to plain / to random", *workloads], rows).markdown()] if rows else []
    for name, found in workloads.items():
        parts += [f"## {name}", winner(found), standing_table(found).markdown()]
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
    print(summary({folder.name: standings_of(folder) for folder in folders}))


if __name__ == "__main__":
    main()
