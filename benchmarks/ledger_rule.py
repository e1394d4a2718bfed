"""Compare rules for how many of the hardest examples `ledger_backprop` trains on, by held-out error and compute.

    python benchmarks/ledger_rule.py DATA RESULTS.jsonl

DATA holds mnist/, svhn/ and fashion_mnist/, each with train.parquet and test.parquet. Runs that are already in the
results file are not repeated. The tables of all runs are printed at the end. No test set is used: a sixth of each
training set is held out, and a ResNet-8 of half the usual width trains on `--part` of the rest. All rules take the
hardest examples and differ only in how many. It runs on one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop import functional
from selective_backprop.lab.data.augment import Augment, Normalise, measure_mean_std
from selective_backprop.lab.data.datasets import ImageDataset, ImageSet, flip_labels, load_images, split_validation
from selective_backprop.lab.models.small import small_resnet
from selective_backprop.lab.runs.recipes import RECIPES
from selective_backprop.schedules import Schedule
from selective_backprop.scorers import TrainingLossScorer
from selective_backprop.types import Policy, Selection

# ---- rules: losses in, number of examples out


def share(losses: Tensor, kept: float) -> int:
    """Number of the hardest examples that carry this share of the sum."""
    ordered = losses.sort(descending=True).values.cumsum(0, dtype=torch.float64)
    return 1 + int((ordered < (kept - 1e-9) * ordered[-1]).sum())


def cap_quantile(quantile: float) -> Callable[[Tensor, float], int]:
    """The same, with losses cut at one of their quantiles."""
    return lambda losses, kept: share(losses.clamp(max=float(losses.quantile(quantile))), kept)


def capped_by_mean(losses: Tensor, times: float) -> Tensor:
    """Losses cut so that none is larger than a multiple of the mean of the cut losses."""
    capped = losses.double()
    for _ in range(200):
        lower = capped.clamp(max=times * float(capped.mean()))
        if float(capped.max() - lower.max()) <= 1e-6 * float(capped.max()):
            break
        capped = lower
    return capped


def cap_mean(times: float) -> Callable[[Tensor, float], int]:
    return lambda losses, kept: share(capped_by_mean(losses, times), kept)


def at_least(fraction: float) -> Callable[[Tensor, float], int]:
    """The plain share, but never fewer than this fraction of the candidates."""
    return lambda losses, kept: max(share(losses, kept), math.ceil(fraction * len(losses)))


def transformed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, float], int]:
    return lambda losses, kept: share(function(losses), kept)


# "default" is the library's own rule. When its results were stored, it was "cap 10 mean" with outliers by lot.
RULES: dict[str, Callable[[Tensor, float], int]] = {
    "share": share,
    "sqrt": transformed(torch.sqrt),
    "log1p": transformed(torch.log1p),
    "at least 20%": at_least(0.2),
    "cap q0.9": cap_quantile(0.9),
    "cap q0.95": cap_quantile(0.95),
    "cap 3 mean": cap_mean(3),
    "cap 5 mean": cap_mean(5),
    "cap 10 mean": cap_mean(10),
    "cap 20 mean": cap_mean(20),
}


class Rule(Policy):
    """A policy that takes the hardest candidates, as many as the rule says."""

    def __init__(self, name: str, kept: float) -> None:
        self.count, self.kept = RULES[name], kept

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        count = min(len(scores), self.count(scores, self.kept))
        positions, chances = functional.highest(scores, count, generator)
        return Selection(positions, torch.ones(positions.shape), chances)


def method_of(rule: str, kept: float) -> sb.Method:
    if rule == "plain":
        return sb.traditional()
    if rule == "default":
        return sb.ledger_backprop()
    return sb.Method(rule, TrainingLossScorer(max_age=10), Rule(rule, kept), Schedule())


# ---- images


def image_data(name: str, data: str, part: float) -> ImageSet:
    """Half-size images: a sixth is held out, a part of the others is for training, with wrong labels if asked for."""
    recipe_name, _, noise = name.partition("+")
    recipe = RECIPES[recipe_name]
    full = split_validation(load_images(recipe.dataset, data_dir=data, image_size=recipe.image_size), 1 / 6, seed=0)
    number = round(part * len(full.train_labels))
    ids = torch.randperm(len(full.train_labels), generator=torch.Generator().manual_seed(1))[:number]
    images, labels = full.train_images[ids], full.train_labels[ids]
    if noise:
        labels, _ = flip_labels(labels, float(noise) / 100, full.num_classes, seed=0)
    return ImageSet(name, images, labels, full.test_images, full.test_labels, full.classes)


def train_images(data: ImageSet, method: sb.Method, epochs: float, seed: int) -> tuple[float, float]:
    """Held-out error in percent, and compute in epochs of plain training."""
    recipe = RECIPES[data.name.partition("+")[0]]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = small_resnet(data.num_classes, data.train_images.shape[1], width=8)
    model = model.to(memory_format=torch.channels_last)
    normalise = Normalise(*measure_mean_std(data.train_images))
    augment = Augment(padding=recipe.padding, flip=recipe.flip, seed=seed)
    dataset = ImageDataset(data.train_images, data.train_labels)
    order = torch.Generator().manual_seed(seed)
    candidates = DataLoader(dataset, recipe.batch_size, shuffle=True, generator=order, collate_fn=ImageDataset.collate)
    loader = sb.SelectiveLoader(
        candidates,
        model,
        nn.CrossEntropyLoss(),
        method,
        transform=lambda batch: (augment(normalise(batch[0])), batch[1]),
        num_epochs=math.ceil(epochs),
        seed=seed,
    )
    options = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay, "nesterov": recipe.nesterov}
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, **options)
    model.train()
    for _ in range(math.ceil(epochs)):
        for images, labels in loader:
            progress = min(1.0, loader.progress * math.ceil(epochs) / epochs)
            optimizer.param_groups[0]["lr"] = recipe.lr_at(progress)
            loss = loader.loss(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if progress >= 1:
                break  # a budget may end within an epoch
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(normalise(images)) for images in data.test_images.split(1000)])
    return 100 * float((outputs.argmax(1) != data.test_labels).float().mean()), loader.stats.trained / len(dataset)


# ---- regression with one broken target


def train_regression(name: str, method: sb.Method, epochs: int, seed: int) -> tuple[float, float]:
    """Mean squared error on 2,000 other examples, and compute in epochs of plain training.

    The name has the network, the optimizer, its learning rate and the broken target: "linear adam 0.03 300". The
    learning rate decays to zero, except for the optimizer "constant".
    """
    network, optimizer_name, rate, outlier = name.split()
    draws = torch.Generator().manual_seed(seed)
    slopes = torch.randn(10, 1, generator=draws)

    def examples() -> tuple[Tensor, Tensor]:
        inputs = torch.randn(2000, 10, generator=draws)
        targets = inputs @ slopes + (2 * torch.sin(2 * inputs[:, :1]) if network == "mlp" else 0)
        return inputs, targets + 0.3 * torch.randn(2000, 1, generator=draws)

    (inputs, targets), (test_inputs, test_targets) = examples(), examples()
    targets[7] = float(outlier)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        hidden = [nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)]
        model = nn.Linear(10, 1) if network == "linear" else nn.Sequential(*hidden)
    order = torch.Generator().manual_seed(seed)
    candidates = DataLoader(TensorDataset(inputs, targets), 64, shuffle=True, generator=order)
    loader = sb.SelectiveLoader(candidates, model, nn.MSELoss(), method, num_epochs=epochs, seed=seed)
    make_optimizer = torch.optim.Adam if optimizer_name == "adam" else torch.optim.SGD
    optimizer = make_optimizer(model.parameters(), lr=float(rate))
    for _ in range(epochs):
        for batch_inputs, batch_targets in loader:
            if optimizer_name != "constant":
                optimizer.param_groups[0]["lr"] = float(rate) * (1 - loader.progress)
            loss = loader.loss(model(batch_inputs), batch_targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(test_inputs), test_targets)), loader.stats.trained / 2000


# ---- what is run

IMAGES = ("mnist_small", "mnist_small+10", "mnist_small+20", "fashion_mnist_small", "svhn_small")
REGRESSIONS = tuple(
    f"{setting} {outlier}"
    for setting in (
        *("linear adam 0.03", "linear sgd 0.003", "linear constant 0.003", "linear constant 0.01"),
        *("linear constant 0.03", "mlp adam 0.01", "mlp sgd 0.001"),
    )
    for outlier in ("0", "300", "10000")
)
Run = tuple[str, str, float, float, int]
"""Data, rule, share of the loss, epochs, seed."""


def planned_runs() -> Iterator[Run]:
    for data in REGRESSIONS:
        rules = ("plain", "share", "at least 20%", "sqrt", "cap 5 mean", "cap 10 mean", "default")
        yield from ((data, rule, 0.95, 20, seed) for rule in rules for seed in (0, 1, 2))
    for data in IMAGES:
        yield from ((data, rule, 0.95, 8, seed) for rule in ("default", "cap 10 mean", "share") for seed in (0, 1))
    for data in IMAGES:
        yield from ((data, "plain", 0, epochs, seed) for epochs in (3, 5, 8) for seed in (0, 1))
        yield from ((data, rule, 0.95, 4, seed) for rule in ("default", "share") for seed in (0, 1))
        yield from ((data, rule, 0.95, 8, 2) for rule in ("default", "share"))
    others = ("cap 3 mean", 0.9), ("cap q0.9", 0.9), ("cap q0.95", 0.95), ("at least 20%", 0.95), ("log1p", 0.95)
    for rule, kept in (
        *others,
        ("sqrt", 0.9),
        ("cap 5 mean", 0.95),
        ("cap 20 mean", 0.95),
    ):  # one seed, for a first look
        yield from ((data, rule, kept, 8, 0) for data in IMAGES)
    yield from ((data, "cap q0.9", 0.9, 8, 1) for data in IMAGES)  # repeated because it looked as good as the default


def make(run: Run, data_dir: str, part: float) -> dict[str, Any]:
    data, rule, kept, epochs, seed = run
    method = method_of(rule, kept)
    if data in REGRESSIONS:
        error, compute = train_regression(data, method, int(epochs), seed)
    else:
        error, compute = train_images(image_data(data, data_dir, part), method, epochs, seed)
    names = ("data", "rule", "kept", "epochs", "seed", "error", "compute")
    return dict(zip(names, (*run, error, compute), strict=True))


def print_table(results: list[dict[str, Any]], data: tuple[str, ...], digits: int, *, rules_across: bool) -> None:
    """Print error and compute as means over seeds, with the number of seeds in brackets."""
    cells: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for result in results:
        if result["data"] in data:
            share = "" if result["rule"] == "plain" else f" {result['kept']}"
            rule = f"{result['rule']}{share}, {result['epochs']} epochs"
            cells.setdefault((rule, result["data"]), []).append((result["error"], result["compute"]))
    rules = sorted({rule for rule, _ in cells}, key=lambda rule: (rule.rpartition(", ")[2], rule))
    rows, columns = (data, rules) if rules_across else (rules, data)
    print("| | " + " | ".join(columns) + " |\n| --- |" + " ---: |" * len(columns))
    for row in rows:
        texts = []
        for column in columns:
            errors, computes = zip(*cells.get((column, row) if rules_across else (row, column), [(0, 0)]), strict=True)
            text = f"{statistics.mean(errors):.{digits}f} at {statistics.mean(computes):.1f} ({len(errors)})"
            texts.append(text if computes[0] else "")
        print(f"| {row} | " + " | ".join(texts) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of the image sets")
    parser.add_argument("results", type=Path, help="file of results, one JSON object a line; made or added to")
    parser.add_argument("--part", type=float, default=0.25, help="part of the training images that is trained on")
    parser.add_argument(
        "--table", action="store_true", help="only print the tables of the results file, and train nothing"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [json.loads(line) for line in options.results.open()] if options.results.exists() else []
    done = {(r["data"], r["rule"], r["kept"], r["epochs"], r["seed"]) for r in results}
    for run in () if options.table else planned_runs():
        if run not in done:
            results.append(make(run, options.data, options.part))
            with options.results.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
    print_table(results, IMAGES, 2, rules_across=False)
    print()
    print_table(results, REGRESSIONS, 3, rules_across=True)


if __name__ == "__main__":
    main()
