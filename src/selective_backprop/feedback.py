"""Losses of training on their way back into the ledger."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.selector import Selector

_MAX_WAITING = 16  # training steps whose losses may wait on a GPU


class Feedback:
    """Collects the losses of training steps without making the host wait for the GPU at each of them."""

    def __init__(self, selector: Selector, device: torch.device) -> None:
        self._selector = selector
        self._waits = device.type != "cpu"
        self._steps: list[tuple[Tensor | None, Tensor, int]] = []  # ids, losses, epoch

    def add(self, ids: Tensor | None, losses: Tensor, epoch: int) -> None:
        self._steps.append((ids, losses, epoch))

    def step_is_over(self) -> None:
        """On the CPU learn at once; on a GPU wait once in a while, if nothing else did before."""
        if not self._waits or len(self._steps) >= _MAX_WAITING:
            self.learn()

    def learn(self) -> None:
        """Take in what was collected; costs no time when the device has caught up anyway."""
        steps, self._steps = self._steps, []
        for ids, losses, epoch in steps:
            self._selector.learn(ids, losses.to("cpu", torch.float32), epoch)

    def state_dict(self) -> dict[str, Any]:
        # Saving must not change when a GPU's losses are learned, or the run would differ from one without it.
        self.step_is_over()
        return {"steps": [[ids, losses.cpu(), epoch] for ids, losses, epoch in self._steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = [(ids, losses, epoch) for ids, losses, epoch in state["steps"]]
