"""Scores by how early a greedy choice picks each candidate to explain the gradient of the whole batch.

# N = candidates, C = outputs of the model, H = inputs of its last layer
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selective_backprop.functional import beta_from_selectivity
from selective_backprop.inference import Call, NoTrace, calls_of
from selective_backprop.scorers.base import FreshScorer
from selective_backprop.types import Candidates, Task

_DEPENDENT = 1e-5  # a gradient with less than this share of its square norm left is a sum of gradients picked before


class DiverseScorer(FreshScorer):
    """Picks candidates one by one: each time the one whose gradient takes most off the residual of the mean gradient.

    Gradients are those of the last layer, (p - y) x h for cross-entropy: the gradient of the loss with respect to the
    model's outputs, times the layer's inputs. A gradient counts by what is new in it, so what is orthogonal to those
    picked before. Candidates that repeat others come late, however high their loss is.

    The first candidate picked has the score 1, and scores fall in equal steps. So the highest scores are the greedy
    choice, for a policy such as `TopKPolicy`. When nothing is left of the mean gradient, the choice begins anew with
    the candidates that are left. With several ranks, each picks among its own candidates.

    Args:
        selectivity: how much of each candidate batch will be selected. The others are not put in order: they score 0.
        layer: name of the last layer, as in `model.named_modules()`. By default it is the nn.Linear called last.

    Hong et al. 2024, https://arxiv.org/abs/2406.04872.
    """

    score_name = "greedy order"

    def __init__(self, *, selectivity: float = 1.0, layer: str | None = None) -> None:
        beta_from_selectivity(selectivity)  # the same bounds hold
        if layer is not None and not isinstance(layer, str):
            raise TypeError(f"layer must be the name of a module in your model, got {type(layer).__name__}")
        self.selectivity, self.layer = selectivity, layer
        self._found: str | None = None  # name of the layer called last, once that is known
        self._guard: NoTrace | None = None

    def options_in_method(self) -> list[str]:
        """List what `diverse` takes besides the selectivity, which the policy shows."""
        return [] if self.layer is None else [f"layer={self.layer!r}"]

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        if self._guard is None or self._guard.model is not task.model:
            self._guard, self._found = NoTrace(task.model), self.layer
        with self._guard():
            with calls_of(self._layers(task.model)) as calls:
                outputs, targets = task.forward(task.model, candidates.data)
            inputs = self._inputs_of_last(calls, outputs, candidates.size)
            gram = _gram(_output_gradients(outputs, targets, candidates.size, task), inputs)
        # A policy may keep up to two more than its share, to make up for rounding in earlier batches.
        count = min(candidates.size, math.ceil(self.selectivity * candidates.size) + 2)
        scores = torch.zeros(candidates.size)
        # The order is found on the CPU, step by step. This is the one wait for the GPU.
        order = greedy_order(gram.cpu().numpy().astype(np.float64), count)
        scores[torch.from_numpy(order)] = 1 - torch.arange(count) / candidates.size
        return scores

    def _layers(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the last layer by its name. Before it is known, return every linear layer."""
        named = dict(model.named_modules())
        if self._found is None:
            return {name: part for name, part in named.items() if isinstance(part, nn.Linear)}
        if self._found not in named:
            raise ValueError(
                f"your model has no layer {self._found!r}: layer= must be one of model.named_modules(), such as "
                f"{', '.join(list(named)[-3:])}"
            )
        return {self._found: named[self._found]}

    def _inputs_of_last(self, calls: list[Call], outputs: Any, size: int) -> Tensor:
        if not calls:
            which = f"layer {self._found!r}" if self._found is not None else "any nn.Linear"
            raise ValueError(
                f"diverse needs the inputs of the last layer, but your model's forward pass does not call {which}: "
                "pass layer=, the name of the last layer in model.named_modules()"
            )
        self._found, inputs, made = calls[-1]
        if not isinstance(outputs, Tensor) or not isinstance(inputs, Tensor) or not isinstance(made, Tensor):
            raise TypeError(
                f"diverse needs a model whose outputs and whose last layer's inputs are tensors, got "
                f"{type(outputs).__name__} and {type(inputs).__name__}: pass forward= to return the logits"
            )
        if outputs.dim() < 2 or inputs.shape[:-1] != outputs.shape[:-1] or made.shape[-1] != outputs.shape[-1]:
            raise ValueError(
                f"layer {self._found!r} takes inputs of shape {tuple(inputs.shape)} and has {made.shape[-1]} outputs, "
                f"which do not fit the model's outputs of shape {tuple(outputs.shape)}: pass layer=, the name of the "
                "layer that makes them"
            )
        if len(inputs) != size:
            raise ValueError(f"layer {self._found!r} takes {len(inputs)} inputs for {size} candidates")
        return inputs


