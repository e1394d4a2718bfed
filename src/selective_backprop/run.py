"""Run: what lasts from one epoch to the next. It alone writes the ledger and the statistics.

Every rank has all rows of the ledger. What ranks learn from training, they tell each other every 64 batches.

# N = candidates, B = training batch, n = examples of a training step
"""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import torch
from torch import Tensor

from selective_backprop.copying import LEFT_WAITING, MAX_WAITING, Copy, begin_copy, finish_copy
from selective_backprop.ledger import Ledger
from selective_backprop.losses import NegativeScoresError, require_finite, require_not_negative
from selective_backprop.method import Method
from selective_backprop.policies.grouped import GroupedPolicy
from selective_backprop.ranks import Ranks
from selective_backprop.stats import ShareCheck, Stats
from selective_backprop.step_losses import NO_IDS, StepLosses, joined, of_all_ranks
from selective_backprop.types import Batch, Selection

EXCHANGE_EVERY = 64
"""Training batches from one exchange of losses among ranks to the next."""
_logger = logging.getLogger(__name__)


class Run:
    """A method's own parts, the generator, the ledger and the statistics, the same on all ranks.

    Args:
        method: the method.
        num_examples: M, the rows of the ledger; 0 if examples have no ids.
        num_epochs: length of the run; None if not known.
        seed: seed of the generator. All ranks draw the same numbers from it.
        ranks: the ranks that train together.
        recorder: records what training says about examples, for audits; None if nobody asked for it.
    """

    def __init__(
        self,
        method: Method,
        num_examples: int,
        *,
        num_epochs: int | None,
        seed: int,
        ranks: Ranks,
        recorder: Any = None,
    ) -> None:
        self.method, self.num_epochs, self.ranks, self.recorder = method, num_epochs, ranks, recorder
        self.scorer = copy.deepcopy(method.scorer)
        self.policy = copy.deepcopy(method.policy)
        self.schedule = copy.deepcopy(method.schedule)
        self.generator = torch.Generator().manual_seed(seed)
        self.ledger, self.stats, self.epoch = Ledger(num_examples, method.scorer.needs.columns), Stats(), 0
        self.share_check = ShareCheck(method, self.policy, quiet=ranks.rank > 0)
        self.has_scored = False
        """Whether a batch went through the model and the loss. The first one does, so that errors come at the start."""
        needs = method.scorer.needs
        self.learns_losses = needs.training_losses or method.schedule.observes_losses
        """Whether selection depends on training losses."""
        self.score_is = f"{method.scorer.score_name} in a selection pass"
        """What errors call a score."""
        self._before: dict[str, Any] | None = None  # to go back to, while the epoch may turn out to be but a look
        self._held: list[tuple[str, Any]] | None = None  # writes to the ledger that wait meanwhile
        self._forget()

    def _forget(self) -> None:
        # For each step: number, epoch, ids, losses on their way from the device, whether every candidate was kept.
        self._steps: list[tuple[int, int, Tensor | None, Copy, bool]] = []
        # What other ranks do not know yet, and the ledger does not have: losses, their sums, ids given out.
        self._losses: list[StepLosses] = []
        self._sums = [0.0, 0.0]
        self._given: list[Tensor] = []

    # ---- an epoch

    def begin_epoch(self) -> None:
        """Begin an epoch, or go on with one. It may be but a look until `keep_epoch`."""
        self._before = self._parts() | {"pending": self._pending()}
        self._held = []
        if hasattr(self.scorer, "learn_dynamics") and self.recorder is not None:
            self.scorer.learn_dynamics(self.recorder.whole(self.ranks))
        self.policy.begin_epoch(self.epoch, self.num_epochs)

    def keep_epoch(self) -> None:
        """Take note that the epoch is more than a look: what it did so far counts."""
        if self._held is not None:
            held, self._held, self._before = self._held, None, None
            for name, values in held:
                getattr(self.ledger, name)(*values)

    def undo_epoch(self) -> None:
        """Go back to where the epoch began, apart from its seconds. Nothing of it is in the ledger yet."""
        if self._before is not None:
            seconds = self.stats.seconds
            self._load_parts(self._before)
            self._load_pending(self._before["pending"])
            self.stats.seconds, self._held, self._before = seconds, None, None

    def end_epoch(self, *, left: bool = False) -> None:
        """End the epoch. All ranks must call this, unless it was left: then no message is sent until the next."""
        self.keep_epoch()
        self.stats.queued = 0
        try:
            if left and self.ranks.size > 1:
                self._read(0)
            else:
                self.learn()
        finally:  # the epoch is over even if its last loss is not finite
            self.share_check.end_epoch(self.epoch)
            self.epoch += 1

    def _write(self, name: str, *values: Any) -> None:
        """Write to the ledger, or hold the write until the epoch counts."""
        if self._held is None:
            getattr(self.ledger, name)(*values)
        else:
            self._held.append((name, values))

    # ---- candidates

    def count(self, **more: int) -> None:
        """Add to these statistics, such as `count(offered=32)`. Numbers are those of all ranks together."""
        for name, number in more.items():
            setattr(self.stats, name, getattr(self.stats, name) + number)

    def offer(self, ids: Tensor) -> None:
        """Write down that these candidates of all ranks were offered."""
        self._write("count_offered", ids)

    def scored(self, ids: Tensor | None, scores: Tensor) -> None:
        """Write down the scores of a selection pass on candidates of all ranks."""
        self.stats.scored += len(scores)
        if self.scorer.score_name == "loss":
            self.stats.count_losses(float(scores.sum(dtype=torch.float64)), len(scores), "candidates")
        if ids is not None:
            self._write("record_scores", ids, scores, self.epoch)

    def select(self, scores: Tensor, ids: Tensor | None) -> Selection:
        """Select among candidates of all ranks. Every rank makes the same selection, or raises the same error."""
        if not len(scores):
            return Selection(NO_IDS, torch.empty(0), torch.empty(0, dtype=torch.float64))
        require_finite(scores, ids, self.score_is)
        self.schedule.observe(scores)
        selection = self._decide(self.policy, scores, ids, self.generator)
        self.share_check.decided += len(scores)
        self.share_check.selected += len(selection.positions)
        if ids is not None:
            self._write("record_probabilities", ids, selection.probabilities)
        return selection

    def try_policy(self, scores: Tensor, ids: Tensor | None) -> None:
        """Look at scores while selection is off. Raises at once if the policy could not take such scores later."""
        if len(scores):
            require_finite(scores, ids, self.score_is)
            self._decide(copy.deepcopy(self.policy), scores, ids, torch.Generator())
            self.schedule.observe(scores)

    def _decide(self, policy: Any, scores: Tensor, ids: Tensor | None, generator: torch.Generator) -> Selection:
        groups = self.method.groups
        try:
            if groups is None:
                return policy.select(scores, generator)  # type: ignore[no-any-return]
            assert isinstance(policy, GroupedPolicy) and ids is not None  # the method and the loader have checked it
            return policy.select_in_groups(scores, generator, groups[ids])
        except NegativeScoresError:
            require_not_negative(scores, ids, self.score_is)  # the same error with ids
            raise

    # ---- training

    def give_out(self, ids: Tensor | None, of_all_ranks: int) -> None:
        """Count a training batch that is given out. of_all_ranks: examples in the batches of all ranks."""
        if ids is not None:
            self._given.append(ids)
        self.stats.trained += of_all_ranks
        self.stats.batches += 1

    def trained(self, batch: Batch, losses: Tensor, step: int, epoch: int) -> None:
        """Take note of the losses of a training step.

        On the CPU they are read at once. On a GPU, when many steps have piled up, and only the older ones.
        """
        all_kept = self.schedule.observes_losses and bool((batch.probabilities == 1).all())
        on_cpu = losses.device.type == "cpu"
        self._steps.append((step, epoch, batch.ids, (losses, None) if on_cpu else begin_copy(losses), all_kept))
        if on_cpu:
            self._read(0)
        elif len(self._steps) >= MAX_WAITING:
            self._read(LEFT_WAITING)

    def _read(self, num_left: int) -> None:
        """Read losses. This waits for the device unless it has finished them. num_left: newest steps left for later."""
        count = len(self._steps) - num_left
        steps, self._steps = self._steps[:count], self._steps[count:]
        for step, epoch, ids, copied, all_kept in steps:
            losses = copied[0].to("cpu", torch.float32) if copied[1] is None else finish_copy(copied)
            total = float(losses.sum(dtype=torch.float64))
            if not math.isfinite(total):
                require_finite(losses, ids, "training loss")
            self._count_losses(total, losses.numel())
            if all_kept and (self.scorer.score_name == "loss" or not self.scorer.needs.selection_pass):
                self.schedule.observe_losses(losses)
            if ids is not None:
                self._losses.append(StepLosses(step, epoch, ids, losses))

    def _count_losses(self, total: float, count: int) -> None:
        if self.ranks.size == 1:
            self.stats.loss_sums["trained"] += total
            self.stats.loss_sums["num_trained"] += count
        else:
            self._sums = [self._sums[0] + total, self._sums[1] + count]

    def learn(self) -> None:
        """Write what all ranks learned to the ledger. All ranks must call this."""
        self._read(0)
        losses, given, sums = self._losses, self._given, self._sums
        self._forget()
        if self.ranks.size > 1:
            losses, given = of_all_ranks(losses, self.ranks), self.ranks.gather(torch.cat([NO_IDS, *given]))
            for total, count in self.ranks.share(sums):
                self.stats.count_losses(total, count, "trained")
        if given:
            self._write("count_selected", given[0] if len(given) == 1 else torch.cat(given))
        for one in joined(losses):
            self._write("record_losses", one.ids, one.losses, one.epoch)

    def learn_epoch(self, losses: list[StepLosses], given: Tensor) -> None:
        """Learn the losses of a whole epoch, and the ids trained on, for samplers. All ranks must call this."""
        for one in losses:
            require_finite(one.losses, one.ids, "training loss")
            self._count_losses(float(one.losses.sum(dtype=torch.float64)), len(one.ids))
        self._losses, self._given = losses, [given]
        self.learn()

    def whole_ledger(self) -> Ledger:
        """Return the ledger with all that is known. With several ranks, it is what they told each other last."""
        if self.ranks.size == 1 and self._held is None:
            steps, self._steps = self._steps, []  # on their way from a GPU: reading them now would wait
            self.learn()
            self._steps = steps
        return self.ledger

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Return all but the epoch under way. No message is sent: what other ranks learned is in their states."""
        recorded = None if self.recorder is None else self.recorder.state_dict()
        return self._parts() | {"ledger": self.ledger.state_dict(), "pending": self._pending(), "recorder": recorded}

    def _parts(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("scorer", "policy", "schedule", "stats")}
        numbers = {"generator": self.generator.get_state(), "epoch": self.epoch, "has_scored": self.has_scored}
        return copy.deepcopy(parts) | numbers

    def _pending(self) -> dict[str, Any]:
        steps = [[step, epoch, ids, finish_copy(losses), kept] for step, epoch, ids, losses, kept in self._steps]
        losses, held = [list(one) for one in self._losses], [[name, list(values)] for name, values in self._held or ()]
        own = {"steps": steps, "losses": losses, "given": list(self._given), "sums": list(self._sums)}
        return own | {"rank": self.ranks.rank, "held": held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if (recorded := state["recorder"] is not None) != (self.recorder is not None):
            raise ValueError(
                f"the state was saved {'with' if recorded else 'without'} audit=True, but this loader is "
                f"{'without' if recorded else 'with'} it: pass the same audit="
            )
        if self.recorder is not None:
            self.recorder.check_state_dict(state["recorder"])
        self.ledger.load_state_dict(state["ledger"])  # which raises first if it does not fit
        self._load_parts(state)
        if self.recorder is not None:
            self.recorder.load_state_dict(state["recorder"])
        self._held = self._before = None
        self._load_pending(state["pending"])

    def _load_parts(self, state: dict[str, Any]) -> None:
        for name in ("scorer", "policy", "schedule", "stats"):
            getattr(self, name).load_state_dict(copy.deepcopy(state[name]))
        self.generator.set_state(state["generator"])
        self.epoch, self.has_scored = state["epoch"], state["has_scored"]

    def _load_pending(self, state: dict[str, Any]) -> None:
        self._forget()
        for name, values in state["held"]:
            getattr(self.ledger, name)(*values)
        if state["rank"] == self.ranks.rank:  # other ranks load the same state if only one was saved
            self._steps = [
                (step, epoch, ids, (losses, None), kept) for step, epoch, ids, losses, kept in state["steps"]
            ]
            self._losses = [StepLosses(*one) for one in state["losses"]]
            self._given, self._sums = list(state["given"]), list(state["sums"])
