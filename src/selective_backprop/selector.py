"""The decision about each candidate: before it is loaded where its score is known, after scoring it where not.

# N = candidates
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.batches import Layout
from selective_backprop.ledger import Ledger
from selective_backprop.losses import PerExampleLoss
from selective_backprop.no_trace import unwrap
from selective_backprop.planning import plan_epoch
from selective_backprop.sampling import Chunk
from selective_backprop.source import Plan
from selective_backprop.stats import Stats
from selective_backprop.types import Candidates, Forward, Method, Selection, Task


class Selector:
    """A method at work: its own copy of the policy, the ledger, and the only source of randomness."""

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        forward: Forward,
        loss: PerExampleLoss,
        ledger: Ledger,
        stats: Stats,
        *,
        num_epochs: int | None,
        seed: int,
    ) -> None:
        self.method = method
        self.ledger = ledger
        self.generator = torch.Generator().manual_seed(seed)
        self.policy = copy.deepcopy(method.policy)
        self.checked = False  # whether the model, the loss and the batches were seen to work together
        self._model, self._forward, self._loss = model, forward, loss
        self._stats = stats
        self._num_epochs = num_epochs

    def plan(self, epoch: int, num_batches: int | None) -> Plan | None:
        """What decides about this epoch's candidates before they are loaded, if anything can."""
        scorer, schedule = self.method.scorer, self.method.schedule
        if not scorer.remembers(epoch) or not schedule.on_in_epoch(epoch, num_batches, self._num_epochs):
            return None

        def plan(batches: list[Tensor]) -> tuple[list[Chunk], Tensor]:
            on = [schedule.is_on(epoch + i / len(batches), i, self._num_epochs) for i in range(len(batches))]
            return plan_epoch(
                batches,
                on,
                scorer=scorer,
                policy=self.policy,
                ledger=self.ledger,
                epoch=epoch,
                generator=self.generator,
            )

        return plan

    def decide(
        self,
        chunk: Chunk | None,
        candidates: Candidates,
        layout: Layout,
        *,
        epoch: int,
        fraction: float,
        batch_idx: int,
    ) -> Selection:
        """Which of the loaded candidates to train on; they start at this fraction of the epoch."""
        everything = _keep_all(candidates.size)
        if chunk is not None and chunk.decided is not None:
            assert chunk.weights is not None and chunk.probabilities is not None
            known = Selection(everything.positions, chunk.weights, chunk.probabilities)
            undecided = (~chunk.decided).nonzero().flatten()
        else:
            on = self.method.schedule.is_on(epoch + fraction, batch_idx, self._num_epochs)
            known, undecided = everything, everything.positions if on else everything.positions[:0]
        if not len(undecided):
            self._check_once(candidates, epoch)
            return known
        if len(undecided) == candidates.size:
            scores = self._score(candidates, epoch)
            with self._stats.timing("selecting"):
                return self.policy.select(scores, self.generator)
        part = _rows(candidates, undecided, layout)
        scores = self._score(part, epoch)
        with self._stats.timing("selecting"):
            return _merge(known, undecided, self.policy.select(scores, self.generator))

    def _check_once(self, candidates: Candidates, epoch: int) -> None:
        """Score the first batch even while selection is off: what cannot work must not fail halfway through."""
        if not self.checked and not self.method.schedule.never_on:
            self._score(candidates, epoch)
        self.checked = True

    def _score(self, candidates: Candidates, epoch: int) -> Tensor:
        with self._stats.timing("scoring"):
            task = Task(unwrap(self._model), self._forward, self._loss)
            scores = self.method.scorer.score(candidates, task)
            if scores.shape != (candidates.size,):
                raise ValueError(
                    f"the scorer gave scores of shape {tuple(scores.shape)} for {candidates.size} candidates"
                )
            # The one wait for the GPU per candidate batch: how many were selected decides what happens next.
            scores = scores.detach().to("cpu", torch.float32)
        require_finite(scores, candidates.ids, "loss in a selection pass")
        self.checked = True
        if self.method.scorer.uses_model:
            self._stats.scored += candidates.size
            if candidates.ids is not None:
                self.ledger.record_scores(candidates.ids, scores, epoch)
        return scores

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict(), "generator": self.generator.get_state(), "checked": self.checked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.generator.set_state(state["generator"])
        self.checked = state["checked"]


def require_finite(losses: Tensor, ids: Tensor | None, what: str) -> None:
    """Stop at once at a NaN or infinite loss, and say which examples have it."""
    if torch.isfinite(losses).all():
        return
    rows = (~torch.isfinite(losses)).nonzero().flatten()
    values = ", ".join(f"{value}" for value in losses[rows[:5]].tolist())
    where = f"ids {ids[rows[:5]].tolist()}" if ids is not None else f"positions {rows[:5].tolist()} of the batch"
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    raise ValueError(
        f"not finite: {what} is {values} for the examples with {where}{more}. Training has diverged or these examples "
        "are broken: look at them, lower the learning rate, or clip gradients"
    )


def _keep_all(size: int) -> Selection:
    return Selection(torch.arange(size), torch.ones(size), torch.ones(size, dtype=torch.float64))


def _rows(candidates: Candidates, rows: Tensor, layout: Layout) -> Candidates:
    """Some of the candidates, in order."""
    columns = [
        column[rows.to(column.device)] if isinstance(column, Tensor) else [column[i] for i in rows.tolist()]
        for column in layout.columns(candidates.data, candidates.size)
    ]
    ids = candidates.ids[rows] if candidates.ids is not None else None
    return Candidates(layout.batch(columns), ids, len(rows))


def _merge(known: Selection, undecided: Tensor, chosen: Selection) -> Selection:
    """All that were decided before loading, and those chosen now among the rest, in their common order."""
    weights, probabilities = known.weights.clone(), known.probabilities.clone()
    keep = torch.ones(len(weights), dtype=torch.bool)
    keep[undecided] = False
    keep[undecided[chosen.positions]] = True
    weights[undecided[chosen.positions]] = chosen.weights
    probabilities[undecided] = chosen.probabilities
    positions = keep.nonzero().flatten()
    return Selection(positions, weights[positions], probabilities)