def _output_gradients(outputs: Tensor, targets: Any, size: int, task: Task) -> Tensor:
    """Compute the gradient of each candidate's loss with respect to the model's outputs: p - y for cross-entropy."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        total = task.loss.per_example(leaf, targets, size).sum()
    return torch.autograd.grad(total, leaf)[0]


def _gram(of_outputs: Tensor, inputs: Tensor) -> Tensor:
    """Compute the inner products of the last layer's gradients: (N, N).

    The gradient of a candidate is the outer product of its row in `of_outputs` (N, C) and in `inputs` (N, H). Outer
    products need not be formed: their inner products are those of the outputs times those of the inputs. For sequences,
    (N, T, C) and (N, T, H), the gradient is a sum over T, which is formed.
    """
    of_outputs, inputs = of_outputs.detach().float(), inputs.detach().float()
    if of_outputs.dim() == 2:
        return (of_outputs @ of_outputs.T) * (inputs @ inputs.T)
    gradients = torch.einsum("ntc,nth->nch", of_outputs.flatten(1, -2), inputs.flatten(1, -2)).flatten(1)
    return gradients @ gradients.T


def greedy_order(gram: np.ndarray, count: int) -> np.ndarray:
    """Pick vectors one by one, each time the one that takes most off the residual of the mean of all vectors.

    Args:
        gram: (N, N) float64: the inner products of the vectors.
        count: how many to pick.

    Returns:
        (count,) int64: their positions, in the order in which they were picked.

    >>> vectors = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 3.0]])
    >>> greedy_order(vectors @ vectors.T, 2).tolist()      # the second repeats the first
    [2, 0]
    """
    size = len(gram)
    order, is_left = np.empty(count, dtype=np.int64), np.ones(size, dtype=bool)
    own, with_mean, of_mean = gram.diagonal(), gram.mean(1), float(gram.mean())
    basis = np.empty((count, size))  # row j: the inner products of all vectors with the j-th orthonormal direction
    squares, products, num_basis = own.copy(), with_mean.copy(), 0
    for step in range(count):
        usable = is_left & (squares > _DEPENDENT * own)
        gains = np.where(usable, products * products / np.where(usable, squares, 1.0), -1.0)
        pick = int(gains.argmax())
        if gains[pick] <= 1e-12 * of_mean and num_basis:
            # Nothing is left of the mean that these could explain: begin anew with the vectors that are left.
            squares, products, num_basis = own.copy(), with_mean.copy(), 0
            usable = is_left & (own > 0)
            gains = np.where(usable, products * products / np.where(usable, squares, 1.0), -1.0)
            pick = int(gains.argmax())
        if gains[pick] < 0:
            pick = int(is_left.argmax())  # only vectors of length 0 are left
        order[step] = pick
        is_left[pick] = False
        length = math.sqrt(max(squares[pick], 0.0))
        if length == 0:
            continue
        direction = (gram[pick] - basis[:num_basis, pick] @ basis[:num_basis]) / length
        basis[num_basis] = direction
        products = products - direction * (products[pick] / length)
        squares = squares - direction * direction
        num_basis += 1
    return order
