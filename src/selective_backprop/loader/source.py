"""Sources: read candidate batches from the user's loader, on the device and transformed.

# N = candidates
"""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from selective_backprop.batches.layout import Layout, count_rows, move
from selective_backprop.batches.plain import loaded_columns, saved_columns
from selective_backprop.inference import preserved_rng, random_states, set_random_states
from selective_backprop.loader.user_samplers import (
    SizeCheck,
    batch_size_of,
    drops_last,
    generator_owners,
    generators_of,
    has_ids,
    most_kept,
    num_candidates,
    require_torchs_order,
    untouched_generators,
)
from selective_backprop.loader.with_length import WithLength
from selective_backprop.sampler.id_batches import IdBatch, IdBatches
from selective_backprop.sampler.stats import Stats
from selective_backprop.types import Candidates

_logger = logging.getLogger(__name__)

_NO_BATCH = object()
_LONGEST_PLAN = 2**22  # indices per epoch that may be collected for a smaller data set; that takes seconds
_LONGEST_UNKNOWN = 2**20  # the same for a batch sampler without a length: one without an end is refused after a second


@dataclass(frozen=True)
class Loaded:
    """One batch on the device, and its place in the epoch."""

    candidates: Candidates
    asked: IdBatch | None
    """The ids of the batch, with what a plan decided about them. None if the loader has no ids."""
    batch_idx: int
    """Number of batches loaded before this one in the epoch."""
    fraction: float
    """Fraction of the epoch's batches loaded, this one included; 0 if their number is not known."""

    def planned(self) -> tuple[Tensor, Tensor]:
        """Return the weights and probabilities that a plan gave these candidates. Without a plan all are 1."""
        size, asked = self.candidates.size, self.asked
        weights, chances = (None, None) if asked is None else (asked.weights, asked.probabilities)
        return (
            torch.ones(size) if weights is None else weights,
            torch.ones(size, dtype=torch.float64) if chances is None else chances,
        )


