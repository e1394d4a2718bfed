"""Measure what the loader adds to a candidate batch that is kept as it is, and what planning costs at scale.

    python benchmarks/overhead.py [--examples 5000000] [--plan 100000000] [--threads 1]

The first table has microseconds per candidate batch of 128, compared with the plain DataLoader. Data is in memory, and
both loops only compute the loss of fixed outputs, so that the difference is the loader. Methods take turns in blocks of
batches within one run, and the median of the blocks counts. The second table has seconds and peak memory of planning
one epoch from the ledger. Each size runs in its own process, so that the peak is that of the plan.
"""

import argparse
import itertools
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import selective_backprop as sb

BATCH, BLOCK, ROUNDS = 128, 100, 15


class InMemory(Dataset):
    """Rows of two tensors, a batch at a time."""

    def __init__(self, size):
        self.inputs, self.targets = torch.randn(size, 8), torch.zeros(size, dtype=torch.int64)

    def __len__(self):
        return len(self.targets)

    def __getitems__(self, indices):
        rows = torch.as_tensor(indices)
        return self.inputs[rows], self.targets[rows]


def as_it_is(batch):
    return batch


def plain_blocks(data, outputs):
    loss_fn = nn.CrossEntropyLoss()
    batches = iter(DataLoader(data, BATCH, shuffle=True, collate_fn=as_it_is))
    while True:
        start = time.perf_counter()
        for _, targets in itertools.islice(batches, BLOCK):
            loss_fn(outputs, targets)
        yield (time.perf_counter() - start) / BLOCK


def selected_blocks(data, outputs, method):
    """Seconds until the first batch, then seconds per candidate batch."""
    train_loader = DataLoader(data, BATCH, shuffle=True, collate_fn=as_it_is)
    loader = sb.SelectiveLoader(train_loader, nn.Linear(8, 2), nn.CrossEntropyLoss(), method)
    start = time.perf_counter()
    batches = iter(loader)
    _, targets = next(batches)
    loader.loss(outputs, targets)
    yield time.perf_counter() - start
    while True:
        offered, start = loader.stats.offered, time.perf_counter()
        for _, targets in itertools.islice(batches, BLOCK):
            loader.loss(outputs, targets)
        yield (time.perf_counter() - start) / max(1.0, (loader.stats.offered - offered) / BATCH)


def sampled_blocks(data, outputs, method):
    """The same through `SelectiveSampler` in the user's own DataLoader."""
    sampler, loss_fn = sb.SelectiveSampler(len(data), method), nn.CrossEntropyLoss(reduction="none")
    start = time.perf_counter()
    batches = iter(DataLoader(data, BATCH, sampler=sampler, collate_fn=as_it_is))
    _, targets = next(batches)
    sampler.update(loss_fn(outputs, targets))
    yield time.perf_counter() - start
    while True:
        start = time.perf_counter()
        for _, targets in itertools.islice(batches, BLOCK):
            losses = loss_fn(outputs, targets)
            sampler.update(losses)
            losses.mean()
        yield (time.perf_counter() - start) / BLOCK


def per_batch(size):
    data, outputs = InMemory(size), torch.zeros(BATCH, 2)
    methods = {
        "traditional()": sb.traditional(),
        "ledger_backprop(), first epoch": sb.ledger_backprop(),
        "random_backprop(1/3)": sb.random_backprop(1 / 3),
    }
    runs = {"plain DataLoader": plain_blocks(data, outputs)}
    runs |= {name: selected_blocks(data, outputs, method) for name, method in methods.items()}
    sampler = "SelectiveSampler, ledger, first epoch"
    runs[sampler] = sampled_blocks(data, outputs, sb.ledger_backprop())
    start = time.perf_counter()
    next(iter(DataLoader(data, BATCH, shuffle=True, collate_fn=as_it_is)))
    first = {"plain DataLoader": time.perf_counter() - start} | {name: next(runs[name]) for name in (*methods, sampler)}
    times = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            seconds = next(run)
            if turn:  # the first turn warms up
                times[name].append(seconds)
    medians = {name: 1e6 * statistics.median(values) for name, values in times.items()}
    plain = medians["plain DataLoader"]
    print(f"{size:,} examples{'':26}us per candidate batch   added, in plain batches   seconds to the first batch")
    for name, median in medians.items():
        print(f"{name:40}{median:14.0f}{median / plain - 1:26.2f}{first[name]:26.2f}")


class Many(Dataset):
    """A data set of many equal examples. Only their ids matter."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitems__(self, indices):
        return torch.zeros(len(indices), 8), torch.zeros(len(indices), dtype=torch.int64)


class Shuffled:
    """A batch sampler whose order is a tensor. A Python list of all indices would take more memory than the plan."""

    batch_size = BATCH

    def __init__(self, size):
        self.order = torch.randperm(size, dtype=torch.int32)

    def __len__(self):
        return -(-len(self.order) // BATCH)

    def __iter__(self):
        return iter(self.order.split(BATCH))


def plan(size):
    """Plan one epoch of a filled ledger, as the loader does; prints seconds and bytes per candidate.

    If other programs run too, the processor time on one thread says how long a quiet machine would take.
    """
    train_loader = DataLoader(Many(size), batch_sampler=Shuffled(size), collate_fn=as_it_is)
    loader = sb.SelectiveLoader(train_loader, nn.Linear(8, 2), nn.CrossEntropyLoss(), sb.ledger_backprop())
    for _, targets in loader:  # leaves the first epoch, because only the second one is planned
        loader.loss(torch.zeros(len(targets), 2), targets)
        if loader.stats.offered > BATCH:
            break
    losses = torch.randn(size).mul_(2).sub_(2).exp_()
    for ids in torch.arange(size).split(2**20):  # as after an epoch: most losses are small
        loader.ledger.record_losses(ids, losses[ids], 0)
    del losses
    before = peak_memory(reset=True)
    start, start_of_work = time.perf_counter(), time.process_time()
    next(iter(loader))
    seconds, work = time.perf_counter() - start, time.process_time() - start_of_work
    peak = peak_memory() - before
    print(
        f"{size:,} candidates, {torch.get_num_threads()} thread(s): planned in {seconds:.1f} s ({work:.1f} s of "
        f"processor time), {peak / size:.0f} bytes per candidate at the peak"
    )


def peak_memory(*, reset=False):
    """Peak memory in bytes so far, as Linux counts it. If reset, the count starts anew."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=5_000_000)
    parser.add_argument("--plan", type=int, action="append", help="candidates of a planned epoch; repeatable")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--only-plan", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.only_plan:
        plan(options.only_plan)
        return
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {options.threads} thread(s)")
    per_batch(options.examples)
    for size in options.plan or [1_000_000, 10_000_000]:
        command = [sys.executable, __file__, "--only-plan", str(size), "--threads", str(options.threads)]
        subprocess.run(command, check=True, env=os.environ)


if __name__ == "__main__":
    main()
