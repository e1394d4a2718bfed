"""The selector: scores loaded candidates and selects among them.

# N = candidates
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from selective_backprop.distributed.team import Meeting, Share, Team
from selective_backprop.inference import is_sharded
from selective_backprop.loader.observer import Observer
from selective_backprop.loader.source import Loaded
from selective_backprop.losses import require_finite
from selective_backprop.sampler.parts import Parts
from selective_backprop.scorers import PipelinedScorer
from selective_backprop.scorers.base import fresh_of
from selective_backprop.types import Candidates, Selection, Task


class Selector:
    """Scores loaded candidates and selects among them, together with the other ranks.

    Args:
        parts: the scorer, the policy and the schedule.
        task: the model, the forward pass and the loss.
        team: the ranks that train together.
        observer: writes down scores.
        find_stand_in: loads candidates for a rank that had none yet, such as one whose examples are all pruned.
    """

    def __init__(
        self,
        parts: Parts,
        task: Task,
        team: Team,
        observer: Observer,
        find_stand_in: Callable[[], Candidates | None],
    ) -> None:
        self._parts, self._team, self._observer = parts, team, observer
        self._task = task.for_scores()
        self._stats, self._find_stand_in = observer.stats, find_stand_in
        self._fresh = fresh_of(parts.scorer)
        self.pipeline = self._fresh if isinstance(self._fresh, PipelinedScorer) else None
        """The scorer that scores the next candidates ahead of their turn, if there is one."""
        self._is_sharded = team.size > 1 and is_sharded(task.model)
        self._tried = False  # whether one batch went through the model and the loss without an error
        self._has_scored = False
        self._stand_in: Candidates | None = None  # last scored candidates, for when a sharded model needs this rank

    def choose(self, loaded: Loaded, meeting: Meeting, epoch: int) -> Share:
        """Score and select if selection is on; keep all candidates if not. All ranks must call this."""
        candidates = loaded.candidates
        self._task = self._task.at(epoch + meeting.fraction, self._parts.num_epochs)
        if not meeting.on:
            self._watch(candidates, probing=meeting.probing, epoch=epoch)
            kept = Selection(torch.arange(candidates.size), *loaded.planned())
            return Share(kept, meeting.sizes, keeps_all=True)
        scores = self.score(candidates, epoch)
        everyone = self._team.pool(scores, meeting.sizes)
        # Checked only after the other ranks have these scores: if this rank raised earlier, they would wait forever.
        require_finite(scores, candidates.ids, self._parts.score_is)
        self._team.require_finite(everyone, meeting.sizes)
        groups = self._parts.groups_of(candidates.ids)
        if groups is not None:
            groups = self._team.pool(groups, meeting.sizes)
        share = self._team.divide(self._parts.select(everyone, groups, own=scores, ids=candidates.ids), meeting.sizes)
        self._observer.selected(candidates.ids, share.selection.probabilities)
        return share

    def score(self, candidates: Candidates, epoch: int) -> Tensor:
        """Score candidates: (N,) on the CPU. All ranks must call this, because a sharded model needs all of them."""
        self._tried = True  # set on all ranks at once, also on one without candidates
        if not candidates.size:
            self._help_others()
            return torch.empty(0)
        phase = self._stats.switch("scoring")
        try:
            scores = self._parts.scorer.score(candidates, self._task)
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
        if self._parts.scorer.needs.selection_pass:
            self._observer.scored(candidates, scores, epoch)
        if self._is_sharded:
            self._stand_in = candidates
        return scores

    def _watch(self, candidates: Candidates, *, probing: bool, epoch: int) -> None:
        """Look at candidates that are all kept, and score them if somebody needs the scores.

        The first batch is always scored, even while selection is off: if scoring cannot work, the error comes at the
        start and not halfway through the run.

        probing: whether the schedule wants their scores.
        """
        parts = self._parts
        never_on, tries = parts.schedule.never_on, not self._tried and parts.scorer.needs.selection_pass
        self._tried = True
        if (tries and not never_on) or (probing and parts.scorer.needs.selection_pass):
            scores = self.score(candidates, epoch)
            require_finite(scores, candidates.ids, parts.score_is)
            if len(scores):
                parts.try_policy(scores, candidates.ids)
                parts.schedule.observe(scores)
        elif not never_on and candidates.size and self._fresh is not None:
            phase = self._stats.switch("scoring")
            self._fresh.watch(candidates, self._task)
            self._stats.switch(phase)

    def _help_others(self) -> None:
        """Take part in other ranks' forward pass: a model whose parameters are sharded needs all ranks for it."""
        if not self._is_sharded:
            return
        if self._stand_in is None:
            self._stand_in = self._find_stand_in()
        if self._stand_in is None:
            raise ValueError(
                "this rank has no candidates in the first round, so the other ranks cannot score theirs: the model is "
                "sharded by FSDP, which runs it on all ranks together. Give every rank at least one batch"
            )
        self._parts.scorer.score(self._stand_in, self._task)

    def submit(self, loaded: Loaded | None) -> None:
        """Let a scorer that works ahead begin with the next candidates. None: drop what was submitted before."""
        if self.pipeline is not None:
            phase = self._stats.switch("scoring")
            self.pipeline.submit(None if loaded is None else loaded.candidates, self._task)
            self._stats.switch(phase)

    def state_dict(self) -> dict[str, Any]:
        return {"tried": self._tried}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tried = state["tried"]


_FAILURES = (RuntimeError, TypeError, AttributeError, IndexError, KeyError, ValueError)


def _explained(error: Exception) -> ValueError:
    """Turn an error from the model or the loss in the first selection pass into one that says what to do."""
    return ValueError(
        f"the first selection pass failed in the model or in loss_fn, with {type(error).__name__}: {error}\n"
        "If the model returns a tuple, a dict or a ModelOutput, or takes its batch another way, pass forward=, "
        "such as forward=lambda model, batch: (model(batch[0]).logits, batch[1]). For targets of tokens with the "
        "classes last, pass loss_fn=sb.losses.PerExampleLoss(sb.token_cross_entropy, reducer='mean')"
    )


def _is_ours(error: BaseException) -> bool:
    """Whether this package raised the error, and not the model, the loss or torch."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return str(name).partition(".")[0] == __name__.partition(".")[0]
