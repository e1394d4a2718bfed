"""The epochs of a sampler: each is planned, handed out, and learned from when it is over.

# k = number of ranks
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from selective_backprop.chain.asking import HandedOut
from selective_backprop.chain.drawing import plan_epoch
from selective_backprop.chain.held_losses import Ahead, HeldLosses
from selective_backprop.losses import require_finite
from selective_backprop.ranks import fails_on_all
from selective_backprop.run import Run
from selective_backprop.step_losses import NO_IDS

_logger = logging.getLogger(__name__)


class SamplerEpochs:
    """One epoch after the other, of all ranks.

    Args:
        run: plans epochs and learns from them.
        source: the size of the data set, or the user's sampler of ids.
        num_examples: size of the data set.
        batch_size: examples in a batch of the user's loader, if told.
        drop_last: whether that loader has drop_last, if told.
        seed: seed of the order, if the source is but a size.
    """

    def __init__(
        self, run: Run, source: Any, num_examples: int, *, batch_size: int | None, drop_last: bool | None, seed: int
    ) -> None:
        self.run, self.source, self.num_examples = run, source, num_examples
        self.batch_size, self.drop_last = batch_size, drop_last
        self.is_told = drop_last is not None
        """Whether the user said so. Else the first epochs tell."""
        # A seed of its own, so that the order does not follow from the numbers that the policy draws.
        order_seed = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(seed)))
        self.order = torch.Generator().manual_seed(order_seed)
        self.now: HeldLosses | None = None
        """The epoch under way, or the last one until the next begins."""
        self.goes_on = False
        """Whether the next iteration goes on with the epoch of a state that was loaded."""
        self.begun = 0
        """How often an epoch was planned, looks included."""
        self.ahead: Ahead | None = None
        """How far the loader asks ahead, by the last epoch of which all losses came."""
        self.is_watched = False
        """Whether somebody has asked for the state, which changes with the sampler then."""
        self._before: list[tuple[torch.Generator, Tensor]] = []  # to go back to, if the epoch turns out to be a look
        self._state: dict[str, Any] = {}
        self._next: int | None = None  # number of the epoch after the one under way, if it was set

    @property
    def is_over(self) -> bool:
        """Whether all losses of the last epoch have come back."""
        return self.now is not None and self.now.is_over(self.drop_last, self.run.learns_losses, is_told=self.is_told)

    @property
    def number(self) -> int:
        """Number of the epoch under way. When all its losses have come back, that of the next one."""
        return self.run.epoch + (self.now is not None and not self.now.finished and self.is_over)

    @property
    def is_surely_over(self) -> bool:
        """Whether no batch of the epoch can be on its way any more."""
        epoch = self.now
        if epoch is None:
            return False
        return epoch.back == len(epoch.ids) or ((self.is_told or not epoch.updates) and self.is_over)

    def set_number(self, number: int) -> None:
        """Set the number of the epoch that begins next."""
        if number < self.number:
            return  # frameworks that count epochs by steps are behind after a resume
        if self.now is not None and not self.now.finished:  # Lightning sets it when workers have asked for ids already
            self._next = number
        else:
            self.run.epoch = number
            self.refresh(everything=True)

    def begin(self, asked: int | None) -> HeldLosses:
        """Begin an epoch, or go on with the one of a state that was loaded. An iteration calls this for its first id.

        asked: how many ids an iteration had asked for that was saved itself.
        """
        epoch, run = self.now, self.run
        following, self._next = self._next, None
        if epoch is not None:
            epoch.leave()
            goes_on = self.goes_on and following in (None, epoch.number) and not self._is_gone_through(epoch)
            if goes_on or asked is not None:
                epoch.go_to(asked)
                return epoch
        self.end()
        run.epoch = run.epoch if following is None else following
        self._before = [(one, one.get_state()) for one in (self.order, self._generator()) if one is not None]
        run.begin_epoch()
        size, drop_last = self.batch_size, self.is_told and bool(self.drop_last)
        self.begun += 1
        self.now = plan_epoch(run, self.source, self.order, self.num_examples, batch_size=size, drop_last=drop_last)
        self.refresh(everything=True)
        return self.now

    def _is_gone_through(self, epoch: HeldLosses) -> bool:
        """Whether the rest of a loaded epoch was handed out, and not only asked for ahead of a look at a batch."""
        has_losses = epoch.updates or self.run.learns_losses
        return epoch.exhausted and (not has_losses or epoch.missing < epoch.usual)

    def place_of_next(self, epoch: HandedOut | None) -> dict[str, int]:
        """Return where an iteration over this epoch is; None if it has not begun."""
        if epoch is None and self.goes_on:
            epoch = self.now
        return {"begun": self.begun + 1, "asked": 0} if epoch is None else {"begun": self.begun, "asked": epoch.asked}

    def can_go_on(self, place: dict[str, int]) -> bool:
        """Whether an iteration can go on from this place, because it is in the epoch that was loaded."""
        return self.now is not None and place["begun"] == self.begun

    def _generator(self) -> torch.Generator | None:
        generator = getattr(self.source, "generator", None)
        return generator if isinstance(generator, torch.Generator) else None

    def end(self) -> None:
        """Write the losses of the epoch under way, of all ranks; or go back if it was but a look at a batch.

        Raises the same error on all ranks if losses cannot be told apart. None is written then.
        """
        epoch, run = self.now, self.run
        if epoch is None or epoch.finished:
            return
        # If losses came in other epochs and none in this one, a loader with workers has asked for all ids of a look.
        is_look = (
            run.stats.batches > 0 and not epoch.updates if epoch.exhausted else epoch.updates < 2 and not self.is_over
        )
        reason = epoch.problem(run.method.name, run.learns_losses)
        told = run.ranks.gather_plain([is_look, epoch.updates, reason, epoch.is_doubtful(self.ahead)])
        problem = next((one for _, _, one, _ in told if one is not None), None)
        is_whole, epoch.finished, self.goes_on = epoch.exhausted or self.is_over, True, False
        if all(looked for looked, *_ in told) or (problem is not None and not any(updates for _, updates, *_ in told)):
            self.now = None
            run.undo_epoch()
            for generator, state in self._before:
                generator.set_state(state)
        else:
            is_doubtful = problem is None and any(doubt for *_, doubt in told)
            if is_doubtful and run.ranks.rank == 0:
                _logger.warning(
                    "the losses of this epoch are not recorded, because it was left early or resumed, and your loader "
                    "asks for batches ahead: if its first step had no update, all losses would be those of other "
                    "examples. Let ids travel with the batch and call sampler.update(losses, ids), or go through a "
                    "whole epoch first"
                )
            self._finish(epoch, is_whole=is_whole, is_known=problem is None and not is_doubtful)
        self.refresh(everything=True)
        if problem is not None:
            raise RuntimeError(problem)

    def _finish(self, epoch: HeldLosses, *, is_whole: bool, is_known: bool) -> None:
        """Count the rest of the epoch, and write its losses if it is known which examples they belong to."""
        run, k = self.run, self.run.ranks.size
        rest = len(epoch) - epoch.back if is_whole and epoch.updates and not epoch.by_ids else 0
        offered, skipped = epoch.count(len(epoch) if is_whole else epoch.back)
        trained = epoch.trained_ids() if is_known else NO_IDS
        untold = 0 if epoch.updates else len(trained) * k
        run.count(offered=offered, skipped_before_loading=skipped - rest * k, dropped=rest * k, trained=untold)
        if is_whole and is_known and epoch.is_even:
            self.ahead = epoch.ahead
        if not self.is_told and is_known and is_whole and epoch.is_even and (rest or epoch.last < epoch.usual):
            self.drop_last = rest > 0  # or the last batch came, and was not full
        run.keep_epoch()
        try:
            steps = epoch.steps(run.stats.batches - epoch.updates) if is_known else []
            with fails_on_all(run.ranks, "met a loss that is not finite"):
                for one in steps:
                    require_finite(one.losses, one.ids, "training loss")
            run.learn_epoch(steps, trained)
        finally:
            run.end_epoch(left=True)  # all ranks have told each other what they learned

    # ---- saving

    def refresh(self, *, everything: bool = False) -> None:
        """Bring the state up to date, in place. everything: also what changes only when an epoch begins or ends."""
        now, run, epoch = self._state, self.run, self.now
        if not self.is_watched:
            return
        if everything:
            generator = self._generator()
            # The ledger's own tensors: a StatefulDataLoader asks for a state per batch.
            now["run"] = run.state_dict() | {"ledger": run.ledger.state_dict(copy=False)}
            now["order"], now["drop_last"] = self.order.get_state(), self.drop_last
            now["begun"], now["ahead"] = self.begun, self.ahead
            now["source"] = None if generator is None else generator.get_state()
            now["under_way"] = None if epoch is None else epoch.plan_state()
        now["run"]["stats"] = run.stats.state_dict()
        if epoch is not None:
            now["under_way"]["place"] = epoch.place(is_over=self.is_over)

    def state_dict(self) -> dict[str, Any]:
        """Return a state that goes on changing with the sampler."""
        if self.now is not None:
            self.now.finish_copies()
        everything, self.is_watched = not self.is_watched, True
        self.refresh(everything=everything)
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved."""
        ranks, left, saved = self.run.ranks, self.now, state["under_way"]
        epoch = None if saved is None else HeldLosses.from_state(saved, ranks.rank, ranks.size)
        self.run.load_state_dict(state["run"])
        self.order.set_state(state["order"])
        if (generator := self._generator()) is not None and state["source"] is not None:
            generator.set_state(state["source"])
        if left is not None:
            left.leave()
        self.now, self._before = epoch, []
        self.drop_last = self.drop_last if self.is_told else state["drop_last"]
        self.ahead = state["ahead"]
        self.begun, self._next, self.goes_on = state["begun"], None, epoch is not None and not self.is_over
        self._state, self.is_watched = {}, False
