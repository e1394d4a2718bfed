"""Compare rules for how many of the hardest examples `ledger_backprop` trains on, and for when it stops skipping.

    python benchmarks/ledger_rule.py DATA RESULTS [--checks RULE]

DATA holds mnist/, svhn/ and cifar10/, each with train.parquet and test.parquet. No test set is used: errors on images
are on the 10,000 training examples that the leaderboard holds out. All rules take the hardest examples and differ in
what a loss counts for, so in how many it takes to reach 95% of the total. Results go into the folder RESULTS, and runs
that are there are not repeated. The tables of all runs are printed at the end. How the winner is chosen stands in
results/2026-11-18-ledger-rule/README.md, written before the runs. It runs on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from broken_targets import train as train_regression
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

import selective_backprop as sb
from selective_backprop import functional
from selective_backprop.ledger import LedgerRows
from selective_backprop.schedules import Schedule
from selective_backprop.scorers import TrainingLossScorer
from selective_backprop.scorers.forgetting import ForgettingCheck, comes_back
from selective_backprop.types import Policy, Selection
from selective_backprop_lab.data.augment import Augment, Normalise, measure_mean_std
from selective_backprop_lab.data.datasets import ImageDataset, ImageSet, flip_labels
from selective_backprop_lab.leaderboard.workloads import Workload, find_workload
from selective_backprop_lab.models import make_model
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.training import Prepare, make_optimizer
from selective_backprop_lab.study.frontier import Budget, Frontier

# ---- what a loss counts for: losses >= 0 in falling order in, what they count for out

CAP = 20.0


def mean_of_capped(losses: Tensor) -> Tensor:
    """No loss counts for more than 20 times the mean of what counts, as until now."""
    counted = losses.double()
    for _ in range(200):
        lower = counted.clamp(max=CAP * float(counted.mean()))
        if float(counted.max() - lower.max()) <= 1e-6 * float(counted.max()):
            break
        counted = lower
    return counted


def plain_mean(losses: Tensor) -> Tensor:
    """No loss counts for more than 20 times the mean, as documented."""
    return losses.clamp(max=CAP * float(losses.mean()))


def trimmed_mean(losses: Tensor) -> Tensor:
    """No loss counts for more than 20 times the mean of all but the highest hundredth."""
    return losses.clamp(max=CAP * float(losses[len(losses) // 100 :].mean()))


def median(losses: Tensor) -> Tensor:
    """No loss counts for more than 100 times the median."""
    return losses.clamp(max=100 * float(losses.median()))


def no_cap(losses: Tensor) -> Tensor:
    """Every loss counts as it is."""
    return losses


RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of capped": mean_of_capped,
    "plain mean": plain_mean,
    "trimmed mean": trimmed_mean,
    "median": median,
    "no cap": no_cap,
}


def fraction_kept(losses: Tensor, rule: str, share: float = 0.95) -> float:
    """Fraction of the losses (>= 0, falling) that it takes to reach this share of what all count for."""
    sums = RULES[rule](losses).cumsum(0, dtype=torch.float64)
    return (1 + int((sums < (share - 1e-9) * sums[-1]).sum())) / len(losses)


class RulePolicy(Policy):
    """Takes the hardest candidates, as many as the rule says. Outliers do not count, and are taken by lot."""

    def __init__(self, rule: str, skip_at_least: float) -> None:
        self.rule, self.skip_at_least = rule, skip_at_least

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        losses = functional.excess_loss(scores)
        outliers = functional.is_outlier(losses)
        usual = (~outliers).nonzero().flatten()
        fraction = max(0.1, fraction_kept(functional.descending(losses[usual]), self.rule))
        fraction = 1.0 if fraction > 1 - self.skip_at_least else fraction
        positions, of_usual = functional.highest(scores[usual], math.ceil(fraction * len(usual) - 1e-9), generator)
        chances = torch.full((len(scores),), fraction, dtype=torch.float64).index_copy_(0, usual, of_usual)
        chosen = outliers & (torch.rand(len(scores), generator=generator, dtype=torch.float64) < fraction)
        chosen[usual[positions]] = True
        selected = chosen.nonzero().flatten()
        return Selection(selected, torch.ones(selected.shape), chances)


# ---- what the rise of the losses of left-out examples is compared with: losses >= 0 in, one number out

SCALES: dict[str, Callable[[Tensor], float]] = {
    "mean": lambda losses: float(losses.mean()),
    "mean of capped": lambda losses: float(mean_of_capped(losses).mean()),
    "easiest 95%": lambda losses: float(functional.descending(losses)[len(losses) // 20 :].mean()),
}


class ScaledScorer(TrainingLossScorer):
    """The training loss, with the rise of left-out examples as a share of another number than the mean loss."""

    def __init__(self, scale: str, most_rise: float | None) -> None:
        super().__init__(max_age=10, most_rise=most_rise)
        self.scale = SCALES[scale]

    def _must_come_back(self, check: ForgettingCheck, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        earlier, earlier_epochs = rows.loss_before, rows.loss_before_epoch
        came_back = (rows.loss_epoch == epoch - 1) & (earlier_epochs >= 0) & (earlier_epochs < epoch - 2)
        known = functional.excess_loss(rows.loss[rows.loss_epoch >= 0])
        check.learn(earlier[came_back], rows.loss[came_back], self.scale(known) if len(known) else 0.0)
        return torch.ones_like(came_back) if check.forgets else comes_back(ids, epoch)


class Ledger(NamedTuple):
    """A candidate for the defaults of `ledger_backprop`."""

    rule: str
    scale: str = "mean"
    most_rise: float | None = 0.2
    skip_at_least: float = 0.3

    def method(self) -> sb.Method:
        scorer = ScaledScorer(self.scale, self.most_rise)
        return sb.Method("ledger_rule", scorer, RulePolicy(self.rule, self.skip_at_least), Schedule())

    def __str__(self) -> str:
        rise = "no check" if self.most_rise is None else f"rise {self.most_rise:g} of {self.scale}"
        return f"{self.rule}, {rise}, skip {self.skip_at_least:g}"


# ---- images


class Plan(NamedTuple):
    """What is run on a set of images."""

    workload: Workload
    rate: float
    """Factor on the recipe's learning rate, the same for all arms."""
    plain: tuple[int, ...]
    ledger: tuple[int, ...]
    seeds: tuple[int, ...]


