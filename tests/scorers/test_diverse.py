"""DiverseScorer against a slow reference that forms every gradient, at its limits, and with wrong layers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.scorers import DiverseScorer
from selective_backprop.scorers.diverse import greedy_order
from selective_backprop.types import Candidates, Task
from tests.helpers import digits, make_loader, make_model, train


def task_of(model, loss_fn=None, reducer=None, forward=default_forward):
    return Task(model, forward, PerExampleLoss(loss_fn or nn.CrossEntropyLoss(), reducer))


def candidates_of(inputs, targets):
    return Candidates((inputs, targets), torch.arange(len(inputs)), len(inputs))


def last_layer_gradients(model, layer, candidates, task):
    """The gradient of the layer's weight for each candidate alone, by autograd through the model."""
    rows = []
    for i in range(candidates.size):
        outputs, targets = task.forward(model, tuple(part[i : i + 1] for part in candidates.data))
        loss = task.loss.per_example(outputs, targets, 1).sum()
        rows.append(torch.autograd.grad(loss, layer.weight)[0].flatten())
    return torch.stack(rows).double()


def slow_order(gradients, count):
    """Gram-Schmidt on the gradients themselves."""
    residual, left, basis, order = gradients.mean(0), list(range(len(gradients))), [], []
    for _ in range(count):
        gains = {}
        for i in left:
            new = gradients[i] - sum((e @ gradients[i]) * e for e in basis)
            gains[i] = float((new @ residual) ** 2 / (new @ new))
        pick = max(left, key=gains.get)
        new = gradients[pick] - sum((e @ gradients[pick]) * e for e in basis)
        basis.append(new / new.norm())
        residual = residual - (basis[-1] @ residual) * basis[-1]
        order.append(pick)
        left.remove(pick)
    return order, float(residual.norm())


def picked(scores, count):
    return scores.argsort(descending=True)[:count].tolist()


def test_the_order_is_that_of_gram_schmidt_on_autograds_gradients():
    model, candidates = make_model().eval(), candidates_of(*digits()[:40])
    task = task_of(model)
    gradients = last_layer_gradients(model, model[6], candidates, task)
    order, left = slow_order(gradients, 12)
    scores = DiverseScorer(selectivity=0.25).score(candidates, task)
    assert picked(scores, 12) == order
    assert scores[order].tolist() == pytest.approx([1 - i / 40 for i in range(12)])
    assert int((scores > 0).sum()) == 12, "as many as a quarter, and two more"
    by_loss = task.loss.per_example(model(candidates.data[0]), candidates.data[1]).argsort(descending=True)[:12]
    mean, chosen = gradients.mean(0), gradients[by_loss]
    assert left < float((mean - chosen.T @ torch.linalg.lstsq(chosen.T, mean[:, None]).solution[:, 0]).norm())


def test_any_loss_and_label_smoothing():
    model, (inputs, targets) = make_model().eval(), digits()[:24]
    for loss_fn, labels in (
        (nn.CrossEntropyLoss(label_smoothing=0.2), targets),
        (nn.MSELoss(), nn.functional.one_hot(targets, 10).float()),
    ):
        task, candidates = task_of(model, loss_fn, "mean"), candidates_of(inputs, labels)
        order, _ = slow_order(last_layer_gradients(model, model[6], candidates, task), 6)
        assert picked(DiverseScorer(selectivity=0.1).score(candidates, task), 5) == order[:5]


class Tagger(nn.Module):
    """A label for every position, from an embedding: a sequence model in small."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 4)

    def forward(self, tokens):
        return self.head(self.words(tokens))


def test_gradients_of_sequences_are_summed_over_positions():
    torch.manual_seed(0)
    model, tokens, labels = Tagger(), torch.randint(20, (16, 5)), torch.randint(4, (16, 5))
    task, candidates = task_of(model, sb.token_cross_entropy, "mean"), candidates_of(tokens, labels)
    order, _ = slow_order(last_layer_gradients(model, model.head, candidates, task), 8)
    assert picked(DiverseScorer(selectivity=0.5).score(candidates, task), 8) == order


def test_repeated_examples_come_last():
    inputs, targets = digits()[:12]
    twice = candidates_of(inputs.repeat(2, 1), targets.repeat(2))
    scores = DiverseScorer().score(twice, task_of(make_model()))
    first = picked(scores, 12)
    assert len({i % 12 for i in first}) == 12, "no example twice before all were picked"
    assert sorted(picked(scores, 24)) == list(range(24))


def test_vectors_of_length_zero_and_an_exhausted_mean():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(9, 2))
    vectors[[3, 7]] = 0
    order = greedy_order(vectors @ vectors.T, 9).tolist()
    assert sorted(order) == list(range(9)) and set(order[-2:]) == {3, 7}
    assert greedy_order(np.zeros((3, 3)), 2).tolist() == [0, 1]


def test_training_keeps_the_share_and_the_method_can_name_its_layer():
    model = make_model()
    loader = make_loader(sb.methods.diverse(0.25, layer="6"), model=model, num_epochs=2)
    train(loader, model, 2)
    assert loader.stats.selectivity == pytest.approx(0.25, abs=0.01)
    assert loader.stats.scored == loader.stats.offered - loader.stats.skipped_before_loading
    assert not vars(model[6])["_forward_pre_hooks"], "no hook stays behind"


def test_a_model_without_a_linear_layer():
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(ValueError, match=r"diverse needs the inputs .* does not call any nn\.Linear: pass layer="):
        next(iter(make_loader(sb.methods.diverse(0.5), model=model)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("head", r"your model has no layer 'head': layer= must be one of model\.named_modules\(\), such as 4, 5, 6"),
        ("4", r"layer '4' takes inputs of shape \(16, 32\) and has 16 outputs, which do not fit .* shape \(16, 10\)"),
    ],
)
def test_a_wrong_layer(layer, message):
    with pytest.raises(ValueError, match=message):
        next(iter(make_loader(sb.methods.diverse(0.5, layer=layer))))


def test_outputs_that_are_no_tensor():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 10)

        def forward(self, inputs):
            return {"logits": self.inner(inputs)}

    train_loader = DataLoader(TensorDataset(*digits().tensors), 16)
    loader = sb.SelectiveLoader(
        train_loader,
        Wrapped(),
        lambda outputs, targets: nn.functional.cross_entropy(outputs["logits"], targets, reduction="none"),
        sb.methods.diverse(0.5),
    )
    with pytest.raises(TypeError, match=r"are tensors, got dict and Tensor: pass forward= to return the logits"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"selectivity": 0}, ValueError, r"selectivity must be in \(0, 1\], got 0"),
        ({"layer": 3}, TypeError, "layer must be the name of a module in your model, got int"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        sb.methods.diverse(**options)
