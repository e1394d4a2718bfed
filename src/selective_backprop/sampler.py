"""SelectiveSampler: the plan of an epoch as a torch Sampler, for any loader and any training loop.

A plan reads losses only when the next epoch begins. So an epoch's losses are held until its end, and written only if
they fit the ids that were handed out: a step without `update` is an error, and never losses of the wrong examples.

# M = data set, n = examples of a batch, k = number of ranks
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from selective_backprop.chain.asking import Asking
from selective_backprop.chain.sampler_epochs import SamplerEpochs
from selective_backprop.checks import check_method_of_run, check_same_on_all_ranks, check_saved
from selective_backprop.copying import begin_copy
from selective_backprop.description import describe
from selective_backprop.groups import GroupStats, checked_groups, stats_by_group
from selective_backprop.ledger import Ledger
from selective_backprop.losses import as_numbers, require_finite
from selective_backprop.method import Method
from selective_backprop.ranks import Alone, current_ranks, fails_on_all
from selective_backprop.run import Run
from selective_backprop.sampler_checks import check_arguments, check_planned, length_at_most, size_of
from selective_backprop.stats import Stats

STATE_VERSION = 1
_STATE_KEYS = {"method", "num_examples", "now"}
_CPU = torch.device("cpu")


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
        drop_last: whether your DataLoader has drop_last. The sampler cannot see it. None: the first epoch tells.
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
        drop_last: bool | None = None,
        groups: Tensor | Sequence[int] | None = None,
        num_epochs: int | None = None,
        seed: int = 0,
        num_examples: int | None = None,
        divide: bool = True,
    ) -> None:
        ranks = current_ranks() if divide else Alone()
        numbers = {"batch_size": batch_size, "num_epochs": num_epochs, "num_examples": num_examples}
        with fails_on_all(ranks, "could not start"):
            check_arguments(source, seed=seed, **numbers)
            size = size_of(source) if num_examples is None else num_examples
            check_planned(method, batch_size=batch_size)
            check_method_of_run(method, size, num_epochs)
            self._groups = checked_groups(groups, size)
        check_same_on_all_ranks(ranks, method, seed=seed, **numbers | {"num_examples": size})
        self._run = Run(method, size, num_epochs=num_epochs, seed=seed, ranks=ranks)
        self._epochs = SamplerEpochs(self._run, source, size, batch_size=batch_size, drop_last=drop_last, seed=seed)
        self.method, self.batch_size, self.num_epochs = method, batch_size, num_epochs
        self._last: tuple[Tensor, Tensor] | None = None  # ids and weights of the last update

    # ---- what users read

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method!r}, {self._epochs.num_examples:,} examples, epoch {self.epoch})"

    def __len__(self) -> int:
        """Return the number of ids of the epoch under way, or the most that an epoch can have on this rank."""
        epochs = self._epochs
        if epochs.now is not None and not epochs.is_over and not epochs.goes_on:  # frameworks plan the run after a load
            return len(epochs.now)
        return length_at_most(self._epochs.source, self.method, self._run.ranks.size)

    @property
    def epoch(self) -> int:
        """Number of the epoch under way, from 0. When all its losses have come back, that of the next one."""
        return self._epochs.number

    @property
    def progress(self) -> float:
        """Fraction of the run whose losses have come back, from 0 to 1. Learning rate schedules should follow it."""
        if self.num_epochs is None:
            raise ValueError("progress is a fraction of the run: pass num_epochs= to SelectiveSampler")
        epoch = self._epochs.now
        within = 0.0 if epoch is None or self._epochs.is_over else epoch.back / max(1, len(epoch))
        return min(1.0, (self.epoch + within) / self.num_epochs)

    @property
    def stats(self) -> Stats:
        """Counts of the examples of all ranks together."""
        return self._run.stats

    @property
    def ledger(self) -> Ledger:
        """One row per example, with all losses of epochs that are over. With several ranks, all must read it."""
        if self._epochs.is_surely_over:
            self._epochs.end()
        return self._run.ledger

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
        """Return (M,) the chance that each example had when it was last decided about; 1 if it never was."""
        return self.ledger.probability.nan_to_num(nan=1.0)

    def group_stats(self) -> dict[int, GroupStats]:
        """Return the statistics of each group, by its number, of epochs that are over."""
        groups = self._groups if self._groups is not None else self.method.groups
        if groups is None:
            raise RuntimeError("there are no groups: pass groups=, one whole number per example, to SelectiveSampler")
        return stats_by_group(groups, self.ledger)

    # ---- epochs

    def __iter__(self) -> Iterator[int]:
        """Yield the ids of one epoch, or of the rest of the one that was under way when the state was saved."""
        return Asking.over(self._epochs)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that begins next, from 0, here and in your own sampler.

        Without this, epochs count themselves. After a state was loaded, a later epoch than the saved one leaves out the
        rest of the saved one. An epoch that is over does not begin again: an earlier number changes nothing.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch must be a whole number >= 0, got {epoch!r}")
        if hasattr(self._epochs.source, "set_epoch"):
            self._epochs.source.set_epoch(epoch)
        self._epochs.set_number(epoch)

    # ---- a step

    def update(self, losses: Tensor | None, ids: Any = None, *, size: int | None = None) -> Tensor:
        """Note the losses of a training batch, and return the weights of its examples, (n,), on the losses' device.

        Call it once per training step, in the order of the batches:

            weights = sampler.update(losses)
            (losses * weights).mean().backward()

        Losses are held until the epoch is over. If it turns out that some are missing, none is written, and the next
        epoch begins with an error.

        Args:
            losses: (n,) the loss of each example. None for a step that was left out, such as one with a NaN.
            ids: (n,) the ids of the examples, if they travel with the batch. Then the order does not matter, batches
                may be left out, and losses may be those of part of a batch. Pass them in every step or in none.
            size: number of examples of a step that was left out, if batch_size= was not given.
        """
        epochs, epoch = self._epochs, self._epochs.now
        if epoch is None or epoch.finished:
            raise RuntimeError(
                "no epoch is under way: call sampler.update inside the loop over a loader that has this sampler, once "
                "per training step. To evaluate, loop over a second DataLoader"
            )
        if losses is None:
            values, device, known = None, _CPU, size
        else:
            values = losses.detach() if isinstance(losses, Tensor) else as_numbers(losses, "losses")
            if values.dim() != 1 or not values.is_floating_point() or not values.numel():
                raise ValueError(
                    f"losses must be one number per example, of shape (n,), got shape {tuple(values.shape)} and type "
                    f"{values.dtype}: compute them without reduction, as F.cross_entropy(..., reduction='none') does, "
                    "and average several numbers of an example, as by losses.flatten(1).mean(1). Where only one number "
                    "for the whole batch can be had, use sb.repeated_random, which needs none"
                )
            device, known = values.device, len(values)
        rows, count = epoch.rows(known, ids, self.batch_size)
        batch_ids, copied = epoch.ids[rows], None
        if values is not None and device == _CPU:
            if not math.isfinite(float(values.sum())):
                require_finite(values, batch_ids, "training loss")
            copied = values.to(torch.float32, copy=True), None  # losses wait, and your loop may change them
        elif values is not None:
            copied = begin_copy(values.clone())
        weights = torch.ones(count) if epoch.weights is None else epoch.weights[rows]
        self._last = batch_ids, weights.to(device, non_blocking=True)
        offered, skipped = epoch.come_back(rows, count, copied)
        trained = 0 if values is None else count * self._run.ranks.size
        self._run.count(batches=1, trained=trained, offered=offered, skipped_before_loading=skipped)
        epochs.goes_on = False
        if epoch.updates == 2:  # more than a look at a batch
            self._run.keep_epoch()
            epochs.refresh(everything=True)
        if epoch.back == len(epoch.ids) or (epochs.is_told and epochs.is_surely_over):
            epochs.end()
        elif epochs.is_watched:
            epochs.refresh()
        return self._last[1]

    # ---- saving

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a SelectiveSampler cannot be copied or pickled, because losses of one loop would not reach the other: "
            "make it in the process that trains; to save it, save sampler.state_dict()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly: plain data and tensors, loadable with weights_only=True.

        Like the state of a module, it goes on changing with the sampler: save or copy it at once. A StatefulDataLoader
        asks for it whenever it asks for a batch, and what it saves later must be what is true then. With several
        ranks, no message is sent: save the state of each rank, or that of rank 0 between epochs.

        Your own sampler's generator is saved, if it has one. Otherwise the order of later epochs comes from torch's
        global random state. Save that yourself, as for any exact resume.
        """
        head = {"version": STATE_VERSION, "method": describe(self.method), "num_examples": self._epochs.num_examples}
        return head | {"now": self._epochs.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved. The next iteration finishes the epoch that was under way.

        With a plain DataLoader, it goes on after the last batch that was given to `update`. If the state does not fit
        this sampler and its method, an error says what differs, and nothing is changed.
        """
        check_saved(state, self.method, _STATE_KEYS, version=STATE_VERSION, what="sampler")
        if state["num_examples"] != (size := self._epochs.num_examples):
            raise ValueError(
                f"the state was saved for {state['num_examples']} examples, but this sampler has {size}: was it saved "
                "for another data set, or has this one changed?"
            )
        self._epochs.load_state_dict(state["now"])
        self._last = None