def _with_wrong(plan: Plan, share: float) -> Plan:
    return plan._replace(workload=dataclasses.replace(plan.workload, label_noise=share))


_tiny = Plan(find_workload("mnist"), 1.5, (2, 3, 4, 6, 10), (6, 12), (3001, 3002, 3003))
_resnet_workload = dataclasses.replace(find_workload("mnist"), recipe=find_recipe("mnist_small"))
_resnet = Plan(_resnet_workload, 1.0, (2, 4, 8), (10,), (3001, 3002))
_svhn = Plan(find_workload("svhn"), 1.0, (3, 4, 6, 8), (8,), (3001, 3002))
_cifar10 = Plan(find_workload("cifar10"), 1.0, (18, 30), (30,), (3001, 3002))

IMAGES = {
    "mnist": _tiny,
    "mnist, 3% wrong": _with_wrong(_tiny, 0.03),
    "mnist, 10% wrong": _with_wrong(_tiny, 0.1),
    "mnist, ResNet-8": _resnet,
    "mnist, ResNet-8, 3% wrong": _with_wrong(_resnet, 0.03),
    "svhn": _svhn,
    "svhn, 10% wrong": _with_wrong(_svhn, 0.1),
    "cifar10": _cifar10,
}


def train_images(plan: Plan, data: ImageSet, method: sb.Method, epochs: int, seed: int) -> tuple[float, float]:
    """Held-out error, and compute in epochs of plain training."""
    recipe, labels = plan.workload.recipe, data.train_labels
    if plan.workload.label_noise:
        labels, _ = flip_labels(labels, plan.workload.label_noise, data.num_classes, seed=seed)
    model = make_model(recipe.model, num_classes=data.num_classes, channels=data.train_images.shape[1], seed=seed)
    model = model.to(memory_format=torch.channels_last)
    normalise = Normalise(*measure_mean_std(data.train_images))
    dataset, order = ImageDataset(data.train_images, labels), torch.Generator().manual_seed(seed)
    candidates = DataLoader(
        dataset,
        recipe.batch_size,
        sampler=RandomSampler(dataset, generator=order),
        generator=order,
        collate_fn=dataset.collate,
        drop_last=True,
    )
    prepare = Prepare(Augment(padding=recipe.padding, flip=recipe.flip, cutout=recipe.cutout, seed=seed), normalise)
    loader = sb.SelectiveLoader(
        candidates, model, nn.CrossEntropyLoss(), method, transform=prepare, num_epochs=epochs, seed=seed
    )
    optimizer = make_optimizer(recipe, model.parameters(), torch.device("cpu"))
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.param_groups[0]["lr"] = plan.rate * recipe.lr_at(loader.progress)
            loss = loader.loss(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(normalise(images)) for images in data.test_images.split(1000)])
    return float((outputs.argmax(1) != data.test_labels).float().mean()), loader.stats.trained / len(dataset)


