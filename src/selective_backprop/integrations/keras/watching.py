"""Watches the training steps of a Keras model: brings out the losses of examples, and saves selection with the model.

# B = training batch, S = most examples that a training batch can have
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch
from torch import Tensor

from selective_backprop.inference import preserved_rng
from selective_backprop.integrations.keras.data import to_numpy
from selective_backprop.integrations.keras.scoring import PerExampleLosses

if TYPE_CHECKING:
    from selective_backprop.integrations.keras import SelectiveDataset


class Watched(keras.metrics.Metric):  # type: ignore[misc]
    """A metric of the model that shows no value: it keeps the losses of the last step, and saves the selection.

    A compiled step cannot hand out anything but its logs. But Keras passes the variables of the model's metrics into
    every step and takes them out again, on all backends. And it saves what is an attribute of the model.

    `compute_loss` is the method that Keras tells users to override, and it may update metrics. So the loss of each
    example is computed by a second call of the loss.

    Args:
        dataset: the data set whose state is saved.
        losses: computes the loss of each example; None if the method does not need them.
        gives_weights: whether the method gives weights, which a train_step gets as sample_weight.
        example: a batch (x, y), or (x, y, sample_weight) with weights of the user's own, which count in the losses.
        size: S.
    """

    def __init__(
        self,
        dataset: SelectiveDataset,
        losses: PerExampleLosses | None,
        *,
        gives_weights: bool,
        example: tuple[Any, ...],
        size: int,
    ) -> None:
        super().__init__(name="selection", dtype="float32")
        # No attribute is the model: Keras would look for its state here.
        self.dataset, self.size, self.method = dataset, size, dataset.loader.method.name
        self.per_example, self.gives_weights, self.has_own_weights = losses, gives_weights, len(example) == 3
        self.was_called = False  # a compiled step calls compute_loss only when it is compiled
        self.seen = 0  # updates that were taken
        model = dataset.model
        if self.watches:
            self._check_compute_loss(model, example)
        if losses is not None:
            self.losses = self.add_variable((size,), initializer="zeros", dtype="float32", name="losses")
            self.updates = self.add_variable((), initializer="zeros", dtype="int32", name="updates")
            model._metrics.append(self)
            if not any(metric is self for metric in model.metrics):
                model._metrics.remove(self)
                raise TypeError(
                    f"{self.method} selects by training losses, which leave a step as a metric of the model, and the "
                    "model's own `metrics` leaves out what it does not know: let it return [*super().metrics, ...]"
                )
        vars(model)["_selective_backprop"] = self  # Keras would refuse a new metric of a model that is built
        if self.watches:
            self._watch_compute_loss(model)

    @property
    def watches(self) -> bool:
        """Whether training steps are watched."""
        return self.per_example is not None or self.gives_weights

    def _check_compute_loss(self, model: keras.Model, example: tuple[Any, ...]) -> None:
        """Raise if the model's own compute_loss cannot be watched, or gives the same loss with twice the weights."""
        if "training" not in inspect.signature(model.compute_loss).parameters:
            raise TypeError(
                f"{self.method} must see the losses of training steps, and the model's own compute_loss does not tell "
                "training from validation: give it the argument training=True, as keras.Model.compute_loss has it"
            )
        if not self.gives_weights or type(model).compute_loss is keras.Model.compute_loss:
            return
        batch = keras.tree.map_structure(to_numpy, example[:2])
        x, y = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
        weights = keras.ops.ones(len(keras.tree.flatten(x)[0]))
        with torch.no_grad(), preserved_rng(torch.device("cpu")), keras.StatelessScope():
            outputs = model(x, training=False)
            once, twice = (float(model.compute_loss(x, y, outputs, w, training=True)) for w in (weights, 2 * weights))
        if math.isclose(once, twice, rel_tol=1e-6) and once:
            raise TypeError(
                f"{self.method} gives examples weights, but the model's own compute_loss gives the same loss whatever "
                "its argument sample_weight is: let it multiply each example's loss by it, without dividing by their "
                "sum"
            )

    def _watch_compute_loss(self, model: keras.Model) -> None:
        original = model.compute_loss

        def compute_loss(
            x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            loss = original(x, y, y_pred, sample_weight, training=training)
            if training:
                self._see(y, y_pred, sample_weight)
            return loss

        model.compute_loss = compute_loss
        model.train_function = None  # Keras makes it anew; the one before would not call this

    def _see(self, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Check that a training step has the weights of the method, and keep the loss of each example."""
        if self.gives_weights and sample_weight is None:
            raise self._without_weights()
        self.was_called = True
        if self.per_example is not None:
            with torch.no_grad(), _unnoticed(y_pred):
                losses = self.per_example.of_outputs(y_pred, y, sample_weight if self.has_own_weights else None)
            self.update_state(keras.ops.stop_gradient(losses))

    def _without_weights(self) -> RuntimeError:
        return RuntimeError(
            f"{self.method} gives examples weights, but the model's own train_step leaves them out: let it pass the "
            "sample_weight of its data on to self.compute_loss(x, y, y_pred, sample_weight), as Keras' own does"
        )

    def give_back(self) -> None:
        """Leave the model as it was."""
        model = self.dataset.model
        if self.watches:
            del model.compute_loss
            model.train_function = None
        if self.per_example is not None:
            model._metrics.remove(self)

    def take(self, count: int) -> Tensor | None:
        """Return the losses of the last step's first `count` examples; None if the method does not need them.

        Raises if the training step did not compute its loss as Keras' own does.
        """
        if self.gives_weights and not self.was_called:
            raise self._without_weights()
        if self.per_example is None:
            return None
        if keras.backend.backend() == "jax":
            self.dataset.model.jax_state_sync()  # in the midst of fit, variables are on their way from step to step
        if (updates := int(to_numpy(self.updates.value))) == self.seen:
            raise RuntimeError(
                f"{self.method} selects by training losses, but this training step computed none: let the model's "
                "train_step call self.compute_loss(x, y, y_pred, sample_weight), as Keras' own does"
            )
        self.seen = updates
        return torch.from_numpy(np.array(to_numpy(self.losses.value)[:count]))

    # ---- what Keras asks a metric for

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

    def save_own_variables(self, store: Any) -> None:
        torch.save(self.dataset.state_dict(), content := io.BytesIO())
        store["state"] = np.frombuffer(content.getvalue(), dtype=np.uint8)

    def load_own_variables(self, store: Any) -> None:
        if "state" in store.keys():  # noqa: SIM118, as Keras' store is no mapping; weights saved without selection load
            self.dataset.load_state_dict(
                torch.load(io.BytesIO(np.asarray(store["state"]).tobytes()), weights_only=True)
            )


@contextlib.contextmanager
def _unnoticed(outputs: Any) -> Iterator[None]:
    """Let a second call of a loss of the user's own leave no trace in variables and random states."""
    if not isinstance(outputs, Tensor):  # a compiled step of JAX can write to neither
        yield
        return
    with preserved_rng(outputs.device), keras.StatelessScope():
        yield
