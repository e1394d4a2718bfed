"""Probes against slow references, on real runs with digits; and that a run is the same with them as without."""

import copy
import errno
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from selective_backprop.lab.data.datasets import flip_labels
from selective_backprop.lab.probes import (
    AtThreeEpochs,
    ConfidenceProbe,
    ExampleProbe,
    GradientProbe,
    make_probes,
    read_confidence,
    read_examples,
    read_gradients,
)
from selective_backprop.lab.probes.files import read_rows, replace_rows
from selective_backprop.lab.runs.ledger_log import LedgerLog
from selective_backprop.lab.runs.recipes import RECIPES
from selective_backprop.lab.runs.records import RunFolder
from selective_backprop.lab.runs.training import Training, advance, train
from selective_backprop.testing import global_random_states, model_trace, same
from tests.lab.test_ledger_log import CPU, DIGITS, NUM_EXAMPLES, crash_at, settings_for, train_with_crash

ALL = ["gradients", "confidence", "examples"]


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
    rows = read_gradients(tmp_path)
    assert [(row.batch, row.part, row.size) for row in rows] == [
        (0, "highest", 32), (0, "random", 32), (1, "highest", 32), (1, "random", 32)
    ]  # fmt: skip
    for row in rows:
        assert row.cosine == pytest.approx(1, abs=1e-5)
        assert row.equal_signs > 0.99  # sums in another order: a component next to zero may change its sign


def test_gradients_agree_with_those_of_plain_backward(tmp_path):
    training = one_epoch(settings_with_dropout(label_noise=0.2))
    training.model.train()  # whatever mode a run leaves it in
    fractions = (0.01, 0.2, 0.5)
    GradientProbe(tmp_path, num_batches=2, fractions=fractions)(training, {"epoch": 7})
    rows = iter(read_gradients(tmp_path))

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
        for part, positions in (("highest", by_loss), ("random", at_random)):
            for fraction, size in zip(fractions, (1, 6, 16), strict=True):
                row, mean = next(rows), gradients[positions[:size]].mean(0).double()
                assert (row.epoch, row.batch, row.part, row.fraction, row.size) == (7, batch, part, fraction, size)
                cosine = float(whole @ mean / whole.norm() / mean.norm())
                assert row.cosine == pytest.approx(cosine, abs=1e-4)
                assert row.equal_signs == pytest.approx(float((whole.sign() == mean.sign()).float().mean()), abs=5e-3)
    assert not list(rows)


def test_larger_parts_agree_better(tmp_path):
    training = one_epoch(settings_for())
    GradientProbe(tmp_path)(training, training.records[0])
    rows = read_gradients(tmp_path)
    assert len(rows) == 8 * 2 * 6
    for part in ("highest", "random"):
        cosines = [
            np.mean([row.cosine for row in rows if row.part == part and row.fraction == fraction])
            for fraction in (0.05, 1 / 3, 0.75)
        ]
        assert cosines == sorted(cosines)
        assert cosines[-1] > 0.6


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


# ---- examples


@pytest.mark.parametrize("method", ["selective_backprop", "stale_selective_backprop"])
def test_examples_are_followed_through_every_epoch(method, tmp_path):
    training, expected = Training(settings_for(method), DIGITS, CPU), []
    for epoch in range(3):
        advance(training, observers=[ExampleProbe(tmp_path)])
        ledger = training.loader.ledger
        for id in (0, 359, 718, 1077, 1436):
            scored_later = ledger.score_epoch[id] > ledger.loss_epoch[id]
            loss = ledger.score[id] if scored_later else ledger.loss[id]
            expected.append((epoch, id, float(loss), float(ledger.probability[id])))
    states = read_examples(tmp_path)
    assert [(state.epoch, state.id, state.loss, state.probability) for state in states] == expected
    assert len({state.loss for state in states}) > 5


def test_examples_that_were_never_seen(tmp_path):
    ExampleProbe(tmp_path)(Training(settings_for(), DIGITS, CPU), {"epoch": 0})
    states = read_examples(tmp_path)
    assert len(states) == 5 and all((state.loss, state.probability) == (None, None) for state in states)


