"""python -m tests.torture: runs of the command line that are killed at moments drawn from a seed, and go on.

make torture              # about a quarter of an hour
make torture KILLS=1000   # hours
"""

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from tests.torture.kills import survive_chance
from tests.torture.runs import METHODS

KILLS = 50


def main():
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="runs killed, over all methods")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which runs are killed")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in the processes it starts: other numbers of threads round otherwise
    failed = 0
    for number, method in enumerate(METHODS):
        count = options.kills // len(METHODS) + (number < options.kills % len(METHODS))
        with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
            try:
                killed = survive_chance(method, Path(scratch), count, options.seed)
                print(f"{method}: killed {killed} times, and ended as if nothing had happened", flush=True)
            except AssertionError:
                failed += 1
                print(f"{method}: NOT SURVIVED (--seed {options.seed})\n{traceback.format_exc()}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
