"""Predicts how long an epoch of each method would take, from costs measured on the user's machine."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from selective_backprop.advice.costs import Costs, measure_costs
from selective_backprop.advice.evidence import evidence_of, growth
from selective_backprop.losses import PerExampleLoss
from selective_backprop.policies import LossSharePolicy

SELECTIVITIES = (1 / 4, 1 / 3, 1 / 2)
_WORTH_IT = 0.95  # fraction of plain training's time; a smaller gain is within the error of the prediction
_STALE_EVERY = 3
_LEDGER = LossSharePolicy(loss_share=0.95, keep_at_least=0.1, skip_at_least=0.2)  # the default of ledger_backprop


@dataclass(frozen=True, kw_only=True)
class Option:
    """A method with a selectivity, and how long an epoch with it would take."""

    name: str
    """Name of the function that makes the method."""
    arguments: dict[str, Any]
    """Arguments of that function."""
    selectivity: float
    """Fraction of candidates trained on."""
    seconds: float
    """Seconds per epoch of candidates; per candidate if the loader has no length."""
    speed_up: float
    """Speed-up against plain training, per epoch. It does not say how soon an accuracy is reached."""

    @property
    def multiplier(self) -> float | None:
        """Compute multiplier of the method, as the median on our leaderboard; None if it is not known."""
        found = evidence_of(self.name)
        return None if found is None else found.median

    @property
    def method(self) -> str:
        """The call that makes the method.

        >>> arguments = {"selectivity": 1 / 3, "every": 3}
        >>> Option(name="stale", arguments=arguments, selectivity=1 / 3, seconds=1.0, speed_up=2.0).method
        'stale(0.33, every=3)'
        """
        share = [f"{self.arguments['selectivity']:.2f}"] if "selectivity" in self.arguments else []
        others = [f"{name}={value}" for name, value in self.arguments.items() if name != "selectivity"]
        return f"{self.name}({', '.join([*share, *others])})"


Spelling = Callable[[Option], str]
"""How to write a method in a text."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The predicted times of all methods. `print` it to read the advice."""

    costs: Costs
    options: list[Option]
    """All options: plain training first, then the others by their multiplier, the faster of two first."""
    break_even: float
    """Selectivity below which a selection pass for every candidate saves time. If 0 or less, none does."""

    @property
    def best(self) -> Option | None:
        """The option to try first; None if none is worth it.

        It is the one with the highest compute multiplier on our leaderboard, which the table shows. A method that loses
        against plain training or random subsets there is never recommended.
        """
        if self._fastest_at_a_third.seconds >= _WORTH_IT * self.options[0].seconds:
            return None
        tried = [option for option in self.options[1:] if option.arguments.get("selectivity", 1 / 3) == 1 / 3]
        best = max(tried, key=lambda option: option.multiplier or 0.0)
        return best if (best.multiplier or 0.0) >= 1 else None

    @property
    def _fastest_at_a_third(self) -> Option:
        third = (option for option in self.options if option.arguments.get("selectivity") == 1 / 3)
        return min(third, key=lambda option: option.seconds)

    def __str__(self) -> str:
        return self.text()

    def text(self, spelled: Spelling = lambda option: option.method) -> str:
        """The advice in words, for Python; or as the caller spells methods."""
        costs, width = self.costs, max(len(spelled(option)) for option in self.options)
        unit = "s per epoch" if costs.num_candidates is not None else "s per candidate"
        lines = [
            f"Per example: loading {_time(costs.loading)}{' (by workers, ahead)' if costs.loads_ahead else ''}, "
            f"forward {_time(costs.forward)}, forward and backward {_time(costs.training)}.",
            _backward(costs),
        ]
        lines += ["", f"{'method':<{width}}  multiplier  selectivity  {unit:>15}  speed-up"]
        for option in self.options:
            multiplier = "" if option.multiplier is None else f"{option.multiplier:.2f}"
            numbers = f"{option.selectivity:>11.2f}  {option.seconds:>15.4g}  {option.speed_up:>7.2f}x"
            lines.append(f"{spelled(option):<{width}}  {multiplier:>10}  {numbers}")
        lines += [
            "",
            "multiplier: how many times more compute plain training or random subsets need for the same error, by the "
            "median on our leaderboard. speed-up: of an epoch, whatever it learns.",
        ]
        return "\n".join([*lines, "", self._verdict(spelled)])

    def _repr_html_(self) -> str:
        """Return the advice for a notebook: the same text, with its columns aligned."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def _verdict(self, spelled: Spelling) -> str:
        fastest = self._fastest_at_a_third
        if self.best is None and fastest.seconds < _WORTH_IT * self.options[0].seconds:
            return (
                f"Nothing is recommended here: {spelled(fastest)} would make epochs {fastest.speed_up:.2f}x as fast, "
                "but plain training or random subsets reach the same error with less compute. ledger_backprop does "
                "better, but needs a map-style data set."
            )
        if self.best is None:
            without = "" if self.costs.has_ids else " Those without a selection pass need a map-style data set."
            return (
                f"Nothing pays here: at a third of the candidates no method makes epochs noticeably shorter.{without}"
            )
        lines = [f"Try {spelled(self.best)} first: its multiplier is {evidence_of(self.best.name)}."]
        if self.best.name == "ledger_backprop":
            lines += [self._of_ledger(self.best), growth(self.costs.num_candidates)]
        return " ".join([*lines, "Compare with plain training and random subsets in the same budget."])

    def _of_ledger(self, option: Option) -> str:
        if option.selectivity == 1:
            return "With the losses of the model as it is now it would train on everything, and on less as it learns."
        share = f"{option.selectivity:.0%} of the examples"
        return f"With the losses of the model as it is now it would train on {share}, and on fewer as it learns."


def advise(
    model: nn.Module, loss_fn: Callable[..., Tensor] | PerExampleLoss, loader: Iterable[Any], **options: Any
) -> Advice:
    """Measure on this machine what loading, scoring and training cost, and predict how long epochs would take.

    It first says on stderr how long this takes.

    Args:
        model, loss_fn, loader: as for `SelectiveLoader`. They are not changed. A generator is refused, because
            measuring would take its first batches away.
        options: forward, transform and device as for `SelectiveLoader`; seconds=, the time to spend on measuring (30).

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.randn(64, 20), torch.zeros(64, dtype=torch.int64))
    >>> advice = advise(nn.Linear(20, 5), nn.CrossEntropyLoss(), DataLoader(data, 16), seconds=0.01)
    >>> advice.options[0].method
    'traditional()'
    """
    return predict(measure_costs(model, loss_fn, loader, note=_note, **options))


def _note(text: str) -> None:
    print(f"advise: {text}", file=sys.stderr, flush=True)


def predict(costs: Costs) -> Advice:
    """Compute advice from measured costs."""
    epoch = costs.num_candidates or 1
    plain = _seconds(costs, load=1, compute=costs.training) * epoch

    def option(
        name: str, selectivity: float, arguments: dict[str, Any], *, load: float, scoring: float = 0.0
    ) -> Option:
        seconds = _seconds(costs, load=load, compute=scoring + selectivity * costs.training) * epoch
        return Option(
            name=name, arguments=arguments, selectivity=selectivity, seconds=seconds, speed_up=plain / seconds
        )

    options, fresh = [], 1 / _STALE_EVERY
    for share in SELECTIVITIES:
        at = {"selectivity": share}
        options.append(option("selective_backprop", share, at, load=1, scoring=costs.forward))
        if costs.has_ids:
            arguments = at | {"every": _STALE_EVERY}
            part, cost = fresh + (1 - fresh) * share, fresh * costs.forward
            options.append(option("stale_selective_backprop", share, arguments, load=part, scoring=cost))
    if costs.has_ids:
        options += [option("random_backprop", share, {"selectivity": share}, load=share) for share in SELECTIVITIES]
        by_share = _LEDGER.keep_fraction(costs.losses)
        options.append(option("ledger_backprop", by_share, {}, load=by_share))
    options.sort(key=lambda option: (-(option.multiplier or 0.0), option.seconds))
    first = Option(name="traditional", arguments={}, selectivity=1.0, seconds=plain, speed_up=1.0)
    return Advice(costs=costs, options=[first, *options], break_even=_break_even(costs))


def _seconds(costs: Costs, *, load: float, compute: float) -> float:
    """Compute seconds per candidate. load: the share of candidates that are loaded."""
    loading = load * costs.loading
    return max(loading, compute) if costs.loads_ahead else loading + compute


def _break_even(costs: Costs) -> float:
    """Find the selectivity s for which loading + scoring + s * training takes as long as loading + training."""
    if costs.loads_ahead and costs.loading >= costs.training:
        return 0.0  # loading takes the most time, and every candidate must be loaded
    return 1 - costs.forward / costs.training


def _backward(costs: Costs) -> str:
    """Say what a backward pass costs, and why it is not the usual 2 forward passes."""
    reasons = []
    if costs.trainable < 0.5:
        reasons.append(f"{100 * costs.trainable:.2g}% of the parameters are trained, and frozen ones need no gradients")
    if costs.checkpoints:
        reasons.append("gradient checkpointing runs the forward pass again")
    because = f" ({'; '.join(reasons)})" if reasons else ""
    return f"A backward pass costs {costs.backward:.1f} forward passes{because}."


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
