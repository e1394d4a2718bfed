"""A method at work: it scores candidates, selects among them and learns from training.

# N = candidates
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches.layout import Layout, move
from selective_backprop.distributed.ledger import AnyLedger
from selective_backprop.distributed.ranks import seed_of_rank
from selective_backprop.distributed.team import Choice, Team
from selective_backprop.inference import device_of, is_sharded, unwrap
from selective_backprop.loader.index_stream import Chunk, IdBlock
from selective_backprop.loader.loading import Loaded
from selective_backprop.loader.planning import BLOCK, id_blocks, plan_epoch
from selective_backprop.loader.share_check import ShareCheck
from selective_backprop.loader.source import Plan
from selective_backprop.loader.stats import Stats
from selective_backprop.loader.topping_up import TopUp
from selective_backprop.losses import require_finite, require_not_negative
from selective_backprop.method import Method
from selective_backprop.types import Candidates, Selection, Task


class Runner:
    """A method at work: its own copies of its parts, the ledger, and the only source of randomness."""

    def __init__(
        self,
        method: Method,
        task: Task,
        ledger: AnyLedger,
        stats: Stats,
        *,
        num_epochs: int | None,
        seed: int,
        team: Team,
    ) -> None:
        self.method = method
        self.ledger = ledger
        # Ranks that select together draw the same numbers, those that select by themselves draw their own.
        if team.size > 1 and not team.pools:
            seed = seed_of_rank(seed, team.rank)
        self.generator = torch.Generator().manual_seed(seed)
        self.policy = copy.deepcopy(method.policy)
        self.scorer = copy.deepcopy(method.scorer)
        self.schedule = copy.deepcopy(method.schedule)
        self._score_name = self.scorer.score_name
        self.share_check = ShareCheck(method, quiet=team.pools and team.rank > 0)
        self.checked = False  # whether the model, the loss and the batches were seen to work together
        self._task = task
        self._stats = stats
        self._num_epochs = num_epochs
        self._team = team
        self._is_sharded = team.size > 1 and is_sharded(task.model)
        self._scores_loaded = self.scorer.needs.selection_pass or self.scorer.needs.training_pass
        self._has_scored = False
        self._stand_in: Candidates | None = None  # the last that were scored, if a rank without any has to attend

    @property
    def learns_losses(self) -> bool:
        """Whether what is selected depends on the losses of training."""
        return self.scorer.needs.training_losses or self.schedule.observes_losses

    def is_on(self, epoch: int, fraction: float, batch_idx: int) -> bool:
        """Whether to select from loaded candidates, at this fraction of the epoch; asked once for each batch.

        A method without a pass over loaded candidates decides before loading, or trains on what it knows nothing of.
        """
        return self._scores_loaded and self.schedule.is_on(epoch + fraction, batch_idx, self._num_epochs)

    def wants_scores(self, epoch: int, fraction: float, batch_idx: int) -> bool:
        """Whether to score these candidates while selection is off, to find out whether it would pay."""
        wants = self.schedule.wants_scores(epoch + fraction, batch_idx, self._num_epochs)
        return wants and self.scorer.needs.selection_pass

    def expects_on(self, epoch: int, fraction: float, batch_idx: int) -> bool:
        """As `is_on`, as far as is known before there are candidates; asking has no effect."""
        return self._scores_loaded and self.schedule.expects_on(epoch + fraction, batch_idx, self._num_epochs)

    @property
    def skips_waiting(self) -> bool:
        """Whether examples that wait in the queue when an epoch begins are no candidates in it: none is given twice."""
        return len(self.ledger) > 0 and not self.policy.with_replacement

    @property
    def unbiased(self) -> bool:
        """Whether the weights make the expected weight of an example in an epoch 1."""
        return self.policy.unbiased

    def plan(
        self, epoch: int, num_batches: int | None, *, waiting: Tensor, num_waiting: int, batch_size: int | None
    ) -> Plan | None:
        """What decides about this epoch's candidates before they are loaded, if anything can.

        Args:
            waiting: rising ids that wait in the queue already.
            num_waiting: how many examples do, on all ranks.
            batch_size: of training, where it is known.
        """
        scorer, schedule = self.scorer, self.schedule
        if not scorer.remembers(epoch) or not schedule.on_in_epoch(epoch, num_batches, self._num_epochs):
            return None
        # Nothing is known of any example: all are trained on, without waiting for a plan. A loader without a length is
        # planned all the same, which finds out that it has an end.
        nothing_known = epoch == 0 and scorer.needs.training_losses and num_batches is not None
        if nothing_known and not self.ledger.has_losses():
            return None

        def select(scores: Tensor, ids: Tensor | None) -> Selection:
            selection = self.select_planned(scores, ids)
            if ids is not None:  # those that are not loaded are never heard of again
                self.ledger.record_probabilities(ids, selection.probabilities)
            return selection

        top_up = None
        if batch_size is not None and not scorer.is_final:
            top_up = TopUp(batch_size, num_waiting, self.generator, self._team.ranks)

        def is_on(number: int, num_batches: int) -> bool:
            return schedule.is_on(epoch + number / num_batches, number, self._num_epochs)

        def plan(batches: Iterable[IdBlock]) -> tuple[Iterable[Chunk], Tensor, int]:
            together = self._team.size > 1
            # Ranks that decide together divide an epoch into blocks by themselves.
            blocks = list(id_blocks(batches, None if together else BLOCK))
            return plan_epoch(
                blocks,
                is_on,
                scorer=scorer,
                select=select,
                ledger=self.ledger,
                epoch=epoch,
                together=together,
                waiting=waiting,
                top_up=top_up,
                unbiased=self.unbiased,
            )

        return plan

    def trial_counts(self, num_candidates: int, trials: int = 8) -> list[int]:
        """How many of that many candidates the method would select, by copies of the policy and made-up scores."""
        policy, generator = copy.deepcopy(self.method.policy), torch.Generator().manual_seed(0)
        counts = []
        for _ in range(trials):
            scores = torch.rand(num_candidates, generator=generator)
            counts.append(len(policy.select(scores, generator).positions))
        return counts

    # ---- selecting

    def select(self, scores: Tensor, ids: Tensor | None, parts: list[Tensor], counts: list[int]) -> Choice:
        """Which of this rank's candidates to train on; by all ranks, in step.

        Args:
            scores: of this rank's candidates.
            ids: of these.
            parts: the scores to select from, by rank, as the team pooled them.
            counts: how many scores each rank has.
        """
        try:
            # Only now that other ranks have these scores: they would wait for them in vain.
            self._require_valid(scores, ids)
            if len(parts) > 1:
                self._team.check_pooled(parts)
            groups = None if self.method.groups is None else self._team.pool(self._groups(ids), counts)
            everyone = parts[0] if len(parts) == 1 else torch.cat(parts)
            selection = self._choose(everyone, groups) if everyone.numel() else _none()
        except Exception:
            self._team.give_up()
            raise
        return self._team.divide(selection, counts)

    def select_planned(self, scores: Tensor, ids: Tensor | None) -> Selection:
        """Which of this rank's candidates of a whole epoch to load; by all ranks."""
        phase = self._stats.switch("selecting")
        try:
            self._require_valid(scores, ids)
        except Exception:
            self._team.cannot_plan()
            raise
        groups, parts = None if self.method.groups is None else self._groups(ids), []
        for own, counts in self._team.blocks(len(scores)):
            everyone = self._team.pool(scores[own], counts)
            all_groups = None if groups is None else self._team.pool(groups[own], counts)
            selection = self._choose(everyone, all_groups) if everyone.numel() else _none()
            part = self._team.own_part(selection, counts)
            parts.append(dataclasses.replace(part, positions=part.positions + (own.start or 0)))
        self._stats.switch(phase)
        return parts[0] if len(parts) == 1 else _joined(parts)

    def select_in_training(self, scores: Tensor, ids: Tensor | None, epoch: int) -> Selection:
        """Which candidates of the batch under way to train on, by scores that came out of the training pass."""
        # The one wait for the GPU per candidate batch: which are selected decides what the backward pass runs on.
        scores = scores.to("cpu", torch.float32)
        require_finite(scores, ids, "training loss")
        self._stats.count_scores(len(scores), fidelity=1.0, staleness=0)
        phase = self._stats.switch("selecting")
        selection = self.select(scores, ids, [scores], [len(scores)]).selection
        self._stats.switch(phase)
        if ids is not None:
            self.ledger.record_scores(ids, scores, epoch)
            self.ledger.record_selection(ids, selection.probabilities, ids.index_select(0, selection.positions))
        return selection

    def _groups(self, ids: Tensor | None) -> Tensor:
        assert self.method.groups is not None
        return self.method.groups[_NO_IDS if ids is None else ids]

    def _require_valid(self, scores: Tensor, ids: Tensor | None) -> None:
        what = f"{self._score_name} in a selection pass"
        require_finite(scores, ids, what)
        if not self.policy.takes_negative_scores:
            require_not_negative(scores, ids, what)

    def _choose(self, scores: Tensor, groups: Tensor | None) -> Selection:
        self.schedule.observe(scores)
        if groups is None:
            selection = self.policy.select(scores, self.generator)
        else:
            selection = self.policy.select_in_groups(scores, self.generator, groups)
        self.share_check.count(scores.numel(), selection.positions.numel())
        return selection

    # ---- scoring

    def look_on(self, loaded: Loaded, *, probing: bool, epoch: int) -> None:
        """Candidates that are not selected from go by: they are scored if somebody has to know their scores.

        The first batch is, even while selection is off: what cannot work must not fail halfway through.

        probing: the schedule wants to know.
        """
        checks = not self.checked and not self.schedule.never_on and self.scorer.needs.selection_pass
        self.checked = True
        if checks or (probing and loaded.undecided):
            scores = self.score(loaded.candidates, epoch)
            self._require_valid(scores, loaded.candidates.ids)
            self.schedule.observe(scores)
            return
        learns = self.scorer.watches and not self.schedule.never_on  # while selection is off, as in a warm-up
        if learns and loaded.undecided and loaded.candidates.size:
            phase = self._stats.switch("scoring")
            self.scorer.watch(loaded.candidates, self._current_task())
            self._stats.switch(phase)

    def score(self, candidates: Candidates, epoch: int) -> Tensor:
        """(N,) scores on the CPU. To be called by all ranks: a model that is spread over ranks needs all of them."""
        self.checked = True  # on all ranks at once, whether this one has candidates or not
        if not candidates.size:
            self._attend()
            return torch.empty(0)
        phase = self._stats.switch("scoring")
        try:
            scores = self.scorer.score(candidates, self._current_task())
        except _FAILURES as error:
            if self._has_scored or isinstance(error, torch.OutOfMemoryError) or _is_ours(error):
                raise
            raise _explained(error) from error
        self._has_scored = True
        if scores.shape != (candidates.size,):
            raise ValueError(f"the scorer gave scores of shape {tuple(scores.shape)} for {candidates.size} candidates")
        # The one wait for the GPU per candidate batch: how many were selected decides what happens next.
        scores = scores.detach().to("cpu", torch.float32)
        self._stats.switch(phase)
        if self.scorer.needs.selection_pass:
            self._stats.count_scores(candidates.size, fidelity=self.scorer.fidelity, staleness=self.scorer.staleness)
            if self._score_name == "loss":
                self._stats.count_losses(float(scores.sum()), scores.numel(), "candidates")
            if candidates.ids is not None:
                self.ledger.record_scores(candidates.ids, scores, epoch)
        if self._is_sharded:
            self._stand_in = candidates
        return scores

    def _attend(self) -> None:
        """Other ranks score: a model whose parameters are spread over ranks needs all of them for a forward pass."""
        if not self._is_sharded:
            return
        if self._stand_in is None:
            raise ValueError(
                "this rank has no candidates in the first round, and other ranks cannot score theirs without it: the "
                "model is sharded by FSDP, which runs it on all ranks together. Give every rank a batch"
            )
        self.scorer.score(self._stand_in, self._current_task())

    def submit(self, loaded: Loaded | None) -> None:
        """Let a scorer that works ahead begin with the candidates that come next; None: with none, after all."""
        if self.scorer.works_ahead and (loaded is None or loaded.undecided):
            phase = self._stats.switch("scoring")
            self.scorer.submit(loaded.candidates if loaded is not None else None, self._current_task())
            self._stats.switch(phase)

    def _current_task(self) -> Task:
        return dataclasses.replace(self._task, model=unwrap(self._task.model), step=self._stats.batches)

    def learn(self, ids: Tensor | None, losses: Tensor, epoch: int, *, all_kept: bool) -> None:
        """Losses of a finished training step. all_kept: nothing was selected, so they are those of any candidates."""
        total = float(losses.sum())
        if not math.isfinite(total):
            require_finite(losses, ids, "training loss")
        # With forward reuse these are the losses of all candidates, selected or not.
        of = "candidates" if self.scorer.needs.training_pass else "trained"
        self._stats.count_losses(total, losses.numel(), of)
        by_loss = self._score_name == "loss" or not self.scorer.needs.selection_pass
        if all_kept and by_loss:
            self.schedule.observe_losses(losses)
        if ids is not None:
            self.ledger.record_losses(ids, losses, epoch)

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "scorer": self.scorer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.generator.get_state(),
            "checked": self.checked,
            "stand_in": self._stand_in_state(),
        }

    def _stand_in_state(self) -> dict[str, Any] | None:
        if self._stand_in is None:
            return None
        data, size = self._stand_in.data, self._stand_in.size
        layout = Layout.of(data, size)
        return {"layout": layout.state_dict(), "columns": layout.columns(data, size), "ids": self._stand_in.ids}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise for a state that does not fit, by loading it into copies."""
        parts = {name: getattr(self.method, name) for name in ("policy", "scorer", "schedule")}
        for name, part in {**parts, "generator": None}.items():
            try:
                if part is None:
                    torch.Generator().set_state(state[name])
                else:
                    copy.deepcopy(part).load_state_dict(state[name])
            except Exception as error:  # of any kind: a part may be the user's own
                raise ValueError(
                    f"the saved state of the {name} does not fit {part or 'a generator'}, as if it were another's or "
                    f"damaged: {type(error).__name__}: {error}"
                ) from error

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (saved := state["stand_in"]) is not None:
            data = Layout.from_state_dict(saved["layout"]).batch(saved["columns"])
            data = move(data, device_of(self._task.model))
            self._stand_in = Candidates(data, saved["ids"], len(saved["columns"][0]))
        self.checked = state["checked"]
        self.policy.load_state_dict(state["policy"])
        self.scorer.load_state_dict(state["scorer"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])


_FAILURES = (RuntimeError, TypeError, AttributeError, IndexError, KeyError, ValueError)


def _explained(error: Exception) -> ValueError:
    """An error of the model or the loss in the first selection pass, with what to do about it."""
    return ValueError(
        f"the first selection pass failed in the model or in loss_fn, with {type(error).__name__}: {error}\n"
        "If the model returns a tuple, a dict or a ModelOutput, or takes its batch another way, pass forward=, "
        "such as forward=lambda model, batch: (model(batch[0]).logits, batch[1]). For targets of tokens with the "
        "classes last, use sb.token_cross_entropy as loss_fn, with reducer='mean'"
    )


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised by this package, and not from inside the model, the loss or torch."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return str(name).partition(".")[0] == __name__.partition(".")[0]


_NO_IDS = torch.empty(0, dtype=torch.int64)


def _none() -> Selection:
    return Selection(_NO_IDS, torch.empty(0), torch.empty(0, dtype=torch.float64))


def _joined(parts: list[Selection]) -> Selection:
    columns = zip(*((part.positions, part.weights, part.probabilities) for part in parts), strict=True)
    return Selection(*map(torch.cat, columns))
