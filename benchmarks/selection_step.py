"""Measure what the selection step costs without its forward pass, as ratios within one run.

    python benchmarks/selection_step.py

1. Against a literal version of the paper's algorithms 1 and 2: a deque and a per-example percentile in Python.
2. As a fraction of a full Traditional training step of a ResNet-20 on 32x32 images, batch 128.
3. How it grows with the history and with the data set.
"""

import platform
import random
import time
from collections import deque

import torch
from scipy.stats import percentileofscore
from torch import nn

from selective_backprop.chain.queue import Piece, join_pieces, take_first
from selective_backprop.ledger import Ledger
from selective_backprop.policies import PercentilePolicy
from selective_backprop.rows import Layout, take
from selective_backprop_lab.models.cifar_resnet import cifar_resnet

CANDIDATES, BATCH, BETA, ROUNDS = 128, 128, 2.0, 10


class PlainReading:
    """Algorithms 1 and 2 word by word, with ties at the mean of their ranks as in the authors' code."""

    def __init__(self, history_size):
        self.history, self.queue = deque(maxlen=history_size), []

    def percentile(self, loss):
        below = sum(other < loss for other in self.history)
        up_to = sum(other <= loss for other in self.history)
        return (below + up_to + 1) / (2 * len(self.history))

    def step(self, images, labels, losses):
        for image, label, loss in zip(images, labels, losses.tolist(), strict=True):
            self.history.append(loss)
            if random.random() < self.percentile(loss) ** BETA:
                self.queue.append((image, label))
            if len(self.queue) == BATCH:
                torch.stack([image for image, _ in self.queue])
                torch.stack([label for _, label in self.queue])
                self.queue = []


class OneCount(PlainReading):
    """The shortest way to a percentile. It gives ties the highest of their ranks, which differs a little from ours."""

    def percentile(self, loss):
        return sum(1 for other in self.history if other <= loss) / len(self.history)


class WithScipy(PlainReading):
    """The same with scipy's percentile, as in the authors' code."""

    def percentile(self, loss):
        return percentileofscore(self.history, loss, kind="rank") / 100


class WithSorting(PlainReading):
    """The same with ranks in a sorted history, as in the tests' reference."""

    def percentile(self, loss):
        ranks = [rank for rank, other in enumerate(sorted(self.history), start=1) if other == loss]
        return sum(ranks) / len(ranks) / len(self.history)


class Ours:
    """History, percentile, coin and queue as the library does them."""

    def __init__(self, history_size, num_examples=50_000, policy=None):
        # The rule of the paper, like the versions above. The default rule takes as long (see "rules").
        self.policy = policy or PercentilePolicy(beta=BETA, history_size=history_size, paper=True)
        self.pieces, self.waiting, self.layout, self.ledger = deque(), 0, None, Ledger(num_examples)
        self.generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(num_examples, (CANDIDATES,))

    def fill(self, history_size):
        self.policy.history.rank(torch.randn(history_size).exp())

    def step(self, images, labels, losses):
        data = (images, labels)
        self.layout = self.layout or Layout(data, CANDIDATES)
        selection = self.policy.select(losses, self.generator)
        rows = selection.positions
        columns = [take(column, rows) for column in self.layout.columns(data, CANDIDATES)]
        self.pieces.append(Piece(columns, self.ids[rows], selection.weights, selection.probabilities[rows]))
        self.waiting += len(rows)
        while self.waiting >= BATCH:
            join_pieces(take_first(self.pieces, BATCH), self.layout, None)
            self.waiting -= BATCH


class OursWithLedger(Ours):
    """Everything that SelectiveLoader does between scores and training batch."""

    def step(self, images, labels, losses):
        super().step(images, labels, losses)
        self.ledger.record_scores(self.ids, losses, 0)
        self.ledger.count_offered(self.ids)
        self.ledger.count_selected(self.ids[: CANDIDATES // 3])


def training_step():
    model = cifar_resnet(20)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()

    def step(images, labels, losses):
        optimizer.zero_grad()
        loss_fn(model(images), labels).backward()
        optimizer.step()

    return step


def timed(steps, repeats, example):
    """Mean seconds per call of each. They take turns in rounds, so that drift of the machine affects all alike."""
    images, labels = torch.randn(CANDIDATES, *example), torch.randint(10, (CANDIDATES,))
    batches = [torch.randn(CANDIDATES).exp() for _ in range(500)]  # repeated losses would be too easy to sort
    total = dict.fromkeys(steps, 0.0)
    for round_number in range(ROUNDS + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            for i in range(repeats[name]):
                step(images, labels, batches[(round_number * repeats[name] + i) % 500])
            if round_number:  # the first round warms up
                total[name] += time.perf_counter() - start
    return {name: total[name] / ROUNDS / repeats[name] for name in steps}


def row(label, values):
    print(f"{label:<72}" + "  ".join(values))


def main():
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    plain = {"one count": OneCount, "counting": PlainReading, "scipy": WithScipy, "sorting": WithSorting}
    steps = {name: reading(1024).step for name, reading in plain.items()} | {"ours": Ours(1024).step}
    cost = timed(steps, dict.fromkeys(plain, 4) | {"ours": 400}, example=(64,))
    print("us per candidate at candidate batch 128, history 1024:")
    for name in plain:
        row(f"  plain reading of the algorithm, {name}", [f"{cost[name] / CANDIDATES * 1e6:.2f}"])
    ratios = ", ".join(f"{cost[name] / cost['ours']:.0f}x faster than {name}" for name in plain)
    row("  ours", [f"{cost['ours'] / CANDIDATES * 1e6:.2f}", ratios])

    rules = {"the paper's": PercentilePolicy(beta=BETA, paper=True), "default": PercentilePolicy(beta=BETA)}
    steps = {name: Ours(1024, policy=policy).step for name, policy in rules.items()}
    cost = timed(steps, dict.fromkeys(rules, 400), example=(64,))
    row("rules: us per candidate", [f"{name}: {cost[name] / CANDIDATES * 1e6:.2f}" for name in rules])

    steps = {"ours": OursWithLedger(1024).step, "training": training_step()}
    cost = timed(steps, {"ours": 100, "training": 2}, example=(3, 32, 32))
    share = f"{cost['ours'] / cost['training']:.2%}"
    row(f"ours with images and ledger, of a {cost['training'] * 1e3:.0f} ms training step", [share])

    sizes = [2**10, 2**12, 2**14, 2**16, 2**18, 2**20]
    steps = {size: Ours(size).step for size in sizes}
    for size in sizes:  # fill the history
        steps[size].__self__.fill(size)
    cost = timed(steps, dict.fromkeys(sizes, 400), example=(64,))
    row("history size: us per candidate", [f"{s:,}: {cost[s] / CANDIDATES * 1e6:.2f}" for s in sizes])

    sizes = [10_000, 100_000, 1_000_000, 10_000_000]
    steps = {size: OursWithLedger(1024, size).step for size in sizes}
    cost = timed(steps, dict.fromkeys(sizes, 400), example=(64,))
    row("data set size: us per candidate", [f"{s:,}: {cost[s] / CANDIDATES * 1e6:.2f}" for s in sizes])


if __name__ == "__main__":
    main()
