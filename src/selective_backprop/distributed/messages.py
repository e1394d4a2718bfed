"""Messages of plain data between ranks. No code in a message is run. A process that trains alone sends none."""

from __future__ import annotations

import json
from typing import Any

import torch

from selective_backprop.distributed.ranks import Ranks


def gather(ranks: Ranks, value: Any) -> list[Any]:
    """Return every rank's value, by rank. JSON must be able to hold the value. All ranks must call this."""
    if ranks.size == 1:
        return [value]
    text = json.dumps(value, default=str).encode()
    message = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return [json.loads(part.numpy().tobytes()) for part in ranks.gather(message)]
