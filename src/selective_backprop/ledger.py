"""What is known of every example: one row per id, 24 bytes."""

from __future__ import annotations

import torch
from torch import Tensor

_MEAN_DECAY = 0.7  # an example seen once an epoch: its last three losses make up two thirds of the mean
_COLUMNS = {
    "score": (torch.float32, float("nan")),
    "loss": (torch.float32, float("nan")),
    "mean_loss": (torch.float32, float("nan")),
    "updated": (torch.int32, -1),
    "offered": (torch.int32, 0),
    "trained": (torch.int32, 0),
}


class Ledger:
    """One row per example id, on the CPU.

    Attributes (M = number of examples):
        score: last score from a selection pass; NaN if there was none.
        loss: last loss from training, as given to `SelectiveLoader.loss`; NaN if there was none.
        mean_loss: exponentially weighted mean of the losses from training.
        updated: epoch of the last score or loss; -1 if there was none.
        offered: how often it was a candidate.
        trained: how often it was trained on.

    >>> ledger = Ledger(3)
    >>> ledger.record_scores(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=4)
    >>> ledger.score.tolist(), ledger.age(epoch=5).tolist()
    ([1.5, nan, 0.5], [1, 6, 1])
    """

    score: Tensor
    loss: Tensor
    mean_loss: Tensor
    updated: Tensor
    offered: Tensor
    trained: Tensor

    def __init__(self, num_examples: int) -> None:
        for name, (dtype, initial) in _COLUMNS.items():
            setattr(self, name, torch.full((num_examples,), initial, dtype=dtype))

    def __len__(self) -> int:
        return len(self.score)

    def record_scores(self, ids: Tensor, scores: Tensor, epoch: int) -> None:
        """Scores of a selection pass."""
        self.score[ids] = scores.to(torch.float32)
        self.updated[ids] = epoch

    def record_losses(self, ids: Tensor, losses: Tensor, epoch: int) -> None:
        """Losses of a training step."""
        losses = losses.to(torch.float32)
        mean = self.mean_loss[ids]
        self.loss[ids] = losses
        self.mean_loss[ids] = torch.where(mean.isnan(), losses, mean.lerp(losses, 1 - _MEAN_DECAY))
        self.updated[ids] = epoch

    def count_offered(self, ids: Tensor) -> None:
        # index_add_, not +=: an id may occur twice in a batch when the sampler draws with replacement.
        self.offered.index_add_(0, ids, torch.ones(len(ids), dtype=torch.int32))

    def count_trained(self, ids: Tensor) -> None:
        self.trained.index_add_(0, ids, torch.ones(len(ids), dtype=torch.int32))

    def age(self, epoch: int) -> Tensor:
        """Epochs since each example's last score or loss; one more than the epochs there were if none."""
        return epoch - self.updated

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in _COLUMNS}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if len(state["score"]) != len(self):
            raise ValueError(
                f"saved ledger has {len(state['score'])} examples but the data set has {len(self)}: "
                "was it saved for another data set, or has this one changed?"
            )
        for name in _COLUMNS:
            getattr(self, name).copy_(state[name])
