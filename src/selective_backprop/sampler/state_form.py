"""What the saved state of a SelectiveSampler must look like, checked before anything of it is used.

# K = ids of the epoch, M = data set
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.files.forms import Either, require, require_form

_EPOCH = {"number": int, "ids": torch.int64, "weights": Either(None, torch.float32), "num_offered": int}
_PLACE = {"asked": int, "updated": int, "ahead": torch.int64, "updates": int, "largest": int, "over": bool}
_NOW = {
    "place": Either(None, _PLACE),
    "stats": dict,
    "candidates": Either(None, torch.int64),
    "waiting": [(torch.int64, object, int)],
    "next_epoch": int,
    "begun": int,
    "epoch": Either(None, _EPOCH),
    "parts": dict,
    "order": torch.uint8,
    "source": Either(None, torch.uint8),
}


def check_form(state: dict[str, Any], num_examples: int) -> None:
    """Raise if a part of the state is not what it should be, or parts do not fit together."""
    now = state["now"]
    require_form(now, _NOW, "now")
    require_form(state["ranks"], {"rank": int, "size": int}, "ranks")
    require_known(now["candidates"], num_examples, "candidates")
    for ids, losses, _ in now["waiting"]:
        require_known(ids, num_examples, "waiting")
        require_losses(losses, len(ids))
    epoch, place = now["epoch"], now["place"]
    require((epoch is None) == (place is None), "an epoch under way has a place")
    if epoch is None or place is None:
        return
    count, ahead = len(epoch["ids"]), place["ahead"]
    require_known(epoch["ids"], num_examples, "epoch")
    require_chances(epoch["weights"], None, count)
    places = [place["updated"], place["asked"], *ahead.tolist()]
    require(all(0 <= one <= count for one in places), f"the place is within the epoch's {count} ids")
    require(bool((ahead >= place["updated"]).all()) and len(ahead.unique()) == len(ahead), "no id came back twice")


def require_losses(losses: Any, count: int | None) -> None:
    """Raise if these are not the losses of `count` examples, or the loss of a whole batch."""
    right = isinstance(losses, Tensor) and losses.is_floating_point() and losses.dim() < 2
    require(right and (not losses.dim() or count in (None, len(losses))), "each id has a loss")
    require(bool(losses.isfinite().all()), "losses are finite")


def require_known(ids: Tensor | None, num_examples: int | None, name: str) -> None:
    """Raise if ids are not of this data set."""
    if ids is not None and len(ids):
        known = num_examples is not None and int(ids.min()) >= 0 and int(ids.max()) < num_examples
        require(known, f"the ids of {name} are those of a data set of {num_examples} examples")


def require_chances(weights: Tensor | None, probabilities: Tensor | None, count: int) -> None:
    """Raise if weights and probabilities are not those of `count` examples."""
    for values in (weights, probabilities):
        if values is not None:
            right = len(values) == count and bool(((values >= 0) & values.isfinite()).all())
            require(right, "each example has a weight and a chance, which are not negative")
