"""Statistics of training dynamics: limits first, then slow references, then calibration on labels made wrong."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from selective_backprop.dynamics import statistics

NAN = float("nan")


def with_gaps(seed, epochs=7, examples=40):
    chance = np.random.default_rng(seed)
    values = chance.normal(size=(epochs, examples)).astype(np.float32)
    values[chance.random(values.shape) < 0.4] = NAN
    values[:, 0] = NAN  # an example that was never seen
    return values


def looks(values, example):
    """The epochs in which an example was seen, and its values."""
    return [(epoch, float(row[example])) for epoch, row in enumerate(values) if not math.isnan(row[example])]


def test_means_and_spreads_agree_with_a_slow_reference():
    values = with_gaps(0)
    means, spreads = statistics.time_mean(values), statistics.variability(values)
    for example in range(values.shape[1]):
        seen = looks(values, example)
        if not seen:
            assert math.isnan(means[example]) and math.isnan(spreads[example])
            continue
        filled, last = [], None
        for epoch in range(len(values)):
            last = dict(seen).get(epoch, last)
            if last is not None:
                filled.append(last)
        assert means[example] == pytest.approx(sum(filled) / len(filled))
        mean = sum(value for _, value in seen) / len(seen)
        assert spreads[example] == pytest.approx(math.sqrt(sum((v - mean) ** 2 for _, v in seen) / len(seen)))


def test_events_agree_with_a_slow_reference():
    values = with_gaps(1)
    forgotten, learned = statistics.forgetting_events(values), statistics.first_learned(values)
    last = statistics.last_seen(values)
    for example in range(values.shape[1]):
        seen = looks(values, example)
        pairs = list(itertools.pairwise(seen))
        assert forgotten[example] == sum(before > 0 >= after for (_, before), (_, after) in pairs)
        assert learned[example] == next((epoch for epoch, value in seen if value > 0), -1)
        assert last[example] == (seen[-1][0] if seen else -1)


def test_epochs_count_by_what_the_network_knew():
    margins = np.array([[-1.0] * 9 + [1.0], [1.0] * 5 + [-1.0] * 5, [1.0] * 10])
    assert_allclose(statistics.agreement(margins), [0.1, 0.5, 1.0])
    assert_allclose(statistics.knowledge_weights(margins, 10), np.array([1e-6, 0.16, 0.81]) / 0.970001)


def test_the_probability_of_the_predicted_class_follows_from_margin_and_confidence():
    chance = np.random.default_rng(2)
    logits = chance.normal(size=(500, 6)) * 3
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    others = np.sort(logits[:, 1:], axis=1)[:, -1]
    found = statistics.top_probabilities(logits[:, 0] - others, probabilities[:, 0])
    assert_allclose(found, probabilities.max(1), rtol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 17, 300])
def test_isotonic_is_the_least_squares_fit_of_scikit_learn(size):
    reference = pytest.importorskip("sklearn.isotonic").IsotonicRegression
    chance = np.random.default_rng(size)
    positions, values = chance.permutation(size).astype(float), chance.normal(size=size)
    assert_allclose(statistics.isotonic(positions, values), reference().fit(positions, values).predict(positions))


def test_suggestions_are_votes_weighted_by_doubt():
    others = np.array([[2, 1, NAN], [3, 1, NAN], [3, 0, NAN]])
    confidences = np.array([[0.0, 0.1, NAN], [0.6, 0.1, NAN], [0.7, 0.9, NAN]])
    assert_array_equal(statistics.suggested_labels(others, confidences), [2, 1, -1])


def test_the_knee_is_where_learning_flattens():
    assert statistics.knee(np.array([0.3, 0.6, 0.72, 0.75, 0.76, 0.77])) == 2
    assert statistics.knee(np.linspace(0.1, 0.5, 8)) == 7
    assert statistics.knee(np.array([0.4])) == 0


def simulated(noise, seed, *, examples=6000, classes=10, epochs=6, sharpness=3.0):
    """Dynamics of a calibrated network: labels are drawn from its own probabilities, then some are made wrong."""
    chance = np.random.default_rng(seed)
    truth = np.empty(examples, dtype=int)
    base = chance.normal(size=(examples, classes)) * sharpness
    probabilities = np.exp(base) / np.exp(base).sum(1, keepdims=True)
    for i, row in enumerate(probabilities):
        truth[i] = chance.choice(classes, p=row)
    wrong = chance.random(examples) < noise
    labels = np.where(wrong, (truth + chance.integers(1, classes, examples)) % classes, truth)
    margins, confidences = [], []
    for _ in range(epochs):
        mixed = (1 - noise) * probabilities + noise * (1 - probabilities) / (classes - 1)  # it fits the noisy labels
        logits = np.log(mixed) + chance.normal(size=mixed.shape) * 0.05
        rows = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        own = logits[np.arange(examples), labels]
        rest = logits.copy()
        rest[np.arange(examples), labels] = -np.inf
        margins.append(own - rest.max(1))
        confidences.append(rows[np.arange(examples), labels])
    return np.array(margins), np.array(confidences), wrong


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_probabilities_of_wrong_labels_are_calibrated(noise):
    """The mean distance to the true share, in ten groups, is below 0.05; measured: 0.007, 0.019 and 0.036 (seed 0)."""
    margins, confidences, wrong = simulated(noise, 0)
    assert statistics.noise_rate(margins, confidences) == pytest.approx(noise, abs=0.04)
    chances = statistics.wrong_probability(margins, confidences, statistics.time_mean(margins), 10)
    groups = np.array_split(np.argsort(chances, kind="stable"), 10)
    assert sum(abs(chances[group].mean() - wrong[group].mean()) for group in groups) / 10 < 0.05


def test_clean_labels_are_not_called_wrong():
    margins, confidences, _ = simulated(0.0, 1, sharpness=6.0)
    chances = statistics.wrong_probability(margins, confidences, statistics.time_mean(margins), 10)
    assert (chances > 0.5).mean() < 0.005


def test_probabilities_have_the_order_of_the_scores():
    margins, confidences, _ = simulated(0.1, 2, examples=1000)
    margins[:, 5] = confidences[:, 5] = NAN
    labels, others = np.zeros(1000, dtype=int), np.where(np.isnan(margins), NAN, 1.0)
    scores = statistics.label_scores(margins, others, labels, 10)
    chances = statistics.wrong_probability(margins, confidences, scores, 10)
    assert np.isnan(chances[5]) and np.isnan(scores[5])
    order = np.argsort(scores[np.arange(1000) != 5])
    assert (np.diff(chances[np.arange(1000) != 5][order]) <= 1e-12).all()


# ---- what selection did to the network


def test_nothing_is_corrected_where_everything_was_trained_on():
    chance = np.random.default_rng(0)
    margins, others = chance.normal(size=(4, 30)), chance.integers(0, 3, size=(4, 30)).astype(float)
    labels = chance.integers(0, 3, size=30)
    assert not statistics.selection_shift(margins, others, labels).any()
    weights = statistics.knowledge_weights(margins, 3)
    assert_allclose(statistics.label_scores(margins, others, labels, 3), statistics.time_mean(margins, weights))


def test_the_shift_is_that_of_a_network_trained_on_a_selection():
    """Limit: where a share of the right examples is skipped, the odds of the wrong label grow by one over that share.

    Class 0 has 900 examples with its label and 100 with label 1, and nothing tells them apart. A network that fits the
    selected examples exactly has a margin of log(100 / 900) for label 1 without selection, and of log(100 / 300) when
    one in three of the right ones is trained on. The correction brings it back, but for the smoothing of shares.
    """
    labels = np.repeat([0, 1], [900, 100])
    others = np.broadcast_to(1.0 - labels, (3, 1000)).copy()
    before, selected = np.log(9.0), np.log(3.0)
    margins = np.stack([np.where(labels == 0, m, -m) for m in (before, before, selected)])
    skipped = (labels == 0) & (np.arange(1000) % 3 > 0)
    margins[1, skipped] = NAN
    corrected = margins - statistics.selection_shift(margins, others, labels)
    assert_allclose(corrected[2, 900:], -before, atol=0.02)
    assert_allclose(corrected[2, :900], before, atol=0.02)


# ---- what was not needed
