"""EL2N and GraNd: scores from the first epochs of a few models.

Paul, Ganguli and Dziugaite 2021, https://arxiv.org/abs/2107.07075.

# N = examples in the batch, C = classes, M = data set
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from selective_backprop.chain.load import batches_by_id
from selective_backprop.chain.user_loader import has_ids, untouched_generators
from selective_backprop.functional import at_least_float32, softmax_distance
from selective_backprop.inference import NoTrace, calls_of, device_of, preserved_rng, unwrap
from selective_backprop.losses import default_forward, require_finite
from selective_backprop.options import require_numbers
from selective_backprop.rows import move
from selective_backprop.types import Forward

Measure = Literal["el2n", "grand"]


def el2n(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the error of each example: ||softmax(outputs) - target||_2, from 0 to sqrt(2).

    Args:
        outputs: (N, C), before the softmax.
        targets: (N,) class indices, or (N, C) probabilities. One below 0 is ignored, as by the loss: its error is 0.

    >>> el2n(torch.tensor([[100.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [0.0, 0.707...]
    """
    return softmax_distance(outputs, targets)


def grand(outputs: Tensor, targets: Tensor, features: Tensor, *, bias: bool = True) -> Tensor:
    """Compute each example's gradient norm of the cross-entropy with respect to the last linear layer.

    It is ||softmax(outputs) - target|| * sqrt(||features||^2 + 1). features (N, F) are the inputs of the layer, and the
    1 stands for its bias, if it has one.

    >>> grand(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), torch.tensor([[2.0, 2.0]])).tolist()
    [2.1213...]
    """
    if features.dim() != 2 or len(features) != len(outputs):
        raise ValueError(f"features must be (examples, width) for {len(outputs)} outputs, got {tuple(features.shape)}")
    squares = at_least_float32(features).square().sum(1)
    return el2n(outputs, targets) * (squares + bias).sqrt()


def score_examples(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    measure: Measure = "el2n",
    last_layer: nn.Linear | None = None,
    forward: Forward | None = None,
) -> Tensor:
    """Score every example under the model as it is now: (M,) float32, NaN for examples that the loader did not offer.

    This makes one pass in eval mode. It changes neither the model nor global random states nor the loader's generators.

    Args:
        model: a classifier, also wrapped by DDP or torch.compile.
        loader: a DataLoader over a map-style data set, shuffled or not. Random augmentation adds noise to the scores.
        measure: "el2n" or "grand".
        last_layer: for "grand", the layer that gives the outputs; by default the model's last nn.Linear.
        forward: how a batch goes through the model, as in `SelectiveLoader`.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.tensor([[100.0, 0.0], [100.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1, 0]))
    >>> score_examples(nn.Identity(), DataLoader(data, batch_size=2, shuffle=True))
    tensor([0.0000, 1.4142, 0.7071])
    """
    if measure not in ("el2n", "grand"):
        raise ValueError(f"measure must be 'el2n' or 'grand', got {measure!r}")
    model = unwrap(model)
    layer = _find_last_layer(model, last_layer) if measure == "grand" else None
    return _by_id(
        model, loader, lambda data: _measure(model, data, layer, forward or default_forward), f"{measure} score"
    )


