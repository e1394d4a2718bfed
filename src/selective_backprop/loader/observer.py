"""The observer: the one writer of the ledger and the statistics.

# N = candidates, B = training batch
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from selective_backprop.copying import LEFT_WAITING, MAX_WAITING, Copy, begin_copy, finish_copy
from selective_backprop.distributed.ledger import AnyLedger
from selective_backprop.loader.recording import Recorder
from selective_backprop.losses import require_finite
from selective_backprop.sampler.parts import Parts
from selective_backprop.sampler.stats import Stats
from selective_backprop.sampler.training_losses import StepLosses, write_losses
from selective_backprop.scorers.audited import AuditedLossScorer
from selective_backprop.types import Batch, Candidates


class Observer:
    """Writes down what happens: candidates offered, scores, selections, batches given out and their losses.

    Losses are collected without waiting for the GPU at every step. The ledger is written to every few steps, because
    the rows of a large one are far apart in memory: `ledger` brings it up to date.

    Args:
        parts: the schedule learns from losses, and the scorer says what its scores are.
        ledger: what is known about each example.
        stats: the statistics.
        device: the device of the model.
        audit: whether to record training dynamics, for `sb.audit`.
    """

    def __init__(self, parts: Parts, ledger: AnyLedger, stats: Stats, device: torch.device, *, audit: bool) -> None:
        self._parts, self._ledger, self.stats = parts, ledger, stats
        self._waits_for_gpu = device.type != "cpu"
        self.recorder = Recorder(len(ledger)) if audit or isinstance(parts.scorer, AuditedLossScorer) else None
        # For each step: ids, losses on their way to the CPU, epoch, whether every candidate was kept.
        self._steps: list[tuple[Tensor | None, Copy, int, bool]] = []
        # What the ledger does not have yet: losses of training steps, ids offered and ids given out.
        self._losses: list[StepLosses] = []
        self._offered: list[Tensor] = []
        self._given: list[Tensor] = []
        self._counts = True  # whether the epoch counts, which is not known in its first training step
        self._before = stats.copy()  # the statistics when the epoch began, or went on after a resume
        self.needs_losses = self.recorder is not None or parts.learns_losses
        """Whether anybody needs the loss of each example."""

    def follow(self, device: torch.device) -> None:
        """Take note that the model was moved to this device."""
        self._waits_for_gpu = device.type != "cpu"

    @property
    def ledger(self) -> AnyLedger:
        """The ledger, with all that was learned so far."""
        self.write()
        return self._ledger

    # ---- candidates

    def offered(self, ids: Tensor | None, count: int, *, loaded: int) -> None:
        """Count candidates that were offered, and how many of them were loaded. ids: None if they are counted later."""
        if ids is not None:
            self._offered.append(ids)
        self.stats.count(offered=count, skipped_before_loading=count - loaded)

    def scored(self, candidates: Candidates, scores: Tensor, epoch: int) -> None:
        """Write down the scores of a selection pass."""
        self.stats.count(scored=candidates.size)
        if self._parts.scorer.score_name == "loss":
            self.stats.count_losses(float(scores.sum(dtype=torch.float64)), scores.numel(), "candidates")
        if candidates.ids is not None:
            self._ledger.record_scores(candidates.ids, scores, epoch)

    def selected(self, ids: Tensor | None, probabilities: Tensor) -> None:
        """Write down the chance that each candidate had to be selected."""
        if ids is not None:
            self._ledger.record_probabilities(ids, probabilities)

    # ---- training

    def given_out(self, batch: Batch, queued: int) -> None:
        """Count a training batch that is given out. queued: number of selected examples that still wait."""
        if batch.ids is not None:
            self._given.append(batch.ids)
        self.stats.count(trained=len(batch), batches=1)
        self.stats.set_queued(queued)

    def trained(self, batch: Batch, outputs: Any, targets: Any, losses: Tensor | None, epoch: int) -> None:
        """Collect the losses of a training step. None: nobody needs them, and computing them would cost extra."""
        if losses is None:
            return
        all_kept = self._parts.schedule.observes_losses and bool((batch.probabilities == 1).all())
        self._steps.append((batch.ids, begin_copy(losses), epoch, all_kept))
        if self.recorder is not None:
            self.recorder.add(batch, outputs, targets, losses, epoch)

    def settle(self) -> None:
        """Take note that a step is over, so the epoch counts, and learn losses.

        On the CPU they are learned at once. On a GPU, when many steps have piled up, and only from the older ones.
        """
        self._counts = True
        if not self._waits_for_gpu:
            self.learn()
        elif len(self._steps) >= MAX_WAITING:
            self.learn(LEFT_WAITING)
        if max(len(self._losses), len(self._offered), len(self._given)) >= MAX_WAITING:
            self.write()

    def learn(self, num_left: int = 0) -> None:
        """Read collected losses. This waits for the device unless it has already finished them.

        num_left: number of the newest steps to leave for later.
        """
        if not self._steps:
            return
        count = len(self._steps) - num_left
        steps, self._steps = self._steps[:count], self._steps[count:]
        for ids, copied, epoch, all_kept in steps:
            losses = finish_copy(copied)
            total = float(losses.sum(dtype=torch.float64))
            if not math.isfinite(total):
                require_finite(losses, ids, "training loss")
            self.stats.count_losses(total, losses.numel(), "trained")
            scorer = self._parts.scorer
            if all_kept and (scorer.score_name == "loss" or not scorer.needs.selection_pass):
                self._parts.schedule.observe_losses(losses)
            if ids is not None:
                self._losses.append((ids, losses, epoch))

    def write(self) -> None:
        """Bring the ledger up to date. Counts of an epoch that may turn out not to count have to wait."""
        losses, self._losses = self._losses, []
        write_losses(losses, self._ledger)
        if not self._counts:
            return
        if self._offered:
            self._ledger.count_offered(_joined(self._offered))
        if self._given:
            self._ledger.count_selected(_joined(self._given))
        self._offered, self._given = [], []

    def deliver(self) -> None:
        """Send what was learned to the ranks that own the rows. All ranks must call this."""
        self.ledger.deliver()

    # ---- an epoch that may turn out not to count

    def begin_epoch(self) -> None:
        """Begin an epoch, or go on with one. This does not count before the first `settle`."""
        self.write()
        self._counts, self._before = False, self.stats.copy()

    def end_epoch(self) -> None:
        """Take note that the epoch counts and is over, and learn all its losses."""
        self._counts = True
        self.learn()
        self.write()

    def forget(self) -> None:
        """Go back to the statistics at the start of an epoch that does not count, apart from its seconds."""
        self._counts, self._offered, self._given = True, [], []
        self.stats.load_state_dict(replace(self._before, seconds=self.stats.seconds).state_dict())

    # ---- saving

    def state_dict(self, *, copy: bool) -> dict[str, Any]:
        # Saving must not change when losses on a GPU are learned. Otherwise a run that saves would differ from others.
        self.settle()
        steps = [[ids, finish_copy(losses), epoch, kept] for ids, losses, epoch, kept in self._steps]
        return {
            "losses": steps,
            "ledger": self.ledger.state_dict(copy=copy),
            "stats": self.stats.state_dict(),
            "dynamics": None if self.recorder is None else self.recorder.state_dict(),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if a saved state does not fit. Nothing is changed."""
        self._ledger.check_state_dict(state["ledger"])
        recorded = state["dynamics"] is not None
        if recorded != (self.recorder is not None):
            raise ValueError(
                f"the state was saved {'with' if recorded else 'without'} audit=True, but this loader is "
                f"{'without' if recorded else 'with'} it: pass the same audit="
            )
        if self.recorder is not None:
            self.recorder.check_state_dict(state["dynamics"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = [(ids, (losses, None), epoch, all_kept) for ids, losses, epoch, all_kept in state["losses"]]
        self._losses, self._offered, self._given, self._counts = [], [], [], True
        self.stats.load_state_dict(state["stats"])
        if self.recorder is not None:
            self.recorder.load_state_dict(state["dynamics"])
        self._ledger.load_state_dict(state["ledger"])


def _joined(ids: list[Tensor]) -> Tensor:
    return ids[0] if len(ids) == 1 else torch.cat(ids)  # no copy of a whole epoch's ids
