"""Draw docs/images/results.png from the stored records: final error against compute, for runs that have fully decayed.

    python tools/results_chart.py

Every point is the end of whole runs, mean and range over seeds. So it compares what each compute buys, not moments of a
run whose learning rate is still high.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import vl_convert
from PIL import Image

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BASELINES, LEDGER = RESULTS / "2026-11-16-hardest", RESULTS / "2026-11-17-larger"
"""The ledger's runs with its present defaults are newer than those of the baselines, which have the same seeds."""
PICTURE = ROOT / "docs" / "images" / "results.png"
TITLES = {"mnist": "MNIST", "svhn": "SVHN", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
NAMES = {"ledger": "ledger_backprop", "traditional": "plain training", "repeated_random": "random subsets"}
COLOURS = ["#2563c9", "#3b4252", "#c2700c"]


def points() -> list[dict[str, Any]]:
    """One point per data set, method and length, with the lowest and highest error of a seed."""
    found = []
    for data, title in TITLES.items():
        baselines = [arm for arm in sorted((BASELINES / data).iterdir()) if arm.name != "ledger"]
        for arm in [LEDGER / data / "ledger", *baselines]:
            ends = [end for folder in sorted(arm.glob("seed-*")) if (end := end_of(folder))]
            if ends:
                errors = [error for _, error in ends]
                found.append(
                    {
                        "data": title,
                        "method": NAMES[arm.name.partition(",")[0]],
                        "compute": fmean(compute for compute, _ in ends),
                        "error": 100 * fmean(errors),
                        "low": 100 * min(errors),
                        "high": 100 * max(errors),
                    }
                )
    return found


def end_of(folder: Path) -> tuple[float, float]:
    """The compute of a whole run, and its last error."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return sum(record["compute"] for record in records), records[-1]["test_error"]


def chart(found: list[dict[str, Any]]) -> dict[str, Any]:
    """A panel per data set, as a Vega-Lite specification."""
    colour = {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": list(NAMES.values()), "range": COLOURS},
        "legend": {"title": None, "orient": "top", "symbolSize": 120},
    }
    x = {"field": "compute", "type": "quantitative", "title": "compute, in epochs of plain training"}
    x |= {"scale": {"domainMin": 0}}
    y = {"field": "error", "type": "quantitative", "title": "test error, %", "scale": {"zero": False}}
    layers = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, "color": colour}},
        {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "shape": {"field": "method", "legend": None}},
        },
    ]
    panels = []
    for title in TITLES.values():
        rows = [point for point in found if point["data"] == title]
        panels.append({"title": title, "width": 230, "height": 180, "data": {"values": rows}, "layer": layers})
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "padding": 12,
        "columns": 2,
        "concat": panels,
        "config": {"axis": {"gridColor": "#e5e9f0"}, "view": {"stroke": None}, "legend": {"labelFontSize": 12}},
    }


if __name__ == "__main__":
    drawn = Image.open(io.BytesIO(vl_convert.vegalite_to_png(chart(points()), scale=1.6)))
    drawn.convert("RGB").quantize(48).save(PICTURE, optimize=True)  # a tenth of the size
    print(PICTURE)