# ---- regressions with broken targets

REGRESSIONS = {
    f"{network}, {share:.1%} at {target:g}": (network, share, target)
    for network in ("linear", "mlp")
    for share, target in ((0.0, 0.0), (0.005, 30.0), (0.015, 10.0), (0.015, 30.0), (0.03, 10.0), (0.03, 30.0))
}
REGRESSION_SEEDS = (3001, 3002, 3003)


# ---- what is run

FIRST = tuple(Ledger(rule) for rule in RULES)
"""The rules, with today's check for forgetting."""


def second(rule: str) -> tuple[Ledger, ...]:
    """Checks for forgetting and values of `skip_at_least`, with the rule that was chosen."""
    checks = ("mean", 0.2), ("mean", None), ("mean of capped", 0.2), ("easiest 95%", 0.3), ("easiest 95%", 0.4)
    return (*(Ledger(rule, *check) for check in checks), Ledger(rule, skip_at_least=0.2))


CHECKED = ("mnist, 3% wrong", "mnist, 10% wrong", "svhn", "svhn, 10% wrong", "cifar10")
"""Image sets on which losses of left-out examples rise, and checks for forgetting can differ."""


class Run(NamedTuple):
    data: str
    arm: str
    epochs: int
    seed: int


def planned_runs(ledgers: tuple[Ledger, ...], images: Iterable[str]) -> Iterator[tuple[Run, Ledger | None]]:
    for name in images:
        plan = IMAGES[name]
        for seed in plan.seeds:
            yield from ((Run(name, "plain", epochs, seed), None) for epochs in plan.plain)
            yield from ((Run(name, str(ledger), n, seed), ledger) for ledger in ledgers for n in plan.ledger)
    for name in REGRESSIONS:
        for seed in REGRESSION_SEEDS:
            yield Run(name, "plain", 20, seed), None
            yield from ((Run(name, str(ledger), 20, seed), ledger) for ledger in ledgers)


def make(run: Run, ledger: Ledger | None, data: ImageSet | None) -> tuple[float, float]:
    method = sb.traditional() if ledger is None else ledger.method()
    if data is None:
        network, share, target = REGRESSIONS[run.data]
        return train_regression(network, method, share, target, run.seed, nn.MSELoss())
    return train_images(IMAGES[run.data], data, method, run.epochs, run.seed)


# ---- tables

Results = dict[Run, tuple[float, float]]


def arm_of(results: Results, data: str, arm: str, epochs: int) -> Budget | None:
    found = [value for run, value in results.items() if (run.data, run.arm, run.epochs) == (data, arm, epochs)]
    return Budget(tuple(error for error, _ in found), tuple(compute for _, compute in found)) if found else None


