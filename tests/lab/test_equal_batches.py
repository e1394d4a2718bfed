"""All arms of a comparison train on batches of the same size, so that none has a handicap."""

import pytest
import torch

from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.training import Training
from selective_backprop_lab.study.comparison import settings_for
from selective_backprop_lab.study.demo import halves
from selective_backprop_lab.study.frontier import Budget, compute_multiplier

SEEDS = range(3)


def make_training(method, epochs, seed=0, **changes):
    recipe = find_recipe("digits").with_(epochs=epochs, model="strided_cnn", **changes)
    settings = settings_for(MethodSpec.parse(method), recipe, seed=seed)
    return Training(settings, halves(settings), torch.device("cpu"), test_every_epoch=False)


def trained(method, epochs):
    """Errors and compute of all seeds."""
    errors, costs = [], []
    for seed in SEEDS:
        training = make_training(method, epochs, seed)
        records = [training.epoch() for _ in range(epochs)]
        errors.append(records[-1]["test_error"])
        costs.append(sum(record["compute"] for record in records))
    return Budget(tuple(errors), tuple(costs))


@pytest.mark.parametrize("method", ["traditional", "repeated_random@0.5", "sb@0.5"])
def test_every_training_batch_is_full(method):
    training = make_training(method, epochs=3)
    sizes = set()
    for _ in range(3):
        for images, labels in training.loader:
            sizes.add(len(labels))
            training.loader.loss(training.model(images), labels).backward()
    assert len(training.dataset) % training.settings.recipe.batch_size  # something must be dropped
    assert sizes == {training.settings.recipe.batch_size}


def test_plain_training_and_random_subsets_are_equal_at_equal_compute():
    """Random subsets are plain training of another length. With a last batch of 2 in each epoch, M was above 2.

    The interval is wide with three seeds, so M is compared with 1.6 besides.
    """
    plain = [trained("traditional", epochs) for epochs in (3, 6, 10)]
    interval = compute_multiplier(plain, [trained("repeated_random@0.5", 10)])
    assert interval.low.value < 1 < interval.high.value
    assert 0.6 < interval.multiple.value < 1.6
