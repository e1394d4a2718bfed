"""second_difference against a slow reference, at its limits, and in training."""

import itertools
import math

import pytest
import torch

import selective_backprop as sb
from selective_backprop.ledger import Ledger
from selective_backprop.scorers import SecondDifferenceScorer
from tests.helpers import NUM_DIGITS, make_loader, make_model, train


def columns(average):
    return SecondDifferenceScorer(average=average).needs.columns


def slow_score(losses, average):
    """The mean of the last |second differences| of one example, whose losses are listed from the first to the last."""
    differences = [abs(c - 2 * b + a) for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
    last = differences[-average:]
    return sum(last) / len(last) if last else math.nan


@pytest.mark.parametrize("average", [1, 2, 3])
def test_scores_equal_a_slow_reference(average):
    """Examples are trained on in different epochs, so that some have no score, and some have few differences."""
    generator = torch.Generator().manual_seed(0)
    ledger, past = Ledger(20, columns(average)), [[] for _ in range(20)]
    for epoch in range(6):
        ids = (torch.rand(20, generator=generator) < 0.6).nonzero().flatten()
        losses = torch.rand(len(ids), generator=generator)
        ledger.record_losses(ids, losses, epoch)
        for example, loss in zip(ids.tolist(), losses.tolist(), strict=True):
            past[example].append(loss)
    asked = torch.tensor([3, 0, 19, 3, *range(20)])
    scorer = SecondDifferenceScorer(average=average)
    scores = scorer.recall(asked, ledger.rows(asked), epoch=6)
    expected = [slow_score(past[example], average) for example in asked.tolist()]
    assert scores.tolist() == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert {len(losses) for losses in past} > {2, 3, 5}


def test_an_old_last_loss_leaves_no_score():
    ledger, ids = Ledger(2, columns(3)), torch.arange(2)
    for epoch in range(4):
        ledger.record_losses(ids[: 2 if epoch < 3 else 1], torch.tensor([1.0, 2.0])[: 2 if epoch < 3 else 1], epoch)
    scorer = SecondDifferenceScorer(max_age=2)
    assert scorer.recall(ids, ledger.rows(ids), epoch=4).isnan().tolist() == [False, True]
    assert scorer.recall(ids, ledger.rows(ids), epoch=3).isnan().tolist() == [False, False]


def test_a_loss_that_falls_evenly_is_mastered_and_one_that_turns_is_not():
    """Whatever the loss itself is."""
    ledger, ids = Ledger(3, columns(3)), torch.arange(3)
    for epoch, losses in enumerate([[9.0, 0.1, 5.0], [8.0, 0.1, 4.0], [7.0, 0.1, 5.0]]):
        ledger.record_losses(ids, torch.tensor(losses), epoch)
    method = sb.methods.second_difference()
    scores = method.scorer.recall(ids, ledger.rows(ids), epoch=3)
    assert scores.tolist() == pytest.approx([0, 0, 2])
    assert method.policy.select(scores, torch.Generator()).positions.tolist() == [2]


def test_three_epochs_train_on_everything_and_skipped_examples_are_not_loaded():
    model = make_model()
    loader = make_loader(sb.methods.second_difference(threshold=0.5), model=model, num_epochs=6)
    offered = []
    for epoch in range(1, 7):
        train(loader, model, epoch)
        offered.append(loader.stats.skipped_before_loading)
    assert offered[:3] == [0, 0, 0]
    assert offered[3] > 0.2 * NUM_DIGITS, "the loss of many examples has settled"
    assert loader.stats.scored == 0


def test_every_example_comes_back_within_the_maximum_age():
    model = make_model()
    loader = make_loader(sb.methods.second_difference(threshold=3, max_age=2), model=model)
    trained = [set() for _ in range(9)]
    for epoch in range(9):
        train(
            loader, model, epoch + 1, on_step=lambda *_, epoch=epoch: trained[epoch].update(loader.batch.ids.tolist())
        )
    for first, second in itertools.pairwise(trained[2:]):
        assert len(first | second) >= NUM_DIGITS - loader.batch_size, "but for those that wait in the queue"
    assert min(len(ids) for ids in trained) < 0.8 * NUM_DIGITS


def test_a_threshold_above_all_scores_keeps_the_highest():
    scores = torch.tensor([0.5, 0.1, 0.5])
    for policy in (
        sb.policies.ThresholdPolicy(threshold=9),
        sb.policies.ThresholdPolicy(threshold=9, relative=False),
    ):
        assert policy.select(scores, torch.Generator()).positions.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": -0.1}, r"threshold must be a number >= 0, got -0\.1"),
        ({"threshold": math.nan}, "threshold must be a number >= 0, got nan"),
        ({"threshold": "high"}, "threshold must be a number >= 0, got 'high'"),
        ({"relative": "False"}, "relative must be true or false, got 'False'"),
        ({"average": 0}, "average must be a whole number of second differences >= 1, got 0"),
        ({"average": 1.5}, r"average must be a whole number of second differences >= 1, got 1\.5"),
        ({"max_age": 0}, "max_age must be at least 1 epoch, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        sb.methods.second_difference(**options)
