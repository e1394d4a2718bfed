"""Two and three ranks with any data: they stay in step, and together do what one process would."""

from collections import Counter

import pytest

from selective_backprop.testing import same
from tests.distributed.launch import run
from tests.distributed.ranks import (
    DIFFERENT,
    METHODS,
    MOVED,
    PLANNED,
    SCORED,
    WRONG,
    configuration,
    like_one_process,
)


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    return run("ranks:job", tmp_path_factory.mktemp("ranks"), request.param)


def ids(batches_by_rank):
    return Counter(i for batches in batches_by_rank for batch in batches for i in batch)


# An epoch of Stale-SB that is scored takes candidates in another order than the one that it plans.
@pytest.mark.parametrize("name", [name for name in METHODS if name != "stale"])
def test_they_train_on_what_one_process_would(ranks, name):
    """In each epoch, but for what ranks cannot share evenly."""
    alone, equal = like_one_process(name, 0, 1), 0
    for expected, *by_rank in zip(alone, *(rank["like one process"][name] for rank in ranks), strict=True):
        expected, together = ids([expected]), ids(by_rank)
        assert together <= expected and expected.total() - together.total() < len(ranks)
        assert len({len(batches) for batches in by_rank}) == 1
        equal += together == expected
        if together != expected and name in PLANNED:
            break  # an example was left out, and its loss is an older one when the next epoch is planned
    assert equal
    assert name in ("traditional", "ledger") or sum(map(len, sum(alone, []))) < 4 * 120  # noqa: RUF017


def test_any_sizes_of_data_batches_and_selections(ranks):
    """Equally many batches, full but for the last two; nothing lost or repeated; a resume is exact."""
    for seed, results in enumerate(zip(*(rank["drawn"] for rank in ranks), strict=True)):
        one = configuration(seed, len(ranks))
        for by_rank in zip(*(result["given"] for result in results), strict=True):
            check_an_epoch(by_rank, one)
        given = ids([batch for result in results for epoch in result["given"] for batch in [epoch]])
        for result in results:
            assert result["resumes exactly"] and result["queued"] == 0, one
            assert same(result["ledger"], results[0]["ledger"]), one
        ledger = results[0]["ledger"]
        count = sum(one["shards"])
        assert ledger["offered"].tolist() == [one["epochs"]] * count, one
        assert ledger["selected"].tolist() == [given[i] for i in range(count)], one
        assert (ledger["loss_epoch"] >= 0).tolist() == [given[i] > 0 for i in range(count)], one
        if one["name"] == "traditional":
            assert one["epochs"] * count - given.total() < one["epochs"] * len(ranks), one


def check_an_epoch(by_rank, one):
    sizes = [[len(batch) for batch in batches] for batches in by_rank]
    assert len({len(mine) for mine in sizes}) == 1, one
    given = ids(by_rank)
    assert one["name"] == "kath18" or max(given.values(), default=1) == 1, one
    if one["batch_size"] is None and given.total() == sum(one["shards"]):
        return  # an epoch that keeps everything may pass the user's own batches
    size = one["batch_size"] or one["candidates"]
    for mine in sizes:
        assert set(mine[:-2]) <= {size} and all(0 < count <= size for count in mine[-2:]), one
        assert len(mine) == 1 or min(mine, default=size) >= size // 2, one
    assert all(max(counts) - min(counts) <= 1 for counts in zip(*sizes, strict=True)), one


@pytest.mark.parametrize("name", MOVED)
def test_11_what_is_known_follows_examples_to_other_ranks_and_never_goes_back(ranks, name):
    """Every rank knows the loss of each example of the last epoch in which any rank trained on it."""
    results = [rank["moved"][name] for rank in ranks]
    last = [-1] * 30 * len(ranks)
    for epoch in range(4):
        for i in ids([result["given"][epoch] for result in results]):
            last[i] = epoch
        assert all(result["known"][epoch].tolist() == last for result in results)
    if name in PLANNED:
        assert all(result["scored"][1] == result["scored"][0] for result in results), "known, though another's"


@pytest.mark.parametrize("name", MOVED)
def test_statistics_are_those_of_the_team(ranks, name):
    results = [rank["moved"][name] for rank in ranks]
    given = sum(ids(result["given"][epoch] for result in results).total() for epoch in range(4))
    for result in results:
        offered, _, trained, skipped = result["counts"]
        assert result["counts"] == results[0]["counts"]
        assert offered == 4 * 30 * len(ranks) and trained == given and skipped <= offered - trained


@pytest.mark.parametrize("said", DIFFERENT)
def test_7_ranks_that_differ_in_an_option_are_refused_at_the_start(ranks, said):
    errors = {rank["refused"][said] for rank in ranks}
    assert len(errors) == 1
    assert said in errors.pop()


@pytest.mark.parametrize("said", WRONG)
def test_7_an_error_of_one_rank_at_the_start_is_raised_on_all(ranks, said):
    errors = [rank["wrong on rank 1"][said] for rank in ranks]
    assert all(said in error for error in errors)
    assert all("rank 1" in error for rank, error in enumerate(errors) if rank != 1)


def test_7_an_error_of_one_rank_in_planning_is_raised_on_all(ranks):
    errors = [rank["index 20 on rank 1"] for rank in ranks]
    assert all("20" in error for error in errors) and "rank 1" in errors[0]


def test_7_a_loss_that_is_not_finite_is_named_on_all_ranks(ranks):
    assert all("[21]" in rank["not finite"] for rank in ranks)


@pytest.mark.parametrize("name", ["selective_backprop", "kath18", "random"])
def test_a_rank_whose_examples_are_all_pruned_takes_part_without_any(ranks, name):
    epochs = [rank["pruned"][name] for rank in ranks]
    counts = [[len(batches) for batches in mine] for mine in epochs]
    assert all(mine == counts[0] for mine in counts) and sum(counts[1]) > 5
    assert not set(range(20, 40)) & set(ids([batches for mine in epochs for batches in mine]))


def test_every_method_is_scored_or_planned():
    assert set(METHODS) == {"traditional", *SCORED, *PLANNED}
