"""Keep what matters of comparisons, and sum them up.

    python benchmarks/collect.py benchmarks/results/DATE-comparisons mnist=OUT/mnist svhn=OUT/svhn ...

Copies settings, environment and records of every complete run (checkpoints and ledgers stay where they are), with the
folders of this machine left out, and prints the tables of the results in Markdown. Without NAME=FOLDER it prints
the tables of what was collected before.
"""

import argparse
import json
import shutil
from pathlib import Path
from statistics import fmean

from selective_backprop.lab.study.curves import Curve, speed_up
from selective_backprop.lab.study.tables import TextTable

KEPT = ("config.json", "environment.json", "records.jsonl")
NAMES = {
    "sb": "SB",
    "stale": "Stale-SB, every 3rd epoch",
    "ledger": "`ledger_backprop`",
    "infobatch": "InfoBatch",
    "kath18": "Kath18",
    "random": "Random-Backprop",
}
BASELINES = {
    "traditional,_ledger_s_compute": "Traditional in the ledger's compute",
    "repeated_random,_ledger_s_compute": "repeated random in the ledger's compute",
    "traditional,_2x_ledger_s_compute": "Traditional in twice the ledger's compute",
    "repeated_random,_2x_ledger_s_compute": "repeated random in twice the ledger's compute",
}


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


def curves_of(folder: Path) -> dict[str, list[Curve]]:
    """Of each method by seed."""
    curves: dict[str, list[Curve]] = {}
    for path in sorted(folder.glob("*/seed-*/records.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        curves.setdefault(path.parent.parent.name, []).append(Curve.of(records))
    return curves


def summary(sets: dict[str, dict[str, list[Curve]]]) -> str:
    def row(label, cell):
        return [label, *(cell(curves) for curves in sets.values())]

    def times(name, axis):
        def cell(curves):
            if name not in curves:
                return ""
            ratios = [speed_up(curves["traditional"], curves[name], factor, axis).mean for factor in (1.1, 1.2)]
            return ", ".join("never" if ratio is None else f"{ratio:.2f}x" for ratio in ratios)

        return cell

    def error(name):
        return lambda curves: f"{fmean(c.errors[-1] for c in curves[name]):.2%}" if name in curves else ""

    def share(curves):
        total = [fmean(c.compute[-1] for c in curves[name]) for name in ("ledger", "traditional")]
        return f"{total[0] / total[1]:.0%}"

    heading = ["", *sets]
    names = {name: label for name, label in NAMES.items() if any(name in curves for curves in sets.values())}
    speed_ups = [
        TextTable(heading, [row(label, times(name, axis)) for name, label in names.items()]).markdown()
        for axis in ("compute", "seconds")
    ]
    errors = [row("Traditional", error("traditional")), *(row(label, error(name)) for name, label in names.items())]
    errors += [row("ledger's compute, of Traditional's", share)]
    errors += [row(label, error(name)) for name, label in BASELINES.items()]
    errors += [row("epochs, seeds", lambda c: f"{len(c['traditional'][0].errors)}, {len(c['traditional'])}")]
    return "\n\n".join([*speed_ups, TextTable(heading, errors).markdown()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("comparisons", nargs="*", help="NAME=FOLDER")
    arguments = parser.parse_args()
    for text in arguments.comparisons:
        name, _, folder = text.partition("=")
        collect(Path(folder), arguments.results / name)
    folders = sorted(path for path in arguments.results.iterdir() if path.is_dir())
    print(summary({folder.name: curves_of(folder) for folder in folders}))


if __name__ == "__main__":
    main()
