"""Load: gets the batches of an epoch from the user's DataLoader. In a planned epoch these are trained on."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from selective_backprop.chain.id_batches import IdBatch
from selective_backprop.chain.ids import Ids, Options
from selective_backprop.chain.plan import Plan
from selective_backprop.chain.user_loader import untouched_generators
from selective_backprop.inference import preserved_rng
from selective_backprop.rows import move, require_rows
from selective_backprop.run import Run
from selective_backprop.step_losses import NO_IDS
from selective_backprop.types import Batch, Candidates

_END = object()
_logger = logging.getLogger(__name__)


class Feed:
    """The batch sampler of a copy of the user's DataLoader: it hands on the ids of the epoch under way.

    It is the same object in all epochs, because workers that persist keep it.

    Args:
        batch_sampler: the user's. Its attributes can be read here too, as subclasses of DataLoader do.
    """

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler
        self.ids: Any = ()
        self.has_warned = False

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        # The user's sampler must seem to have no state here: StatefulDataLoader would save and restore it beside ours.
        if name == "batch_sampler" or name.startswith("__") or name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)


def fed(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Copy the user's DataLoader. The copy loads the ids that its `Feed` is given."""
    own = copy.copy(loader)
    # A DataLoader does not let these be set after construction, so that nobody changes a loader in use. The copy is not
    # in use yet. in_order, because batches that come out of order could not be matched with their ids.
    own.__dict__.update(batch_sampler=Feed(loader.batch_sampler), _iterator=None, in_order=True)
    return own


def batches_by_id(loader: DataLoader[Any], device: torch.device) -> Iterator[tuple[Tensor, Any]]:
    """Yield the ids and the data of each batch of the user's DataLoader, on the device."""
    own, asked = fed(loader), deque[Tensor]()

    def drawn() -> Iterator[Any]:
        for indices in loader.batch_sampler:  # type: ignore[union-attr]
            asked.append(torch.as_tensor(indices))
            yield indices

    own.batch_sampler.ids = drawn()  # type: ignore[union-attr]
    for data in own:
        yield asked.popleft(), move(data, device)


