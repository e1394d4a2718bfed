"""What the saved state of a SelectiveLoader must look like, checked before anything of it is used.

# N = examples of a batch, M = data set
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches.layout import KINDS, Layout
from selective_backprop.batches.plain import loaded_columns
from selective_backprop.files.forms import Either, require, require_form
from selective_backprop.loader.queue import Piece
from selective_backprop.sampler.state_form import require_chances, require_known, require_losses
from selective_backprop.sampler.stats import STATS_FORM

_LAYOUT = {"kind": str, "class": str, "keys": [Either(None, bool, float, str)], "children": [dict]}
_IDS = Either(None, torch.int64)
_BATCHES = {"ids": torch.int64, "sizes": torch.int64, "weights": Either(None, torch.float32)} | {
    "probabilities": Either(None, torch.float64)
}
_STATES = [torch.uint8]
_PLACE = {"position": int, "total": Either(None, int), "batches": _BATCHES, "drawn": Either(None, _STATES)}
_STREAM_PLACE = {"position": int, "finished": bool, "inner": object, "began": [object]}
_PLACES = Either(_STREAM_PLACE, _PLACE)
_EPOCH = {"kind": str, "fraction": float, "given": int, "began_with": STATS_FORM, "place": _PLACES}
_READY = {"layout": dict, "columns": [object], "ids": _IDS, "weights": torch.float32, "probabilities": torch.float64}
_PLANNED = _EPOCH | {"planned": Either(None, int), "offered": Either(None, int), "counted": int, "ready": [_READY]}
_AHEAD = {"columns": [object], "size": int, "asked": Either(None, _BATCHES), "batch_idx": int, "fraction": float}
_SCORED = _EPOCH | {"queue": dict, "ahead": Either(None, _AHEAD), "keeps_everything": bool, "round": int}
_PIECE = ([object], _IDS, torch.float32, torch.float64)
_QUEUE = {"layout": Either(None, dict), "whole": [_PIECE], "pieces": [_PIECE], "lengths": [int]} | {
    "last_sizes": Either(None, [int])
}
_STEP = (_IDS, object, int, bool)
_STATE = {"batch_size": Either(None, int), "ranks": {"rank": int, "size": int}, "selector": {"tried": bool}} | {
    "epochs": {"epoch": int, "under_way": Either(None, dict), "silent": int},
    "learned_length": Either(None, int),
    "losses": [_STEP],
    "stats": STATS_FORM,
    "reported": STATS_FORM,
    "generators": _STATES,
}


def check_form(state: dict[str, Any], num_examples: int | None) -> None:
    """Raise if a part of the state is not what it should be, or parts do not fit together.

    num_examples: M; None if the loader has no ids.
    """
    for name, form in _STATE.items():
        require_form(state[name], form, name)
    for ids, losses, *_ in state["losses"]:
        require_known(ids, num_examples, "losses")
        require_losses(losses, None if ids is None else len(ids))
    under_way = state["epochs"]["under_way"]
    if under_way is not None:
        _check_epoch(under_way, num_examples, state["ranks"])
        drawn = under_way["place"].get("drawn")
        require(drawn is None or len(drawn) == len(state["generators"]), "each generator has a state")
        for one in drawn or ():
            torch.Generator().set_state(one)


def _check_epoch(epoch: dict[str, Any], num_examples: int | None, ranks: dict[str, int]) -> None:
    is_planned = epoch.get("kind") == "planned"
    require(is_planned or epoch.get("kind") == "scored", "the kind of the epoch is planned or scored")
    require_form(epoch, _PLANNED if is_planned else _SCORED, "epochs.under_way")
    require(0 <= epoch["fraction"] <= 1, "the fraction of the epoch is from 0 to 1")
    if "batches" in epoch["place"]:
        _check_batches(epoch["place"]["batches"], num_examples)
    if is_planned:
        for batch in epoch["ready"]:
            piece = Piece(batch["columns"], batch["ids"], batch["weights"], batch["probabilities"])
            _check_piece(batch["layout"], piece, num_examples)
        return
    _check_queue(epoch["queue"], num_examples, ranks)
    if (ahead := epoch["ahead"]) is not None:
        _check_rows(epoch["queue"]["layout"], ahead["columns"], ahead["size"])
        if (asked := ahead["asked"]) is not None:
            _check_batches(asked, num_examples)
            require(asked["sizes"].tolist() == [ahead["size"]], "the candidates loaded ahead are those asked for")


def _check_batches(batches: dict[str, Any], num_examples: int | None) -> None:
    ids, sizes = batches["ids"], batches["sizes"]
    require_known(ids, num_examples, "batches")
    require(bool((sizes >= 0).all()) and int(sizes.sum()) == len(ids), "the sizes of batches add up to their ids")
    require_chances(batches["weights"], batches["probabilities"], len(ids))


def _check_queue(queue: dict[str, Any], num_examples: int | None, ranks: dict[str, int]) -> None:
    by_tokens = {"by_length": dict, "is_over": bool} if "by_length" in queue else {}
    require_form(queue, _QUEUE | by_tokens, "queue")
    if queue["layout"] is not None:
        _check_layout(queue["layout"])
    pieces = [Piece(*piece) for piece in (*queue["whole"], *queue["pieces"])]
    for piece in pieces:
        _check_piece(queue["layout"], piece, num_examples)
    count = sum(len(weights) for _, _, weights, _ in queue["pieces"])
    lengths, last = queue["lengths"], queue["last_sizes"]
    require(len(lengths) == ranks["size"], "the queue knows the lengths of all ranks' queues")
    require(lengths[ranks["rank"]] == count, "the length of the queue is that of its examples")
    require(last is None or sum(last) == count, "the last batches of the epoch hold what is queued")
    kinds = {tuple(_kind(column) for column in piece.columns) for piece in pieces}
    require(len(kinds) <= 1, "all examples in the queue have the same columns")
    for number, inner in queue.get("by_length", {}).items():
        require(isinstance(number, str) and number.isdecimal(), "queues are named by a range of lengths")
        require(isinstance(inner, dict), "each range of lengths has a queue")
        _check_queue(inner, num_examples, {"rank": 0, "size": 1})


def _check_layout(layout: dict[str, Any]) -> None:
    require_form(layout, _LAYOUT, "layout")
    require(layout["kind"] in KINDS, f"the layout of a batch is one of {', '.join(KINDS)}")
    require(len(layout["keys"]) == len(layout["children"]), "each part of a layout has a key")
    in_order = list(range(len(layout["keys"])))
    require(layout["kind"] != "sequence" or list(layout["keys"]) == in_order, "the parts of a sequence are numbered")
    Layout.from_state_dict(layout)
    for child in layout["children"]:
        _check_layout(child)


def _kind(column: Any) -> Any:
    return (column.dtype, column.dim()) if isinstance(column, Tensor) else type(column)


def _check_piece(layout: Any, piece: Piece, num_examples: int | None) -> None:
    """Check examples that wait for their training step."""
    ids, count = piece.ids, len(piece.weights)
    require((ids is None) == (num_examples is None), "examples have ids if the data set has")
    require(ids is None or len(ids) == count, "each waiting example has an id and a weight")
    require_known(ids, num_examples, "waiting examples")
    require_chances(piece.weights, piece.probabilities, count)
    _check_rows(layout, piece.columns, count)


def _check_rows(layout: Any, columns: list[Any], num_rows: int) -> None:
    """Check that a batch can be made of these columns, which have one entry per example."""
    for column in columns:
        is_column = isinstance(column, list) or (isinstance(column, Tensor) and column.dim() > 0)
        require(is_column and len(column) == num_rows, "each waiting example has all its parts")
    require(isinstance(layout, dict), "the layout of waiting examples is known")
    _check_layout(layout)
    found = Layout.from_state_dict(layout)
    require(len(found.names()) == len(columns), "waiting examples have the columns of their layout")
    found.batch([column[:1] for column in loaded_columns(columns)])
