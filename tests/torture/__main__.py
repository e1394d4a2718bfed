"""python -m tests.torture: every fault at its full length, and one table of what was tried and survived.

make torture                          # about half an hour
make torture KILLS=1000 LAYOUTS=1000  # hours; the same command goes on where it was stopped
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tests.torture.faults import (
    COLLISIONS,
    KILLS,
    LAYOUTS,
    OTHERS,
    colliding_saves,
    killed_ranks,
    killed_runs,
    random_layouts,
)
from tests.torture.files import NotHere

PROGRESS = Path(__file__).parents[2] / ".torture"
"""Folder of the files by which a long run goes on after it was stopped."""


def try_out(fault):
    """How often it happened, and why it was not survived or could not be tried, if so."""
    with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
        try:
            happened = fault.happen(Path(scratch))
        except NotHere as reason:
            return 0, "", f"cannot be tried here: {reason}"
        except Exception:
            return fault.times, traceback.format_exc(), ""
    happened = 1 if happened is None else happened
    return happened, "" if happened else "it never happened", ""


class Progress:
    """What was survived before, in a file that a rerun reads. What was not is tried again.

    Args:
        path: of the file; None: nothing is kept.
    """

    def __init__(self, path):
        self.path, self.done = path, {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.done[entry["name"], entry["part"], entry["times"]] = entry

    def get(self, fault):
        """The entry of a fault that was survived before, or None."""
        return self.done.get((fault.name, fault.part, fault.times))

    def add(self, fault, happened, seconds):
        if self.path is None:
            return
        self.path.parent.mkdir(exist_ok=True)
        entry = {"name": fault.name, "part": fault.part, "times": fault.times, "tried": happened, "seconds": seconds}
        with self.path.open("a") as file:
            file.write(json.dumps(entry | {"commit": _commit()}) + "\n")


def _commit():
    words = ["git", "-C", str(PROGRESS.parent), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


class Row:
    """Of the table: all parts of one kind."""

    def __init__(self):
        self.tried = self.survived = self.failed = 0
        self.seconds = 0.0
        self.note = ""


def main():
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="runs killed, over all methods")
    parser.add_argument("--layouts", type=int, default=LAYOUTS, help="random layouts on 2 to 4 ranks")
    parser.add_argument("--collisions", type=int, default=COLLISIONS, help="times that two processes save at once")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which runs are killed, and of layouts")
    parser.add_argument("--only", metavar="TEXT", default="", help="faults whose names have this in them")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in the processes it starts: other numbers of threads round otherwise
    console = Console()
    faults = [
        *killed_runs(options.kills, options.seed),
        *OTHERS,
        *colliding_saves(options.collisions, options.seed),
        *killed_ranks(options.seed),
        *random_layouts(options.layouts, options.seed),
    ]
    chosen = [fault for fault in faults if options.only in fault.name]
    if not chosen:
        names = dict.fromkeys(fault.name for fault in faults)
        parser.error(f"no fault has {options.only!r} in its name; there are: {', '.join(names)}")
    is_long = (options.kills, options.layouts, options.collisions) != (KILLS, LAYOUTS, COLLISIONS)
    name = f"kills-{options.kills}-layouts-{options.layouts}-collisions-{options.collisions}-seed-{options.seed}.jsonl"
    progress = Progress(PROGRESS / name if is_long else None)
    if progress.done:
        console.print(
            f"going on: {len(progress.done)} parts were survived before, see {progress.path}", highlight=False
        )
    rows, failures = {}, []
    for fault in chosen:
        row, began = rows.setdefault(fault.name, Row()), time.monotonic()
        if (before := progress.get(fault)) is not None:
            row.tried, row.survived = row.tried + before["tried"], row.survived + before["tried"]
            row.seconds += before["seconds"]
            continue
        happened, error, row.note = try_out(fault)
        seconds = time.monotonic() - began
        row.tried, row.seconds = row.tried + happened, row.seconds + seconds
        if error:
            failures.append((fault, error))
            row.failed += happened
        elif not row.note:
            row.survived += happened
            progress.add(fault, happened, seconds)
        what = "NOT SURVIVED" if error else row.note or "survived"
        console.print(f"{what}: {fault.name}, {happened} times, {seconds:.0f} s", highlight=False, soft_wrap=True)
    table = Table("kind", title="What was tried, and what was survived", title_justify="left")
    for heading in ("tried", "survived", "failed", "seconds"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        survived = row.note or str(row.survived)
        table.add_row(name, str(row.tried), survived, f"[red]{row.failed}" if row.failed else "0", f"{row.seconds:.0f}")
    sums = [sum(getattr(row, what) for row in rows.values()) for what in ("tried", "survived", "failed", "seconds")]
    table.add_section()
    table.add_row("all", *(f"{value:.0f}" for value in sums))
    console.print(table)
    for fault, error in failures:
        console.print(f"[bold]{fault.name}[/bold], part {fault.part} (--seed {options.seed})")
        console.print(error, markup=False, highlight=False)
    console.print(f"{sums[0]} faults tried, {sums[1]} survived, {sums[2]} not", highlight=False)
    if progress.path is not None:
        console.print(f"progress: {progress.path}; remove it to begin anew", highlight=False, soft_wrap=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
