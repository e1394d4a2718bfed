"""Compare the epoch times that `advise` predicts with measured ones, within one run.

    python benchmarks/advice.py

It trains ResNet-20 on 32x32 images in memory with batches of 128. Methods take turns; the first epoch is not counted.
Goal: predictions within 15%.
"""

import argparse
import platform
import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop_lab.models import make_model

METHODS = {
    "traditional()": sb.traditional,
    "selective_backprop(0.33)": lambda: sb.selective_backprop(1 / 3),
    "stale_selective_backprop(0.33, every=3)": lambda: sb.stale_selective_backprop(1 / 3, every=3),
    "random_backprop(0.33)": lambda: sb.random_backprop(1 / 3),
}
EPOCHS = 4  # the first one warms up; of the next three, one has fresh scores and two have stale ones


def measure(method, data, model_name):
    """Make a function that trains for an epoch and returns its seconds and the fraction of the data trained on."""
    torch.manual_seed(0)
    model = make_model(model_name, num_classes=10, channels=3, seed=0)
    loader = sb.SelectiveLoader(DataLoader(data, 128, shuffle=True), model, nn.CrossEntropyLoss(), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def epoch():
        began, before = time.perf_counter(), loader.stats.trained
        for inputs, targets in loader:
            optimizer.zero_grad()
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
        return time.perf_counter() - began, (loader.stats.trained - before) / len(data)

    return epoch


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batches", type=int, default=24, help="batches per epoch")
    parser.add_argument("--size", type=int, default=32, help="pixels per side of the images")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long advise measures")
    chosen = parser.parse_args(arguments)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    images = torch.randn(128 * chosen.batches, 3, chosen.size, chosen.size)
    data = TensorDataset(images, torch.randint(10, (len(images),)))
    model = make_model(chosen.model, num_classes=10, channels=3, seed=0)
    loader = DataLoader(data, 128, shuffle=True)
    advice = sb.advise(model, nn.CrossEntropyLoss(), loader, seconds=chosen.seconds)
    print(advice, "\n")
    epochs = {name: measure(make(), data, chosen.model) for name, make in METHODS.items()}
    seconds = {name: [] for name in METHODS}
    shares = {name: [] for name in METHODS}
    for number in range(EPOCHS):
        for name, epoch in epochs.items():
            taken, share = epoch()
            if number:
                seconds[name].append(taken)
                shares[name].append(share)
    predicted = {option.method: option for option in advice.options}
    training = predicted["traditional()"].seconds
    for name in METHODS:
        # With random labels losses differ little and change much, so the fraction trained on is not the one asked for.
        mean, share = statistics.fmean(seconds[name]), statistics.fmean(shares[name])
        expected = predicted[name].seconds + (share - predicted[name].selectivity) * training
        print(
            f"{name:<42} measured {mean:6.2f} s at selectivity {share:.2f}, predicted {expected:6.2f} s: "
            f"{expected / mean - 1:+.0%}"
        )


if __name__ == "__main__":
    main()
