"""The workloads of the leaderboard: data, network, recipe, lengths and arms, all fixed before the first run.

An arm is a method as on the command line. Its option `longer` says how many times longer than plain training it is
trained, so that it costs about as much.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import selective_backprop as sb
from selective_backprop_lab.names import unknown
from selective_backprop_lab.runs.recipes import Recipe, find_recipe
from selective_backprop_lab.study.standing import PLAIN, RANDOM


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training problem of the leaderboard."""

    title: str
    """Data, resolution and network, in people's words."""
    recipe: Recipe
    lengths: tuple[int, ...]
    """Epochs of plain training, rising. Every run has a fully decayed rate."""
    arms: Mapping[str, str]
    """Methods by name. Random subsets of the sizes that a method's own had are added to each."""
    label_noise: float = 0.0
    """Share of wrong training labels."""
    seeds: int = 3
    """Number of seeds planned: 0, 1, 2, ..."""
    is_tuned: bool = True
    """Whether the baselines choose their learning rate on held-out examples. Otherwise all take the recipe's."""
    goal: float | None = None
    """An error to tell the cost of, in seconds and PFLOPs."""


def _ledger(longer: float) -> str:
    """The ledger with its defaults spelled out, so that records of other defaults differ."""
    parameters = inspect.signature(sb.ledger_backprop).parameters.values()
    options = [f"{one.name}={one.default}" for one in parameters if isinstance(one.default, float | int)]
    return f"ledger:{','.join(options)},longer={longer:g}"


def _proxy(network: str, cost: float) -> str:
    """The proxy with its defaults spelled out.

    Args:
        network: its name.
        cost: operations of a forward pass, as a share of those of the network that is trained.
    """
    parameters = inspect.signature(sb.proxy_backprop).parameters
    keeps, every, share = (parameters[name].default for name in ("selectivity", "train_every", "train_share"))
    longer = 1 / (keeps + cost * (1 / 3 + share / every))
    return f"proxy@{keeps}:proxy={network},train_every={every},train_share={share},longer={longer:.2f}"


_BASELINES = {PLAIN: "traditional", RANDOM: "repeated_random@0.5:longer=2"}
_OTHERS = {
    "SB": "sb@0.5:longer=1.2",
    "Stale-SB": "stale@0.5:every=3,longer=1.6",
    "InfoBatch": "infobatch:prune=0.5,longer=1.3",
    "Kath18": "kath18@0.333",  # it trains on everything until its own estimate says that selection pays
}


_DATA = {"cifar10": "CIFAR-10", "svhn": "SVHN", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}


def _speedrun(
    data: str,
    width: int,
    lengths: tuple[int, ...],
    proxy_cost: float,
    network: str = "speedrun_w8",
    *,
    longer: float = 1.5,
    more: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> Workload:
    """A workload with the speedrun recipe, its arms, and a proxy of this cost."""
    noise = " with 10% wrong labels" if options.get("label_noise") else ""
    return Workload(
        title=f"{_DATA[data]}{noise}, {'28x28' if 'mnist' in data else '32x32'}, speedrun network of width {width}",
        recipe=find_recipe(f"{data}_speedrun").with_(model=f"speedrun_w{width}"),
        lengths=lengths,
        arms=_BASELINES | {"ledger": _ledger(longer), "proxy": _proxy(network, proxy_cost)} | dict(more),
        **options,
    )


BOARD: dict[str, Workload] = {
    "cifar10-w16": _speedrun("cifar10", 16, (8, 12, 16, 24, 32), 0.352, more=_OTHERS),
    "svhn-w16": _speedrun("svhn", 16, (4, 6, 8, 12, 16), 0.352, longer=1.8, more=_OTHERS),
    "cifar10-w32": _speedrun("cifar10", 32, (8, 12, 16, 24), 0.108),
    "fashion-w16": _speedrun("fashion_mnist", 16, (4, 8, 12, 16, 24), 0.289),
    "mnist-w8": _speedrun("mnist", 8, (4, 8, 12, 16, 24), 0.323, "speedrun_w4", longer=2.2),
    "cifar10-w16-noisy": _speedrun("cifar10", 16, (8, 12, 16, 24), 0.352, label_noise=0.1),
    "svhn-w16-noisy": _speedrun("svhn", 16, (4, 6, 8, 12), 0.352, label_noise=0.1),
    "cifar10-94": _speedrun("cifar10", 64, (8, 12, 16, 24), 0.03, seeds=1, goal=0.06),
}
"""What `leaderboard run all` runs, the most important first."""


def _paper(title: str, recipe: str, lengths: tuple[int, ...], **changes: object) -> Workload:
    arms = _BASELINES | {"ledger": _ledger(1.5)} | _OTHERS
    changed = find_recipe(recipe).with_(bf16=True, **changes)
    return Workload(title=title, recipe=changed, lengths=lengths, arms=arms, is_tuned=False)


PAPER: dict[str, Workload] = {
    "cifar10-resnet18": _paper("CIFAR-10, 32x32, ResNet-18", "cifar10", (50, 100, 200), model="resnet18"),
    "cifar100-resnet18": _paper("CIFAR-100, 32x32, ResNet-18", "cifar100", (50, 100, 200), model="resnet18"),
    "svhn-wrn": _paper(
        "SVHN with its extra images, 32x32, WRN-16-8", "svhn", (40, 80, 160), model="wrn_16_8", dataset="svhn_extra"
    ),
}
"""The papers' recipes, for a GPU: rates, decay and augmentation of Jiang et al., in bfloat16."""

WORKLOADS: dict[str, Workload] = BOARD | PAPER

DIGITS = Workload(
    title="scikit-learn's digits, 8x8, small CNN: to try the leaderboard out in a minute",
    recipe=find_recipe("digits"),
    lengths=(1, 2, 3, 4),
    arms=_BASELINES | {"ledger": _ledger(1.5), "proxy": _proxy("strided_cnn_tiny", 0.01)},
    seeds=2,
)


def find_workload(name: str) -> Workload:
    """Find a workload by name.

    >>> find_workload("cifar10-w16").lengths
    (8, 12, 16, 24, 32)
    """
    known = WORKLOADS | {"digits": DIGITS}
    if name not in known:
        raise unknown("workload", name, known)
    return known[name]
