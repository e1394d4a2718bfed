"""The ledger: what is known about every example, in one row per id."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, get_type_hints

import torch
from torch import Tensor

_NAN = float("nan")


@dataclass(frozen=True)
class Column:
    """The declaration of a column of the ledger.

    Args:
        dtype: type of the values.
        fill: value before anything is written.
        width: the argument of `Ledger` that says how many values an example has. Without it, there is one value.
    """

    dtype: torch.dtype
    fill: float
    width: Literal["past_scores", "earlier_losses", "first_losses"] | None = None

    def make(self, num_examples: int, widths: dict[str, int]) -> Tensor:
        """Make an empty column."""
        shape = (num_examples,) if self.width is None else (num_examples, widths[self.width])
        return torch.full(shape, self.fill, dtype=self.dtype)


class Columns:
    """Declares the columns of a ledger. Subclasses decide which rows they have.

    All columns are saved. M = number of rows, H = past scores kept, E = earlier losses kept, F = first losses kept.
    """

    scores: Annotated[Tensor, Column(torch.float32, _NAN, width="past_scores")]
    """(M, H) The last scores from selection passes, newest first; NaN if there were fewer."""
    score_epochs: Annotated[Tensor, Column(torch.int32, -1, width="past_scores")]
    """(M, H) The epochs of these scores; -1 if there were fewer."""
    loss: Annotated[Tensor, Column(torch.float32, _NAN)]
    """The last loss from training, as given to `SelectiveLoader.loss`; NaN if there was none."""
    loss_epoch: Annotated[Tensor, Column(torch.int32, -1)]
    """The epoch of this loss; -1 if there was none."""
    earlier_losses: Annotated[Tensor, Column(torch.float32, _NAN, width="earlier_losses")]
    """(M, E) The losses from training before the last one, newest first; NaN if there were fewer."""
    earlier_loss_epochs: Annotated[Tensor, Column(torch.int32, -1, width="earlier_losses")]
    """(M, E) The epochs of these losses; -1 if there were fewer."""
    first_loss: Annotated[Tensor, Column(torch.float32, _NAN, width="first_losses")]
    """(M, F) The first loss from training; NaN if there was none. F is 1 if the method asks for it, else 0."""
    probability: Annotated[Tensor, Column(torch.float32, _NAN)]
    """The selection probability that the example had when it was last a candidate; NaN if it never was."""
    offered: Annotated[Tensor, Column(torch.int32, 0)]
    """How often the example was a candidate."""
    selected: Annotated[Tensor, Column(torch.int32, 0)]
    """How often the example was selected for training."""

    @property
    def score(self) -> Tensor:
        """The last score of each example."""
        return self.scores[:, 0]


COLUMNS: dict[str, Column] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Columns, include_extras=True).items()
}
"""All columns by name."""


class LedgerRows(Columns):
    """The rows of some ids in a ledger. Row i of each column belongs to the i-th id.

    The columns are those of `Ledger`. A column is fetched when it is first read: an epoch may have millions of ids, a
    scorer reads only one or two columns, and if ranks share a ledger, fetching means asking other ranks.

    Args:
        fetch: returns the column of this name.

    >>> ledger = Ledger(3)
    >>> ledger.record_losses(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=4)
    >>> rows = ledger.rows(torch.tensor([2, 1, 2]))
    >>> rows.loss.tolist(), rows.loss_epoch.tolist()
    ([0.5, nan, 0.5], [4, -1, 4])
    """

    def __init__(self, fetch: Callable[[str], Tensor]) -> None:
        self._fetch = fetch

    def __getattr__(self, name: str) -> Tensor:
        """Fetch a column when it is first read."""
        if name not in COLUMNS:
            raise AttributeError(f"a ledger has no column {name!r}, only {', '.join(COLUMNS)}")
        column = self._fetch(name)
        setattr(self, name, column)
        return column


class Ledger(Columns):
    """One row per example id, on the CPU. A row takes 28 bytes, 8 more per further past score or earlier loss.

    Args:
        num_examples: M.
        past_scores: H.
        earlier_losses: E.
        first_losses: F.

    >>> ledger = Ledger(3)
    >>> ledger.record_scores(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=4)
    >>> ledger.score.tolist(), ledger.loss.tolist()
    ([1.5, nan, 0.5], [nan, nan, nan])
    """

    def __init__(self, num_examples: int, past_scores: int = 1, earlier_losses: int = 0, first_losses: int = 0) -> None:
        widths = {"past_scores": past_scores, "earlier_losses": earlier_losses, "first_losses": first_losses}
        for name, column in COLUMNS.items():
            setattr(self, name, column.make(num_examples, widths))

    def __len__(self) -> int:
        return len(self.loss)

    def rows(self, ids: Tensor) -> LedgerRows:
        """Look up these ids, row by row."""
        # index_select takes a third of the time of indexing.
        return LedgerRows(lambda name: getattr(self, name).index_select(0, ids))

    def has_losses(self) -> bool:
        """Whether the training loss of any example is known."""
        return bool((self.loss_epoch >= 0).any())

    def deliver(self) -> None:
        """Send writes to other ranks. A process that trains alone has nothing to do here."""

    def whole(self) -> Ledger:
        """Return a ledger with all rows: this one. With several ranks, each has only a part of the rows."""
        return self

    def record_scores(self, ids: Tensor, scores: Tensor, epoch: int | Tensor) -> None:
        """Store scores of a selection pass. epoch: one number for all ids, or one per id (int32)."""
        if self.scores.shape[1] > 1:
            self.scores[ids, 1:] = self.scores[ids, :-1]
            self.score_epochs[ids, 1:] = self.score_epochs[ids, :-1]
        self.scores[ids, 0] = scores.to(torch.float32)
        self.score_epochs[ids, 0] = epoch

    def record_losses(self, ids: Tensor, losses: Tensor, epoch: int | Tensor) -> None:
        """Store losses of a training step. epoch: one number for all ids, or one per id (int32)."""
        if self.earlier_losses.shape[1]:
            self.earlier_losses[ids] = torch.cat([self.loss[ids, None], self.earlier_losses[ids, :-1]], dim=1)
            epochs = torch.cat([self.loss_epoch[ids, None], self.earlier_loss_epochs[ids, :-1]], dim=1)
            self.earlier_loss_epochs[ids] = epochs
        if self.first_loss.shape[1]:
            known = self.first_loss[ids]
            self.first_loss[ids] = torch.where(known.isnan(), losses.to(torch.float32)[:, None], known)
        self.loss.index_copy_(0, ids, losses.to(torch.float32))
        if isinstance(epoch, Tensor):
            self.loss_epoch[ids] = epoch
        else:
            self.loss_epoch.index_fill_(0, ids, epoch)

    def record_probabilities(self, ids: Tensor, probabilities: Tensor) -> None:
        """Store each candidate's selection probability."""
        # index_copy_ takes half of the time of indexing.
        self.probability.index_copy_(0, ids, probabilities.to(torch.float32))

    def count_offered(self, ids: Tensor) -> None:
        # index_add_, not +=: an id may occur twice in a batch when the sampler draws with replacement.
        self.offered.index_add_(0, ids, _ones(ids.numel()))

    def record_selection(self, ids: Tensor, probabilities: Tensor, selected: Tensor) -> None:
        """Store the candidates' selection probabilities, and count those that were selected.

        Args:
            ids: the candidates.
            probabilities: the chance that each of them had.
            selected: the ids of those that are trained on.
        """
        self.probability.index_copy_(0, ids, probabilities.to(torch.float32))
        self.selected.index_add_(0, selected, _ones(selected.numel()))

    def count_selected(self, ids: Tensor) -> None:
        self.selected.index_add_(0, ids, _ones(ids.numel()))

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in COLUMNS}

    def check_state_dict(self, state: dict[str, Tensor]) -> None:
        """Raise if a saved state does not fit this ledger."""
        if names := COLUMNS.keys() - state.keys():
            raise ValueError(
                f"the saved ledger lacks {', '.join(sorted(names))}: it is not the state of a ledger, or it is damaged"
            )
        if len(state["loss"]) != len(self):
            raise ValueError(
                f"saved ledger has {len(state['loss'])} examples but the data set has {len(self)}: "
                "was it saved for another data set, or has this one changed?"
            )
        for name in COLUMNS:
            if state[name].shape != getattr(self, name).shape:
                there, here = tuple(state[name].shape), tuple(getattr(self, name).shape)
                raise ValueError(
                    f"the saved ledger's {name} has shape {there}, but this ledger's has {here}: was it saved by "
                    "another method?"
                )

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.check_state_dict(state)
        for name in COLUMNS:
            getattr(self, name).copy_(state[name])


@functools.lru_cache(maxsize=16)
def _few_ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.int32)


def _ones(count: int) -> Tensor:
    """Return ones to add to counts. Those for a batch are cached, because most batches have the same size."""
    return _few_ones(count) if count <= 4096 else torch.ones(count, dtype=torch.int32)
