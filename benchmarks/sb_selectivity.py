"""Compare rules for SB's probabilities: what fraction of candidates it trains on, and its error on held-out data.

    python benchmarks/sb_selectivity.py --data-dir DATA     # DATA/mnist/train.parquet, ...; about half an hour

1. The fraction that each epoch trained on while losses fall fast: small GPTs of characters, and digits.
2. The error on a sixth of the training data that is held out, at the same compute. Test sets are not touched.
"""

import argparse
import contextlib
import inspect
import io
import platform
import runpy
import sys
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop_lab.data.datasets import ImageSet, load_images, split_validation
from selective_backprop_lab.runs import methods
from selective_backprop_lab.runs.recipes import RECIPES
from selective_backprop_lab.runs.settings import Settings
from selective_backprop_lab.runs.training import Training

WINDOW = 256  # candidates over which the alternatives below correct their chances


class Corrected(sb.policies.PercentilePolicy):
    """The paper's percentiles, corrected so that the mean chance of the last 256 candidates is the one asked for."""

    def __init__(self, selectivity: float) -> None:
        super().__init__(selectivity=selectivity, paper=True)
        self.recent = torch.empty(0, dtype=torch.float64)

    def chances(self, scores: Tensor, share: float) -> Tensor:
        percentiles = self.history.rank(scores)
        self.recent = torch.cat([self.recent, percentiles])[-max(WINDOW, len(scores)) :]
        return self.corrected(percentiles)


class OtherBeta(Corrected):
    """Corrects by changing the exponent."""

    def corrected(self, percentiles: Tensor) -> Tensor:
        low, high = 0.0, 64.0
        for _ in range(30):
            middle = (low + high) / 2
            keeps_more = float(self.recent.pow(middle).mean()) > self.selectivity
            low, high = (middle, high) if keeps_more else (low, middle)
        return percentiles.pow(high)


class Stretched(Corrected):
    """Corrects by a factor, up to a chance of 1."""

    def corrected(self, percentiles: Tensor) -> Tensor:
        chances, low, high = self.recent.pow(self.beta), 0.0, 1e4
        for _ in range(40):
            middle = (low + high) / 2
            keeps_less = float((chances * middle).clamp(max=1).mean()) < self.selectivity
            low, high = (middle, high) if keeps_less else (low, middle)
        return percentiles.pow(self.beta).mul_(high).clamp_(max=1.0)


RULES = {
    "paper": lambda s: sb.policies.PercentilePolicy(selectivity=s, paper=True),
    "default": lambda s: sb.policies.PercentilePolicy(selectivity=s),
    "history of 1,024": lambda s: sb.policies.PercentilePolicy(selectivity=s, history_size=1024),
    "other beta": OtherBeta,
    "stretched": Stretched,
}
HELD_OUT_RULES = ("default", "other beta")  # beside the paper's


def sb_by_rule(selectivity: float, /, *, rule: str, warmup_epochs: float = 0) -> sb.Method:
    """SB with one of the rules, for the lab."""
    schedule = sb.schedules.Schedule(warmup_epochs=warmup_epochs)
    return sb.Method("selective_backprop", sb.scorers.ForwardScorer(), RULES[rule](selectivity), schedule)


methods.METHODS["sb_by_rule"] = sb_by_rule


class SmallGPT(nn.Module):
    """Two layers that predict the next character."""

    def __init__(self, num_characters: int, length: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(num_characters, width), nn.Embedding(length, width)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 2 * width, **options) for _ in range(2))
        self.head = nn.Linear(width, num_characters)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return self.head(hidden).transpose(1, 2)


def train_gpt(rule: str, sequences: int, batch_size: int, epochs: int, length: int = 32) -> tuple[list[float], float]:
    """Train on the source of argparse. Returns the fraction trained on in each epoch, and the loss on 500 sequences."""
    torch.manual_seed(0)
    text = inspect.getsource(argparse)
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(character) for character in text])
    starts = torch.randint(len(ids) - length, (sequences + 500,))
    windows = torch.stack([ids[start : start + length + 1] for start in starts])
    inputs, targets = windows[:, :-1], windows[:, 1:]
    data = TensorDataset(inputs[:sequences], targets[:sequences])
    model = SmallGPT(len(alphabet), length)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    method = sb_by_rule(1 / 3, rule=rule)
    train_loader = DataLoader(data, batch_size, shuffle=True)
    loader = sb.SelectiveLoader(
        train_loader, model, sb.losses.PerExampleLoss(nn.CrossEntropyLoss(), "mean"), method, num_epochs=epochs
    )
    shares = []
    for _ in range(epochs):
        before = loader.stats.copy()
        for batch, target in loader:
            loader.loss(model(batch), target).backward()
            optimizer.step()
            optimizer.zero_grad()
        shares.append(loader.stats.since(before)["selectivity"])
    with torch.no_grad():
        return shares, float(F.cross_entropy(model.eval()(inputs[sequences:]), targets[sequences:]))


