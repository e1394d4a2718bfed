"""The leaderboard as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selective_backprop.lab.leaderboard.standing import TARGETS, Standing


def page(standings: Sequence[Standing], records: Path) -> str:
    """Write the leaderboard as Markdown."""
    lines = [f"Records: {records}"]
    for one in standings:
        lines += ["", f"## {one.workload}", "", "| arm | " + " | ".join(TARGETS) + " |", "| --- | --- | --- | --- |"]
        for place in one.places:
            found = [place.against_both(target) for target in TARGETS]
            lines.append(f"| {place.arm} | " + " | ".join("" if m is None else m.short() for m in found) + " |")
    return "\n".join([*lines, ""])
