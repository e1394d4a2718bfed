"""The prompts of a TRL trainer, in the order in which it takes them: each G times in a row, each batch several times.

# P = prompts of a generation batch, G = rollouts of a prompt
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from selective_backprop.method import Method
from selective_backprop.sampler.selective_sampler import SelectiveSampler


class PromptSampler(Sampler[int]):
    """Yields as many prompts per epoch as TRL's own sampler does. The method decides which.

    Skipping a prompt makes room for another one: the number of steps stays the same. Prompts come from one plan after
    the other, whenever the epochs of the trainer begin and end. All ranks have the same plans.

    Args:
        method: how to choose prompts.
        num_prompts: size of the data set.
        per_batch: P.
        num_generations: G.
        repeats: how often a generation batch is taken.
        seed: seed of the plans.
    """

    def __init__(
        self, method: Method, *, num_prompts: int, per_batch: int, num_generations: int, repeats: int, seed: int
    ) -> None:
        self.sampler = SelectiveSampler(num_prompts, method, batch_size=per_batch, seed=seed, divide=False)
        """The plans, the ledger and their statistics."""
        self._per_batch, self._num_generations, self._repeats = per_batch, num_generations, repeats
        self._num_batches = num_prompts // per_batch
        self._ids: Iterator[int] = iter(())
        self._given: list[list[int]] = []  # the batches of this epoch so far
        self._again: list[list[int]] = []  # batches to give once more, after a state was loaded

    def __len__(self) -> int:
        return self._num_batches * self._per_batch * self._num_generations * self._repeats

    def take(self) -> list[int]:
        """Return the next P prompts."""
        found: list[int] = []
        while len(found) < self._per_batch:
            number = next(self._ids, None)
            if number is None:
                self._ids = iter(self.sampler)
            else:
                found.append(number)
        return found

    def __iter__(self) -> Iterator[int]:
        # Trainer goes through what was trained on before, when it resumes in the middle of an epoch.
        again, self._again, self._given = self._again, [], []
        for number in range(self._num_batches):
            self._given.append(again[number] if number < len(again) else self.take())
            for _ in range(self._repeats):
                for prompt in self._given[-1]:
                    yield from [prompt] * self._num_generations

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict(), "given": torch.tensor(self._given, dtype=torch.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self._again, self._ids = state["given"].tolist(), iter(self.sampler)
        place = state["sampler"]["now"]["place"]
        if place is not None and place["updates"]:
            # The sampler goes on after what came back. The loader had asked for more, which is among `given`.
            for _ in range(place["asked"] - place["updated"] - len(place["ahead"])):
                next(self._ids)
