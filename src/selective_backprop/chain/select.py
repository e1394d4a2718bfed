"""Select: scores each loaded batch while selection is on, and keeps what the policy selects on all ranks together.

# N = candidates of this rank
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from selective_backprop.chain.ids import ids_of_all
from selective_backprop.inference import is_sharded
from selective_backprop.run import Run
from selective_backprop.scorers.stored import fresh_of
from selective_backprop.types import Batch, Candidates, Selection, Task


class Kept(NamedTuple):
    """One candidate batch, and what of it was selected."""

    candidates: Batch
    """The candidates of this rank."""
    selection: Selection
    """Which of them were selected."""
    sizes: list[int]
    """Number of candidates on each rank."""
    counts: list[int]
    """Number of selected candidates on each rank."""
    is_all: bool
    """Whether every candidate was selected exactly once, on all ranks."""


class Select:
    """A round: every rank loads, scores and selects one batch, together with the other ranks.

    Args:
        source: gives out candidates.
        run: the scorer, the policy and the schedule.
        task: the model, the forward pass and the loss.
        state: where an epoch was when it was saved; None begins one.
    """

    def __init__(self, source: Any, run: Run, task: Task, state: dict[str, Any] | None = None) -> None:
        self.source, self.run, self._task = source, run, task.for_scores()
        begin: dict[str, Any] = {"round": 0, "fraction": 0.0, "keeps_all": True}
        own = begin if state is None else state["own"]
        self.round: int = own["round"]
        """Number of rounds of this epoch so far."""
        self.fraction: float = own["fraction"]
        """Fraction of the epoch offered, on the rank that is slowest."""
        self.keeps_all: bool = own["keeps_all"]
        """Whether every candidate of this epoch was selected exactly once so far, on all ranks."""
        self._fresh = fresh_of(run.scorer)
        self._is_sharded = run.ranks.size > 1 and is_sharded(task.model)
        self._stand_in: Candidates | None = None  # for when a sharded model needs this rank, and it has no candidates
        self._worked = state is not None  # whether a selection pass went well

    def next(self) -> Kept | None:
        """Load, score and select one batch. None when no rank has any left. All ranks must call this."""
        run, batch = self.run, self.source.next()
        run.stats.switch("selecting")
        schedule, place = run.schedule, (run.epoch + self.fraction, self.round, run.num_epochs)
        size = 0 if batch is None else int(batch.weights.numel())
        if size:
            schedule.advance(*place)
        on = schedule.is_on(*place)
        probing = not on and schedule.wants_scores(*place)
        sizes, fraction = [size], float(self.source.fraction)
        if run.ranks.size > 1:
            # Rank 0's schedule decides for all: schedules may follow losses, which differ between ranks.
            mine = [size, batch is None, 1.0 if batch is None else fraction, on, probing]
            shared = run.ranks.share(mine)
            sizes, fraction = [int(one[0]) for one in shared], min(one[2] for one in shared)
            on, probing = bool(shared[0][3]), bool(shared[0][4])
            batch = None if all(one[1] for one in shared) else batch or Batch(None, None, *_NONE)
        if batch is None:
            self.fraction = 1.0
            return None
        self.round, self.fraction = self.round + 1, fraction
        self._task = self._task.at(run.epoch + fraction, run.num_epochs)
        ids = batch.ids if run.ranks.size == 1 or self.source.step is None else ids_of_all(self.source.step)
        if ids is not None:
            run.offer(ids)
        run.stats.offered += sum(sizes)
        scores = self._scores(batch, size, sizes, ids, on=on, probing=probing)
        if scores is None:
            selection = Selection(torch.arange(size), batch.weights, batch.probabilities)
            return Kept(batch, selection, sizes, sizes, True)
        selection = run.select(scores, ids)
        is_all = selection.keeps_all(len(scores))
        self.keeps_all = self.keeps_all and is_all
        counts = [selection.positions.numel()]
        if run.ranks.size > 1:
            bounds = torch.searchsorted(selection.positions, torch.tensor([0, *sizes]).cumsum(0))
            counts, selection = bounds.diff().tolist(), _own_part(selection, sizes, run.ranks.rank)
        return Kept(batch, selection, sizes, counts, is_all)

    def _scores(
        self, batch: Batch, size: int, sizes: list[int], ids: Tensor | None, *, on: bool, probing: bool
    ) -> Tensor | None:
        """Return the scores of the candidates of all ranks if there is something to select; else None.

        The first batch is always scored, even while selection is off: if scoring cannot work, the error comes at the
        start and not halfway through the run.
        """
        run = self.run
        never_on, passes = run.schedule.never_on, run.scorer.needs.selection_pass
        tries, run.has_scored = not run.has_scored and passes and not never_on, True
        if not (on or tries or (probing and passes)):
            if self._fresh is not None and size and not never_on:
                run.stats.switch("scoring")
                self._fresh.watch(Candidates(batch.data, batch.ids, size), self._task)
                run.stats.switch("selecting")
            return None
        own = self._own_scores(Candidates(batch.data, batch.ids, size))
        scores = own if run.ranks.size == 1 else torch.cat(run.ranks.gather(own, sizes))
        if passes:
            run.scored(ids, scores)
        if not on:
            run.try_policy(scores, ids)
            return None
        return scores

    def _own_scores(self, candidates: Candidates) -> Tensor:
        """Score this rank's candidates: (N,) on the CPU."""
        run = self.run
        if not candidates.size:
            self._help_others()
            return torch.empty(0)
        run.stats.switch("scoring")
        try:
            scores = run.scorer.score(candidates, self._task)
        except _FAILURES as error:
            if self._worked or isinstance(error, torch.OutOfMemoryError) or _is_ours(error):
                raise
            raise _explained(error) from error
        self._worked = True
        if scores.shape != (candidates.size,):
            raise ValueError(
                f"the scorer returned scores of shape {tuple(scores.shape)} for {candidates.size} candidates: it must "
                f"return one score per candidate, of shape ({candidates.size},)"
            )
        # The one wait for the GPU per candidate batch: the next steps depend on how many are selected.
        scores = scores.detach().to("cpu", torch.float32)
        run.stats.switch("selecting")
        if self._is_sharded:
            self._stand_in = candidates
        return scores

    def _help_others(self) -> None:
        """Take part in other ranks' forward pass: a model whose parameters are sharded needs all ranks for it."""
        if not self._is_sharded:
            return
        if self._stand_in is None:
            self._stand_in = self.source.stand_in()
        if self._stand_in is None:
            raise ValueError(
                "this rank has no candidates in the first round, so the other ranks cannot score theirs: the model is "
                "sharded by FSDP, which runs it on all ranks together. Give every rank at least one batch"
            )
        self.run.scorer.score(self._stand_in, self._task)

    def state_dict(self) -> dict[str, Any]:
        own = {"round": self.round, "fraction": self.fraction, "keeps_all": self.keeps_all}
        return {"own": own, "source": self.source.state_dict()}


_NONE = (torch.empty(0), torch.empty(0, dtype=torch.float64))
_FAILURES = (RuntimeError, TypeError, AttributeError, IndexError, KeyError, ValueError)


def _own_part(selection: Selection, sizes: list[int], rank: int) -> Selection:
    """Cut this rank's part out of a selection among the candidates of all ranks."""
    begin = sum(sizes[:rank])
    end = begin + sizes[rank]
    own = slice(*torch.searchsorted(selection.positions, torch.tensor([begin, end])).tolist())
    return Selection(selection.positions[own] - begin, selection.weights[own], selection.probabilities[begin:end])


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
