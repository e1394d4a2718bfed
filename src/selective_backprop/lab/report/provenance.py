"""Section 9: how the runs were made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Section, Table

READING = "The commands that made these runs, and what they ran on: enough to make them again."
_KEYS = ("commit", "selective_backprop", "torch", "python", "machine", "cores", "threads", "accelerator")


def provenance(comparisons: Sequence[Comparison]) -> Section:
    """Distinct commands and environments, with the number of runs of each."""
    commands: dict[str, int] = {}
    machines: dict[tuple[str, ...], int] = {}
    for run in (run for comparison in comparisons for run in comparison.runs):
        words = run.environment.get("command") or []
        command = shlex.join(map(str, words)) if isinstance(words, list) else str(words)
        commands[command or "unknown"] = commands.get(command or "unknown", 0) + 1
        machine = tuple(str(run.environment.get(key) or "none") for key in _KEYS)
        machines[machine] = machines.get(machine, 0) + 1
    runs = [
        [
            comparison.title,
            str(len(comparison.runs)),
            ", ".join(map(str, sorted({run.seed for run in comparison.runs}))),
            ", ".join(map(str, sorted({run.epochs for run in comparison.runs if not run.is_baseline}))),
            ", ".join(sorted({str(run.recipe.get("batch_size")) for run in comparison.runs})),
            ", ".join(sorted({str(run.recipe.get("lr")) for run in comparison.runs})),
        ]
        for comparison in comparisons
    ]
    parts = [
        Table("runs", "Runs", ["comparison", "runs", "seeds", "epochs", "batch size", "learning rate"], runs),
        Table("commands", "Commands", ["command", "runs"], [[text, str(count)] for text, count in commands.items()]),
        Table(
            "environment",
            "Versions and hardware",
            [*(key.replace("_", "-") for key in _KEYS), "runs"],
            [[*machine, str(count)] for machine, count in machines.items()],
        ),
    ]
    return Section("provenance", "How it was made", READING, list(parts))
