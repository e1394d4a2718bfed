"""Computes the loss of each example under a Keras model, without changing the model.

# N = candidates
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
from keras.src.losses.losses import LossFunctionWrapper  # what compile() wraps functions in; has no public name
from torch import Tensor

from selective_backprop.integrations.keras.data import to_numpy
from selective_backprop.method import require_method
from selective_backprop.scorers import ForwardScorer
from selective_backprop.scorers.stored import fresh_of

SEVERAL_OUTPUTS = (
    "a model with several outputs has no one loss per example: train a model with a single output, such as their "
    "concatenation, and a loss that takes it apart"
)


class PerExampleLosses:
    """Computes (N,) losses of a batch (x, y) or (x, y, sample_weight), in inference mode.

    Args:
        model: the model. It must be built and, without a loss_fn, compiled.
        loss_fn: a Keras loss, whose reduction does not matter, its name, or a function from (y_true, y_pred) to losses;
            by default the one that the model was compiled with. Several losses of an example are averaged, those that a
            mask leaves out excepted.
    """

    def __init__(self, model: keras.Model, loss_fn: Any = None) -> None:
        if not model.built:
            raise ValueError("the model has no weights yet: give it an Input layer, or call model.build(input_shape)")
        if loss_fn is None and not model.compiled:
            raise ValueError("examples are scored by the compiled loss: call model.compile(loss=...), or pass loss_fn=")
        if len(getattr(model, "outputs", None) or ()) > 1:
            raise ValueError(SEVERAL_OUTPUTS)
        self.model = model
        self._loss_fn = loss_fn
        self._rows = 0
        self._use(model.loss if loss_fn is None else loss_fn)

    def _use(self, loss: Any) -> None:
        self._used = loss
        self._loss = _unreduced(loss)
        self._function = self._jitted() if keras.backend.backend() == "jax" else self._eager

    def _follow(self) -> None:
        """Take the compiled loss anew if the model was compiled again."""
        if self._loss_fn is None and self.model.loss is not self._used:
            self._use(self.model.loss)

    def __call__(self, batch: Any) -> Tensor:
        self._follow()
        batch = keras.tree.map_structure(to_numpy, batch)
        rows = len(keras.tree.flatten(batch)[0])
        if keras.backend.backend() == "jax":
            # In the midst of fit the weights are not in the model but in a state on their way from step to step.
            self.model.jax_state_sync()
            # Compiled functions are made anew for every shape, and the last candidates of an epoch are fewer.
            self._rows = max(self._rows, rows)
            batch = keras.tree.map_structure(lambda array: _padded(array, self._rows), batch)
        losses = to_numpy(self._function(*batch))
        return torch.from_numpy(np.array(losses[:rows], dtype=np.float32))

    def _eager(self, x: Any, y: Any, sample_weight: Any = None) -> Any:
        x, y = keras.tree.map_structure(keras.ops.convert_to_tensor, (x, y))
        # What a layer would write to its variables meanwhile goes to the scope, and is forgotten with it.
        with keras.StatelessScope():
            return self.of_outputs(self.model(x, training=False), y, sample_weight)

    def _jitted(self) -> Callable[..., Any]:
        import jax

        def losses(trainable: Any, others: Any, x: Any, y: Any, sample_weight: Any = None) -> Any:
            outputs, _ = self.model.stateless_call(trainable, others, x, training=False)
            return self.of_outputs(outputs, y, sample_weight)

        compiled = losses if self.model.run_eagerly else jax.jit(losses)

        def call(*batch: Any) -> Any:
            variables = self.model.trainable_variables, self.model.non_trainable_variables
            return compiled(*([variable.value for variable in group] for group in variables), *batch)

        return call

    def of_outputs(self, outputs: Any, y: Any, sample_weight: Any) -> Any:
        """Compute (N,) losses of outputs that are there already."""
        self._follow()
        if keras.tree.is_nested(outputs):
            raise ValueError(SEVERAL_OUTPUTS)
        values = self._loss(y, outputs, sample_weight)
        if not values.shape or values.shape[0] != outputs.shape[0]:
            raise ValueError(
                f"the loss gave losses of shape {tuple(values.shape)} for {outputs.shape[0]} examples; one per example "
                "is needed: pass loss_fn=, a function from (y_true, y_pred) to losses without reduction"
            )
        if len(values.shape) == 1:
            return values
        mask = getattr(outputs, "_keras_mask", None)
        if mask is None or tuple(mask.shape) != tuple(values.shape):
            return keras.ops.mean(values, axis=tuple(range(1, len(values.shape))))
        counted = keras.ops.sum(keras.ops.cast(mask, values.dtype), axis=-1)
        return keras.ops.sum(values, axis=-1) / keras.ops.maximum(counted, 1)  # masked ones are zero already


def check_takes_weights(model: keras.Model) -> None:
    """Raise if a compiled loss divides by the sum of sample weights, which would take out those of a method."""
    if any(getattr(loss, "reduction", None) == "mean_with_sample_weight" for loss in keras.tree.flatten(model.loss)):
        raise ValueError(
            "this method gives examples weights, and reduction='mean_with_sample_weight' of the compiled loss divides "
            "by their sum: use the default reduction, 'sum_over_batch_size'"
        )


def _unreduced(loss: Any) -> keras.losses.Loss:
    if loss is None or isinstance(loss, (dict, list, tuple)) or loss in ("crossentropy", "ce"):
        raise ValueError(
            f"no single loss can be told from loss={loss!r}: pass loss_fn=, such as keras.losses.MeanSquaredError()"
        )
    found = keras.losses.get(loss)
    if not isinstance(found, keras.losses.Loss):
        return LossFunctionWrapper(found, reduction="none")
    found = copy.copy(found)
    found.reduction = "none"
    return found


def _padded(array: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    missing = rows - len(array)
    return np.concatenate([array, np.repeat(array[:1], missing, axis=0)]) if missing else array


def check_method(method: Any) -> None:
    """Raise if parts of the method cannot work with a Keras model."""
    require_method(method)
    scorer, name = fresh_of(method.scorer) or method.scorer, method.name
    if isinstance(scorer, ForwardScorer):
        exact = scorer.mode == "eval" and scorer.scale_factor == 1
        if not exact or scorer.measure is not None:
            what = "scoring='eval'" if not exact else "the loss for a score"
            raise ValueError(f"{name} in Keras works with {what} only: other selection passes are written in torch")
    elif scorer.needs.selection_pass:
        raise ValueError(
            f"{type(scorer).__name__} runs torch modules, so this {name} does not work in Keras: use a method with "
            "scoring='eval', such as selective_backprop, or ledger_backprop"
        )