class Source(ABC):
    """Reads the user's loader, epoch by epoch.

    Args:
        loader: the user's loader.
        device: where batches go.
        transform: the user's function of a batch on the device.
        stats: counts the seconds of loading.
    """

    num_examples: int | None = None
    """Size of the data set, which is the number of rows of a ledger; None if the loader has no ids."""

    def __init__(self, loader: Any, device: torch.device, transform: Callable[..., Any] | None, stats: Stats) -> None:
        self._told_length: int | None = None  # batches per epoch according to the user
        self.learned_length: int | None = None
        """Batches of the last whole epoch, if they were not as many as the user said. Saved with the loader's state."""
        if isinstance(loader, WithLength):
            loader, self._told_length = loader.loader, loader.num_batches
        self.user_loader = loader
        self.device = device
        self.transform: Any = transform
        self._takes_ids: bool = getattr(transform, "takes_ids", False)
        self._stats = stats
        self._check_size: SizeCheck | None = None  # told the size of every batch of the user's
        # Only generators that exist now: a sampler that makes its generator in __iter__ also seeds it there.
        self._generator_owners = generator_owners(loader)
        self._batches: Iterator[Any] = iter(())
        self._epoch = 0
        self._position = 0
        self._total: int | None = None  # batches of this epoch, if known

    def check_sizes(self) -> None:
        """Check from now on that the user's batches have one size, because training batches are to have the same."""
        self._check_size = SizeCheck()

    def know_size(self, first: int) -> None:
        """Take note of the size of the run's first batch, which was before a resume."""
        if self._check_size is not None:
            self._check_size = SizeCheck(first)

    def move(self, device: torch.device) -> None:
        """Load batches to this device from now on."""
        self.device = device

    # ---- what is known before an epoch

    @property
    def batch_size(self) -> int | None:
        """Size of a candidate batch; None if the loader does not say it."""
        return batch_size_of(self.user_loader)

    @property
    def drop_last(self) -> bool:
        """Whether the user's loader leaves out a last batch that is not full."""
        return drops_last(self.user_loader)

    @property
    def num_batches(self) -> int | None:
        """Candidate batches per epoch, or None if not known. With pruning, the most that there can be."""
        return self._num_loader_batches()

    @property
    def num_candidates(self) -> int | None:
        """The most candidates that an epoch can have; None if not known."""
        batches, size = self.num_batches, self.batch_size
        return batches * size if batches and size else None

    def _num_loader_batches(self) -> int | None:
        try:
            return len(self.user_loader)
        except TypeError:
            return self.learned_length or self._told_length

    def generators(self) -> list[torch.Generator]:
        """The user's generators, whose states are saved and loaded."""
        return generators_of(self._generator_owners)

    @property
    def is_pruned(self) -> bool:
        """Whether an empty epoch is due to pruning: the loader itself has batches. Other ranks may still have some."""
        return False

    def stand_in(self) -> Candidates | None:
        """Load examples for a forward pass whose scores nobody reads; None if the loader cannot be asked for any."""
        return None

    # ---- an epoch

    def next(self) -> Loaded | None:
        """Load the next batch; None at the end of the epoch."""
        self._stats.switch("loading")
        data = next(self._batches, _NO_BATCH)
        if data is _NO_BATCH:
            if self._position:
                self._tell_length()
            return None
        self._position += 1
        asked = self._arrived()
        ids = None if asked is None else asked.ids
        data = self._on_device(data, ids)
        size = count_rows(data) if ids is None else ids.numel()
        if ids is None and self._check_size is not None:
            self._check_size(size)
        fraction = min(1.0, self._position / self._total) if self._total else 0.0
        return Loaded(Candidates(data, ids, size), asked, self._position - 1, fraction)

    def _on_device(self, data: Any, ids: Tensor | None) -> Any:
        data = move(data, self.device)
        if self._takes_ids:  # the loader has ids, which was checked when it was made
            return self.transform(data, ids, self._epoch)
        return data if self.transform is None else self.transform(data)

    def _tell_length(self) -> None:
        """Log once, at the end of an epoch, if it had another number of batches than the user said."""
        told = self.learned_length or self._told_length
        if told not in (None, self._position):
            self.learned_length = self._position
            _logger.warning(
                "the epoch had %d candidate batches, and your WithLength said %d: progress was wrong within the epoch, "
                "and so was a learning rate by step_by_progress. Pass num_batches=%d",
                self._position,
                told,
                self._position,
            )

    def _start_persistent_workers(self, loader: Any) -> None:
        """Start workers that a run which never stopped would have from its first epoch on.

        A DataLoader draws a seed for its workers when it starts them, so that run draws none here.
        """
        if self._epoch and getattr(loader, "persistent_workers", False) and loader._iterator is None:
            with untouched_generators(self._generator_owners), preserved_rng(torch.device("cpu")):
                iter(loader)

    def _arrived(self) -> IdBatch | None:
        """Return the ids of the batch that the loader has just returned, if it has ids."""
        return None

    def end(self) -> None:
        """End the epoch. This also ends the DataLoader's workers, except persistent ones."""
        self._batches = iter(())

    @abstractmethod
    def place(self) -> dict[str, Any]:
        """Describe the current place in the epoch, for a saved state."""


