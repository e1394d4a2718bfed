"""What `model.fit` tells a SelectiveDataset: the callback by which its steps and epochs begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch

from selective_backprop.integrations.keras.data import to_numpy

if TYPE_CHECKING:
    from selective_backprop.integrations.keras import SelectiveDataset

EPOCH_IS_OVER = "the candidates of this epoch are over"


class SelectionCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends each epoch with its candidates, logs what selection did in it, and sets the learning rate by progress.

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
        if self.params["steps"] != len(self.dataset):
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
        self.dataset.begin_run()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.dataset.begin_epoch()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.dataset.begin_step()
        if self.learning_rate is not None:
            self.model.optimizer.learning_rate = float(self.learning_rate(self.dataset.progress))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.dataset.end_step()
        if not self.dataset.epoch_is_over:
            return
        if self.dataset.run_is_over:
            self.model.stop_training = True
        elif not self.model.stop_training and batch + 1 < len(self.dataset):
            # Keras ends an epoch early only when it is told to stop. Before it looks again, we take this back.
            self.model.stop_training = EPOCH_IS_OVER
            iter(self.dataset)  # as Keras does after an epoch's last step, by which torch draws a random number

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.model.stop_training == EPOCH_IS_OVER:  # and not True, by which another callback ends the run
            self.model.stop_training = False
        values = self.dataset.epoch_values()
        if logs is not None:
            logs.update(values)


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