class Load:
    """The batches of a planned epoch, or the candidates of a scored one. All ranks must call `next` equally often.

    Args:
        loader: a copy of the user's DataLoader, made by `fed`.
        run: plans the epoch.
        options: what the user said about batches.
        state: of an epoch that was under way; None begins one.
    """

    def __init__(
        self, loader: DataLoader[Any], run: Run, options: Options, state: dict[str, Any] | None = None
    ) -> None:
        self.run, self.options, self._loader = run, options, loader
        self.is_planned = run.scorer.plans(run.epoch)
        """Whether the batches were chosen before they are loaded."""
        self.total = 0.0
        """Steps of the whole epoch; 0 before it is planned."""
        self.most_candidates = 0
        """Ids that the rank with most of them loads in this epoch."""
        self.step: tuple[IdBatch | None, ...] = ()
        """What each rank loaded in the last step."""
        self.fraction = 0.0
        """Fraction of the epoch loaded, on all ranks."""
        self._before = 0.0  # steps before the state was saved
        self._counted = 0  # candidates of a planned epoch that count as offered
        self._sizes: list[int] = []  # ids of all ranks in each step
        plan = None if state is None else self._resumed(state)
        self._feed: Feed = loader.batch_sampler  # type: ignore[assignment]
        self.ids = Ids(self._feed.batch_sampler, run, options, len(run.ledger), plan)
        self._feed.ids = ()
        if state is None and run.epoch and loader.persistent_workers and loader._iterator is None:
            # A run that never stopped has started these workers in its first epoch, and draws no seed for them here.
            with untouched_generators(loader):
                iter(loader)
        self._feed.ids = self.ids
        # The same for an epoch that goes on: the seed for its workers was drawn when it began.
        with nullcontext() if state is None else untouched_generators(loader):
            self._batches = iter(loader)

    def _resumed(self, state: dict[str, Any]) -> Plan:
        plan = Plan.from_state_dict(state["plan"], self.run.ranks.size)
        self._before, self.total, self.most_candidates, self._counted = state["place"]
        self.fraction, self._sizes = self._before / self.total, plan.sizes()
        if len(state["plan"]["batches"]) != self.run.ranks.size:  # then steps are larger or smaller from here on
            self.total = len(plan) / max(1e-9, 1 - self.fraction)
            self._before = self.total - len(plan)
        return plan

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch; 0 before it is planned."""
        return round(self.total)

    @property
    def count(self) -> int:
        """Steps of this epoch so far."""
        return round(self._before) + self.ids.place

    def next(self) -> Batch | None:
        """Load the next batch; None at the end. A rank that has no more gets an empty one while others have."""
        self.run.stats.switch("loading")
        data = next(self._batches, _END)
        ids, plan = self.ids, self.ids.plan
        assert plan is not None
        if not self.total:
            self.total, self._sizes = float(max(1, len(plan))), plan.sizes()
            self.most_candidates = max(len(batches.ids) for batches in plan.batches)
        place = ids.place
        if place >= len(self._sizes):
            if self.is_planned:
                self._count(plan.offered, 0)
            self.fraction = 1.0
            return None
        self.step = ids.came_back()
        self.of_all_ranks = self._sizes[place]
        self.fraction = min(1.0, (self._before + place + 1) / self.total)
        if self.is_planned:
            # Candidates count evenly over the batches, so that statistics make sense in mid-epoch too. What is loaded
            # always counts: or a smaller last batch would make the number of skipped ones negative before it.
            reached = max(round(self.fraction * plan.offered), self._counted + self.of_all_ranks)
            self._count(min(reached, plan.offered), self.of_all_ranks)
        own = self.step[self.run.ranks.rank]
        if own is None:
            return Batch(None, NO_IDS, torch.empty(0), torch.empty(0, dtype=torch.float64))
        data, size = prepared(data, own.ids, self.run.epoch, self.options), len(own.ids)
        require_rows(data, size)
        weights = torch.ones(size) if own.weights is None else own.weights
        chances = torch.ones(size, dtype=torch.float64) if own.probabilities is None else own.probabilities
        return Batch(data, own.ids, weights, chances)

    def _count(self, reached: int, loaded: int) -> None:
        more, self._counted = reached - self._counted, reached
        self.run.stats.offered += more
        self.run.stats.skipped_before_loading += more - loaded

    def stand_in(self) -> Candidates | None:
        """Load examples for a forward pass whose scores nobody reads, on a rank that has none."""
        dataset: Any = self._loader.dataset
        ids = torch.arange(min(self.options.candidate_size or 1, len(self.run.ledger)))
        with preserved_rng(self.options.device):
            data = self._loader.collate_fn([dataset[i] for i in ids.tolist()])
            return Candidates(prepared(data, ids, self.run.epoch, self.options), ids, len(ids))

    def state_dict(self) -> dict[str, Any]:
        if self._loader.num_workers and not self._feed.has_warned:
            self._feed.has_warned = True
            _logger.warning(
                "saving in the middle of an epoch with %d workers: the same examples come in the same order, "
                "but workers start anew, so random augmentation inside them goes on with other random numbers. "
                "If your data set draws any, save between epochs, or do it by transform= of SelectiveLoader",
                self._loader.num_workers,
            )
        place = [self._before + self.ids.place, self.total, self.most_candidates, self._counted]
        return {"plan": self.ids.state_dict(), "place": place}


def prepared(data: Any, ids: Tensor | None, epoch: int, options: Options) -> Any:
    """Bring a batch to the device and transform it."""
    if options.device.type != "cpu":
        data = move(data, options.device)
    transform = options.transform
    if transform is None:
        return data
    return transform(data, ids, epoch) if getattr(transform, "takes_ids", False) else transform(data)