class IndexedSource(Source):
    """Reads a DataLoader over a map-style data set, whose indices serve as ids.

    The batches of an epoch are given as batches of ids: the user's own, or those of a plan.

    Args:
        loader, device, transform, stats: as for `Source`.
        keep: (M,) bool by id. Ids with False are pruned from every epoch.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device,
        transform: Callable[..., Any] | None,
        stats: Stats,
        keep: Tensor | None = None,
    ) -> None:
        require_torchs_order(loader.loader if isinstance(loader, WithLength) else loader)
        super().__init__(loader, device, transform, stats)
        loader = self.user_loader
        self.keep = None if keep is None or bool(keep.all()) else keep
        self.num_examples = len(loader.dataset)  # type: ignore[arg-type]
        self._feed = _Feed(loader.batch_sampler)
        self._loader = copy.copy(loader)
        # A DataLoader does not let these be set after construction, so that nobody changes a loader in use. The copy is
        # not in use yet. in_order, because batches that come out of order could not be matched with their ids.
        self._loader.__dict__.update(batch_sampler=self._feed, _iterator=None, in_order=True)
        self._has_warned = False
        # States of the generators after the user's sampler has drawn the whole epoch, if saving made it draw ahead.
        self._after_drawing: list[Tensor] | None = None

    @property
    def num_batches(self) -> int | None:
        total, size = self._num_loader_batches(), self.batch_size
        if self.keep is None or total is None or not size:
            return total
        count = most_kept(self.user_loader, self.keep)
        if count is None:
            return total
        return min(total, count // size if self.drop_last else -(-count // size))

    @property
    def num_candidates(self) -> int | None:
        counted = num_candidates(self.user_loader) if self.keep is None else most_kept(self.user_loader, self.keep)
        # A batch sampler of the user's own does not tell its number. It offers each example once, or fewer.
        return counted if counted is not None else super().num_candidates or self.num_examples

    @property
    def is_pruned(self) -> bool:
        return self.keep is not None and self._num_loader_batches() != 0

    @property
    def longest_plan(self) -> int:
        """The most candidates that an epoch may have to be collected before it is loaded."""
        assert self.num_examples is not None
        return max(_LONGEST_PLAN, 4 * self.num_examples)

    @property
    def can_be_planned(self) -> bool:
        """Whether an epoch's ids can be collected before it is loaded."""
        return (num_candidates(self.user_loader) or 0) <= self.longest_plan

    def stand_in(self) -> Candidates:
        ids = torch.arange(min(self.batch_size or 1, self.num_examples or 0))
        with preserved_rng(self.device):
            examples = [self.user_loader.dataset[i] for i in ids.tolist()]
            return Candidates(self._on_device(self.user_loader.collate_fn(examples), ids), ids, len(ids))

    # ---- the user's ids

    def candidate_batches(self) -> Iterator[IdBatch]:
        """Yield the user's batches of ids for one epoch, as the sampler draws them."""
        for ids in self._drawn():
            ids = ids.to(torch.int64)
            self._require_known(ids)
            yield IdBatch(ids)

    def all_candidates(self) -> IdBatches:
        """Collect the user's batches of ids for one epoch, without pruned ids. Raises if they do not seem to end."""
        assert self.num_examples is not None
        has_length, longest = self._num_loader_batches() is not None, max(_LONGEST_UNKNOWN, 4 * self.num_examples)
        batches, count = [], 0
        for ids in self._drawn():
            batches.append(ids)
            count += ids.numel()
            if count > longest and not has_length:
                raise ValueError(
                    f"your batch sampler has yielded {count:,} indices without an end, for a data set of "
                    f"{self.num_examples:,} examples, and this method decides about a whole epoch before it loads it. "
                    "End the epoch after one pass over the data set, or use a method that decides batch by batch, such "
                    "as selective_backprop"
                )
        found = IdBatches.of(batches)
        self._require_known(found.ids)
        return found if self.keep is None else self._unpruned(found, self.keep)

    def _unpruned(self, found: IdBatches, keep: Tensor) -> IdBatches:
        """Leave out pruned ids. The others come in batches of the usual size, and a lone one joins the batch before."""
        ids = found.ids[keep[found.ids]]
        size = self.batch_size or (int(found.sizes.max()) if len(found.sizes) else 1)
        full, rest = divmod(len(ids), size)
        sizes = [size] * full
        if self.drop_last:
            ids = ids[: full * size]
        elif rest == 1 and full and size > 1:
            sizes[-1] += 1  # BatchNorm cannot train on one example
        elif rest:
            sizes.append(rest)
        return IdBatches(ids, torch.tensor(sizes, dtype=torch.int64))

    def _drawn(self) -> Iterator[Tensor]:
        if self._check_size is not None:
            self._check_size.begin_epoch()
        for indices in self._feed.drawn:
            try:
                # numpy reads a list in a quarter of the time that torch takes.
                ids = torch.from_numpy(numpy.asarray(indices)) if type(indices) is list else torch.as_tensor(indices)
            except (TypeError, ValueError):
                ids = torch.empty(0)
            if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
                raise TypeError(f"your sampler must yield integer indices, which serve as ids; got {indices!r:.200}")
            if self._check_size is not None:
                self._check_size(ids.numel())
            yield ids

    def _require_known(self, ids: Tensor) -> None:
        """Raise if an id is outside the data set."""
        if not ids.numel():
            return
        size = self.num_examples or 0
        lowest, highest = torch.aminmax(ids)
        if 0 <= int(lowest) <= int(highest) < size:
            return
        wrong = ids[(ids < 0) | (ids >= size)]
        shown = ", ".join(map(str, wrong[:5].tolist())) + (", ..." if len(wrong) > 5 else "")
        raise ValueError(
            f"the sampler yields the indices {shown}, but the data set had {size} examples when this loader was made: "
            f"indices serve as ids and must be from 0 to {size - 1}. Do not use negative indices, and make a new "
            "SelectiveLoader when the data set has grown"
        )

    # ---- an epoch

    def begin(self, batches: Iterable[IdBatch], epoch: int, total: int | None) -> None:
        """Start an epoch of these batches. They are drawn when the DataLoader asks for them.

        total: their number, if known.
        """
        self._epoch, self._position, self._total = epoch, 0, total
        self._start_persistent_workers(self._loader)
        self._feed.begin(batches)
        self._batches = self._handed_on(iter(self._loader))

    def know(self, batches: IdBatches) -> None:
        """Take note of all batches of this epoch, once they are planned."""
        self._total = len(batches)
        self._feed.know(batches)

    def resume(self, place: dict[str, Any], epoch: int) -> None:
        """Go on with an epoch from the place that was saved."""
        self._epoch, self._position, self._total = epoch, place["position"], place["total"]
        self._feed.begin(IdBatches.from_state_dict(place["batches"]))
        self._after_drawing = place["drawn"]
        # A DataLoader draws a seed for its workers whenever it starts. A run that never stopped draws no seed here, so
        # this draw is undone.
        with untouched_generators(self._generator_owners), preserved_rng(torch.device("cpu")):
            self._batches = self._handed_on(iter(self._loader))

    @staticmethod
    def _handed_on(batches: Iterator[Any]) -> Iterator[Any]:
        """Hand on batches until one fails. DataLoaders could go on after it, but not with the ids that belong to it."""
        yield from batches

    def _arrived(self) -> IdBatch:
        return self._feed.on_their_way.popleft()

    def end(self) -> None:
        super().end()
        self._feed.begin(())  # which also drops the epoch that the batches came from
        self._after_drawing = None

    def next(self) -> Loaded | None:
        loaded = super().next()
        # To know that a batch is the last one and not full, a sampler has to be run to its end.
        is_partial = loaded is not None and loaded.candidates.size < (self.user_loader.batch_size or 0)
        if self._after_drawing is not None and (loaded is None or (is_partial and loaded.fraction == 1)):
            self._set_generators(self._after_drawing)
            self._after_drawing = None
        return loaded

    def _set_generators(self, states: list[Tensor]) -> None:
        for generator, state in zip(self.generators(), states, strict=True):
            generator.set_state(state)

    def place(self) -> dict[str, Any]:
        self._warn_of_workers()
        self._require_an_end()
        before = [generator.get_state() for generator in self.generators()]
        batches = self._feed.remaining().state_dict()
        drawn = [generator.get_state() for generator in self.generators()]
        if not all(map(torch.equal, before, drawn)):
            # A sampler draws until its end, as that of shuffle=True does. If the loop leaves the epoch early, it draws
            # less, so what saving made it draw counts only at the end of the epoch.
            self._after_drawing = drawn
            self._set_generators(before)
        return {"position": self._position, "total": self._total, "batches": batches, "drawn": self._after_drawing}

    def _require_an_end(self) -> None:
        """Raise if the ids that are left of the epoch are too many to save, or never end."""
        if self._feed.is_flat:
            return
        count = num_candidates(self.user_loader)
        if self._num_loader_batches() is None or (count is not None and count > self.longest_plan):
            raise ValueError(
                "cannot save in the middle of an epoch: "
                + ("the batch sampler has no length" if count is None else f"an epoch has {count:,} candidates")
                + ", and the ids that are left of it would have to be saved. Make epochs shorter and save between them"
            )

    def _warn_of_workers(self) -> None:
        """Log once that a resume from here may draw other random numbers inside workers than this run would."""
        if self._has_warned or not self.user_loader.num_workers:
            return
        self._has_warned = True
        _logger.warning(
            "saving in the middle of an epoch with %d workers: a resume offers the same examples in the same order, "
            "but random augmentation inside workers goes on with other random numbers, because workers start anew. If "
            "your data set draws any, save between epochs, which is exact if workers are not persistent, or make "
            "augmentation follow from the index and the epoch, or do it by transform= of SelectiveLoader",
            self.user_loader.num_workers,
        )


