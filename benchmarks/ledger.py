"""Measure the time to plan an epoch from the ledger, and the memory of the ledger.

    python benchmarks/ledger.py

It runs on one core, for 1,000,000 and 10,000,000 ids. It times deciding about every id, but not reading the sampler's
order.
"""

import platform
import time

import torch

import selective_backprop as sb
from selective_backprop.chain.id_batches import IdBatches
from selective_backprop.chain.plan import decide
from selective_backprop.ledger import Ledger
from selective_backprop.ranks import Alone
from selective_backprop.run import Run

BATCH = 128
METHODS = {
    "ledger_backprop()": sb.ledger_backprop(),
    "ledger_percentile(0.25)": sb.methods.ledger_percentile(0.25),
    "stale_selective_backprop(0.25)": sb.stale_selective_backprop(0.25),
    "predicted_selective_backprop()": sb.methods.predicted_selective_backprop(past_scores=2),
    "infobatch()": sb.infobatch(),
    "repeated_random(0.25)": sb.repeated_random(0.25),
}


def filled_ledger(size, needs):
    """A ledger as after a few epochs: losses of all ages, most of them small."""
    ledger, everything = Ledger(size, needs.columns), torch.arange(size)
    losses = torch.randn(size).mul(2).sub(2).exp()
    for epoch in range(2):
        ledger.record_scores(everything, losses, epoch)
    ledger.record_losses(everything, losses, 1)
    ledger.loss_epoch.random_(0, 3)
    return ledger


def seconds(method, ledger, batches):
    run = Run(method, 1, num_epochs=10, seed=0, ranks=Alone())
    run.ledger, run.epoch = ledger, 2
    start = time.perf_counter()
    found = decide(run, [batches], at_least=1, fewest=1)
    return time.perf_counter() - start, len(found.loads[0].ids)


def main():
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, 1 thread")
    sizes = [1_000_000, 10_000_000]
    orders = {size: IdBatches.of(torch.randperm(size).split(BATCH)) for size in sizes}
    for name, method in METHODS.items():
        cells = []
        for size in sizes:
            ledger = filled_ledger(size, method.scorer.needs)
            times = [seconds(method, ledger, orders[size]) for _ in range(3)]
            weight = sum(column.nbytes for column in ledger.state_dict(copy=False).values()) / size
            cells.append(
                f"{size:,}: {min(t for t, _ in times):6.2f} s, {times[0][1] / size:4.0%} kept, {weight:.0f} bytes an id"
            )
        print(f"{name:34}" + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
