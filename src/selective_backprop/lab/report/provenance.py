"""Section 9: how the runs were made."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Section, Table

READING = "The commands that made these runs, and what they ran on: enough to make them again."
_KEYS = (
    *("date", "commit", "selective_backprop", "torch", "python"),
    *("machine", "cpu", "cores", "threads", "accelerator"),
)


def provenance(comparisons: Sequence[Comparison]) -> Section:
    """Distinct commands and environments, with the number of runs of each."""
    commands: dict[str, int] = {}
    machines: dict[tuple[str, ...], int] = {}
    for run in (run for comparison in comparisons for run in comparison.runs):
        command = command_of(run.environment)
        commands[command] = commands.get(command, 0) + 1
        machine = tuple(_word(run.environment, key) for key in _KEYS)
        machines[machine] = machines.get(machine, 0) + 1
    runs = [
        [
            comparison.title,
            str(len(comparison.runs)),
            ", ".join(map(str, sorted({run.seed for run in comparison.runs}))),
            ", ".join(map(str, sorted({run.epochs for run in comparison.runs if not run.is_baseline}))),
            ", ".join(sorted({run.data_hash or "unknown" for run in comparison.runs})),
            ", ".join(sorted({str(run.recipe.get("batch_size")) for run in comparison.runs})),
            ", ".join(sorted({str(run.recipe.get("lr")) for run in comparison.runs})),
        ]
        for comparison in comparisons
    ]
    parts = [
        Table(
            "runs",
            "Runs",
            ["workload", "runs", "seeds", "epochs", "data (SHA-256)", "batch size", "learning rate"],
            runs,
        ),
        Table("commands", "Commands", ["command", "runs"], [[text, str(count)] for text, count in commands.items()]),
        Table(
            "environment",
            "Versions and hardware",
            [*(key.replace("_", "-") for key in _KEYS), "runs"],
            [[*machine, str(count)] for machine, count in machines.items()],
        ),
    ]
    return Section("provenance", "How it was made", READING, list(parts))


def command_of(environment: Mapping[str, Any]) -> str:
    """A command that can be typed in.

    >>> command_of({"command": ["__main__.py", "train", "--name", "a b"]})
    "selective-backprop train --name 'a b'"
    """
    words = environment.get("command") or []
    if not isinstance(words, list):
        return str(words)
    # Started as `python -m selective_backprop.lab`, a run only knows the name of its file.
    own = ["selective-backprop", *words[1:]] if words and words[0] == "__main__.py" else words
    return shlex.join(map(str, own)) or "unknown"


def _word(environment: Mapping[str, Any], key: str) -> str:
    if key not in environment:
        return "unknown"  # the version that made the run did not keep it
    return str(environment[key] or "none")
