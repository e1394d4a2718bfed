"""Steps: makes the chain of an epoch, pulls training batches from it, and knows what the loop did with each."""

from __future__ import annotations

import logging
from typing import Any

from torch.utils.data import DataLoader

from selective_backprop.chain.ahead import Ahead
from selective_backprop.chain.ids import Options
from selective_backprop.chain.load import Load, fed
from selective_backprop.chain.queue import Queue
from selective_backprop.chain.select import Select
from selective_backprop.chain.stream import Stream, UserStream
from selective_backprop.chain.tokens import TokenQueue
from selective_backprop.chain.told import Step, Told
from selective_backprop.run import EXCHANGE_EVERY, Run
from selective_backprop.scorers import PipelinedScorer
from selective_backprop.scorers.stored import fresh_of
from selective_backprop.stats import OnStats, Reports
from selective_backprop.types import Batch, Task

_logger = logging.getLogger(__name__)


class Steps:
    """Gives out training batches one by one: `begin`, then `next` until it is None.

    The loader iterates by it. Frameworks that count batches call it themselves.

    Args:
        loader: the user's loader.
        run: what lasts from one epoch to the next.
        options: what the user said about batches.
        task: the model, the forward pass and the loss.
        has_ids: whether the loader is a DataLoader whose indices serve as ids.
        on_stats: told what an epoch did.
    """

    def __init__(
        self, loader: Any, run: Run, options: Options, task: Task, *, has_ids: bool, on_stats: OnStats | None
    ) -> None:
        self.run, self.options, self._task = run, options, task
        self.source: DataLoader[Any] | UserStream = fed(loader) if has_ids else UserStream(loader)
        """The user's loader, as stages read it."""
        self.reports = Reports(on_stats if run.ranks.rank == 0 else None, run.stats)
        """Tells the user what epochs did."""
        self.chain: Load | Queue | TokenQueue | None = None
        """The last stage of the epoch under way; None between epochs."""
        self.batch: Batch | None = None
        """The batch given out last."""
        self.step: Step | None = None
        """The training step on it; None between steps."""
        self.resume: dict[str, Any] | None = None
        """The epoch of a loaded state, until its first step from there is over."""
        self.told = Told(run)
        """What the loop told about batches."""
        self._select: Select | None = None
        self._takes_ahead = False  # whether the loop takes batches before it reports the losses of earlier ones
        self._is_look = True  # whether no step of this iteration is over yet
        self.given = 0
        """Number of batches given out since the epoch began, or went on."""
        self._began: tuple[int, int] | None = None  # offered and dropped when the epoch began; None if it goes on
        self._num_silent = 0  # epochs that gave out no batch
        self._has_warned = False

    # ---- an epoch

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is under way, or was when the state was saved that was loaded."""
        return self.chain is not None or self.resume is not None

    @property
    def fraction(self) -> float:
        """Fraction of the current epoch's candidates offered so far."""
        if self.chain is not None:
            return self.chain.fraction
        return 0.0 if self.resume is None else float(self.resume["fraction"])

    def begin(self, *, ahead: bool = False) -> None:
        """Start the next epoch, or go on with the one that was under way when the state was saved.

        ahead: whether the loop takes batches before it reports the losses of earlier ones.
        """
        run, state = self.run, self.resume
        if self.chain is not None:
            self.end_epoch()  # a framework left it early
        self.told.check_unreported()
        self._takes_ahead, self._is_look, self.given = ahead, True, 0
        if state is None:
            run.learn()  # losses that came after the end of their epoch, or of one that was left
            self.report_stats()
            self._warn_beyond_the_end()
        elif self.reports.every:
            self.reports.step_is_over(run.epoch + self.fraction)  # the step in which the state was saved
        run.begin_epoch()
        self._began = (run.stats.offered, run.stats.dropped) if state is None else None
        self.chain = self._make(None if state is None else state["stages"])

    def _make(self, state: dict[str, Any] | None) -> Load | Queue | TokenQueue:
        """Make the chain. Resuming is starting from a state."""
        run, options = self.run, self.options
        tokens = options.batch_tokens is not None
        self._select, stages = None, [state]
        while stages[-1] is not None and "source" in stages[-1]:
            stages.append(stages[-1]["source"])
        source = self.source
        first = (
            Stream(source, run, options, stages[-1])
            if isinstance(source, UserStream)
            else Load(source, run, options, stages[-1])
        )
        if isinstance(first, Load) and first.is_planned:
            return TokenQueue(first, run, options, state) if tokens else first
        scorer = fresh_of(run.scorer)
        if isinstance(scorer, PipelinedScorer):
            first = Ahead(first, run, scorer, self._task, None if state is None else stages[-2])  # type: ignore[assignment]
        self._select = Select(first, run, self._task, None if state is None else stages[1])
        return (TokenQueue if tokens else Queue)(self._select, run, options, state)

    def next(self) -> Batch | None:
        """Return the next training batch, and begin a step on it. None when the epoch has no more, and is over."""
        if self.step is not None:
            self.end_step()
        run, chain, select = self.run, self.chain, self._select
        assert chain is not None
        batch = chain.next()
        if batch is None:
            self._finish()
            return None
        if select is not None and isinstance(select.source, Ahead):
            select.source.work(select)
        self.batch, self.step = batch, Step(run.stats.batches, run.epoch)
        run.give_out(batch.ids, chain.of_all_ranks)
        self.given += 1
        if self._takes_ahead:
            self.told.taken[batch] = self.step
        run.stats.switch("training")
        return batch

    def end_step(self) -> None:
        """End the training step on the batch given out last."""
        step, self.step = self.step, None
        if step is None or self.batch is None:
            return
        if not self._takes_ahead:
            self.told.check(step, self.batch.is_weighted)
        else:
            self.told.expect(step, self.batch.is_weighted)
        run = self.run
        if self._is_look:  # the epoch counts from here on
            run.keep_epoch()
            self._is_look, self.resume = False, None
        if run.stats.batches % EXCHANGE_EVERY == 0:
            run.learn()
        if self.reports.every:
            self.reports.step_is_over(run.epoch + self.fraction)

    def _finish(self) -> None:
        """End an epoch that has no more batches. All ranks come here."""
        run = self.run
        if self._began is not None and not self.given:
            offered, dropped = run.stats.offered - self._began[0], run.stats.dropped - self._began[1]
            if not offered and run.method.keep is None:
                raise ValueError(
                    "the loader is empty: it offered no batch in a whole epoch. If it did before, its sampler is an "
                    "iterator, which can be used only once: pass a list, or an object whose __iter__ starts anew"
                )
            self._note_silence(offered, dropped)
        self._end(left=False)
        self.reports.report(float(run.epoch))

    def end_epoch(self) -> None:
        """Leave the epoch early. It counts, and candidates that have not been offered yet are dropped."""
        if self.chain is not None:
            self.step = None
            self._end(left=True)

    def _end(self, *, left: bool) -> None:
        self._close()
        self.resume = None
        self.run.end_epoch(left=left)

    def leave(self) -> None:
        """Leave the iteration. If the epoch's first step from here is still under way, the epoch does not count.

        So a look at one batch, as by `next(iter(loader))`, changes nothing. In an epoch that is resumed, a batch with a
        loss was no look: a run that never stopped would leave the epoch there.
        """
        told, self.step = self.step is not None and self.step.has_losses, None
        if self.chain is not None and not (self._is_look and not (told and self.resume is not None)):
            self.end_epoch()
            return
        self._close()
        self.run.undo_epoch()

    def _close(self) -> None:
        if self._select is not None and isinstance(self._select.source, Ahead):
            self._select.source.close()
        self.chain = self._select = None
        self.run.stats.switch("")

    def report_stats(self) -> None:
        """Tell `on_stats` about an epoch that was left, or that a framework does not pull to its end."""
        if self.run.stats.batches > self.reports.told.batches:
            self.reports.report(self.run.epoch + self.fraction)

    # ---- what the loop does with a batch

    def train_on(self, batch: Batch) -> None:
        """Begin the training step on a batch that was taken ahead."""
        self.batch, self.step = batch, self.step_of(batch)

    def step_of(self, batch: Batch) -> Step:
        """Return what the loop did with a batch that was given out."""
        if batch is self.batch and self.step is not None:
            return self.step
        return self.told.taken.setdefault(batch, Step(self.run.stats.batches, self.run.epoch - (not self.in_epoch)))

    def _warn_beyond_the_end(self) -> None:
        run = self.run
        if run.num_epochs is not None and run.epoch >= run.num_epochs and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "epoch %d begins, but this SelectiveLoader was made for num_epochs=%d: progress stays at 1, so a "
                "learning rate by step_by_progress stays where it ended. Pass the length of the run as num_epochs=",
                run.epoch + 1,
                run.num_epochs,
            )

    def _note_silence(self, offered: int, dropped: int) -> None:
        """Log why an epoch gave out no batch: the first time, and then every tenth time."""
        self._num_silent += 1
        if self._num_silent % 10 == 1 and self.run.ranks.rank == 0:
            _logger.warning(
                "an epoch gave out no batch: of %d candidates, %s. Use a smaller batch_size= or a higher selectivity",
                offered,
                f"{dropped} were selected, and drop_last drops them because they fill no batch of "
                f"{self.options.batch_size}"
                if dropped
                else "none was selected",
            )

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        under_way = self.resume
        if self.chain is not None and self.given:
            is_planned = isinstance(self.chain, Load)
            under_way = {"stages": self.chain.state_dict(), "fraction": self.fraction, "any_ranks": is_planned}
        user = self.source if isinstance(self.source, UserStream) else None
        return {
            "under_way": under_way,
            "stream": user.state_between_epochs() if user is not None and under_way is None else None,
            "learned_length": None if user is None else user.learned_length,
            "silent": self._num_silent,
            "reported": self.reports.told.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chain = self._select = self.step = self.batch = None
        self.told.forget()
        self.resume, self._num_silent = state["under_way"], state["silent"]
        self.reports.told.load_state_dict(state["reported"])
        if isinstance(self.source, UserStream):
            self.source.learned_length = state["learned_length"]
            self.source.ended = state["stream"] if self.source.stateful is not None else None
