"""How the runs were made."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Section, Table

READING = "The commands that made these runs, and what they ran on: enough to make them again."
_KEYS = (
    *("date", "commit", "selective_backprop", "torch", "python"),
    *("machine", "cpu", "cores", "threads", "accelerator"),
)


def provenance(comparisons: Sequence[Comparison]) -> Section:
    """Distinct commands and environments, with the number of runs of each."""
    all_runs = [run for comparison in comparisons for run in comparison.runs]
    commands = Counter(command_of(run.environment) for run in all_runs)
    machines = Counter(tuple(_word(run.environment, key) for key in _KEYS) for run in all_runs)
    rows = []
    for comparison in comparisons:
        runs = comparison.runs
        columns: list[set[Any]] = [{run.seed for run in runs}, {run.epochs for run in runs if not run.is_baseline}]
        columns += [{run.data_hash for run in runs}]
        columns += [{str(run.recipe.get(name)) for run in runs} for name in ("batch_size", "lr")]
        rows.append([comparison.title, str(len(runs)), *(", ".join(map(str, sorted(column))) for column in columns)])
    heading = ["workload", "runs", "seeds", "epochs", "data (SHA-256)", "batch size", "learning rate"]
    keys = [key.replace("_", "-") for key in _KEYS]
    parts = [
        Table("runs", "Runs", heading, rows),
        Table("commands", "Commands", ["command", "runs"], [[text, str(count)] for text, count in commands.items()]),
        Table("environment", "Versions and hardware", [*keys, "runs"], [[*m, str(n)] for m, n in machines.items()]),
    ]
    return Section("provenance", "How it was made", READING, parts)


def command_of(environment: Mapping[str, Any]) -> str:
    """A command that can be typed in.

    >>> command_of({"command": ["__main__.py", "train", "--name", "a b"]})
    "selective-backprop train --name 'a b'"
    """
    words = environment.get("command") or []
    if not isinstance(words, list):
        return str(words)
    # Started as `python -m selective_backprop_lab`, a run only knows the name of its file.
    own = ["selective-backprop", *words[1:]] if words and words[0] == "__main__.py" else words
    return shlex.join(map(str, own)) or "unknown"


def _word(environment: Mapping[str, Any], key: str) -> str:
    return str(environment.get(key, "unknown") or "none")
