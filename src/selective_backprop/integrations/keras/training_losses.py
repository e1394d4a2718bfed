"""Brings the losses of a training step's examples out of Keras' compiled step, for methods that select by them.

# B = training batch, S = most examples that a training batch can have
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import torch
from torch import Tensor

from selective_backprop.inference import preserved_rng
from selective_backprop.integrations.keras.data import to_numpy
from selective_backprop.integrations.keras.scoring import PerExampleLosses


class LastLosses(keras.metrics.Metric):  # type: ignore[misc]
    """A metric that keeps the losses of the last training step. It shows no value, and epochs do not reset it.

    A compiled step cannot hand out anything but its logs. But Keras passes the variables of the model's metrics into
    every step and takes them out again, on all backends.

    Args:
        size: S.
    """

    def __init__(self, size: int) -> None:
        super().__init__(name="selection_losses", dtype="float32")
        self.size = size
        self.losses = self.add_variable((size,), initializer="zeros", dtype="float32", name="losses")
        self.updates = self.add_variable((), initializer="zeros", dtype="int32", name="updates")

    def update_state(self, losses: Any) -> None:
        """Keep these losses. Those beyond S belong to another fit of the model, and nobody reads them."""
        losses = keras.ops.cast(losses, "float32")[: self.size]
        if missing := self.size - losses.shape[0]:
            losses = keras.ops.concatenate([losses, keras.ops.zeros((missing,), "float32")])
        self.losses.assign(losses)
        self.updates.assign(self.updates + 1)

    def result(self) -> dict[str, Any]:
        return {}

    def reset_state(self) -> None:
        pass


class WatchedLoss:
    """The model's `compute_loss`, which also keeps the loss of each example, and checks that weights arrive in it.

    It is set as an attribute of the model, where `train_step` finds it. `compute_loss` is the method that Keras tells
    users to override, and it may update metrics. So the loss of each example is computed by a second call.

    Args:
        model: the model.
        method: name of the method, for errors.
        losses: computes the loss of each example; None if the method does not need them.
        size: S.
        gives_weights: whether the method gives weights, which a train_step gets as sample_weight.
        has_weights: whether the data has sample weights of the user's own, which count in the losses.
        example: a batch (x, y), or (x, y, sample_weight).
    """

    def __init__(
        self,
        model: keras.Model,
        method: str,
        losses: PerExampleLosses | None,
        size: int,
        *,
        gives_weights: bool,
        has_weights: bool,
        example: tuple[Any, ...],
    ) -> None:
        self.model, self.method = model, method
        self.original = model.compute_loss
        if "training" not in inspect.signature(self.original).parameters:
            raise TypeError(
                f"{method} must see the losses of training steps, and the model's own compute_loss does not tell "
                "training from validation: give it the argument training=True, as keras.Model.compute_loss has it"
            )
        if gives_weights and type(model).compute_loss is not keras.Model.compute_loss:
            self._require_use_of_weights(*keras.tree.map_structure(to_numpy, example[:2]))
        self.metric = None if losses is None else LastLosses(size)
        if self.metric is not None:
            model._metrics.append(self.metric)
            if not any(metric is self.metric for metric in model.metrics):
                model._metrics.remove(self.metric)
                raise TypeError(
                    f"{method} selects by training losses, which leave a step as a metric of the model, and the "
                    "model's own `metrics` leaves out what it does not know: let it return [*super().metrics, ...]"
                )
        self._losses, self._gives_weights, self._has_weights = losses, gives_weights, has_weights
        self._was_called = False  # a compiled step calls it only when it is compiled
        self._seen = 0
        model.compute_loss = self
        model.train_function = None  # Keras makes it anew; the one before would not call this

    def __call__(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        if training and self._gives_weights and sample_weight is None:
            raise self._without_weights()
        loss = self.original(x, y, y_pred, sample_weight, training=training)
        if training:
            self._was_called = True
            if self._losses is not None and self.metric is not None:
                with torch.no_grad(), _unnoticed(y_pred):
                    losses = self._losses.of_outputs(y_pred, y, sample_weight if self._has_weights else None)
                self.metric.update_state(keras.ops.stop_gradient(losses))
        return loss

    def _require_use_of_weights(self, x: Any, y: Any) -> None:
        """Raise if the model's own compute_loss gives the same loss with twice the weights."""
        x, y = keras.tree.map_structure(keras.ops.convert_to_tensor, (x, y))
        weights = keras.ops.ones(len(keras.tree.flatten(x)[0]))
        with torch.no_grad(), preserved_rng(torch.device("cpu")), keras.StatelessScope():
            outputs = self.model(x, training=False)
            once, twice = (float(self.original(x, y, outputs, w, training=True)) for w in (weights, 2 * weights))
        if math.isclose(once, twice, rel_tol=1e-6) and once:
            raise TypeError(
                f"{self.method} gives examples weights, but the model's own compute_loss gives the same loss whatever "
                "its argument sample_weight is: let it multiply each example's loss by it, without dividing by their "
                "sum"
            )

    def _without_weights(self) -> RuntimeError:
        return RuntimeError(
            f"{self.method} gives examples weights, but the model's own train_step leaves them out: let it pass the "
            "sample_weight of its data on to self.compute_loss(x, y, y_pred, sample_weight), as Keras' own does"
        )

    def give_back(self) -> None:
        """Give the model its own compute_loss back."""
        del self.model.compute_loss
        self.model.train_function = None
        if self.metric is not None:
            self.model._metrics.remove(self.metric)

    @property
    def is_new(self) -> bool:
        """Whether there were losses of a training step since `take` was called."""
        return self.metric is not None and self._updates() != self._seen

    def take(self, count: int) -> Tensor | None:
        """Return the losses of the last step's first `count` examples; None if the method does not need them.

        Raises if the training step did not compute its loss here.
        """
        if self._gives_weights and not self._was_called:
            raise self._without_weights()
        if self.metric is None:
            return None
        if not self.is_new:
            raise RuntimeError(
                f"{self.method} selects by training losses, but this training step computed none: let the model's "
                "train_step call self.compute_loss(x, y, y_pred, sample_weight), as Keras' own does"
            )
        self._seen = self._updates()
        return torch.from_numpy(np.array(to_numpy(self.metric.losses.value)[:count]))

    def _updates(self) -> int:
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # in the midst of fit, variables are in a state on their way from step to step
        return int(to_numpy(self.metric.updates.value)) if self.metric is not None else 0


def give_back_compute_loss(model: keras.Model) -> None:
    """Give the model its own compute_loss back, if an earlier data set has set another."""
    watched = vars(model).get("compute_loss")
    if isinstance(watched, WatchedLoss):
        watched.give_back()


@contextlib.contextmanager
def _unnoticed(outputs: Any) -> Iterator[None]:
    """Let a second call of a loss of the user's own leave no trace in variables and random states."""
    if not isinstance(outputs, Tensor):  # a compiled step of JAX can write to neither
        yield
        return
    with preserved_rng(outputs.device), keras.StatelessScope():
        yield
