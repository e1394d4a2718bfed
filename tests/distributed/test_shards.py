"""Two ranks whose data differ in amount, difficulty and shape."""

from collections import Counter

import pytest
import torch

from tests.distributed.launch import run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run("shards:job", tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize(
    "name", ["three times the data", "everything", "planned", "one batch", "interrupted", "skewed", "kath18"]
)
def test_ranks_stay_in_step(runs, name):
    first, second = (result[name] for result in runs)
    assert sum(map(len, first["sizes"])) > 2
    for sizes, others in zip(first["sizes"], second["sizes"], strict=True):
        assert len(sizes) == len(others)
        assert set(sizes[:-2] + others[:-2]) <= {16} and max(sizes) <= 16
        assert abs(sum(sizes) - sum(others)) <= len(sizes)
    assert torch.equal(first["parameters"], second["parameters"])


@pytest.mark.parametrize("name", ["three times the data", "one batch", "skewed"])
def test_a_rank_without_candidates_trains_on_with_those_of_others(runs, name):
    own = {"three times the data": range(150, 200), "one batch": range(187, 203), "skewed": range(100, 200)}[name]
    assert sum(i not in own for batch in runs[1][name]["batches"] for i in batch) > 16, "examples of rank 0"


def test_everything_is_trained_on_when_nothing_is_selected(runs):
    given = Counter(i for result in runs for batch in result["everything"]["batches"] for i in batch)
    assert given == Counter(dict.fromkeys(range(203), 2))


def test_examples_of_any_kind_move(runs):
    for result in (ranks["columns"] for ranks in runs):
        assert result["wrong"] == 0 and result["count"] > 20
    assert sum(ranks["columns"]["foreign"] for ranks in runs) > 0


def test_gradient_accumulation(runs):
    first, second = (result["accumulated"] for result in runs)
    assert first["steps"] == second["steps"] > 1
    assert torch.equal(first["parameters"], second["parameters"])


def test_iterable_data_sets_of_different_lengths(runs):
    first, second = (result["without ids"] for result in runs)
    assert len(first["sizes"]) == len(second["sizes"]) > 3 and first["sizes"].count(16) >= len(first["sizes"]) - 6


def test_kath18_starts_on_all_ranks_without_losses_of_training(runs):
    """Rank 0 says when candidates are scored to find out whether selection pays, and when it is on."""
    sizes = [result["kath18"]["sizes"] for result in runs]
    assert sum(map(sum, sizes[0])) + sum(map(sum, sizes[1])) < 0.9 * 4 * 203


def test_one_line_if_every_rank_goes_through_all_the_data(runs):
    assert [len(result["everything on both"]["messages"]) for result in runs] == [1, 0]
    assert "DistributedSampler(data)" in runs[0]["everything on both"]["messages"][0]
    assert all(result["everything on both"]["about shared data"] == 0 for result in runs)
