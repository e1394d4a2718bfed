"""Find wrong labels by the audit of one run, against cleanlab's confident learning, and try audit=True.

    python benchmarks/audit.py DATA RESULTS.jsonl            # runs what is missing in RESULTS.jsonl, then prints tables
    python benchmarks/audit.py DATA RESULTS.jsonl --tables   # prints the tables alone
    python benchmarks/audit.py DATA RESULTS.jsonl --seeds 10,11,12,13,14

DATA holds mnist/, fashion_mnist/, svhn/ and cifar10/, each with train.parquet and test.parquet. It needs cleanlab.
Seeds are the outermost loop, and the tables say how many there are. It runs on one thread.

Protocol, fixed before the runs:

- Data: 2,000 training images (drawn with seed 0) at half size, and 2,000 test images. A share of 5, 10 or 20% of the
  labels is made wrong: "uniform" draws another class, "confusable" takes the class with the nearest mean image.
- Network: two convolutions with BatchNorm and a linear layer, 8 epochs of SGD, batches of 100, the learning rate falls
  linearly to 0. The rules of the audit were chosen on runs of the same data sets with 3,000 or 4,000 images, at seeds
  0 and 7, partly with the same network.
- Audit: one plain run with audit=True, ranked by `label_score`. Extra training: none.
- Audit under selection: the same from a run of `ledger_backprop()`. To be within 5% of the plain run's.
- Features: both audits again with `features=`, the inputs of the last layer by one forward pass over the data after the
  run, 1/24 of the run's compute. The ledger's is held against the plain audit without features (what one would have had
  without selection) and with them.
- The correction for selection (`statistics.selection_shift`), looks instead of values carried forward, and the share of
  neighbours were chosen on seeds 100 to 103 of these settings. The confirming runs have seeds 10 to 14, which no choice
  has seen. Before that, seeds 0 to 3 were run with older rules.
- cleanlab: predicted probabilities by 5-fold cross-validation of the same network and epochs (5 more runs on four
  fifths of the data). Two rankings: label quality by self-confidence, and those that `find_label_issues` finds first,
  then by self-confidence. The audit is held against the better of the two means.
- Calibration: mean distance between probability and share of wrong labels in ten groups of equal size (ECE).
- Audit while training: `ledger_backprop(audit=True)` against `ledger_backprop()`, at 10 and 20% uniform noise: ratio of
  their compute multipliers (`selective_backprop_lab.study.frontier`) against plain runs of 2, 3, 4, 6 and 8 epochs on
  the same noisy labels. To be at least 1.1.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop_lab.data.datasets import ImageDataset, flip_labels, load_images
from selective_backprop_lab.runs.records import environment
from selective_backprop_lab.study.agreement import rank_correlation
from selective_backprop_lab.study.frontier import Budget, Frontier

SIZES = {"mnist": 14, "fashion_mnist": 14, "svhn": 16, "cifar10": 16}
SHARES, KINDS, EPOCHS, FOLDS = (0.05, 0.1, 0.2), ("uniform", "confusable"), 8, 5
SEEDS = (10, 11, 12, 13, 14)
LENGTHS = (2, 3, 4, 6)  # further plain runs, for compute multipliers
NUM_TRAIN, NUM_TEST, BATCH, RATE = 2000, 2000, 100, 0.05
STATISTICS = ("label_score", "aum", "confidence", "variability", "forgotten", "learned", "last_loss")
Row = dict[str, Any]


class Data:
    """A part of an image set, normalised, with images in memory."""

    def __init__(self, name: str, folder: Path, *, num_train: int = NUM_TRAIN, num_test: int = NUM_TEST) -> None:
        found = load_images(name, data_dir=folder, image_size=SIZES.get(name))
        generator = torch.Generator().manual_seed(0)
        train = torch.randperm(len(found.train_labels), generator=generator)[:num_train]
        test = torch.randperm(len(found.test_labels), generator=generator)[:num_test]
        images = found.train_images[train].float()
        self._mean, self._std = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
        self.images, self.labels = self._normal(images), found.train_labels[train].clone()
        self.test_images, self.test_labels = self._normal(found.test_images[test].float()), found.test_labels[test]
        self.num_classes = found.num_classes

    def _normal(self, images: Tensor) -> Tensor:
        return ((images - self._mean) / self._std).contiguous(memory_format=torch.channels_last)

    def with_noise(self, share: float, kind: str, seed: int) -> tuple[Tensor, Tensor]:
        """Return noisy labels, and which of them are wrong."""
        labels, wrong = flip_labels(self.labels, share, self.num_classes, seed=seed)
        if kind == "confusable":
            means = torch.stack([self.images[self.labels == label].mean(0) for label in range(self.num_classes)])
            distances = torch.cdist(means.flatten(1), means.flatten(1)).fill_diagonal_(float("inf"))
            labels = torch.where(wrong, distances.argmin(1)[self.labels], self.labels)
        return labels, wrong


def network(image: Tensor, num_classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        body = nn.Sequential(
            nn.Conv2d(image.shape[0], 32, 4, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            features = body.eval()(image.unsqueeze(0)).shape[1]
        model = nn.Sequential(body, nn.Linear(features, num_classes))
    return model.to(memory_format=torch.channels_last)


def train(
    images: Tensor, labels: Tensor, method: sb.Method, num_classes: int, *, epochs: int, seed: int, record: bool = True
) -> tuple[nn.Module, sb.SelectiveLoader]:
    model = network(images[0], num_classes, seed)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    data, order = ImageDataset(images, labels), torch.Generator().manual_seed(seed)
    batches = DataLoader(data, BATCH, shuffle=True, generator=order, collate_fn=data.collate)
    loader = sb.SelectiveLoader(
        batches,
        model,
        nn.CrossEntropyLoss(),
        method,
        num_epochs=epochs,
        seed=seed,
        audit=record,
    )
    model.train()
    for _ in range(epochs):
        for inputs, targets in loader:
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - loader.progress) + 1e-4
            loss = loader.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval(), loader


@torch.no_grad()
def probabilities(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(part).softmax(1) for part in images.split(500)])


@torch.no_grad()
def features(model: nn.Module, data: Data) -> Tensor:
    return torch.cat([model[0](part) for part in data.images.split(500)])


def error(model: nn.Module, data: Data) -> float:
    return float((probabilities(model, data.test_images).argmax(1) != data.test_labels).float().mean())


def cross_validated(data: Data, labels: Tensor, *, epochs: int, seed: int) -> np.ndarray:
    """Return (M, C) probabilities, each from a network that did not train on the example."""
    fold = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)) % FOLDS
    result = torch.empty(len(labels), data.num_classes)
    for number in range(FOLDS):
        rest, out = fold != number, fold == number
        model, _ = train(
            data.images[rest],
            labels[rest],
            sb.traditional(),
            data.num_classes,
            epochs=epochs,
            seed=seed + number,
            record=False,
        )
        result[out] = probabilities(model, data.images[out])
    return result.numpy()


# ---- measures


def average_precision(wrong: np.ndarray, suspicion: np.ndarray) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(wrong, suspicion))


def calibration_error(wrong: np.ndarray, chances: np.ndarray) -> float:
    groups = np.array_split(np.argsort(chances, kind="stable"), 10)
    return float(sum(abs(chances[group].mean() - wrong[group].mean()) * len(group) for group in groups) / len(wrong))


def measure(found: sb.dynamics.Audit, wrong: np.ndarray, truth: np.ndarray) -> Row:
    return {
        "ap": average_precision(wrong, -found.label_score),
        "ece": calibration_error(wrong, found.wrong),
        "rate": found.noise_rate,
        "expected": found.expected_wrong() / len(found),
        "flagged": len(found.suspects()),
        "flagged_wrong": int(wrong[found.suspects()].sum()),
        "suggested_right": float((found.suggested[wrong] == truth[wrong]).mean()),
    }


def one_setting(data: Data, share: float, kind: str, seed: int, *, epochs: int = EPOCHS) -> Row:
    """Audit a plain run and a run with selection, and cross-validate, on the same noisy labels."""
    import cleanlab

    labels, flipped = data.with_noise(share, kind, seed)
    wrong, truth, given = flipped.numpy(), data.labels.numpy(), labels.numpy()
    clock = time.process_time()
    model, loader = train(data.images, labels, sb.traditional(), data.num_classes, epochs=epochs, seed=seed)
    plain, seconds = sb.audit(loader), {"plain": time.process_time() - clock}
    row: Row = {"error": error(model, data), "plain": measure(plain, wrong, truth)}
    clock = time.process_time()
    row["plain_features"] = measure(sb.audit(loader, features=features(model, data)), wrong, truth)
    seconds["features"] = time.process_time() - clock
    model, loader = train(data.images, labels, sb.ledger_backprop(), data.num_classes, epochs=epochs, seed=seed)
    ledger = sb.audit(loader)
    row |= {"ledger": measure(ledger, wrong, truth), "ledger_error": error(model, data)}
    row["ledger_features"] = measure(sb.audit(loader, features=features(model, data)), wrong, truth)
    row["ledger_compute"] = loader.stats.trained / len(labels)
    row["correlations"] = {
        name: rank_correlation(*(torch.from_numpy(getattr(a, name)).double() for a in (plain, ledger)))
        for name in STATISTICS
    }
    clock = time.process_time()
    chances = cross_validated(data, labels, epochs=epochs, seed=seed)
    seconds["cleanlab"] = time.process_time() - clock
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quality = cleanlab.rank.get_label_quality_scores(given, chances)
        issues = cleanlab.filter.find_label_issues(given, chances)
    row["cleanlab"] = {
        "self_confidence": average_precision(wrong, -quality),
        "issues_first": average_precision(wrong, issues - quality),
        "issues": int(issues.sum()),
        "issues_wrong": int(wrong[issues].sum()),
    }
    return row | {"seconds": seconds}


def audited(data: Data, share: float, seed: int, *, epochs: int = EPOCHS) -> Row:
    """Train with audit=True, and plainly for other lengths."""
    labels, flipped = data.with_noise(share, "uniform", seed)
    method = sb.ledger_backprop(audit=True)
    model, loader = train(data.images, labels, method, data.num_classes, epochs=epochs, seed=seed)
    left_alone = loader.scorer.suspects
    row: Row = {"error": error(model, data), "compute": loader.stats.trained / len(labels)}
    row |= {"left_alone": int(left_alone.sum()), "left_alone_wrong": int((left_alone & flipped).sum())}
    plain: dict[str, float] = {}
    for length in LENGTHS:
        model, _ = train(
            data.images, labels, sb.traditional(), data.num_classes, epochs=length, seed=seed, record=False
        )
        plain[str(length)] = error(model, data)
    return row | {"plain_errors": plain}


# ---- running


def settings(seeds: Sequence[int] = SEEDS) -> list[Row]:
    found: list[Row] = []
    for seed in seeds:
        for name in SIZES:
            for share in SHARES:
                found += [{"data": name, "share": share, "kind": kind, "seed": seed} for kind in KINDS]
                if share >= 0.1:
                    found.append({"data": name, "share": share, "kind": "audit", "seed": seed})
    return found


def read(file: Path) -> dict[tuple[Any, ...], Row]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {_key(row): row for row in map(json.loads, lines)}


def _key(row: Row) -> tuple[Any, ...]:
    return row["data"], row["share"], row["kind"], row["seed"]


def run(folder: Path, file: Path, seeds: Sequence[int]) -> None:
    done, loaded = read(file), dict[str, Data]()
    for setting in settings(seeds):
        if _key(setting) in done:
            continue
        name, share, kind, seed = _key(setting)
        data = loaded.setdefault(name, loaded.get(name) or Data(name, folder))
        row = audited(data, share, seed) if kind == "audit" else one_setting(data, share, kind, seed)
        with file.open("a") as lines:
            lines.write(json.dumps(setting | row) + "\n")
        print(*_key(setting), flush=True)


# ---- tables


def _pm(values: Sequence[float]) -> str:
    spread = stdev(values) if len(values) > 1 else float("nan")
    return f"{fmean(values):.3f} ± {spread:.3f}"


def tables(rows: Sequence[Row]) -> list[str]:
    """Return the lines of all tables, and whether each aim was met."""
    found = [row for row in rows if row["kind"] in KINDS]
    groups = [(name, kind, share) for name in SIZES for kind in KINDS for share in SHARES]
    lines = ["Average precision of finding wrong labels, mean ± standard deviation over seeds", ""]
    lines.append(
        "| data | noise | seeds | error | audit | ledger | cleanlab | audit - cleanlab | ledger / audit | "
        "audit, features | ledger, features | ledger, features / audit | / audit, features |"
    )
    lines.append("| --- | --- |" + " ---: |" * 11)
    means: list[tuple[float, ...]] = []
    for name, kind, share in groups:
        mine = [row for row in found if _key(row)[:3] == (name, share, kind)]
        if not mine:
            continue
        which = ("plain", "ledger", "plain_features", "ledger_features")
        plain, ledger, plain_more, ledger_more = ([row[arm]["ap"] for row in mine] for arm in which)
        theirs = max(([row["cleanlab"][how] for row in mine] for how in ("self_confidence", "issues_first")), key=fmean)
        means.append(tuple(map(fmean, (plain, ledger, theirs, plain_more, ledger_more))))
        lines.append(
            f"| {name} | {share:.0%} {kind} | {len(mine)} | {fmean(row['error'] for row in mine):.3f} | {_pm(plain)} | "
            f"{_pm(ledger)} | {_pm(theirs)} | {fmean(plain) - fmean(theirs):+.3f} | "
            f"{fmean(ledger) / fmean(plain):.3f} | {_pm(plain_more)} | {_pm(ledger_more)} | "
            f"{fmean(ledger_more) / fmean(plain):.3f} | {fmean(ledger_more) / fmean(plain_more):.3f} |"
        )
    if not means:
        return ["no results yet"]
    plain_mean, ledger_mean, their_mean, plain_more_mean, ledger_more_mean = map(fmean, zip(*means, strict=True))
    at_least = sum(row[0] >= row[2] for row in means)
    lines += ["", f"mean of all: audit {plain_mean:.3f}, with ledger {ledger_mean:.3f}, cleanlab {their_mean:.3f}"]
    lines.append(f"with features: audit {plain_more_mean:.3f}, with ledger {ledger_more_mean:.3f}")
    lines.append(
        f"aim: at least as good as cleanlab: {at_least} of {len(means)} settings, mean {_met(plain_mean >= their_mean)}"
    )
    for words, mine_at, against in (
        ("ledger within 5%", 1, 0),
        ("ledger with features within 5% of the audit without", 4, 0),
        ("ledger with features within 5% of the audit with features", 4, 3),
    ):
        within = sum(row[mine_at] >= 0.95 * row[against] for row in means)
        total, base = (fmean(row[column] for row in means) for column in (mine_at, against))
        lines.append(
            f"aim: {words}: {within} of {len(means)} settings; mean {total / base:.3f}, {_met(total >= 0.95 * base)}"
        )
    lines += ["", "Calibration, labels called wrong (above 0.5) and suggested labels that are right", ""]
    lines.append(
        "| data | noise | ECE | wrong labels | estimated | precision | recall | suggestion | cleanlab | recall |"
    )
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, kind, share in groups:
        mine = [row for row in found if _key(row)[:3] == (name, share, kind)]
        if not mine:
            continue
        parts = [row["plain"] for row in mine]
        flagged, hit = (sum(part[key] for part in parts) for key in ("flagged", "flagged_wrong"))
        issues, issue_hit = (sum(row["cleanlab"][key] for row in mine) for key in ("issues", "issues_wrong"))
        total = round(share * NUM_TRAIN) * len(mine)
        lines.append(
            f"| {name} | {share:.0%} {kind} | {fmean(part['ece'] for part in parts):.3f} | {share:.3f} | "
            f"{fmean(part['expected'] for part in parts):.3f} | {hit / max(1, flagged):.2f} | {hit / total:.2f} | "
            f"{fmean(part['suggested_right'] for part in parts):.2f} | {issue_hit / max(1, issues):.2f} | "
            f"{issue_hit / total:.2f} |"
        )
    lines += ["", "Censoring: rank correlation of statistics with ledger selection and without, mean of all runs", ""]
    lines.append(", ".join(f"{name} {fmean(row['correlations'][name] for row in found):.3f}" for name in STATISTICS))
    compute = fmean(row["ledger_compute"] for row in found)
    seconds = {key: fmean(row["seconds"][key] for row in found) for key in ("plain", "features", "cleanlab")}
    lines.append(f"compute with ledger selection: {compute:.2f} of {EPOCHS} epochs")
    lines.append(
        f"processor seconds: {seconds['plain']:.2f} for run and audit, {seconds['features']:.2f} more for features, "
        f"{seconds['cleanlab']:.2f} more for cleanlab"
    )
    return lines + guard_table(rows)


def guard_table(rows: Sequence[Row]) -> list[str]:
    lines = ["", "With audit=True: error, compute and compute multiplier, means over seeds", ""]
    lines.append("| data | noise | seeds | ledger | audit | multiplier | audit | ratio | left alone | of them wrong |")
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    ratios: list[float] = []
    for name in SIZES:
        for share in (0.1, 0.2):
            audited_rows = {row["seed"]: row for row in rows if _key(row)[:3] == (name, share, "audit")}
            plains = {row["seed"]: row for row in rows if _key(row)[:3] == (name, share, "uniform")}
            seeds = sorted(audited_rows.keys() & plains.keys())
            if not seeds:
                continue
            errors = {length: [audited_rows[seed]["plain_errors"][str(length)] for seed in seeds] for length in LENGTHS}
            errors[EPOCHS] = [plains[seed]["error"] for seed in seeds]
            frontier = Frontier([Budget(tuple(found), (length,) * len(seeds)) for length, found in errors.items()])
            ledger = [(plains[seed]["ledger_error"], plains[seed]["ledger_compute"]) for seed in seeds]
            with_audit = [(audited_rows[seed]["error"], audited_rows[seed]["compute"]) for seed in seeds]
            arms = [Budget(*zip(*pairs, strict=True)) for pairs in (ledger, with_audit)]
            multiples = [frontier.multiple(arm).value for arm in arms]
            ratios.append(multiples[1] / multiples[0])
            alone, hit = (sum(audited_rows[seed][key] for seed in seeds) for key in ("left_alone", "left_alone_wrong"))
            lines.append(
                f"| {name} | {share:.0%} | {len(seeds)} | {arms[0].error:.3f} at {arms[0].cost:.2f} | "
                f"{arms[1].error:.3f} at {arms[1].cost:.2f} | {multiples[0]:.2f} | {multiples[1]:.2f} | "
                f"{ratios[-1]:.2f} | {alone / len(seeds):.0f} | {hit / max(1, alone):.2f} |"
            )
    if ratios:
        mean = math.exp(fmean(map(math.log, ratios)))
        reached = sum(ratio >= 1.1 for ratio in ratios)
        lines += [
            "",
            f"aim: at least 1.1x: {reached} of {len(ratios)} settings; geometric mean {mean:.2f}, {_met(mean >= 1.1)}",
        ]
    return lines


def _met(met: bool) -> str:
    return "met" if met else "missed"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tables", action="store_true", help="print the tables of what is there, and run nothing")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds to run and to print, such as 10,11")
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    torch.set_num_threads(1)
    if not options.tables:
        run(options.data, options.results, seeds)
    rows = [row for row in read(options.results).values() if row["seed"] in seeds]
    machine = environment()
    print(
        f"{len(rows)} of {len(settings(seeds))} runs, seeds {options.seeds}. "
        + ", ".join(f"{key} {machine[key]}" for key in ("commit", "torch", "python", "cpu", "date"))
    )
    print("\n".join(["", *tables(rows)]))


if __name__ == "__main__":
    main()