def last_features(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    last_layer: nn.Linear | None = None,
    forward: Forward | None = None,
) -> Tensor:
    """Return the inputs of the model's last layer for every example: (M, D) float32, for `sb.audit`.

    This makes one pass in eval mode. It changes neither the model nor global random states nor the loader's generators.
    Inputs with more than two dimensions, as in sequences, are averaged over those in the middle.

    Args:
        model: your model, also wrapped by DDP or torch.compile.
        loader: a DataLoader over a map-style data set that offers every example, better without augmentation.
        last_layer: the layer whose inputs are wanted; by default the model's last nn.Linear.
        forward: how a batch goes through the model, as in `SelectiveLoader`.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> last_features(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), DataLoader(data, batch_size=2, shuffle=True)).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    model = unwrap(model)
    layer = _find_last_layer(model, last_layer, "last_features")

    def compute(data: Any) -> Tensor:
        with calls_of({"last_layer": layer}) as calls:
            (forward or default_forward)(model, data)
        if not calls:
            raise ValueError(f"{layer} was not called in the forward pass: pass last_layer=, the layer that is")
        found: Tensor = calls[-1].inputs
        return found.flatten(1, -2).mean(1) if found.dim() > 2 else found

    features = _by_id(model, loader, compute, "sum of features")
    if len(missing := features.isnan().any(1).nonzero().flatten()):
        raise ValueError(
            f"{len(missing):,} of {len(features):,} examples have no features, such as id {int(missing[0])}: the "
            "loader must offer every example (no sampler, no drop_last)"
        )
    return features


def _by_id(model: nn.Module, loader: Iterable[Any], compute: Callable[[Any], Tensor], what: str) -> Tensor:
    """Run every batch through `compute` without leaving a trace: (M, ...) float32 what it finds, by id, or NaN.

    what: what it computes, for the error if it is not finite.
    """
    if not has_ids(loader):
        raise ValueError(
            "scores are stored by id, and only a DataLoader over a map-style data set, with automatic batching, has "
            f"ids: this {type(loader).__name__} has none"
        )
    no_trace, device, result = NoTrace(model), device_of(model), torch.empty(0)
    with untouched_generators(loader), preserved_rng(device):  # loading draws too
        for ids, data in batches_by_id(loader, device):  # type: ignore[arg-type]
            with no_trace():
                found = compute(data)
            if len(found) != len(ids):
                raise ValueError(f"the model gave {len(found)} outputs for a batch of {len(ids)} examples")
            # Waits for the GPU once a batch, to name a bad example at once.
            found = found.to("cpu", torch.float32)
            require_finite(found if found.dim() == 1 else found.sum(1), ids, f"the {what}")
            if not len(result):
                result = torch.full((len(loader.dataset), *found.shape[1:]), float("nan"))  # type: ignore[attr-defined]
            result[ids] = found
    if not len(result):
        raise ValueError("the loader is empty: it offered no batch to score")
    return result


def average_scores(
    make_model: Callable[[int], nn.Module],
    train_loader: Iterable[Any],
    loss_fn: Callable[..., Tensor],
    *,
    num_models: int = 10,
    epochs: int = 10,
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    measure: Measure = "el2n",
    forward: Forward | None = None,
    score_loader: Iterable[Any] | None = None,
    seed: int = 0,
) -> Tensor:
    """Compute the mean score of every example over several models, each trained for a few epochs: (M,) float32.

    This costs num_models * epochs epochs of training, so it pays if many later runs use the scores. Training draws from
    the global random states, as any training does (order, dropout). Seed them first to get the same scores again.

    Args:
        make_model: makes a new model, called with seed, seed + 1, ... It may use this number to seed the weights.
        train_loader: your DataLoader.
        loss_fn: called as loss_fn(outputs, targets). Its mean is trained on.
        epochs: epochs of training before scoring; 0 scores untrained models.
        make_optimizer: makes an optimizer from the parameters; by default SGD with lr 0.1, momentum 0.9 and weight
            decay 5e-4.
        measure: "el2n", or "grand" with the last nn.Linear.
        forward: how a batch goes through the model, as in `SelectiveLoader`.
        score_loader: the loader of the examples to score; by default train_loader. Scores are better without
            augmentation.
    """
    require_numbers(num_models=num_models, epochs=epochs)
    if num_models < 1 or epochs < 0:
        raise ValueError(f"num_models must be at least 1 and epochs at least 0, got {num_models} and {epochs}")
    make_optimizer = make_optimizer or functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4)
    forward = forward or default_forward
    loader = train_loader if score_loader is None else score_loader
    scores = []
    for number in range(num_models):
        model = make_model(seed + number)
        if number == 0 and epochs > 0:  # costs one pass; what cannot be scored must not fail after the training
            score_examples(model, loader, measure=measure, forward=forward)
        optimizer, device = make_optimizer(model.parameters()), device_of(model)
        model.train()
        for data in itertools.chain.from_iterable(itertools.repeat(train_loader, epochs)):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_fn(*forward(model, move(data, device))).mean()  # the mean of a scalar is itself
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        scores.append(score_examples(model, loader, measure=measure, forward=forward))
    return torch.stack(scores).nanmean(0)  # a sampler may offer an example to some of the models only


def _measure(model: nn.Module, data: Any, layer: nn.Linear | None, forward: Forward) -> Tensor:
    with calls_of({} if layer is None else {"last_layer": layer}) as calls:
        outputs, targets = forward(model, data)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        raise TypeError(
            f"outputs and targets must be tensors, got {type(outputs).__name__} and {type(targets).__name__}: pass "
            "forward=, a function from (model, batch) to (outputs, targets)"
        )
    if layer is None:
        return el2n(outputs, targets)
    if [call.outputs.shape for call in calls] != [outputs.shape]:
        raise ValueError(
            f"grand needs the layer that gives the outputs, of shape {tuple(outputs.shape)}, in one call; {layer} gave "
            f"{[tuple(call.outputs.shape) for call in calls]} in the forward pass: pass last_layer="
        )
    return grand(outputs, targets, calls[0].inputs, bias=layer.bias is not None)


def _find_last_layer(model: nn.Module, last_layer: nn.Linear | None, what: str = "grand") -> nn.Linear:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        instead = ": use 'el2n'" if what == "grand" else ": compute features yourself, (M, D)"
        raise ValueError(f"{what} needs an nn.Linear as the last layer, {type(model).__name__} has none{instead}")
    if last_layer is not None and not any(last_layer is layer for layer in layers):
        raise ValueError(f"last_layer must be an nn.Linear of the model, got {last_layer!r}")
    return last_layer or layers[-1]
