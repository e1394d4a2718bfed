"""Two ranks whose data differ in amount, difficulty and shape."""

from collections import Counter

import pytest
import torch

from tests.distributed.launch import run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run("shards:job", tmp_path_factory.mktemp("shards"))


UNEVEN = ["three times the data", "three times the data, local", "three times the data, planned", "one batch"]


@pytest.mark.parametrize(
    "name", [*UNEVEN, "three times the data, everything", "interrupted", "skewed", "guard", "kath18"]
)
def test_ranks_stay_in_step_and_lose_nothing(runs, name):
    ranks = [result[name] for result in runs]
    assert ranks[0]["sizes"] == ranks[1]["sizes"] and sum(map(len, ranks[0]["sizes"])) > 2
    for sizes in ranks[0]["sizes"][:-1]:
        plain = sum(sizes) > 99  # of 100 to 102 on each rank: such an epoch ends with a smaller batch
        assert set(sizes[:-1] if plain else sizes) <= {16}
    assert set(ranks[0]["sizes"][-1][:-1]) == {16}
    assert torch.equal(ranks[0]["parameters"], ranks[1]["parameters"])
    given = Counter(i for result in ranks for batch in result["batches"] for i in batch)
    queued = Counter(i for result in ranks for i in result["queued"])
    assert given + queued == Counter(i for result in ranks for ids in result["selected"] for i in ids)
    assert queued.total() < 4 and [len(result["queued"]) for result in ranks] == [
        result["stats"]["queued"] for result in ranks
    ]


@pytest.mark.parametrize("name", ["three times the data", "one batch"])
def test_a_rank_without_candidates_trains_on_with_those_of_others(runs, name):
    ranks = [result[name] for result in runs]
    assert ranks[0]["moved"] == ranks[1]["moved"] > 0
    assert ranks[0]["stats"]["offered"] > 2 * ranks[1]["stats"]["offered"]
    skipped = ranks[0]["stats"]["skipped_before_loading"]  # what waited when the second epoch began
    assert ranks[0]["stats"]["scored"] == ranks[0]["stats"]["offered"] - skipped
    assert skipped < 2 * 16
    assert ranks[0]["stats"]["trained"] == ranks[1]["stats"]["trained"]


def test_everything_is_trained_on_when_nothing_is_selected(runs):
    ranks = [result["three times the data, everything"] for result in runs]
    given = Counter(i for result in ranks for batch in result["batches"] for i in batch)
    # The one that does not divide by two ranks waits, and is the next epoch's first.
    assert given.total() == 2 * (203 - 1) and set(given) == set(range(203)) and max(given.values()) == 2


def test_local_scope_keeps_each_ranks_share(runs):
    for result in (ranks["three times the data, local"] for ranks in runs):
        share = sum(map(len, result["selected"])) / result["stats"]["offered"]
        assert 0.3 < share < 0.7


def test_queues_of_skewed_shards_are_evened_out(runs):
    hard, easy = (result["skewed"] for result in runs)
    assert hard["share"] > 2 * easy["share"], "what is selected is on rank 0"
    assert hard["moved"] == easy["moved"] > 0
    assert max(hard["longest"], easy["longest"]) <= 3 * 16
    assert hard["stats"]["trained"] == easy["stats"]["trained"]


def test_examples_of_any_kind_move(runs):
    for result in (ranks["columns"] for ranks in runs):
        assert result["wrong"] == 0 and result["count"] > 20
        assert result["moved"] > 0
    assert runs[0]["columns"]["foreign"] + runs[1]["columns"]["foreign"] == runs[0]["columns"]["moved"]


def test_gradient_accumulation(runs):
    first, second = (result["accumulated"] for result in runs)
    assert first["steps"] == second["steps"] > 1 and first["trained"] == second["trained"]
    assert torch.equal(first["parameters"], second["parameters"])


def test_iterable_data_sets_of_different_lengths(runs):
    first, second = (result["without ids"] for result in runs)
    assert first["sizes"] == second["sizes"] and set(first["sizes"][:-1]) == {16}
    assert (first["offered"], second["offered"]) == (120, 270)
    assert first["queued"] + second["queued"] < 4


def test_workers_change_nothing(runs):
    assert all(result["workers"]["same"] and result["workers"]["batches"] > 2 for result in runs)


def test_rank_0_says_when_selection_is_on(runs):
    """By the clock or by losses, on which ranks would not agree."""
    assert [result["guard"]["settled on"] for result in runs] == [False, True]
    for name in ("guard", "kath18"):
        # In the same rounds. What waits in the queues when an epoch begins is not scored again, on either rank.
        scored = [result[name]["stats"]["scored"] for result in runs]
        skipped = [result[name]["stats"]["skipped_before_loading"] for result in runs]
        assert min(scored) > 0 and abs(scored[0] - scored[1]) <= sum(skipped)


def test_kath18_starts_on_all_ranks_without_losses_of_training(runs):
    """Rank 0 says when candidates are scored to find out whether selection pays, and when it is on."""
    first, second = (result["kath18 without losses"] for result in runs)
    assert first["by epoch"][0] == 16 and second["by epoch"][0] == 16  # 10 batches on rank 0: the first
    assert first["by epoch"][1] > 16  # and then one in 11
    assert first["tau"] > 1.001
    trained, scored, offered = (
        sum(result["stats"][name] for result in (first, second)) for name in ("trained", "scored", "offered")
    )
    assert trained < 0.9 * offered and scored < offered


def test_one_line_if_every_rank_goes_through_all_the_data(runs):
    assert [len(result["everything on both"]["messages"]) for result in runs] == [1, 0]
    assert "DistributedSampler(data)" in runs[0]["everything on both"]["messages"][0]
    assert all(result["everything on both"]["about shared data"] == 0 for result in runs)


def test_7_a_loss_that_is_not_finite(runs):
    """The rank that has it names the example, the other names the rank."""
    first, second = (result["not finite"] for result in runs)
    assert "rank 1 has scores that are not finite: see its own error" in first[0]
    assert "rank 1 could not select from its candidates: see its own error" in first[1]
    assert all("21" in message and "nan" in message for message in second)


def test_5_a_state_of_another_rank_is_refused(runs):
    for rank, result in enumerate(runs):
        other_rank, one_process = result["state of another rank"]
        assert f"saved by rank {1 - rank} of 2, but this is rank {rank} of 2" in other_rank
        assert f"saved by rank 0 of 1, but this is rank {rank} of 2" in one_process and "save_checkpoint" in one_process


def test_7_ranks_with_other_versions_of_the_library(runs):
    for rank in runs:
        assert rank["other versions"] == (
            "all ranks need the same version of selective_backprop; rank 0 has 7.0, rank 1 has 7.1"
        )
