"""Runner: runs a method. It scores candidates, selects among them and learns from training losses.

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
    """Runs a method: scores candidates, selects among them and learns from training losses.

    The runner has its own copies of the method's scorer, policy and schedule. All randomness of selection comes from
    its generator.

    Args:
        method: the method to run.
        task: the model, the forward pass and the loss.
        ledger: what is known about each example.
        stats: counts what happens.
        num_epochs: length of the run; None if not known.
        seed: seed of the generator.
        team: the ranks that train together.
        plans: whether epochs can be planned before loading: the loader has ids, and epochs are not too long.
    """

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
        plans: bool = True,
    ) -> None:
        self.method = method
        self.ledger = ledger
        # Ranks that select together draw the same numbers; ranks that select alone draw different ones.
        if team.size > 1 and not team.pools:
            seed = seed_of_rank(seed, team.rank)
        self.generator = torch.Generator().manual_seed(seed)
        self.policy = copy.deepcopy(method.policy)
        self.scorer = copy.deepcopy(method.scorer)
        self.schedule = copy.deepcopy(method.schedule)
        self._score_name = self.scorer.score_name
        self.share_check = ShareCheck(method, quiet=team.pools and team.rank > 0)
        self.checked = False  # whether one batch went through the model and the loss without an error
        self._task = task
        self._stats = stats
        self._num_epochs = num_epochs
        self._team = team
        self._is_sharded = team.size > 1 and is_sharded(task.model)
        needs = self.scorer.needs
        self._plans = plans
        # A scorer that needs no ids, such as that of random_backprop, decides after loading if it cannot before.
        self._scores_loaded = needs.selection_pass or not (plans or needs.ids)
        self._has_scored = False
        self._stand_in: Candidates | None = None  # last scored candidates, for when a sharded model needs this rank

    @property
    def learns_losses(self) -> bool:
        """Whether selection depends on training losses."""
        return self.scorer.needs.training_losses or self.schedule.observes_losses

    def is_on(self, epoch: int, fraction: float, batch_idx: int) -> bool:
        """Whether to select from loaded candidates at this point of the epoch.

        A method that does not score loaded candidates decides before loading, and trains on examples without a score.
        """
        return self._scores_loaded and self.schedule.is_on(epoch + fraction, batch_idx, self._num_epochs)

    def wants_scores(self, epoch: int, fraction: float, batch_idx: int) -> bool:
        """Whether to score these candidates while selection is off, to find out whether it would pay."""
        wants = self.schedule.wants_scores(epoch + fraction, batch_idx, self._num_epochs)
        return wants and self.scorer.needs.selection_pass

    def advance(self, epoch: int, fraction: float, batch_idx: int) -> None:
        """Tell the schedule that the next candidate batch is here."""
        self.schedule.advance(epoch + fraction, batch_idx, self._num_epochs)

    @property
    def skips_waiting(self) -> bool:
        """Whether an epoch skips the examples that wait in the queue when it begins: no batch holds one twice then."""
        return len(self.ledger) > 0 and not self.policy.with_replacement

    @property
    def unbiased(self) -> bool:
        """Whether the weights make the expected weight of an example in an epoch 1."""
        return self.policy.unbiased

    def plan(
        self, epoch: int, num_batches: int | None, *, waiting: Tensor, num_waiting: int, batch_size: int | None
    ) -> Plan | None:
        """Return the function that plans this epoch: it decides before loading which candidates to load.

        None if nothing can be decided before loading.

        Args:
            epoch: number of the epoch, from 0.
            num_batches: candidate batches per epoch, if known.
            waiting: rising ids of examples that already wait in the queue.
            num_waiting: number of waiting examples on all ranks.
            batch_size: size of a training batch, if known.
        """
        scorer, schedule = self.scorer, self.schedule
        self.policy.begin_epoch(epoch, self._num_epochs)
        if not self._plans or not scorer.plans(epoch) or not schedule.on_in_epoch(epoch, num_batches, self._num_epochs):
            return None
        # At first no losses are known, so every example is trained on, without a plan. A loader without a length is
        # planned nevertheless: that finds out whether its epochs end.
        nothing_known = epoch == 0 and scorer.needs.training_losses and num_batches is not None
        if nothing_known and not self.ledger.has_losses():
            return None

        def select(scores: Tensor, ids: Tensor | None) -> Selection:
            selection = self.select_planned(scores, ids)
            if ids is not None:
                # Candidates that are not loaded never reach the pipeline, which records the others.
                self.ledger.record_probabilities(ids, selection.probabilities)
            return selection

        top_up = None
        if batch_size is not None and not scorer.is_final:
            top_up = TopUp(batch_size, num_waiting, self.generator, self._team.ranks)

        def is_on(number: int, num_batches: int) -> bool:
            return schedule.is_on(epoch + number / num_batches, number, self._num_epochs)

        def plan(batches: Iterable[IdBlock]) -> tuple[Iterable[Chunk], Tensor, int]:
            together = self._team.size > 1
            # Several ranks take the epoch as one block here: the team divides it into blocks.
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
        """Return how many of `num_candidates` a copy of the policy selects, in several trials with made-up scores.

        Scores are spread evenly in one trial, and a few are far above the others in the next: a policy may keep
        everything in one of the two cases.
        """
        policy, generator = copy.deepcopy(self.method.policy), torch.Generator().manual_seed(0)
        counts = []
        for trial in range(trials):
            scores = torch.rand(num_candidates, generator=generator).pow(1 if trial % 2 == 0 else 8)
            counts.append(len(policy.select(scores, generator).positions))
        return counts

    # ---- selecting

    def select(self, scores: Tensor, candidates: Candidates, parts: list[Tensor], counts: list[int]) -> Choice:
        """Select which of this rank's candidates to train on. All ranks must call this.

        Args:
            scores: scores of this rank's candidates.
            candidates: this rank's candidates.
            parts: the scores to select from: one tensor per rank if ranks select together, else only this rank's.
            counts: number of scores on each rank.
        """
        ids = candidates.ids
        try:
            # Checked only after the other ranks have these scores: if this rank raised earlier, they would wait
            # forever.
            self._require_valid(scores, ids)
            if len(parts) > 1:
                self._team.check_pooled(parts)
            groups = None
            if self.method.groups is not None:
                groups = self._team.pool(self._groups(candidates.data, ids, len(scores)), counts)
            everyone = parts[0] if len(parts) == 1 else torch.cat(parts)
            selection = self._apply_policy(everyone, groups) if everyone.numel() else _none()
        except Exception:
            self._team.give_up()
            raise
        return self._team.divide(selection, counts)

    def select_planned(self, scores: Tensor, ids: Tensor | None) -> Selection:
        """Select which of this rank's candidates of a whole epoch to load. All ranks must call this."""
        phase = self._stats.switch("selecting")
        try:
            self._require_valid(scores, ids)
        except Exception:
            self._team.cannot_plan()
            raise
        groups, parts = None if self.method.groups is None else self._groups(None, ids, len(scores)), []
        for block, counts in self._team.blocks(len(scores)):
            everyone = self._team.pool(scores[block], counts)
            all_groups = None if groups is None else self._team.pool(groups[block], counts)
            selection = self._apply_policy(everyone, all_groups) if everyone.numel() else _none()
            part = self._team.own_part(selection, counts)
            parts.append(dataclasses.replace(part, positions=part.positions + (block.start or 0)))
        self._stats.switch(phase)
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _groups(self, data: Any, ids: Tensor | None, size: int) -> Tensor:
        """Return the group of each of `size` examples, by their ids or by the user's function of the batch."""
        groups = self.method.groups
        assert groups is not None
        if isinstance(groups, Tensor):
            return groups[_NO_IDS if ids is None else ids]
        if not size:
            return _NO_IDS
        found = torch.as_tensor(groups(data)).to("cpu", torch.int64)
        if found.shape != (size,):
            raise ValueError(
                f"your function of classes returned a tensor of shape {tuple(found.shape)} for "
                f"{size} examples: it must return one whole number per example, of shape ({size},)"
            )
        return found

    def _require_valid(self, scores: Tensor, ids: Tensor | None) -> None:
        what = f"{self._score_name} in a selection pass"
        require_finite(scores, ids, what)
        if not self.policy.takes_negative_scores:
            require_not_negative(scores, ids, what)

    def _apply_policy(self, scores: Tensor, groups: Tensor | None) -> Selection:
        """Let the policy select, and tell the schedule and the share check about it."""
        self.schedule.observe(scores)
        if groups is None:
            selection = self.policy.select(scores, self.generator)
        else:
            selection = self.policy.select_in_groups(scores, self.generator, groups)
        self.share_check.count(scores.numel(), selection.positions.numel(), self.policy.why_all)
        return selection

    # ---- scoring

    def watch(self, loaded: Loaded, *, probing: bool, epoch: int) -> None:
        """Look at candidates that are all kept, and score them if somebody needs the scores.

        The first batch is always scored, even while selection is off: if scoring cannot work, the error comes at the
        start and not halfway through the run.

        probing: whether the schedule wants their scores.
        """
        checks = not self.checked and not self.schedule.never_on and self.scorer.needs.selection_pass
        self.checked = True
        if checks or (probing and loaded.undecided):
            scores = self.score(loaded.candidates, epoch)
            self._require_valid(scores, loaded.candidates.ids)
            self.schedule.observe(scores)
            return
        if not self.schedule.never_on and loaded.undecided and loaded.candidates.size:
            phase = self._stats.switch("scoring")
            self.scorer.watch(loaded.candidates, self._current_task())
            self._stats.switch(phase)

    def score(self, candidates: Candidates, epoch: int) -> Tensor:
        """Score candidates: (N,) on the CPU. All ranks must call this, because a sharded model needs all of them."""
        self.checked = True  # set on all ranks at once, also on one without candidates
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
            raise ValueError(
                f"the scorer returned scores of shape {tuple(scores.shape)} for {candidates.size} candidates: it must "
                f"return one score per candidate, of shape ({candidates.size},)"
            )
        # The one wait for the GPU per candidate batch: the next steps depend on how many are selected.
        scores = scores.detach().to("cpu", torch.float32)
        self._stats.switch(phase)
        if self.scorer.needs.selection_pass:
            self._stats.count_scores(candidates.size, fidelity=self.scorer.fidelity)
            if self._score_name == "loss":
                self._stats.count_losses(float(scores.sum()), scores.numel(), "candidates")
            if candidates.ids is not None:
                self.ledger.record_scores(candidates.ids, scores, epoch)
        if self._is_sharded:
            self._stand_in = candidates
        return scores

    def _attend(self) -> None:
        """Take part in other ranks' forward pass: a model whose parameters are sharded needs all ranks for it."""
        if not self._is_sharded:
            return
        if self._stand_in is None:
            raise ValueError(
                "this rank has no candidates in the first round, so the other ranks cannot score theirs: the model is "
                "sharded by FSDP, which runs it on all ranks together. Give every rank at least one batch"
            )
        self.scorer.score(self._stand_in, self._current_task())

    def submit(self, loaded: Loaded | None) -> None:
        """Let a scorer that works ahead begin with the next candidates. None: drop what was submitted before."""
        if self.scorer.works_ahead and (loaded is None or loaded.undecided):
            phase = self._stats.switch("scoring")
            self.scorer.submit(loaded.candidates if loaded is not None else None, self._current_task())
            self._stats.switch(phase)

    def _current_task(self) -> Task:
        return dataclasses.replace(self._task, model=unwrap(self._task.model))

    def learn(self, ids: Tensor | None, losses: Tensor, epoch: int, *, all_kept: bool) -> None:
        """Record the losses of a finished training step.

        all_kept: whether every candidate was trained on, so that these are losses of typical candidates.
        """
        total = float(losses.sum())
        if not math.isfinite(total):
            require_finite(losses, ids, "training loss")
        self._stats.count_losses(total, losses.numel(), "trained")
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
        """Raise if a saved state does not fit. It is tried on copies, so nothing changes."""
        parts = {name: getattr(self.method, name) for name in ("policy", "scorer", "schedule")}
        for name, part in {**parts, "generator": None}.items():
            try:
                if part is None:
                    torch.Generator().set_state(state[name])
                else:
                    copy.deepcopy(part).load_state_dict(state[name])
            except Exception as error:  # any error: the part may be the user's own class
                raise ValueError(
                    f"the saved state of the {name} does not fit {part or 'a generator'}: it was saved by another one, "
                    f"or it is damaged ({type(error).__name__}: {error})"
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
    """Turn an error from the model or the loss in the first selection pass into one that says what to do."""
    return ValueError(
        f"the first selection pass failed in the model or in loss_fn, with {type(error).__name__}: {error}\n"
        "If the model returns a tuple, a dict or a ModelOutput, or takes its batch another way, pass forward=, "
        "such as forward=lambda model, batch: (model(batch[0]).logits, batch[1]). For targets of tokens with the "
        "classes last, use sb.token_cross_entropy as loss_fn, with reducer='mean'"
    )


def _is_ours(error: BaseException) -> bool:
    """Whether this package raised the error, and not the model, the loss or torch."""
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
