"""How well scores agree: slow references, limits and bad input."""

import math

import pytest
import torch

from selective_backprop.functional import spearman
from selective_backprop_lab.study.agreement import overlap

NAN = float("nan")


def reference_rank_correlation(a, b):
    def ranks(values):
        return [sum(w < v for w in values) + (1 + sum(w == v for w in values)) / 2 for v in values]

    ranks_a, ranks_b = ranks(a), ranks(b)
    middle = (len(a) + 1) / 2
    products = sum((x - middle) * (y - middle) for x, y in zip(ranks_a, ranks_b, strict=True))
    return products / math.sqrt(sum((x - middle) ** 2 for x in ranks_a) * sum((y - middle) ** 2 for y in ranks_b))


def test_rank_correlation_of_the_same_and_of_the_opposite():
    scores = torch.rand(50)
    assert spearman(scores, scores.exp()) == pytest.approx(1)
    assert spearman(scores, -scores) == pytest.approx(-1)
    assert abs(spearman(torch.rand(4000), torch.rand(4000))) < 5 / math.sqrt(4000)


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlation_is_the_reference(seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(10, (40,), generator=generator) / 10 for _ in range(2))
    wanted = reference_rank_correlation(a.tolist(), b.tolist())
    assert spearman(a, b) == pytest.approx(wanted)
    assert spearman(b, a) == pytest.approx(wanted)


def test_overlap_of_the_same_of_the_opposite_and_of_everything():
    scores = torch.rand(50)
    assert overlap(scores, scores * 2, 0.3) == 1
    assert overlap(scores, -scores, 0.5) == 0
    assert overlap(scores, -scores, 1) == 1
    assert overlap(torch.zeros(50), torch.ones(50), 0.1) == 1, "ties go by id"


@pytest.mark.parametrize("fraction", [0.1, 0.35, 0.8])
def test_overlap_is_the_reference_over_common_ids(fraction):
    a, b = torch.randint(10, (60,)) / 10, torch.randint(10, (60,)) / 10
    a[:3], b[2:7] = NAN, NAN
    ids = range(7, 60)
    size = round(fraction * 53)
    lowest_a = sorted(ids, key=lambda i: (float(a[i]), i))[:size]
    lowest_b = sorted(ids, key=lambda i: (float(b[i]), i))[:size]
    assert overlap(a, b, fraction) == len(set(lowest_a) & set(lowest_b)) / size


def test_counts_can_be_compared_with_scores():
    counts, scores = torch.tensor([3, 1, 2, 5]), torch.tensor([0.3, 0.1, 0.2, 0.5])
    assert overlap(counts, scores, 0.5) == 1


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        (lambda: overlap(torch.rand(3), torch.rand(4), 0.5), "scores of the same examples.* got 3 and 4"),
        (lambda: overlap(torch.rand(3), torch.rand(3), 0), r"fraction must be in \(0, 1\], got 0"),
        (lambda: overlap(torch.rand(3), torch.rand(3), 1.1), r"fraction must be in \(0, 1\], got 1.1"),
        (lambda: overlap(torch.rand(3), torch.rand(3), 0.1), "the lowest 0.1 of 3 common ids is not even one id"),
    ],
)
def test_what_cannot_be_compared(compare, message):
    with pytest.raises(ValueError, match=message):
        compare()