def shares_while_losses_fall() -> None:
    print("\nShare trained on in each epoch, asked for 0.333; and the loss on other sequences")
    for sequences, batch_size, epochs in ((400, 8, 2), (400, 32, 2), (2000, 12, 3)):
        print(f"small GPT, {sequences} sequences, candidate batches of {batch_size}")
        for rule in RULES:
            shares, loss = train_gpt(rule, sequences, batch_size, epochs)
            print(f"  {rule:<18}" + "  ".join(f"{share:.3f}" for share in shares) + f"   loss {loss:.3f}", flush=True)
    example = Path(__file__).parent.parent / "examples" / "pytorch_loop.py"
    printed, arguments = io.StringIO(), sys.argv
    try:
        sys.argv = [str(example)]
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(example), run_name="__main__")
    finally:
        sys.argv = arguments
    print("examples/pytorch_loop.py, default rule:", printed.getvalue().splitlines()[-1].split("; ")[1])


def subset(data: ImageSet, count: int, seed: int) -> ImageSet:
    chosen = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(seed))[:count]
    parts = data.train_images[chosen], data.train_labels[chosen], data.test_images, data.test_labels
    return ImageSet(data.name, *parts, data.classes)


SETUPS = {  # recipe: examples, epochs, epochs of warm-up, and changes of the recipe
    "mnist_small": (6000, 4, 0, {}),
    "fashion_mnist_small": (6000, 4, 0, {"batch_size": 32, "lr": 0.05}),
    "svhn_small": (
        12_000,
        6,
        1,
        {"batch_size": 32, "lr": 0.05},
    ),  # without a warm-up nothing is learned in so few epochs
}


def held_out(recipe: str, data: ImageSet, rule: str, selectivity: float, seed: int, length: float | None = None):
    count, epochs, warmup, changes = SETUPS[recipe]
    settings = Settings(
        recipe=RECIPES[recipe].with_(epochs=epochs, **changes),
        method="sb_by_rule",
        selectivity=selectivity,
        options={"rule": rule, "warmup_epochs": warmup},
        seed=seed,
        length=length,
    )
    training = Training(settings, subset(data, count, seed), torch.device("cpu"))
    records = [training.epoch() for _ in range(settings.epochs)]
    first = records[warmup]
    share = first["trained"] / first["offered"]
    return share, sum(record["compute"] for record in records), records[-1]["test_error"], records[-1]["test_loss"]


def errors_on_held_out_data(data_dir: Path, seeds: int) -> None:
    print(
        f"\nHeld-out error, {seeds} seeds. 'paper, longer' has as many more epochs as make its compute the default's."
    )
    for recipe, (count, epochs, warmup, _) in SETUPS.items():
        setup = RECIPES[recipe]
        images = load_images(setup.dataset, image_size=setup.image_size, data_dir=data_dir)
        data = split_validation(images, 1 / 6, seed=0)
        for selectivity in (1 / 3, 1 / 4):
            print(f"{recipe}, {count} examples, {epochs} epochs, asked for {selectivity:.3f}", flush=True)
            results: dict[str, list[tuple[float, ...]]] = {}
            for seed in range(seeds):
                paper = held_out(recipe, data, "paper", selectivity, seed)
                results.setdefault("paper", []).append(paper)
                while_on = epochs - warmup
                length = warmup + while_on * while_on * (1 / 3 + selectivity) / (paper[1] - warmup)
                longer = held_out(recipe, data, "paper", selectivity, seed, length)
                results.setdefault("paper, longer", []).append(longer)
                for rule in HELD_OUT_RULES:
                    results.setdefault(rule, []).append(held_out(recipe, data, rule, selectivity, seed))
            for rule, rows in results.items():
                share, compute, _, loss = (mean(column) for column in zip(*rows, strict=True))
                errors = "  ".join(f"{100 * row[2]:.2f}%" for row in rows)
                numbers = f"first epoch of SB {share:.3f}  compute {compute:.2f}  loss {loss:.4f}"
                print(f"  {rule:<14}{numbers}  error {errors}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of the image sets; without it, only the first part runs")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    shares_while_losses_fall()
    if args.data_dir is not None:
        errors_on_held_out_data(args.data_dir, args.seeds)


if __name__ == "__main__":
    main()
