"""Connects a SelectiveDataset with Keras beyond batches: the length of an epoch, saved models, callbacks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch
from keras.src.saving.keras_saveable import KerasSaveable  # what Keras looks for in a model that it saves

from selective_backprop.integrations.keras.data import to_numpy

if TYPE_CHECKING:
    from selective_backprop.integrations.keras import SelectiveDataset


class EpochLength(int):
    """The most batches that an epoch can have. It compares as reached as soon as the epoch has no more batches.

    How many batches an epoch selects is not known before its last training step. Keras wants a number beforehand, but
    before every step it asks whether that is reached: after all callbacks of the step before, and, in JAX, before it
    takes the weights out of the model. So this is when the next batch is selected.
    """

    def __new__(cls, dataset: SelectiveDataset, most: int) -> EpochLength:
        length = super().__new__(cls, most)
        length.dataset = dataset
        return length

    dataset: SelectiveDataset

    def __le__(self, steps: int) -> bool:
        # `steps >= length` comes here: Python asks the right operand first where its class derives from the left one's.
        return not self.dataset.has_batch_for(int(steps))


class Saved(KerasSaveable):  # type: ignore[misc]
    """An attribute of the model by which Keras saves the state of the selection together with the weights."""

    def __init__(self, dataset: SelectiveDataset) -> None:
        self.dataset = dataset

    def _obj_type(self) -> str:
        return "Loss"  # one of the kinds that Keras knows, by which it chooses attributes that it does not look into

    def save_own_variables(self, store: Any) -> None:
        torch.save(self.dataset.state_dict(), content := io.BytesIO())
        store["state"] = np.frombuffer(content.getvalue(), dtype=np.uint8)

    def load_own_variables(self, store: Any) -> None:
        if "state" in store.keys():  # noqa: SIM118, as Keras' store is no mapping; weights saved without selection load
            self.dataset.load_state_dict(
                torch.load(io.BytesIO(np.asarray(store["state"]).tobytes()), weights_only=True)
            )


def random_state(model: keras.Model) -> dict[str, Any]:
    """Return the random states of layers such as dropout, and of torch: Keras saves neither."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()
    seeds = [torch.from_numpy(to_numpy(variable.value).astype(np.int64)) for variable in _seeds(model)]
    return {"torch": torch.get_rng_state(), "seeds": seeds}


def load_seeds(model: keras.Model, state: dict[str, Any]) -> None:
    """Set the states of the layers' seeds. torch's state is set later, because Keras itself draws from it first."""
    variables = _seeds(model)
    if len(variables) != len(state["seeds"]):
        raise ValueError(f"saved with {len(state['seeds'])} layers that draw, this model has {len(variables)}")
    for variable, value in zip(variables, state["seeds"], strict=True):
        variable.assign(value.numpy().astype(variable.dtype))


def _seeds(model: keras.Model) -> list[Any]:
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


class SelectionCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs what selection did in each epoch, and sets the learning rate by the fraction of candidates offered.

    It logs, also to the History, `selection/selectivity`, `selection/trained`, and the seconds of the epoch by phase:
    `selection/seconds_loading`, `_scoring`, `_selecting` and `_training`.

    Args:
        dataset: the SelectiveDataset that is fitted.
        learning_rate: a function from the fraction of the run's candidates offered so far, in [0, 1], to the learning
            rate. For one of Keras' schedules over n steps: `lambda progress: schedule(progress * n)`.

    >>> import math
    >>> cosine = lambda progress: 0.1 * (1 + math.cos(math.pi * progress)) / 2
    >>> round(cosine(0.5), 3)  # SelectionCallback(dataset, learning_rate=cosine)
    0.05
    """

    def __init__(self, dataset: SelectiveDataset, learning_rate: Callable[[float], Any] | None = None) -> None:
        super().__init__()
        self.dataset = dataset
        self.learning_rate = learning_rate

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.model is not self.dataset.model:
            raise ValueError("the data set was made for another model: its scores would be that model's losses")
        if not isinstance(self.params["steps"], EpochLength):
            raise ValueError(
                f"an epoch ends with its candidates: leave out steps_per_epoch={self.params['steps']}, and pass this "
                "callback's data set to fit()"
            )
        if self.model.steps_per_execution > 1:
            raise ValueError(
                "selection goes by the weights after each step, and several would be taken at once by "
                f"steps_per_execution={self.model.steps_per_execution}"
            )
        if self.params["epochs"] > self.dataset.loader.num_epochs:
            raise ValueError(
                f"fit(epochs={self.params['epochs']}) and a data set made with num_epochs="
                f"{self.dataset.loader.num_epochs}: the last epoch would come too early"
            )
        # The progress bar compares with it, too; a number as any other is enough there.
        self.params["steps"] = int(self.params["steps"])
        self.dataset.begin_run()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.dataset.announce_epoch(self.params["epochs"] - epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.learning_rate is not None:
            self.model.optimizer.learning_rate = float(self.learning_rate(self.dataset.progress))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.dataset.end_step()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        values = self.dataset.epoch_values()
        if logs is not None:
            logs.update(values)
