"""What check_policy and check_scorer find, and `same`, which all tests of "to the bit" rest on."""

import pytest
import torch
from torch import nn

import selective_backprop as sb
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.testing import same


class Uniform(sb.policies.Policy):
    """Keeps every candidate; what is wrong with its selection is up to subclasses."""

    def select(self, scores, generator):
        size = len(scores)
        return sb.types.Selection(torch.arange(size), torch.ones(size), torch.ones(size, dtype=torch.float64))


class Weighted(Uniform):
    def select(self, scores, generator):
        selection = super().select(scores, generator)
        return sb.types.Selection(selection.positions, 2 * selection.weights, selection.probabilities)


class Twice(Uniform):
    def select(self, scores, generator):
        positions = torch.arange(len(scores)).repeat_interleave(2)
        return sb.types.Selection(positions, torch.ones(len(positions)), torch.ones(len(scores), dtype=torch.float64))


class NoPolicy:
    def select(self, scores, generator):
        return Uniform().select(scores, generator)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Weighted, "weighting = "),
        (Twice, "with_replacement = True"),
        (NoPolicy, "subclass of sb.policies.Policy"),
    ],
)
def test_what_a_policy_does_not_declare_is_found(policy, message):
    with pytest.raises(AssertionError, match=message):
        sb.testing.check_policy(policy)


@pytest.mark.parametrize("policy", [Uniform, Weighted, Twice])
def test_what_a_policy_declares_is_fine(policy):
    class Declared(policy):
        weighting, with_replacement = "biased", True

    sb.testing.check_policy(Declared)


class NoScorer:
    def score(self, candidates, task):
        return torch.zeros(candidates.size)


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (NoScorer, "subclass of sb.scorers.Scorer"),
        (sb.scorers.ForwardScorer, None),
    ],
)
def test_what_a_scorer_does_not_declare_is_found(scorer, message):
    data = torch.randn(8, 4), torch.randint(2, (8,))
    task = sb.types.Task(nn.Linear(4, 2), default_forward, PerExampleLoss(nn.CrossEntropyLoss()))
    candidates = sb.types.Candidates(data, None, 8)
    if message is None:
        return sb.testing.check_scorer(scorer(), candidates, task)
    with pytest.raises(AssertionError, match=message):
        sb.testing.check_scorer(scorer(), candidates, task)


def test_a_scorer_that_overrides_nothing_says_so():
    scorer = sb.scorers.Scorer()
    with pytest.raises(RuntimeError, match="Scorer does not score loaded candidates"):
        scorer.score(sb.types.Candidates(None, None, 0), None)
    with pytest.raises(RuntimeError, match="Scorer knows no scores of candidates that are not loaded"):
        scorer.recall(torch.arange(2), None, 0)
    with pytest.raises(
        TypeError,
        match="eval, train",
    ):
        sb.kath18(score="gradient_norm", scoring=scorer)


NAN = float("nan")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), True),
        (torch.tensor([0.0]), torch.tensor([NAN]), False),
        (torch.tensor([float("inf")]), torch.tensor([torch.finfo(torch.float32).max]), False),
        (torch.tensor([1.0]), torch.tensor([1.0]).double(), False),
        (torch.tensor(3), torch.tensor(3), True),
        (torch.tensor([True, False]), torch.tensor([True, False]), True),
        (torch.ones(2, 3).T, torch.ones(3, 2), True),
        ({"a": [NAN, None, "x"]}, {"a": [NAN, None, "x"]}, True),
        ({"a": NAN}, {"a": 0.0}, False),
        ([None], [0], False),
    ],
)
def test_equal_to_the_bit(a, b, expected):
    assert same(a, b) == expected
