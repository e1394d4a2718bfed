"""What is known of every example: one row per id."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor


class Columns:
    """What is known of examples, a column each; what rows there are is up to the class."""

    scores: Tensor
    score_epochs: Tensor
    loss: Tensor
    loss_epoch: Tensor
    probability: Tensor
    offered: Tensor
    selected: Tensor

    @property
    def score(self) -> Tensor:
        """The last score of each example."""
        return self.scores[:, 0]

    def age(self, epoch: int) -> Tensor:
        """Epochs since each example's last score or loss; one more than the epochs there were if none."""
        return epoch - torch.maximum(self.loss_epoch, self.score_epochs[:, 0])


COLUMNS = tuple(Columns.__annotations__)


class LedgerRows(Columns):
    """What a ledger knows of some ids: row i of each column belongs to the i-th of them.

    The columns are those of `Ledger`. Each is fetched when it is first read, because an epoch may have millions of ids
    and a scorer reads one or two columns; and where ranks share a ledger, fetching means asking other ranks.

    Args:
        fetch: makes a column, by its name.

    >>> ledger = Ledger(3)
    >>> ledger.record_losses(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=4)
    >>> rows = ledger.rows(torch.tensor([2, 1, 2]))
    >>> rows.loss.tolist(), rows.age(epoch=4).tolist()
    ([0.5, nan, 0.5], [0, 5, 0])
    """

    def __init__(self, fetch: Callable[[str], Tensor]) -> None:
        self._fetch = fetch

    def __getattr__(self, name: str) -> Tensor:
        """A column that was not read before."""
        if name not in COLUMNS:
            raise AttributeError(f"a ledger has no column {name!r}, only {', '.join(COLUMNS)}")
        column = self._fetch(name)
        setattr(self, name, column)
        return column


class Ledger(Columns):
    """One row per example id, on the CPU: 28 bytes, and 8 more for every past score beyond the last.

    Attributes (M = number of examples, H = past scores kept):
        scores: (M, H) the last scores from selection passes, newest first; NaN where there were none.
        score_epochs: (M, H) their epochs; -1 where there were none.
        loss: last loss from training, as given to `SelectiveLoader.loss`; NaN if there was none.
        loss_epoch: its epoch; -1 if there was none.
        probability: chance of selection at its last decision; NaN if there was none.
        offered: how often it was a candidate.
        selected: how often it was selected for training.

    >>> ledger = Ledger(3)
    >>> ledger.record_scores(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=4)
    >>> ledger.score.tolist(), ledger.age(epoch=5).tolist()
    ([1.5, nan, 0.5], [1, 6, 1])
    """

    def __init__(self, num_examples: int, past_scores: int = 1) -> None:
        nan = float("nan")
        self.scores = torch.full((num_examples, past_scores), nan)
        self.score_epochs = torch.full((num_examples, past_scores), -1, dtype=torch.int32)
        self.loss = torch.full((num_examples,), nan)
        self.loss_epoch = torch.full((num_examples,), -1, dtype=torch.int32)
        self.probability = torch.full((num_examples,), nan)
        self.offered = torch.zeros(num_examples, dtype=torch.int32)
        self.selected = torch.zeros(num_examples, dtype=torch.int32)

    def __len__(self) -> int:
        return len(self.loss)

    def rows(self, ids: Tensor) -> LedgerRows:
        """What is known of these ids, row by row."""
        # index_select takes a third of the time of indexing.
        return LedgerRows(lambda name: getattr(self, name).index_select(0, ids))

    def has_losses(self) -> bool:
        """Whether the loss of any example in training is known."""
        return bool((self.loss_epoch >= 0).any())

    def deliver(self) -> None:
        """Send what was written to other ranks: alone, there is nothing to do."""

    def whole(self) -> Ledger:
        """All rows: itself. With several ranks each has a part of them, and this is how to get the whole."""
        return self

    def record_scores(self, ids: Tensor, scores: Tensor, epoch: int | Tensor) -> None:
        """Scores of a selection pass. Epoch: one for all, or one of int32 per id."""
        if self.scores.shape[1] > 1:
            self.scores[ids, 1:] = self.scores[ids, :-1]
            self.score_epochs[ids, 1:] = self.score_epochs[ids, :-1]
        self.scores[ids, 0] = scores.to(torch.float32)
        self.score_epochs[ids, 0] = epoch

    def record_losses(self, ids: Tensor, losses: Tensor, epoch: int | Tensor) -> None:
        """Losses of a training step. Epoch: as for scores."""
        self.loss.index_copy_(0, ids, losses.to(torch.float32))
        if isinstance(epoch, Tensor):
            self.loss_epoch[ids] = epoch
        else:
            self.loss_epoch.index_fill_(0, ids, epoch)

    def record_probabilities(self, ids: Tensor, probabilities: Tensor) -> None:
        """Chances with which it was decided about candidates."""
        # index_copy_ takes half of the time of indexing.
        self.probability.index_copy_(0, ids, probabilities.to(torch.float32))

    def count_offered(self, ids: Tensor) -> None:
        # index_add_, not +=: an id may occur twice in a batch when the sampler draws with replacement.
        self.offered.index_add_(0, ids, _ones(ids.numel()))

    def record_selection(self, ids: Tensor, probabilities: Tensor, selected: Tensor) -> None:
        """It was decided about these candidates with these chances. selected: the ids that are trained on."""
        self.probability.index_copy_(0, ids, probabilities.to(torch.float32))
        self.selected.index_add_(0, selected, _ones(selected.numel()))

    def count_selected(self, ids: Tensor) -> None:
        self.selected.index_add_(0, ids, _ones(ids.numel()))

    def state_dict(self) -> dict[str, Tensor]:
        return {name: column.clone() for name, column in vars(self).items()}

    def check_state_dict(self, state: dict[str, Tensor]) -> None:
        """Raise for a state that does not fit."""
        if names := {name for name in vars(self) if name not in state}:
            raise ValueError(f"the saved ledger lacks {', '.join(sorted(names))}: it is none, or damaged")
        if len(state["loss"]) != len(self):
            raise ValueError(
                f"saved ledger has {len(state['loss'])} examples but the data set has {len(self)}: "
                "was it saved for another data set, or has this one changed?"
            )
        for name, column in vars(self).items():
            if state[name].shape != column.shape:
                there, here = tuple(state[name].shape), tuple(column.shape)
                raise ValueError(
                    f"the saved ledger's {name} has shape {there}, this one's {here}: was it saved by another method?"
                )

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.check_state_dict(state)
        for name, column in vars(self).items():
            column.copy_(state[name])


@functools.lru_cache(maxsize=16)
def _few_ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.int32)


def _ones(count: int) -> Tensor:
    """What is added to counts; those for a batch are made once, as most batches have the same size."""
    return _few_ones(count) if count <= 4096 else torch.ones(count, dtype=torch.int32)
