"""Ids: the batch sampler of an epoch. It draws the user's ids, lets them be planned, and hands out this rank's.

All ids of an epoch are drawn when it starts, so a place in it is a number of steps, the same on all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from selective_backprop.chain.id_batches import IdBatch, IdBatches, require_one_size
from selective_backprop.chain.plan import Plan, gather_drawn, make_plan
from selective_backprop.chain.user_loader import longest_epoch
from selective_backprop.ranks import fails_on_all
from selective_backprop.run import Run
from selective_backprop.step_losses import NO_IDS


@dataclass
class Options:
    """What the user said about batches."""

    device: torch.device
    """Where batches go."""
    transform: Any
    """The user's function of a batch on the device."""
    pad: Callable[[list[Any]], list[Any]] | None
    """Gives pieces of different lengths the same shape."""
    batch_size: int | None
    """B; None: as large as the batches of the user's loader."""
    batch_tokens: int | None
    """The most tokens in a training batch, instead of B."""
    candidate_size: int | None
    """Examples in a batch of the user's loader, if it says so."""
    passes: bool
    """Whether the user's own batches may be training batches, while everything is kept."""
    drop_last: bool
    """Whether what fills no batch is left out."""
    needs_one_size: bool
    """Whether the user's batches must have one size, because training batches are to have the same."""


class Ids:
    """The ids of an epoch on one rank, in batches.

    Args:
        batch_sampler: the user's.
        run: plans the epoch.
        options: what the user said about batches.
        num_examples: M. Ids are below it.
        plan: what is left of an epoch that was under way; None draws one.
    """

    def __init__(self, batch_sampler: Any, run: Run, options: Options, num_examples: int, plan: Plan | None) -> None:
        self.batch_sampler, self.run, self.options, self.num_examples = batch_sampler, run, options, num_examples
        self.plan = plan
        """What all ranks load; None before the DataLoader asks for the first ids."""
        self.place = 0
        """Steps whose batches the DataLoader has returned."""
        self._rounds: Iterator[tuple[IdBatch | None, ...]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        # The user's sampler begins now, as in a DataLoader: torchdata's samplers draw the order here.
        return self._hand_out(iter(self.batch_sampler) if self.plan is None else iter(()))

    def _hand_out(self, drawn: Iterator[Any]) -> Iterator[list[int]]:
        if self.plan is None:  # only now, because a DataLoader draws a seed for its workers before it asks for ids
            self.plan = self._planned(drawn)
        self._rounds = itertools.zip_longest(*self.plan.batches)
        for batch in self.plan.batches[self.run.ranks.rank]:
            yield batch.ids.tolist()

    def came_back(self) -> tuple[IdBatch | None, ...]:
        """Return the ids that each rank loads in the next step; None if it has no more.

        A DataLoader with workers asks for ids ahead of time, but it returns batches in the order of asking.
        """
        self.place += 1
        return next(self._rounds)

    def state_dict(self) -> dict[str, Any]:
        assert self.plan is not None
        return self.plan.state_dict(self.place)

    def _planned(self, drawn: Iterator[Any]) -> Plan:
        run, options = self.run, self.options
        run.stats.switch("selecting")
        with fails_on_all(run.ranks, "could not plan this epoch"):
            own = self._checked(drawn)
        everyone = gather_drawn(run, own)
        size = options.batch_size or max([1, *(int(one.sizes.max()) for one in everyone if len(one))])
        drop_last = options.drop_last and options.batch_tokens is None
        plan = make_plan(run, everyone, size, passes=options.passes, drop_last=drop_last)
        run.stats.dropped += plan.dropped
        if run.scorer.plans(run.epoch):
            for one in everyone:
                run.offer(one.ids)
        run.stats.switch("loading")
        return plan

    def _checked(self, drawn: Iterator[Any]) -> IdBatches:
        """Collect the user's batches of ids for one epoch, without pruned ones."""
        batches, count, longest = [], 0, longest_epoch(self.num_examples)
        for indices in drawn:
            try:
                # numpy reads a list in a quarter of the time that torch takes.
                ids = torch.from_numpy(numpy.asarray(indices)) if type(indices) is list else torch.as_tensor(indices)
            except (TypeError, ValueError):
                ids = torch.empty(0)
            if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
                raise TypeError(f"your sampler must yield integer indices, which serve as ids; got {indices!r:.200}")
            batches.append(ids)
            count += len(ids)
            if count > longest:
                raise ValueError(
                    f"your sampler has yielded {count:,} indices for a data set of {self.num_examples:,} "
                    "examples, and the ids of an epoch are drawn when it starts: end the epoch after one pass over the "
                    "data set, and train for several epochs"
                )
        found = IdBatches.of(batches)
        self._require_known(found.ids)
        if self.options.needs_one_size:
            require_one_size(found.sizes)
        return found if self.run.method.keep is None else self._pruned(found, self.run.method.keep)

    def _require_known(self, ids: Tensor) -> None:
        """Raise if an id is outside the data set."""
        wrong = ids[(ids < 0) | (ids >= self.num_examples)]
        if len(wrong):
            shown = ", ".join(map(str, wrong[:5].tolist())) + (", ..." if len(wrong) > 5 else "")
            raise ValueError(
                f"the sampler yields the indices {shown}, but the data set had {self.num_examples} examples when this "
                f"loader was made: indices serve as ids and must be from 0 to {self.num_examples - 1}. Do not use "
                "negative indices, and make a new SelectiveLoader when the data set has grown"
            )

    def _pruned(self, found: IdBatches, keep: Tensor) -> IdBatches:
        """Leave out pruned ids. The others come in batches of the usual size, and a lone one joins the batch before."""
        if bool(keep.all()):
            return found
        ids = found.ids[keep[found.ids]]
        size = self.options.candidate_size or (int(found.sizes.max()) if len(found) else 1)
        full, rest = divmod(len(ids), size)
        sizes = [size] * full
        if self.options.drop_last:
            ids = ids[: full * size]
        elif rest == 1 and full and size > 1:
            sizes[-1] += 1  # BatchNorm cannot train on one example
        elif rest:
            sizes.append(rest)
        return IdBatches(IdBatch(ids), torch.tensor(sizes, dtype=torch.int64))


def ids_of_all(step: tuple[IdBatch | None, ...]) -> Tensor:
    """Join the ids that all ranks load in a step."""
    found = [one.ids for one in step if one is not None]
    return found[0] if len(found) == 1 else torch.cat([NO_IDS, *found])
