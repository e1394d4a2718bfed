"""Traditional, Selective-Backprop and Stale-SB side by side on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.lab.models import small_cnn

METHODS: dict[str, Callable[[], sb.Method]] = {
    "Traditional": sb.traditional,
    "SB": lambda: sb.selective_backprop(1 / 3, history_size=512, warmup_epochs=1),
    "Stale-SB": lambda: sb.stale_selective_backprop(1 / 3, history_size=512, warmup_epochs=1, every=3),
}
BATCH_SIZE = 32
TARGETS = (1.2, 1.4)


@dataclass
class Run:
    """One method and seed being trained; a record per epoch."""

    method: str
    loader: sb.SelectiveLoader
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    errors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def epoch(self, test: tuple[Tensor, Tensor], total_steps: int) -> None:
        self.model.train()
        for inputs, targets in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            self.loader.loss(self.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            sb.step_by_progress(self.scheduler, self.loader, total_steps)
        self.seconds.append(sum(self.loader.stats.seconds.values()))
        self.model.eval()
        with torch.no_grad():  # off the clock
            self.errors.append(float((self.model(test[0]).argmax(1) != test[1]).float().mean()))


def digits(seed: int) -> tuple[TensorDataset, tuple[Tensor, Tensor]]:
    """Half for training, half for testing, so that a tenth of a percent means something; split by the seed."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    return TensorDataset(images[train], labels[train]), (images[test], labels[test])


def make_run(method: str, seed: int, dataset: TensorDataset, epochs: int) -> tuple[Run, int]:
    """Same initial weights and same order of examples for every method."""
    torch.manual_seed(seed)
    model = small_cnn()
    generator = torch.Generator().manual_seed(seed)
    train_loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, generator=generator)
    loader = sb.SelectiveLoader(
        train_loader, model, nn.CrossEntropyLoss(), METHODS[method](), num_epochs=epochs, seed=seed
    )
    total_steps = epochs * len(train_loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)
    return Run(method, loader, model, optimizer, scheduler), total_steps


def train(epochs: int, seeds: int) -> Iterator[Run]:
    """Epoch by epoch in turn, so that drift of the machine hits all methods alike. Yields after every epoch."""
    for seed in range(seeds):
        dataset, test = digits(seed)
        runs = [make_run(method, seed, dataset, epochs) for method in METHODS]
        for _ in range(epochs):
            for run, total_steps in runs:
                run.epoch(test, total_steps)
                yield run


@dataclass
class Result:
    """Means over seeds."""

    errors: list[float]
    seconds: list[float]
    selection_passes: float
    trained: float

    @staticmethod
    def of(runs: list[Run]) -> Result:
        return Result(
            [fmean(e) for e in zip(*(run.errors for run in runs), strict=True)],
            [fmean(s) for s in zip(*(run.seconds for run in runs), strict=True)],
            fmean(run.loader.stats.scored for run in runs),
            fmean(run.loader.stats.trained for run in runs),
        )

    def seconds_to(self, target: float) -> float | None:
        """Time after which the mean error is at the target or below for the first time."""
        return next((s for s, e in zip(self.seconds, self.errors, strict=True) if e <= target), None)


def speed_up(traditional: Result, other: Result, target: float) -> str:
    """How many times sooner than Traditional a method reaches the target."""
    reference, seconds = traditional.seconds_to(target), other.seconds_to(target)
    return f"{reference / seconds:.2f}x" if reference and seconds else "-"


def show(results: dict[str, Result], epochs: int, seeds: int) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    traditional = results["Traditional"]
    targets = [factor * traditional.errors[-1] for factor in TARGETS]
    table = Table(title=f"digits, {epochs} epochs, mean of {seeds} seeds", title_justify="left")
    table.add_column("method", no_wrap=True)
    for heading in ["error", "seconds", "forward", "backward", *(f"speed-up to {t:.2%}" for t in targets)]:
        table.add_column(heading, justify="right")
    for name, result in results.items():
        table.add_row(
            name,
            f"{result.errors[-1]:.2%}",
            f"{result.seconds[-1]:.1f}",
            f"{result.selection_passes + result.trained:,.0f}",
            f"{result.trained:,.0f}",
            *(speed_up(traditional, result, target) for target in targets),
        )
    console = Console()
    console.print(table)
    console.print(
        "Error on the test set; passes in examples, selection passes included. Speed-ups are in wall-clock time, "
        "evaluation excluded, to 1.2x and 1.4x of Traditional's final error; - is never. So small a task shows how it "
        "works, not how much it gains."
    )


def run(epochs: int, seeds: int) -> None:
    """Train, show the progress, print the table."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    finished: dict[str, list[Run]] = {name: [] for name in METHODS}
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bars = {name: progress.add_task(name, total=epochs * seeds, state="") for name in METHODS}
        for run in train(epochs, seeds):
            stats = run.loader.stats
            state = f"epoch {len(run.errors):2}  error {run.errors[-1]:6.2%}  selectivity {stats.selectivity:.2f}"
            progress.update(bars[run.method], advance=1, state=state)
            if len(run.errors) == epochs:
                finished[run.method].append(run)
                if not progress.console.is_terminal:
                    print(f"{run.method}, seed {len(finished[run.method]) - 1}: {state}", flush=True)
    show({name: Result.of(runs) for name, runs in finished.items()}, epochs, seeds)