# ---- all together


def test_a_probe_leaves_no_trace(tmp_path):
    training = one_epoch(settings_with_dropout())
    training.model.train()
    training.model[1].eval()
    training.model[5].bias.requires_grad_(False)
    for parameter in training.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy([model_trace(training.model), training.state_dict(), global_random_states()])
    for observer in (GradientProbe(tmp_path), ConfidenceProbe(tmp_path), ExampleProbe(tmp_path), LedgerLog(tmp_path)):
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
        assert same(state["loader"]["ledger"], states[0]["loader"]["ledger"])
    # What was done again is there once, and the same.
    for read in (read_gradients, read_examples):
        rows = read(tmp_path / "resumed")
        assert rows == read(tmp_path / "probed")
        assert [row.epoch for row in rows] == sorted(row.epoch for row in rows)
    resumed, probed = (read_confidence(tmp_path / name) for name in ("resumed", "probed"))
    assert resumed.epochs == probed.epochs == [0, 1, 2]
    assert np.array_equal(resumed.confidence, probed.confidence)
    names = sorted(file.name for file in (tmp_path / "resumed" / "probes").iterdir())
    assert names == [*(f"confidence-000{i}.npz" for i in range(3)), "examples.jsonl", "gradients.jsonl"]


def test_by_default_first_middle_and_last(tmp_path):
    seen = []
    observers = [AtThreeEpochs(lambda training, record: seen.append(record["epoch"])), *make_probes(ALL, tmp_path)]
    train(settings_with_dropout(epochs=5), DIGITS, device=CPU, observers=observers)
    assert seen == [0, 2, 4]
    assert sorted({row.epoch for row in read_gradients(tmp_path)}) == read_confidence(tmp_path).epochs == [0, 2, 4]
    assert sorted({state.epoch for state in read_examples(tmp_path)}) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["gradient"], r"there is no probe 'gradient': did you mean gradients\?"),
        (["xyz"], "there is no probe 'xyz': there are gradients, confidence, examples"),
    ],
)
def test_what_cannot_be_probed(names, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make_probes(names, tmp_path)


def test_names_given_twice_are_probed_once(tmp_path):
    assert len(make_probes(["examples", "examples"], tmp_path)) == 1


# ---- files


@pytest.mark.parametrize("read", [read_gradients, read_examples, read_confidence])
def test_what_was_not_probed(read, tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*probes.*: was it asked for when the run was made"):
        read(tmp_path)


def test_damaged_rows_are_told_with_their_line(tmp_path):
    train(settings_for(epochs=1), DIGITS, device=CPU, observers=[ExampleProbe(tmp_path)])
    file = tmp_path / "probes" / "examples.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    for damaged in ('{"epoch": 0, "id"\n', "7\n", '{"id": 3}\n'):
        file.write_text("".join([*lines[:2], damaged, *lines[3:]]))
        with pytest.raises(ValueError, match=r"examples.jsonl is damaged in line 3 \(.*\): move it away"):
            read_examples(tmp_path)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    replace_rows(tmp_path / "rows.jsonl", 0, [{"epoch": 0}])

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device"):
        replace_rows(tmp_path / "rows.jsonl", 1, [{"epoch": 1}])
    assert read_rows(tmp_path / "rows.jsonl") == [{"epoch": 0}]


def test_a_crash_within_the_observers_loses_nothing(tmp_path):
    """Rows of an epoch that was never saved are there at the crash, and replaced when it is done again."""
    settings = settings_for(epochs=2)
    with RunFolder(tmp_path, settings.as_json()) as folder:
        with pytest.raises(KeyboardInterrupt):
            train(settings, DIGITS, folder=folder, device=CPU, observers=[ExampleProbe(tmp_path), crash_at(1)])
        assert [state.epoch for state in read_examples(tmp_path)] == [0] * 5 + [1] * 5
        train(settings, DIGITS, folder=folder, device=CPU, observers=[ExampleProbe(tmp_path)])
    assert [state.epoch for state in read_examples(tmp_path)] == [0] * 5 + [1] * 5
