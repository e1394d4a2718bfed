"""python -m tests.torture: every fault at its full length, and a table of what was survived."""

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tests.torture.faults import KILLS, OTHERS, killed_ranks, killed_runs
from tests.torture.files import NotHere


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


def main():
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="runs killed, over all methods")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which runs are killed")
    parser.add_argument("--only", metavar="TEXT", default="", help="faults whose names have this in them")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in the processes it starts: other numbers of threads round otherwise
    console = Console()
    table = Table("fault", title="What was tried, and what was survived", title_justify="left")
    for heading in ("tried", "survived", "seconds"):
        table.add_column(heading, justify="right")
    failures, tried = {}, 0
    faults = [*killed_runs(options.kills, options.seed), *OTHERS, *killed_ranks(options.seed)]
    chosen = [fault for fault in faults if options.only in fault.name]
    if not chosen:
        parser.error(f"no fault has {options.only!r} in its name; there are: {', '.join(f.name for f in faults)}")
    for fault in chosen:
        began = time.monotonic()
        happened, error, not_here = try_out(fault)
        if error:
            failures[fault.name] = error
        tried += happened
        survived = "[red]no" if error else not_here or str(happened)
        table.add_row(fault.name, str(happened), survived, f"{time.monotonic() - began:.0f}")
        console.print(f"{'NOT SURVIVED' if error else not_here or 'survived'}: {fault.name}", highlight=False)
    console.print(table)
    for name, error in failures.items():
        console.print(f"[bold]{name}[/bold] (--seed {options.seed})")
        console.print(error, markup=False, highlight=False)
    console.print(f"{tried} faults tried, {len(failures)} kinds not survived")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
