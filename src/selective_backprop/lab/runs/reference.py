"""Reference losses for reducible_loss, by cross-fitting: no example is scored by a network that has seen it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from selective_backprop.lab.data.datasets import ImageDataset
from selective_backprop.lab.runs.recipes import Recipe

Prepare = Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]
_SCORED_AT_ONCE = 1000


@dataclass(frozen=True)
class Preparation:
    """What a run costs before its first epoch."""

    compute: float = 0.0
    """In epochs of plain training."""
    seconds: float = 0.0


def cross_fitted_losses(
    make_network: Callable[[int], nn.Module],
    dataset: ImageDataset,
    recipe: Recipe,
    *,
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    prepare: Prepare,
    normalise: nn.Module,
    epochs: int,
    device: torch.device,
    seed: int,
) -> tuple[list[float], float]:
    """Train one network on each half of the data, and return its loss of every example of the other half, by id.

    Everything follows from the seed. Torch's global random state is left alone. The second result is the seconds taken.

    Args:
        make_network: makes the network of half 0 or 1.
        dataset: the training data.
        recipe: its batch size, and how its learning rate decays over these epochs.
        make_optimizer: makes the optimizer of a network.
        prepare: augments a training batch on the device.
        normalise: normalises images to be scored.
        epochs: epochs of each network over its half.
        device: where to train.
        seed: decides the halves, the order of examples and what the networks draw.
    """
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    halves = torch.randperm(len(dataset), generator=generator).chunk(2)
    if len(halves[-1]) < 2 or len(halves) < 2:
        raise ValueError(f"a reference by cross-fitting needs at least 4 training examples, got {len(dataset)}")
    losses = torch.empty(len(dataset))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for number, (own, other) in enumerate((halves, halves[::-1])):
            network = make_network(number).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            optimizer = make_optimizer(network.parameters())
            _train(network, optimizer, dataset, own, recipe, prepare, epochs, device, generator)
            losses[other] = _losses(network, dataset, other, normalise, device)
    return losses.tolist(), time.perf_counter() - began


def _train(
    network: nn.Module,
    optimizer: Optimizer,
    dataset: ImageDataset,
    ids: Tensor,
    recipe: Recipe,
    prepare: Prepare,
    epochs: int,
    device: torch.device,
    generator: torch.Generator,
) -> None:
    network.train()
    done, total = 0, epochs * len(ids)
    for _ in range(epochs):
        for chosen in torch.split(ids[torch.randperm(len(ids), generator=generator)], recipe.batch_size):
            done += len(chosen)
            if len(chosen) < 2:
                continue  # BatchNorm cannot train on one example
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr_at(done / total)
            images, labels = prepare((dataset.images[chosen].to(device), dataset.labels[chosen].to(device)))
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@torch.no_grad()
def _losses(
    network: nn.Module, dataset: ImageDataset, ids: Tensor, normalise: nn.Module, device: torch.device
) -> Tensor:
    network.eval()
    parts = []
    for chosen in torch.split(ids, _SCORED_AT_ONCE):
        outputs = network(normalise(dataset.images[chosen].to(device)))
        losses = nn.functional.cross_entropy(outputs, dataset.labels[chosen].to(device), reduction="none")
        parts.append(losses.float().cpu())
    return torch.cat(parts)