class _Feed:
    """A batch sampler that hands on batches of ids, and knows the ids of every batch that the DataLoader returns.

    A DataLoader with workers asks for indices ahead of time, but returns batches in the order of asking.

    Args:
        batch_sampler: the user's batch sampler. Its attributes can be read here too, as subclasses of DataLoader do.
    """

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler
        self.begin(())

    def begin(self, batches: Iterable[IdBatch]) -> None:
        """Hand on these batches in the next iteration. Until then none is drawn."""
        self.drawn: Iterator[Any] = iter(())
        """The user's batches of this epoch, which the given ones may be drawn from."""
        self._flat = batches if isinstance(batches, IdBatches) else None
        self._batches = iter(batches)
        self._num_asked = 0
        self.on_their_way: deque[IdBatch] = deque()
        """The batches that the DataLoader has asked for and not returned yet."""

    @property
    def is_flat(self) -> bool:
        """Whether all batches of the epoch are known already."""
        return self._flat is not None

    def know(self, batches: IdBatches) -> None:
        """Take note of all batches of the epoch, once they are planned."""
        self._flat = batches

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        # The user's sampler must seem to have no state here: StatefulDataLoader would save and restore it beside ours.
        if name == "batch_sampler" or name.startswith("__") or name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)

    def __iter__(self) -> Iterator[list[int]]:
        if self._flat is None:
            # At once, as a DataLoader does: torchdata's samplers draw the order here, before the loader draws a seed
            # for its workers from the same generator. With workers this happens twice.
            self.drawn = iter(self.batch_sampler)
        return self._hand_on()

    def _hand_on(self) -> Iterator[list[int]]:
        while (batch := next(self._batches, None)) is not None:  # not a for loop: remaining() may replace the iterator
            self._num_asked += 1
            self.on_their_way.append(batch)
            yield batch.ids.tolist()

    def remaining(self) -> IdBatches:
        """Return the batches of this epoch that have not arrived yet."""
        if self._flat is not None:
            return self._flat.after(self._num_asked - len(self.on_their_way))
        rest = list(self._batches)
        self._batches = iter(rest)
        return IdBatches.join([*self.on_their_way, *rest])


