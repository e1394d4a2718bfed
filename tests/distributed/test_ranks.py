"""Two and three ranks with any data: they stay in step, and together do what one process would."""

from collections import Counter

import pytest

import selective_backprop as sb
from selective_backprop.testing import same
from tests.distributed.launch import run
from tests.distributed.numbers import cut, go_through, make
from tests.distributed.ranks import DIFFERENT, METHODS, PLANNED, SCORED, WRONG, configuration, like_one_process


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


@pytest.mark.parametrize("name", ["stale", "ledger, percentile"])
def test_what_is_known_follows_examples_to_other_ranks(ranks, name):
    results = [rank["moved"][name] for rank in ranks]
    assert all(result["scored"] == 0 for result in results)
    assert sum(result["skipped"] for result in results) > 15


def test_the_ledger_never_goes_back_to_an_older_epoch(ranks):
    """Examples move between ranks from epoch to epoch, and the newest loss is the one that counts."""
    last = {}
    for epoch, by_rank in enumerate(zip(*(rank["newest"] for rank in ranks), strict=True)):
        last |= {i: epoch for given, _ in by_rank for batch in given for i in batch}
        for _, loss_epoch in by_rank:
            assert loss_epoch.tolist() == [last.get(i, -1) for i in range(len(loss_epoch))]


def test_a_planned_epoch_goes_on_with_another_number_of_ranks(ranks):
    results = [rank["stopped"]["random"] for rank in ranks]
    count = 24 * len(ranks)
    model, loader = make(sb.random_backprop(0.5), count, cut(range(count), 4), epochs=1, batch_size=2)
    loader.load_state_dict(results[0]["state"])
    rest = go_through(model, loader, 1)
    assert ids([*rest, *(result["given"][:2] for result in results)]) == ids([result["given"] for result in results])


def test_a_scored_epoch_does_not_and_says_so(ranks):
    count = 24 * len(ranks)
    _, loader = make(sb.top_k(0.5), count, cut(range(count), 4), epochs=1, batch_size=2)
    with pytest.raises(ValueError, match="change the number of ranks between epochs"):
        loader.load_state_dict(ranks[0]["stopped"]["top_k"]["state"])


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
