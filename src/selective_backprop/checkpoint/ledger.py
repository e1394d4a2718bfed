"""The ledger in a checkpoint: whole columns, whichever ranks hold which rows.

# M = data set
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.distributed.ledger import Write
from selective_backprop.distributed.ranks import Ranks
from selective_backprop.ledger import Ledger


def whole_columns(state: dict[str, Any], ranks: Ranks, num_examples: int) -> dict[str, Tensor]:
    """The columns of a ledger's state, of which this rank has its part where ranks share them; by name."""
    if not num_examples:
        return {}
    columns = {f"ledger/{name}": column for name, column in state.get("block", state).items()}
    if ranks.size == 1:
        return columns
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    result: dict[str, Tensor] = {}
    for name, column in columns.items():
        whole = torch.empty(num_examples, *column.shape[1:], device="meta")
        result[name] = DTensor.from_local(
            column, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
    return result


def ledger_state(here: dict[str, Any], columns: dict[str, Tensor], writes: list[Any]) -> dict[str, Any]:
    """As the state of the ledger here, with what was saved."""
    if not columns:
        return here
    local = {
        name.removeprefix("ledger/"): column.to_local() if hasattr(column, "to_local") else column
        for name, column in columns.items()
    }
    if "block" in here:
        return here | {"block": local, "writes": writes}
    ledger = Ledger(*local["scores"].shape)
    ledger.load_state_dict(local)
    for write in writes:
        Write(*write).apply(ledger)
    return ledger.state_dict()
