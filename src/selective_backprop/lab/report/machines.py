"""What forward and backward passes cost on several machines, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop.lab.report.charts import axis, by_label, tooltip
from selective_backprop.lab.report.figures import Figure, Row, Section, Spec
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.report.theme import PHASES

READING = (
    "Plain training on each machine: the more a backward pass costs in forward passes, the more selection can gain "
    "there."
)


def machine_of(run: Run) -> str:
    """The machine of a run in words: its accelerator, or else its processor and threads."""
    known = {key: value for key, value in run.environment.items() if value is not None}
    if "accelerator" in known:
        return str(known["accelerator"])[:80]
    processor = str(known.get("cpu") or known.get("machine") or "unknown machine")[:80]
    return f"{processor}, {known['threads']} threads" if "threads" in known else processor


def machine_rows(runs: Sequence[Run]) -> list[Row]:
    """Milliseconds per batch in plain training, forward and backward, by network and machine; over all epochs."""
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        if run.method == "traditional":
            key = str(run.recipe["model"]), machine_of(run), int(run.recipe["batch_size"])
            groups.setdefault(key, []).append(run)
    rows: list[Row] = []
    for (model, machine, size), mine in groups.items():
        records = [record for run in mine for record in run.records]
        batches = max(1, sum(record["batches"] for record in records))
        costs = {kind: 1000 * sum(r["seconds"][kind] for r in records) / batches for kind in ("forward", "backward")}
        row = {"run": f"{machine}: {model}, batches of {size}", "machine": machine, "model": model, "batch size": size}
        row["backward / forward"] = costs["backward"] / max(costs["forward"], 1e-9)
        rows += [row | {"pass": kind, "milliseconds": value} for kind, value in costs.items()]
    return rows


def machines(runs: Sequence[Run]) -> Section:
    """A chart of all machines, if there are several."""
    rows = machine_rows(runs)
    section = Section("machines", "Several machines", READING, [])
    if len({row["machine"] for row in rows}) < 2:
        return section
    labels = list(dict.fromkeys(row["run"] for row in rows))
    y, lookup, height = by_label(labels)
    kinds = ["forward", "backward"]
    ratios = {row["run"]: row["backward / forward"] for row in rows}
    spec: Spec = {
        "transform": [lookup, {"calculate": f"indexof({kinds}, datum.pass)", "as": "order"}],
        "height": height,
        "mark": "bar",
        "encoding": {
            "y": y,
            "x": axis("milliseconds", "milliseconds per batch"),
            "color": {
                "field": "pass",
                "type": "nominal",
                "scale": {"domain": kinds, "range": PHASES[1:3]},
                "legend": {},
            },
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": tooltip(
                machine="machine",
                model="model",
                what="pass",
                milliseconds="milliseconds|.3~g",
                backward_in_forward_passes="backward / forward|.2f",
            ),
        },
    }
    alt = "A backward pass costs, in forward passes: " + "; ".join(
        f"{run} {ratio:.2f}" for run, ratio in ratios.items()
    )
    section.parts.append(
        Figure("cost-by-machine", "Cost of a batch on each machine", f"{alt}.", spec, rows, note=f"{alt}.")
    )
    return section
