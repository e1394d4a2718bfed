"""Probes against slow references, on real runs with digits; and that a run is the same with them as without."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from selective_backprop.testing import global_random_states, model_trace, same
from selective_backprop_lab.data.datasets import flip_labels
from selective_backprop_lab.probes import (
    ConfidenceProbe,
    GradientProbe,
    make_probes,
    read_confidence,
    read_gradients,
)
from selective_backprop_lab.runs.ledger_log import LedgerLog
from selective_backprop_lab.runs.recipes import RECIPES
from selective_backprop_lab.runs.records import RunFolder
from selective_backprop_lab.runs.training import Training, advance
from tests.lab.runs import train
from tests.lab.test_ledger_log import CPU, DIGITS, NUM_EXAMPLES, settings_for, train_with_crash

ALL = ["gradients", "confidence"]


def dropout_cnn(num_classes, channels):
    """BatchNorm, dropout, and a part without gradients: all that a probe could leave a trace on."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(8 * 36, num_classes),
    )


def settings_with_dropout(*, epochs=3, **changes):
    recipe = RECIPES["digits"].with_(epochs=epochs, model="tests.lab.test_probes:dropout_cnn", padding=1, flip=True)
    return settings_for(recipe=recipe, **changes)


def one_epoch(settings):
    training = Training(settings, DIGITS, CPU)
    advance(training)
    return training


def gradients_by_backward(model, images, labels):
    """(N, P): the gradient of each example on its own."""
    gradients = []
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None]).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return torch.stack(gradients)


# ---- gradients


def test_a_part_that_is_the_whole_agrees_with_it(tmp_path):
    training = one_epoch(settings_for())
    GradientProbe(tmp_path, num_batches=2, fractions=(1.0,))(training, training.records[0])
    found = read_gradients(tmp_path)
    assert found.highest.tolist() == [[True, False, True, False]] and (found.fraction == 1).all()
    assert found.cosine[0] == pytest.approx(1, abs=1e-5)
    assert (found.equal_signs > 0.99).all()  # sums in another order: a component next to zero may change its sign


def test_gradients_agree_with_those_of_plain_backward(tmp_path):
    training = one_epoch(settings_with_dropout(label_noise=0.2))
    training.model.train()  # whatever mode a run leaves it in
    fractions = (0.01, 0.2, 0.5)
    GradientProbe(tmp_path, num_batches=2, fractions=fractions)(training, {"epoch": 7})
    found = read_gradients(tmp_path)
    assert found.epochs == [7]
    rows = zip(found.highest[0], found.fraction[0], found.cosine[0], found.equal_signs[0], strict=True)

    model = copy.deepcopy(training.model).eval()
    labels, _ = flip_labels(DIGITS.train_labels, 0.2, 10, seed=0)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(NUM_EXAMPLES, generator=generator)
    for batch in range(2):
        ids = order[32 * batch : 32 * batch + 32]
        images = training.normalise(DIGITS.train_images[ids])
        gradients = gradients_by_backward(model, images, labels[ids])
        losses = [F.cross_entropy(model(images[i : i + 1]), labels[ids][i : i + 1]).item() for i in range(32)]
        by_loss = sorted(range(32), key=losses.__getitem__, reverse=True)
        at_random = torch.randperm(32, generator=generator).tolist()
        whole = gradients.mean(0).double()
        for is_highest, positions in ((True, by_loss), (False, at_random)):
            for fraction, size in zip(fractions, (1, 6, 16), strict=True):
                highest, share, cosine, equal_signs = next(rows)
                mean = gradients[positions[:size]].mean(0).double()
                assert highest == is_highest and share == pytest.approx(fraction)
                assert cosine == pytest.approx(float(whole @ mean / whole.norm() / mean.norm()), abs=1e-4)
                assert equal_signs == pytest.approx(float((whole.sign() == mean.sign()).float().mean()), abs=5e-3)
    assert not list(rows)


# ---- confidence


def test_confidence_in_the_true_class_and_correctness(tmp_path):
    training, expected = Training(settings_with_dropout(), DIGITS, CPU), []
    for _ in range(3):
        advance(training, observers=[ConfidenceProbe(tmp_path)])
        model = copy.deepcopy(training.model).eval()
        expected.append(model(training.normalise(DIGITS.test_images)).detach().softmax(1))
    probed = read_confidence(tmp_path)
    assert probed.epochs == [0, 1, 2]
    assert probed.confidence.shape == probed.correct.shape == (3, 360)
    assert probed.confidence.dtype == np.float16 and probed.correct.dtype == np.bool_
    for row, epoch in enumerate(probed.epochs):
        target = [float(expected[epoch][i, label]) for i, label in enumerate(DIGITS.test_labels)]
        assert np.allclose(probed.confidence[row], target, atol=1e-3)
        assert (~probed.correct[row]).mean() == pytest.approx(training.records[epoch]["test_error"])
        assert probed.correct[row][probed.confidence[row] > 0.51].all()


# ---- all together


def test_a_probe_leaves_no_trace(tmp_path):
    training = one_epoch(settings_with_dropout())
    training.model.train()
    training.model[1].eval()
    training.model[5].bias.requires_grad_(False)
    for parameter in training.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy([model_trace(training.model), training.state_dict(), global_random_states()])
    for observer in (GradientProbe(tmp_path), ConfidenceProbe(tmp_path), LedgerLog(tmp_path)):
        observer(training, training.records[0])
        assert same(before, [model_trace(training.model), training.state_dict(), global_random_states()]), observer


def test_a_run_is_the_same_with_probes_as_without_also_when_resumed(tmp_path):
    settings = settings_with_dropout()

    def observers(path):
        return [LedgerLog(path), GradientProbe(path, num_batches=2), *make_probes(ALL[1:], path)]

    with RunFolder(tmp_path / "bare", settings.as_json()) as folder:
        train(settings, DIGITS, folder=folder, device=CPU)
    with RunFolder(tmp_path / "probed", settings.as_json()) as folder:
        train(settings, DIGITS, folder=folder, device=CPU, observers=observers(folder.path))
    train_with_crash(settings, tmp_path / "resumed", observers, epoch=1)
    states = [
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("bare", "probed", "resumed")
    ]
    for state in states[1:]:
        assert same(state["model"], states[0]["model"])
        assert same(state["optimizer"], states[0]["optimizer"])
        assert same(state["loader"]["run"]["ledger"], states[0]["loader"]["run"]["ledger"])
    # What was done again is there once, and the same.
    for name in ("highest", "fraction", "cosine", "equal_signs"):
        assert np.array_equal(*(getattr(read_gradients(tmp_path / run), name) for run in ("resumed", "probed")))
    resumed, probed = (read_confidence(tmp_path / name) for name in ("resumed", "probed"))
    assert resumed.epochs == probed.epochs == [0, 1, 2]
    assert np.array_equal(resumed.confidence, probed.confidence)
    names = sorted(file.name for file in (tmp_path / "resumed" / "probes").iterdir())
    assert names == [f"{probe}-000{i}.pt" for probe in sorted(ALL) for i in range(3)]


# ---- files