class StreamSource(Source):
    """Reads any other iterable of batches, which have no ids."""

    def __init__(
        self, loader: Iterable[Any], device: torch.device, transform: Callable[..., Any] | None, stats: Stats
    ) -> None:
        super().__init__(loader, device, transform, stats)
        self._stateful = _keeps_its_place(self.user_loader)
        self._has_offered = False  # whether any epoch has had a batch
        self._finished = False  # whether the last epoch went to its end
        self._ended: dict[str, Any] | None = None  # the loader's own state at the end of the epoch before a resume
        self._began: list[Any] = []  # the random states when the epoch began, which its order may follow from
        self._resumed_stream: Any = None  # one that remembers the place at which it was resumed

    def begin(self, epoch: int) -> None:
        """Start the next epoch."""
        self._epoch, self._position, self._total, self._finished = epoch, 0, self._num_loader_batches(), False
        if self._check_size is not None:
            self._check_size.begin_epoch()
        self._start_persistent_workers(self.user_loader)
        ended, self._ended = self._ended, None
        self._began = self._random_states()
        if self._resumed_stream is not None:
            self._resumed_stream.load_state_dict(None)
            self._resumed_stream = None
        elif ended is not None:
            self._batches = self._checked(self._next_epoch(ended))
            return
        self._batches = self._checked(iter(self.user_loader))

    def resume(self, place: dict[str, Any], epoch: int) -> None:
        """Go on with an epoch from the place that was saved."""
        self._epoch, self._position, self._total = epoch, place["position"], self._num_loader_batches()
        # A stream of `datasets` would begin all later epochs, too, at the place that is loaded here.
        self._resumed_stream = _stream_of_datasets(self.user_loader)
        if place["finished"]:
            self._ended = place["inner"] if self._resumed_stream is None else None
            self._batches = iter(())  # iter() of a loader that saves its own state would start the next epoch
            return
        if place["inner"] is not None:
            if self._stateful is None:
                raise ValueError(
                    "the state has the place of a loader that saves it, but your "
                    f"{type(self.user_loader).__name__} has no load_state_dict: resume with the same kind of loader"
                )
            self._stateful.load_state_dict(place["inner"])
        with untouched_generators(self._generator_owners), preserved_rng(torch.device("cpu")):
            self._began = list(loaded_columns(place["began"])[0])
            self._set_random_states(self._began)  # the same order, if the stream shuffles
            batches: Iterator[Any] = iter(self.user_loader)
            if place["inner"] is None:
                for passed in range(self._position):  # batches can only be loaded and dropped to get there
                    if next(batches, _NO_BATCH) is _NO_BATCH:
                        raise ValueError(
                            f"the loader ended after {passed} batches, but it had offered {self._position} when the "
                            "state was saved: it is another loader, or its data changed. Resume with the same data"
                        )
        self._batches = self._checked(batches)

    def _checked(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Hand on the batches. Raises if there are none because the loader can be used only once."""
        for batch in batches:
            self._has_offered = True
            yield batch
        self._finished = True
        if not self._position and self._has_offered and iter(self.user_loader) is self.user_loader:
            raise ValueError(
                f"your loader is an iterator (a {type(self.user_loader).__name__}), which can be used only once, and "
                "an earlier epoch used it up. Pass something that starts anew for every epoch, such as a DataLoader, a "
                "list, or an object whose __iter__ makes a new generator"
            )

    def _next_epoch(self, ended: dict[str, Any]) -> Iterator[Any]:
        """Begin an epoch with a loader that keeps its own place, from its state at the end of the epoch before."""
        assert self._stateful is not None
        before = self._random_states()
        iter(self.user_loader)
        begun = self._random_states()  # as in a run that never stopped, which began this epoch once
        self._stateful.load_state_dict(ended)
        batches = iter(self.user_loader)  # torchdata's loader begins twice, if it has come to the end of its data
        self._set_random_states(begun)
        if (first := next(batches, _NO_BATCH)) is not _NO_BATCH:
            return itertools.chain([first], batches)
        self._set_random_states(before)  # the loader was still at that end, and its next epoch begins now
        return iter(self.user_loader)

    def _random_states(self) -> list[Any]:
        """Return all random states that a loader may draw from when an epoch begins."""
        return [random_states(torch.device("cpu")), *(generator.get_state() for generator in self.generators())]

    def _set_random_states(self, states: list[Any]) -> None:
        set_random_states(states[0], torch.device("cpu"))
        for generator, state in zip(self.generators(), states[1:], strict=True):
            generator.set_state(state)

    def place(self) -> dict[str, Any]:
        inner = self._own_state()
        began = saved_columns(Layout("column"), [self._began])
        return {"position": self._position, "finished": self._finished, "inner": inner, "began": began}

    def between_epochs(self) -> dict[str, Any] | None:
        """Return what a loader that keeps its own place must know to begin the next epoch; None if nothing."""
        if self._ended is not None:
            return self._ended
        if self._stateful is None or not self._finished or _stream_of_datasets(self.user_loader) is not None:
            return None
        return self._own_state()

    def _own_state(self) -> dict[str, Any] | None:
        """Return the state by which the loader finds its place again; None if it has none."""
        state: dict[str, Any] | None = None if self._stateful is None else self._stateful.state_dict()
        return None if state is None or _only_counts(state) else state

    def load_between_epochs(self, state: dict[str, Any] | None) -> None:
        """Begin the next epoch from this state of the loader."""
        self._ended = state if self._stateful is not None else None


AnySource = IndexedSource | StreamSource


def make_source(
    loader: Any,
    device: torch.device,
    transform: Callable[..., Any] | None,
    stats: Stats,
    keep: Tensor | None,
) -> AnySource:
    """Make the source for this loader: with ids if it draws batches of indices from a map-style data set."""
    if has_ids(loader.loader if isinstance(loader, WithLength) else loader):
        return IndexedSource(loader, device, transform, stats, keep)
    return StreamSource(loader, device, transform, stats)


def _stream_of_datasets(loader: Any) -> Any:
    """Return the loader's data if it is an IterableDataset of Hugging Face's `datasets`, else None."""
    kind = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    stream = getattr(loader, "dataset", None)
    return stream if kind is not None and isinstance(stream, kind) else None


def _keeps_its_place(loader: Any) -> Any:
    """Return what saves and restores the place in an epoch: the loader itself, or its stream of data; None if neither.

    Without workers, a DataLoader takes from its stream just the examples of the batches that it has returned. So the
    stream's own state, as that of an IterableDataset of Hugging Face, is the place.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    if not isinstance(loader, DataLoader) or loader.num_workers or not isinstance(loader.dataset, IterableDataset):
        return None
    stream: Any = loader.dataset
    if not hasattr(stream, "load_state_dict") or not callable(getattr(stream, "state_dict", None)):
        return None
    needed = [p for p in inspect.signature(stream.state_dict).parameters.values() if p.default is p.empty]
    return None if needed else stream  # a StreamingDataset must be told its place, which its own loader counts


def _only_counts(state: dict[str, Any]) -> bool:
    """Whether this is the state of a StatefulDataLoader whose stream has none: it has a number of batches only.

    The loader would load and drop that many, and count them twice from then on, so that a second resume drops more than
    were given out.
    """
    states = _states_of_stream(state)
    return bool(states) and all(one is None for one in states)


def _states_of_stream(state: dict[str, Any]) -> list[Any]:
    """List what a StatefulDataLoader saves of its stream and its iterator, of each worker if there are any."""
    found = []
    for name, value in state.items():
        if name in ("dataset_state", "dataset_iter_state"):
            found.append(value)
        elif isinstance(value, dict):
            found += _states_of_stream(value)
    return found
