"""The observer: the one writer of the ledger and the statistics.

# N = candidates, B = training batch
"""

from __future__ import annotations

import logging
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
from selective_backprop.scorers.audited import AuditedLossScorer
from selective_backprop.types import Batch, Candidates

_logger = logging.getLogger(__name__)


class Observer:
    """Writes down what happens: candidates offered, scores, selections, batches given out and their losses.

    Losses are collected without waiting for the GPU at every step.

    Args:
        parts: the schedule learns from losses, and the scorer says what its scores are.
        ledger: what is known about each example.
        stats: the statistics.
        device: the device of the model.
        audit: whether to record training dynamics, for `sb.audit`.
    """

    def __init__(self, parts: Parts, ledger: AnyLedger, stats: Stats, device: torch.device, *, audit: bool) -> None:
        self._parts, self.ledger, self.stats = parts, ledger, stats
        self._waits_for_gpu = device.type != "cpu"
        self.recorder = Recorder(len(ledger)) if audit or isinstance(parts.scorer, AuditedLossScorer) else None
        # Ids offered and ids given out in the first training step of an epoch, which may turn out not to count.
        self._held: tuple[list[Tensor], list[Tensor]] | None = None
        # For each step: ids, losses on their way to the CPU, epoch, whether every candidate was kept.
        self._steps: list[tuple[Tensor | None, Copy, int, bool]] = []
        self._knows_batch_losses = False

    def follow(self, device: torch.device) -> None:
        """Take note that the model was moved to this device."""
        self._waits_for_gpu = device.type != "cpu"

    # ---- candidates

    def offered(self, ids: Tensor | None, count: int, *, loaded: int) -> None:
        """Count candidates that were offered, and how many of them were loaded. ids: None if they are counted later."""
        if ids is not None and self._held is not None:
            self._held[0].append(ids)
        elif ids is not None:
            self.ledger.count_offered(ids)
        self.stats.offered += count
        self.stats.skipped_before_loading += count - loaded

    def scored(self, candidates: Candidates, scores: Tensor, epoch: int) -> None:
        """Write down the scores of a selection pass."""
        self.stats.scored += candidates.size
        if self._parts.scorer.score_name == "loss":
            self.stats.count_losses(float(scores.sum(dtype=torch.float64)), scores.numel(), "candidates")
        if candidates.ids is not None:
            self.ledger.record_scores(candidates.ids, scores, epoch)

    def selected(self, ids: Tensor | None, probabilities: Tensor) -> None:
        """Write down the chance that each candidate had to be selected."""
        if ids is not None:
            self.ledger.record_probabilities(ids, probabilities)

    # ---- training

    def given_out(self, batch: Batch, queued: int) -> None:
        """Count a training batch that is given out. queued: number of selected examples that still wait."""
        if batch.ids is not None and self._held is not None:
            self._held[1].append(batch.ids)
        elif batch.ids is not None:
            self.ledger.count_selected(batch.ids)
        self.stats.trained += len(batch)
        self.stats.batches += 1
        self.stats.queued = queued

    def trained(self, batch: Batch, outputs: Any, targets: Any, losses: Tensor | None, epoch: int) -> None:
        """Collect the losses of a training step. None: nobody needs them, and computing them would cost extra.

        losses: one per example, or a tensor without dimensions: one for the whole batch.
        """
        if losses is None:
            return
        if self.recorder is not None and not losses.dim():
            raise ValueError(
                "an audit records the loss of each example, but your loss function gives one number for the whole "
                "batch: let it return one loss per example"
            )
        all_kept = self._parts.schedule.observes_losses and bool((batch.probabilities == 1).all())
        self._steps.append((batch.ids, begin_copy(losses), epoch, all_kept))
        if self.recorder is not None:
            self.recorder.add(batch, outputs, targets, losses, epoch)

    def settle(self) -> None:
        """Take note that a step is over, so the epoch counts, and learn losses.

        On the CPU they are learned at once. On a GPU, when many steps have piled up, and only from the older ones.
        """
        if self._held is not None:
            self.commit()
        if not self._waits_for_gpu:
            self.learn()
        elif len(self._steps) >= MAX_WAITING:
            self.learn(LEFT_WAITING)

    def learn(self, num_left: int = 0) -> None:
        """Write collected losses to the ledger. This waits for the device unless it has already finished them.

        num_left: number of the newest steps to leave for later.
        """
        count = len(self._steps) - num_left
        steps, self._steps = self._steps[:count], self._steps[count:]
        for ids, copied, epoch, all_kept in steps:
            losses = finish_copy(copied)
            if not losses.dim():
                self._learn_batch_loss(losses, ids, epoch)
                continue
            total = float(losses.sum(dtype=torch.float64))
            if not math.isfinite(total):
                require_finite(losses, ids, "training loss")
            self.stats.count_losses(total, losses.numel(), "trained")
            scorer = self._parts.scorer
            if all_kept and (scorer.score_name == "loss" or not scorer.needs.selection_pass):
                self._parts.schedule.observe_losses(losses)
            if ids is not None:
                self.ledger.record_losses(ids, losses, epoch)

    def _learn_batch_loss(self, loss: Tensor, ids: Tensor | None, epoch: int) -> None:
        losses = loss.expand(1 if ids is None else len(ids))
        require_finite(losses, ids, "training loss of the whole batch")
        if ids is None:
            return
        if not self._knows_batch_losses:
            self._knows_batch_losses = True
            _logger.warning(
                "your loss function gives one number for a batch of %d examples, so each of them is remembered with "
                "the loss of its batches, which says little about it, and few or none are skipped. If it can, let it "
                "return one loss per example, or take a keyword argument reduction=, as F.cross_entropy does",
                len(ids),
            )
        self.stats.count_losses(float(losses.sum(dtype=torch.float64)), len(ids), "trained")
        self.ledger.record_batch_losses(ids, losses, epoch)

    # ---- an epoch that may turn out not to count

    def begin_epoch(self) -> Stats:
        """Count from now on only what `commit` confirms. Returns the statistics, to go back to by `forget`."""
        self._held = ([], [])
        return self.stats.copy()

    def commit(self) -> None:
        """Take note that the epoch counts."""
        held, self._held = self._held, None
        if held is not None:
            for ids in held[0]:
                self.ledger.count_offered(ids)
            for ids in held[1]:
                self.ledger.count_selected(ids)

    def forget(self, began_with: Stats) -> None:
        """Go back to the statistics at the start of an epoch that does not count, apart from its seconds."""
        self._held = None
        self.stats.load_state_dict(replace(began_with, seconds=self.stats.seconds).state_dict())

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
        self.ledger.check_state_dict(state["ledger"])
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
        self.stats.load_state_dict(state["stats"])
        if self.recorder is not None:
            self.recorder.load_state_dict(state["dynamics"])
        self.ledger.load_state_dict(state["ledger"])
