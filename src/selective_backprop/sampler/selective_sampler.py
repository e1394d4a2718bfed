"""SelectiveSampler: a planned method as a torch Sampler, for any loader and any training loop.

# M = data set, n = examples of a batch, k = number of ranks
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from selective_backprop.copying import LEFT_WAITING, MAX_WAITING, Copy, begin_copy, finish_copy
from selective_backprop.description import describe
from selective_backprop.distributed.agreement import fails_on_all
from selective_backprop.distributed.ledger import AnyLedger, ShardedLedger, make_ledger
from selective_backprop.distributed.ranks import Alone, current_ranks
from selective_backprop.distributed.team import Team
from selective_backprop.losses import as_ids, as_numbers, require_finite
from selective_backprop.method import Method
from selective_backprop.sampler.asked_ids import AskedIds, Places
from selective_backprop.sampler.checks import (
    STATE_VERSION,
    agree,
    check_arguments,
    check_method,
    check_state,
    checked_ids,
    size_of,
)
from selective_backprop.sampler.groups import GroupStats, checked_groups, stats_by_group
from selective_backprop.sampler.id_batches import IdBatches
from selective_backprop.sampler.parts import Parts
from selective_backprop.sampler.planner import Planner
from selective_backprop.sampler.stats import Stats
from selective_backprop.sampler.training_losses import joined, write_losses
from selective_backprop.sampler.undoing import unchanged_on_error

_logger = logging.getLogger(__name__)

_PARTS_OF_AN_EPOCH = 100  # how finely schedules divide an epoch if the batch size is not known


class SelectiveSampler(Sampler[int]):
    """Yields the ids of the examples that the method selects. Works with any DataLoader and in any training loop.

    Each epoch is planned when its first id is asked for, from the losses that `update` was told. Your own loader forms
    the batches, so its `drop_last` and its last batch are as always.

    Args:
        source: the size of the data set, for a new random order in each epoch, or your own sampler of ids, such as a
            RandomSampler. With several ranks, a size is divided among them. A sampler of your own must divide the data
            set itself, as DistributedSampler does.
        method: how to select: a method without a selection pass, such as `ledger_backprop()`.
        batch_size: examples in a batch. Needed only for the option `interrupt` of methods, and so that an epoch gives
            at least one full batch, and no last batch of a single example, which BatchNorm cannot train on. With it,
            losses of half a batch are an error at once.
        groups: a whole number for each example, by id, such as its class, domain or source, for `group_stats`. By
            default the `classes=` of the method, which also keeps each group's share.
        num_epochs: length of the run. Methods that select in a window of training need it.
        seed: seed of the sampler's own random generators. Global random state is never touched.
        num_examples: size of the data set, if your own sampler does not tell it.
        divide: with several ranks, give each its part of the plan. False for frameworks that divide batches themselves,
            as accelerate does: then every rank makes the same plan, and must be told the same losses.

    With several ranks, all of them plan together, and all get equally many ids. Ids that are left over, fewer than
    there are ranks, are dropped and counted in `stats.dropped`.

    An iteration that is left before its second update does not count as an epoch.

    >>> from selective_backprop.methods import repeated_random
    >>> sampler = SelectiveSampler(4, repeated_random(0.5))
    >>> first, second = list(sampler), list(sampler)
    >>> sorted(first + second)
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        source: int | Iterable[int],
        method: Method,
        *,
        batch_size: int | None = None,
        groups: Tensor | Sequence[int] | None = None,
        num_epochs: int | None = None,
        seed: int = 0,
        num_examples: int | None = None,
        divide: bool = True,
    ) -> None:
        ranks = current_ranks() if divide else Alone()
        self.team = Team(ranks)
        """The ranks that train together. A process that trains alone is a team of one."""
        with fails_on_all(ranks, "could not start"):
            check_arguments(source, batch_size=batch_size, num_epochs=num_epochs, seed=seed, num_examples=num_examples)
            size = size_of(source) if num_examples is None else num_examples
            check_method(method, size, batch_size=batch_size, num_epochs=num_epochs)
            self._groups = checked_groups(groups, size)
        self._source, self._size = source, size
        self.method, self.batch_size, self.num_epochs = method, batch_size, num_epochs
        agree(ranks, method, num_examples=size, batch_size=batch_size, num_epochs=num_epochs, seed=seed)
        self._ledger: AnyLedger = make_ledger(size, ranks, method.scorer.needs.columns)
        """What is known about each example. With several ranks, each holds a part."""
        self.stats = Stats()
        self._parts = Parts(method, num_epochs=num_epochs, seed=seed, team=self.team)
        self._planner = Planner(self._parts, self._ledger, self.team)
        # A seed of its own, so that the order does not follow from the numbers that the policy draws.
        order_seed = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(seed)))
        self._order = torch.Generator().manual_seed(order_seed)
        self._next_epoch = 0
        self._is_set = False  # whether set_epoch was called since the last epoch began
        self._epoch: AskedIds | None = None  # the epoch under way, or the last one until the next begins
        self._goes_on = False  # whether the next iteration goes on with the epoch of a state that was loaded
        self._candidates: Tensor | None = None  # this epoch's candidates, until the ledger has counted them
        self._before: dict[str, Any] = {}  # to go back to, if the epoch turns out not to count
        self._iteration: _Iteration | None = None
        self._waiting: list[tuple[Tensor, Copy, int]] = []  # for each update: ids, losses, epoch
        self._last: tuple[Tensor, Tensor] | None = None  # ids and weights of the last update
        self._has_warned = False  # of losses that never came back
        self._num_begun = 0  # how often an epoch was planned, also if it turned out not to count
        self._is_watched = False  # whether somebody has asked for the state, which changes with the sampler then
        self._now: dict[str, Any] = {}  # the part of the state that changes; see state_dict
        self._refresh(everything=True)

    # ---- what users read

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method!r}, {self._size:,} examples, epoch {self.epoch})"

    def __len__(self) -> int:
        """Return the number of ids of the epoch under way, or the most that an epoch can have on this rank."""
        if self._epoch is not None and not self._epoch.is_over:
            return len(self._epoch)
        keep = self.method.keep
        if isinstance(self._source, int):
            return (self._size if keep is None else int(keep.sum())) // self.team.size
        return len(self._source)  # type: ignore[arg-type]

    @property
    def epoch(self) -> int:
        """Number of the epoch under way, from 0. When all its losses have come back, that of the next one."""
        if self._epoch is None:
            return self._next_epoch
        return self._epoch.number + self._epoch.is_complete

    @property
    def progress(self) -> float:
        """Fraction of the run whose losses have come back, from 0 to 1. Learning rate schedules should follow it.

        With the drop_last of a DataLoader, the examples that an epoch drops count when the next one begins.
        """
        if self.num_epochs is None:
            raise ValueError("progress is a fraction of the run: pass num_epochs= to SelectiveSampler")
        epoch = self._epoch
        within = 0.0 if epoch is None or epoch.is_complete else epoch.num_updated / max(1, len(epoch))
        return min(1.0, (self.epoch + within) / self.num_epochs)

    @property
    def ids(self) -> Tensor:
        """(n,) int64: the ids of the batch of the last update."""
        return self._last_update()[0]

    @property
    def weights(self) -> Tensor:
        """(n,) float32: the weights of the batch of the last update, on the device of its losses."""
        return self._last_update()[1]

    def _last_update(self) -> tuple[Tensor, Tensor]:
        if self._last is None:
            raise RuntimeError("ids and weights are those of the batch of the last update, and there was none yet")
        return self._last

    def probabilities(self) -> Tensor:
        """Return (M,) the chance that each example had when it was last decided about; 1 if it never was.

        With several ranks, all must call this.
        """
        return self.ledger.whole().probability.nan_to_num(nan=1.0)

    def group_stats(self) -> dict[int, GroupStats]:
        """Return the statistics of each group, by its number. With several ranks, all must call this."""
        groups = self._groups if self._groups is not None else self.method.groups
        if groups is None:
            raise RuntimeError("there are no groups: pass groups=, one whole number per example, to SelectiveSampler")
        self._learn()
        return stats_by_group(groups, self.ledger.whole())

    # ---- giving out ids

    def __iter__(self) -> Iterator[int]:
        """Yield the ids of one epoch, or of the rest of the one that was under way when the state was saved."""
        # Everything happens when the first id is asked for: a DataLoader draws a seed for its workers before that.
        return _Iteration(self)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that begins next, from 0, here and in your own sampler.

        Without this, epochs count themselves. After a state was loaded, a later epoch than the saved one leaves out the
        rest of the saved one.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch must be a whole number >= 0, got {epoch!r}")
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        self._next_epoch = epoch
        self._is_set = True
        self._refresh(everything=True)

    def _begin(self, iteration: _Iteration, *, goes_on: bool) -> AskedIds:
        """Begin an epoch, or go on with the one that was under way when the state was saved."""
        if not (goes_on or self._can_go_on()):
            self._end_epoch()
        if self._epoch is not None and (goes_on or self._can_go_on()):
            epoch = self._epoch
            self._before = self._to_go_back_to() | {"epoch": (epoch.state_dict(), epoch.place())}
        else:
            self._end_epoch()
            self._before = self._to_go_back_to()
            epoch = self._epoch = self._plan(self._next_epoch)
            self._num_begun += 1
        if self._iteration is not None:
            self._iteration.leave()
        self._iteration, self._goes_on, self._is_set = iteration, False, False
        self._refresh(everything=True)
        return epoch

    def _can_go_on(self) -> bool:
        """Whether the next iteration is the rest of an epoch of a state that was loaded."""
        if self._epoch is None or not self._goes_on:
            return False
        return not self._is_set or self._next_epoch == self._epoch.number

    def _plan(self, number: int) -> AskedIds:
        phase = self.stats.switch("selecting")
        try:
            with fails_on_all(self.team.ranks, "could not plan this epoch"):
                ids = self._draw()
            size = self.batch_size or max(1, -(-len(ids) // _PARTS_OF_AN_EPOCH))
            sizes = torch.full((-(-len(ids) // size),), size)
            if len(sizes):
                sizes[-1] = len(ids) - size * (len(sizes) - 1)
            # Your loader may have drop_last, and then fewer ids than a batch would be none.
            plan = self._planner.plan(IdBatches(ids, sizes), number, at_least=self.batch_size or 1, drop_last=True)
            count = min(self.team.count(len(plan.ids)))
            if self.batch_size is not None and count > self.batch_size > 1 and not plan.keeps_all:
                count -= count % self.batch_size == 1  # BatchNorm cannot train on a last batch of a single example
        finally:
            self.stats.switch(phase)
        self.stats.count(dropped=len(plan.ids) - count)
        self.stats.set_note(plan.note)
        self._candidates = ids
        weights = None if plan.weights is None else plan.weights[:count]
        return AskedIds(number, plan.ids[:count], weights, plan.num_offered)

    def _draw(self) -> Tensor:
        """Draw this rank's candidates for an epoch, in order."""
        if isinstance(self._source, int):
            ids = torch.randperm(self._size, generator=self._order)
            if self.method.keep is not None:
                ids = ids[self.method.keep[ids]]
            return ids[self.team.rank :: self.team.size]
        ids = checked_ids(self._source, self._size)
        return ids if self.method.keep is None else ids[self.method.keep[ids]]

    def _end_epoch(self) -> None:
        """End the epoch that was under way. If it was left before its second update, nothing of it counts."""
        epoch = self._epoch
        if epoch is None:
            return
        saved = self._before.get("epoch")
        new_updates = epoch.num_updates - (0 if saved is None else saved[1]["updates"])
        if epoch.is_exhausted and not epoch.num_updates and self._parts.learns_losses:
            self._forget()
            raise RuntimeError(
                f"{self.method.name} selects by training losses, but got none in the last epoch: call "
                "sampler.update(losses) in every training step, with the loss of each example. If there was no step, "
                f"your loader's drop_last has dropped the {len(epoch)} examples of the epoch: use smaller batches"
            )
        if (epoch.num_updates < 2 or not new_updates) and not epoch.is_over and not self._goes_on:
            self._forget()
            return
        self._goes_on = False
        self._warn_if_losses_are_missing(epoch)
        if saved is not None and not new_updates and epoch.num_updates and epoch.is_exhausted:
            _logger.warning(
                "the epoch that was under way when the state was saved had %d ids left, too few for a batch of your "
                "loader, so its rest gave no batch. Call sampler.set_epoch(epoch) before every epoch: then a later "
                "epoch leaves out the rest",
                len(epoch) - epoch.num_updated,
            )
        self._learn(everything=True)
        if not epoch.num_updates:  # nobody tells what was trained on, so it is what was asked for
            self._ledger.count_selected(epoch.ids[: epoch.asked])
            self.stats.count(trained=epoch.asked)
        if epoch.is_over:
            offered, skipped = epoch.num_uncounted()
            dropped = len(epoch) - epoch.num_updated if epoch.num_updates else 0
            self.stats.count(offered=offered, skipped_before_loading=skipped, dropped=dropped)
        self._parts.share_check.end_epoch(epoch.number)
        self._epoch, self._before = None, {}
        if not self._is_set:
            self._next_epoch = epoch.number + 1

    def _warn_if_losses_are_missing(self, epoch: AskedIds) -> None:
        """Warn if more ids than drop_last can drop were asked for, to the end, and never came back."""
        a_batch = epoch.num_updated / max(1, epoch.num_updates)
        if self._has_warned or not epoch.is_exhausted or not 0 < a_batch <= len(epoch) - epoch.num_updated:
            return
        self._has_warned = True
        _logger.warning(
            "your loader asked for %d ids in an epoch, and the losses of %d came back. If something skips batches or "
            "divides them among ranks, as Accelerate's skip_first_batches and prepare and the Trainer do, losses go to "
            "the wrong examples. SelectiveSampler divides the ids itself, and goes on in mid-epoch itself after a "
            "state was loaded. If you left the epoch early, all is well",
            len(epoch),
            epoch.num_updated,
        )

    def _to_go_back_to(self) -> dict[str, Any]:
        return {"parts": self._parts.state_dict(), "order": self._order.get_state(), "stats": self.stats.copy()}

    def _forget(self) -> None:
        """Go back to where the epoch began, or went on after a state was loaded."""
        before, self._before = self._before, {}
        self._waiting, self._epoch = [], None
        if before:
            self._parts.load_state_dict(before["parts"])
            self._order.set_state(before["order"])
            stats = replace(before["stats"], seconds=self.stats.seconds)
            self.stats.load_state_dict(stats.state_dict())
            if "epoch" in before:
                self._epoch, self._goes_on = AskedIds.from_state_dict(*before["epoch"]), True
            else:
                self._candidates = None

    # ---- learning losses

    @property
    def ledger(self) -> AnyLedger:
        """One row per example, with all losses so far, unless the epoch may still turn out not to count."""
        self._learn()
        return self._ledger

    def update(self, losses: Tensor, *, ids: Any = None) -> Tensor:
        """Record the losses of a training batch, and return the weights of its examples, (n,), on the losses' device.

        Call it once per training step, in the order of the batches:

            weights = sampler.update(losses)
            (losses * weights).mean().backward()

        Args:
            losses: (n,) the loss of each example.
            ids: (n,) the ids of the batch. Needed if batches may come in another order than they were asked for, as
                with DataLoader(in_order=False).
        """
        epoch = self._epoch
        if epoch is None:
            raise RuntimeError(
                "no epoch is under way: call sampler.update inside the loop over a loader that has this sampler"
            )
        losses = as_numbers(losses, "losses")
        given = None if ids is None else as_ids(ids, "ids").flatten()
        places = self._places(epoch, losses, given)
        batch_ids = epoch.ids[places]
        count = len(batch_ids)
        on_cpu = losses.device.type == "cpu"
        if on_cpu:
            require_finite(losses, batch_ids, "training loss")
        if epoch.weights is None:
            weights = torch.ones(count, device=losses.device)
        else:
            weights = epoch.weights[places].to(losses.device, non_blocking=True)
        # A copy also on the CPU: the losses wait, and your loop may change them.
        self._waiting.append((batch_ids, begin_copy(losses.clone() if on_cpu else losses), epoch.number))
        self._come_back(epoch, places, count, batch_ids, weights)
        # Many at once: reading losses waits for a GPU, and rows of a large ledger are far apart in memory.
        if len(self._waiting) >= MAX_WAITING:
            self._learn(num_left=0 if on_cpu else LEFT_WAITING)
        if self._is_watched:
            self._refresh()
        return weights

    def _come_back(self, epoch: AskedIds, places: Places, count: int, ids: Tensor, weights: Tensor) -> None:
        """Take note that a batch was trained on. count: number of places, of this epoch."""
        offered, skipped = epoch.come_back(places, count)
        self.stats.count(batches=1, trained=len(ids), offered=offered, skipped_before_loading=skipped)
        self._last = ids, weights

    def _places(self, epoch: AskedIds, losses: Tensor, ids: Tensor | None) -> Places:
        """Find which of the ids that were asked for the losses belong to."""
        if losses.dim() != 1 or not losses.is_floating_point() or not losses.numel():
            raise ValueError(
                f"losses must be one number per example, of shape (n,), got shape {tuple(losses.shape)} and type "
                f"{losses.dtype}: compute them without reduction, as F.cross_entropy(..., reduction='none') does. "
                "Where only one number for the whole batch can be had, use sb.repeated_random, which needs no update"
            )
        count = len(losses)
        if ids is not None:
            if len(ids) != count:
                raise ValueError(f"got {count} losses for {len(ids)} ids: there must be one loss per id")
            return epoch.places_of(ids)
        expected = count if self.batch_size is None else min(self.batch_size, len(epoch) - epoch.num_updated)
        if count != expected:
            raise ValueError(
                f"got losses of {count} examples for a batch of {expected}, by batch_size={self.batch_size}: later "
                "losses would count for the wrong examples. Call update once per training step, with the loss of every "
                "example of the batch. If batches have other sizes, leave out batch_size= or pass ids="
            )
        if count > epoch.num_open:
            raise ValueError(
                f"got losses of {count} examples, but only {epoch.num_open} of the ids that were asked for wait for "
                "theirs: call update once per training step, with the losses of that batch alone. If something loads "
                "batches in another order, pass ids="
            )
        return epoch.next_places(count)

    def _learn(self, *, everything: bool = False, num_left: int = 0) -> None:
        """Write losses to the ledger, unless the epoch may still turn out not to count.

        num_left: number of the newest batches to leave for later.
        """
        epoch = self._epoch
        if not everything and (epoch is None or epoch.num_updates < (1 if epoch.is_over else 2)):
            return
        if self._candidates is not None:
            self._ledger.count_offered(self._candidates)
            self._candidates = None
        read = len(self._waiting) - num_left
        waiting, self._waiting = self._waiting[:read], self._waiting[read:]
        for ids, losses, number in joined([(ids, finish_copy(copied), number) for ids, copied, number in waiting]):
            of_each = losses.expand(len(ids))
            require_finite(of_each, ids, "training loss")
            self.stats.count_losses(float(of_each.sum(dtype=torch.float64)), len(ids), "trained")
            self._ledger.count_selected(ids)
            write_losses([(ids, losses, number)], self._ledger)

    # ---- saving

    def _refresh(self, *, everything: bool = False) -> None:
        """Bring the state up to date. everything: also what changes only when an epoch is planned."""
        now = self._now
        now["place"] = None if self._epoch is None else self._epoch.place()
        now["stats"] = self.stats.state_dict()
        now["candidates"] = self._candidates
        now["waiting"] = [[ids, copied[0], number] for ids, copied, number in self._waiting]
        if everything:
            now["next_epoch"], now["begun"] = self._next_epoch, self._num_begun
            now["epoch"] = None if self._epoch is None else self._epoch.state_dict()
            now["parts"], now["order"] = self._parts.state_dict(), self._order.get_state()
            generator = getattr(self._source, "generator", None)
            now["source"] = generator.get_state() if isinstance(generator, torch.Generator) else None

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly: plain data and tensors, loadable with weights_only=True.

        Like the state of a module, it goes on changing with the sampler: save or copy it at once. A StatefulDataLoader
        asks for it whenever it asks for a batch, and what it saves later must be what is true then.

        Your own sampler's generator is saved, if it has one. Otherwise the order of later epochs comes from torch's
        global random state. Save that yourself, as for any exact resume.
        """
        for _, copied, _ in self._waiting:
            finish_copy(copied)
        self._is_watched = True
        self._refresh()
        ledger = self._ledger
        return {
            "version": STATE_VERSION,
            "method": describe(self.method),
            "ranks": {"rank": self.team.rank, "size": self.team.size},
            "num_examples": self._size,
            # The tensors themselves, without copies: there may be a million states in an epoch.
            "ledger": ledger.state_dict()
            if isinstance(ledger, ShardedLedger)
            else {name: getattr(ledger, name) for name in ledger.names},
            "now": self._now,
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if `load_state_dict` would refuse this state. Nothing is changed."""
        check_state(state, self.method, num_examples=self._size, team=self.team)
        self._parts.check_state_dict(state["now"]["parts"])
        self._ledger.check_state_dict(state["ledger"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved. The next iteration finishes the epoch that was under way.

        With a plain DataLoader, it goes on after the last batch that was given to `update`. If the state does not fit
        this sampler and its method, an error says what differs, and nothing is changed.
        """
        generator = getattr(self._source, "generator", None)
        generators = [self._order, *([generator] if isinstance(generator, torch.Generator) else [])]
        with unchanged_on_error(self, self.stats, generators=generators, stateful=[self._parts]):
            self.check_state_dict(state)
            now = state["now"]
            self._order.set_state(now["order"])
            if isinstance(generator, torch.Generator) and now["source"] is not None:
                generator.set_state(now["source"])
            self._parts.load_state_dict(now["parts"])
            self.stats.load_state_dict(now["stats"])
            self._next_epoch, self._num_begun, self._candidates = now["next_epoch"], now["begun"], now["candidates"]
            self._waiting = [(ids, (losses, None), number) for ids, losses, number in now["waiting"]]
            self._epoch = None if now["epoch"] is None else AskedIds.from_state_dict(now["epoch"], now["place"])
            self._goes_on = self._epoch is not None and not self._epoch.is_exhausted
            left, self._iteration, self._last, self._before, self._now = self._iteration, None, None, {}, {}
            self._is_set = False
            # The ledger is written to in place and cannot be undone. check_state_dict has made sure that it fits.
            self._ledger.load_state_dict(state["ledger"])
            self._refresh(everything=True)
        if left is not None:
            left.leave()

    def _place_of_next_id(self, epoch: AskedIds | None) -> dict[str, int]:
        """Return which id an iteration asks for next. epoch: the one that it gives out; None if it begins the next."""
        if epoch is None:
            return {"begun": self._num_begun + 1, "asked": 0}
        return {"begun": self._num_begun, "asked": epoch.asked}

    def _go_to(self, place: dict[str, int]) -> bool:
        """Go on from this place with the epoch of the state that was loaded. False if it is a place of another one."""
        self._goes_on = False
        if self._epoch is None or place["begun"] != self._num_begun:
            return False
        self._epoch.go_to(place["asked"])
        return True


class _Iteration(Iterator[int]):
    """One iteration over the sampler. It has a state of its own: how many ids were asked for.

    A StatefulDataLoader with workers asks for ids ahead of training, and saves for each batch where it was.
    """

    def __init__(self, sampler: SelectiveSampler) -> None:
        self._sampler = sampler
        self._epoch: AskedIds | None = None
        self._ids: Iterator[int] | None = None  # None before the first id, and when the iteration was left
        self._goes_on = False  # whether a state was loaded into this iteration

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> int:
        if self._ids is None:
            if self._epoch is not None:
                raise RuntimeError(
                    "another iteration over this sampler has begun, or a state was loaded: an iteration that was left "
                    "cannot go on. For two loops at once, make two samplers"
                )
            self._epoch = self._sampler._begin(self, goes_on=self._goes_on)
            self._ids = self._epoch.hand_out()
        return next(self._ids)

    def leave(self) -> None:
        """Give out no more ids: another iteration has begun, or a state was loaded."""
        self._ids = None

    def state_dict(self) -> dict[str, Any]:
        is_ahead = self._epoch is None and self._goes_on
        return self._sampler._place_of_next_id(self._sampler._epoch if is_ahead else self._epoch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._goes_on = self._sampler._go_to(state) or self._goes_on