def image_table(results: Results, ledgers: tuple[Ledger, ...], images: Sequence[str]) -> str:
    """Error, compute and multiplier of every arm at every length, and each ledger's geometric mean of the latter."""
    lines = ["| | " + " | ".join(images) + " | geometric mean of M |", "| --- |" + " ---: |" * (len(images) + 1)]
    plain = {name: [arm for n in IMAGES[name].plain if (arm := arm_of(results, name, "plain", n))] for name in images}
    points = (", ".join(f"{100 * arm.error:.2f}% at {arm.cost:.2f}" for arm in plain[name]) for name in images)
    lines.append("| plain training | " + " | ".join(points) + " | |")
    for ledger in ledgers:
        cells, means = [], []
        for name in images:
            arms = [arm for n in IMAGES[name].ledger if plain[name] and (arm := arm_of(results, name, str(ledger), n))]
            multiples = [Frontier(plain[name]).multiple(arm) for arm in arms]
            cells.append(
                ", ".join(
                    f"{100 * arm.error:.2f}% at {arm.cost:.2f} ({multiple})"
                    for arm, multiple in zip(arms, multiples, strict=True)
                )
            )
            means += [statistics.fmean(math.log(multiple.value) for multiple in multiples)] if multiples else []
        mean = f"{math.exp(statistics.fmean(means)):.2f}" if means else ""
        lines.append(f"| {ledger} | " + " | ".join(cells) + f" | {mean} |")
    return "\n".join(lines)


def regression_table(results: Results, ledgers: tuple[Ledger, ...]) -> str:
    """Error over plain training's at compute, the geometric mean of the ratios and the highest one."""
    lines = [
        "| | " + " | ".join(REGRESSIONS) + " | geometric mean | highest |",
        "| --- |" + " ---: |" * (len(REGRESSIONS) + 2),
    ]
    for ledger in ledgers:
        cells, ratios = [], []
        for name in REGRESSIONS:
            plain, arm = arm_of(results, name, "plain", 20), arm_of(results, name, str(ledger), 20)
            if plain is None or arm is None:
                cells.append("")
                continue
            ratios.append(arm.error / plain.error)
            cells.append(f"{ratios[-1]:.2f} at {arm.cost:.1f}")
        ends = f"{statistics.geometric_mean(ratios):.2f} | {max(ratios):.2f}" if ratios else " | "
        lines.append(f"| {ledger} | " + " | ".join(cells) + f" | {ends} |")
    return "\n".join(lines)


def read(folder: Path) -> Results:
    lines = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return {Run(**{name: one[name] for name in Run._fields}): (one["error"], one["compute"]) for one in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the image sets")
    parser.add_argument("results", type=Path, help="folder of results, in files of one JSON object a line")
    parser.add_argument("--checks", metavar="RULE", help="compare checks for forgetting with this rule, not rules")
    parser.add_argument("--table", action="store_true", help="print the tables only, and train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results, ledgers = read(options.results), second(options.checks) if options.checks else FIRST
    images = CHECKED if options.checks else tuple(IMAGES)
    file = options.results / ("checks.jsonl" if options.checks else "rules.jsonl")
    loaded: tuple[str, ImageSet | None] = "", None
    for run, ledger in () if options.table else planned_runs(ledgers, images):
        if run in results:
            continue
        if run.data != loaded[0]:
            plan = IMAGES.get(run.data)
            loaded = run.data, None if plan is None else plan.workload.load(options.data, held_out=True)
        error, compute = results[run] = make(run, ledger, loaded[1])
        content: dict[str, Any] = {**run._asdict(), "error": round(error, 6), "compute": round(compute, 4)}
        with file.open("a") as lines:
            lines.write(json.dumps(content) + "\n")
    print(image_table(results, ledgers, images), regression_table(results, ledgers), sep="\n\n")


if __name__ == "__main__":
    main()
