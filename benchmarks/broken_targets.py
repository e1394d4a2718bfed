"""Compare the ledger's protections on regressions in which some targets are broken, by error and compute.

    python benchmarks/broken_targets.py [--huber]

Broken targets keep a high loss however often they are trained on, so selecting by loss trains on them more often than
plain training does. The check for forgetting (`most_rise`) protects the ledger, and outliers have no priority. The test
examples have no broken targets. It runs on one thread, in about three minutes, and prints the table.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb

EXAMPLES, FEATURES, EPOCHS, RATE = 2000, 10, 20, 0.03

METHODS: dict[str, Callable[[], sb.Method]] = {
    "plain training": sb.traditional,
    "ledger_backprop()": sb.ledger_backprop,
    "most_rise=None": lambda: sb.ledger_backprop(most_rise=None),
    "most_rise=None, cap=inf": lambda: sb.ledger_backprop(most_rise=None, cap=float("inf")),
}


def make_examples(network: str, draws: torch.Generator, slopes: Tensor) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(EXAMPLES, FEATURES, generator=draws)
    targets = inputs @ slopes + (2 * torch.sin(2 * inputs[:, :1]) if network == "mlp" else 0)
    return inputs, targets + 0.3 * torch.randn(EXAMPLES, 1, generator=draws)


def train(
    network: str, method: sb.Method, share: float, target: float, seed: int, loss_fn: nn.Module
) -> tuple[float, float]:
    """Mean squared error on other examples, and compute in epochs of plain training.

    Args:
        network: "linear", or "mlp" with one hidden layer for targets that are not linear.
        method: what is trained on.
        share: share of the targets that are broken.
        target: what they are set to.
        seed: of the data, the network and the order.
        loss_fn: what is trained with.
    """
    draws = torch.Generator().manual_seed(seed)
    slopes = torch.randn(FEATURES, 1, generator=draws)
    inputs, targets = make_examples(network, draws, slopes)
    test_inputs, test_targets = make_examples(network, draws, slopes)
    targets[: round(share * EXAMPLES)] = target
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        hidden = [nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1)]
        model = nn.Sequential(*hidden) if network == "mlp" else nn.Linear(FEATURES, 1)
    order = torch.Generator().manual_seed(seed)
    candidates = DataLoader(TensorDataset(inputs, targets), 64, shuffle=True, generator=order)
    loader = sb.SelectiveLoader(candidates, model, loss_fn, method, num_epochs=EPOCHS, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch_inputs, batch_targets in loader:
            optimizer.param_groups[0]["lr"] = RATE * (1 - loader.progress)
            loss = loader.loss(model(batch_inputs), batch_targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(test_inputs), test_targets)), loader.stats.trained / EXAMPLES


def row(network: str, share: float, target: float, seeds: int, loss_fn: nn.Module) -> str:
    """A line of the table: means over seeds."""
    cells = []
    for make in METHODS.values():
        results = [train(network, make(), share, target, seed, loss_fn) for seed in range(seeds)]
        error, compute = (statistics.mean(column) for column in zip(*results, strict=True))
        cells.append(f"{error:.2f} at {compute:.1f}")
    return f"| {network}, {share:.1%} at {target:g} | {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--huber", action="store_true", help="train with Huber's loss instead of the squared error")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.005, 0.015, 0.03, 0.06])
    parser.add_argument("--targets", type=float, nargs="+", default=[10.0, 30.0, 300.0])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    loss_fn = nn.HuberLoss() if options.huber else nn.MSELoss()
    print(f"| network, broken targets | {' | '.join(METHODS)} |\n| --- |{' ---: |' * len(METHODS)}")
    for network in ("linear", "mlp"):
        for share in options.shares:
            for target in options.targets if share else [0.0]:
                print(row(network, share, target, options.seeds, loss_fn), flush=True)


if __name__ == "__main__":
    main()
