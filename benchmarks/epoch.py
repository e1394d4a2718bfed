"""Compare the seconds per epoch of every method with a lower bound, within one run.

    python benchmarks/epoch.py [--examples 2048] [--rounds 3]

The bound is the cost of loading, selection passes and training steps alone, measured around each epoch: loaded x
loading + scored x forward + trained x (forward, backward, optimiser). The rest of an epoch is overhead of the library.
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.inference import NoTrace
from selective_backprop_lab.models.cifar_resnet import cifar_resnet

BATCH = 128
METHODS = {
    "traditional": sb.traditional(),
    "selective_backprop": sb.selective_backprop(1 / 3),
    "stale_selective_backprop": sb.stale_selective_backprop(1 / 3, every=2),
    "predicted_selective_backprop": sb.methods.predicted_selective_backprop(1 / 3),
    "distance_backprop": sb.methods.distance_backprop(minimum=0.3),
    "ledger_backprop": sb.methods.ledger_percentile(1 / 3),
    "infobatch": sb.infobatch(until=1.0),
    "kath18": sb.kath18(1 / 3, variable_start=False),
    "composer_backprop": sb.methods.composer_backprop(start=0, end=1),
    "top_k": sb.top_k(1 / 3),
    "random_backprop": sb.random_backprop(1 / 3),
    "repeated_random": sb.repeated_random(1 / 3),
}


class Run:
    """A method that trains its own model."""

    def __init__(self, method, data, epochs):
        self.model = cifar_resnet(20)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.loss_fn = nn.CrossEntropyLoss()
        loader = DataLoader(data, BATCH, shuffle=True)
        self.loader = sb.SelectiveLoader(loader, self.model, self.loss_fn, method, num_epochs=epochs)
        self.no_trace = NoTrace(self.model)

    def step(self, inputs, targets, loss_fn):
        loss_fn(self.model(inputs), targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def epoch(self):
        """Train for an epoch; return its seconds and counts."""
        stats = self.loader.stats
        before = stats.offered - stats.skipped_before_loading, stats.scored, stats.trained
        began = time.perf_counter()
        for inputs, targets in self.loader:
            self.step(inputs, targets, self.loader.loss)
        seconds = time.perf_counter() - began
        after = stats.offered - stats.skipped_before_loading, stats.scored, stats.trained
        return seconds, [b - a for a, b in zip(before, after, strict=True)]

    def costs(self, data):
        """Seconds per example of loading, of a selection pass and of a training step, each measured alone."""
        began = time.perf_counter()
        (inputs, targets), *_ = DataLoader(torch.utils.data.Subset(data, range(BATCH)), BATCH)
        loading = time.perf_counter() - began
        seconds = {"score": [], "train": []}
        for _ in range(3):
            began = time.perf_counter()
            with self.no_trace():
                nn.functional.cross_entropy(self.model(inputs), targets, reduction="none")
            seconds["score"].append(time.perf_counter() - began)
            began = time.perf_counter()
            self.step(inputs, targets, self.loss_fn)
            seconds["train"].append(time.perf_counter() - began)
        return [cost / BATCH for cost in (loading, *map(statistics.median, seconds.values()))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(arguments.examples, 3, 32, 32), torch.randint(10, (arguments.examples,)))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, ResNet-20, {arguments.examples} examples")
    runs = {name: Run(method, data, arguments.rounds + 1) for name, method in METHODS.items()}
    ratios = {name: [] for name in runs}
    shares = {name: [] for name in runs}
    for number in range(arguments.rounds + 1):
        for name, run in runs.items():
            before = run.costs(data)
            seconds, done = run.epoch()
            after = run.costs(data)
            bound = sum(amount * (a + b) / 2 for amount, a, b in zip(done, before, after, strict=True))
            if number:  # the first epoch warms up, and some methods do other work in it
                ratios[name].append(seconds / bound)
                shares[name].append(seconds / (arguments.examples * (before[0] + before[2])))
    print(f"{'method':<30} {'epoch / bound':>14} {'epoch / Traditional bound':>26}")
    for name in runs:
        print(f"{name:<30} {statistics.median(ratios[name]):>14.2f} {statistics.median(shares[name]):>26.2f}")


if __name__ == "__main__":
    main()
