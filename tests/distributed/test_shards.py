"""Two ranks whose data differ in amount, difficulty and shape."""

from collections import Counter

import pytest
import torch

from tests.distributed.launch import run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run("shards:job", tmp_path_factory.mktemp("shards"))


SCORED = ["three times the data", "one batch", "interrupted", "skewed", "kath18"]
PLANNED = ["three times the data, planned", "three times the data, everything"]


@pytest.mark.parametrize("name", [*SCORED, *PLANNED])
def test_ranks_stay_in_step_and_lose_nothing(runs, name):
    ranks = [result[name] for result in runs]
    assert sum(map(len, ranks[0]["sizes"])) > 2
    for sizes, others in zip(*(result["sizes"] for result in ranks), strict=True):
        assert len(sizes) == len(others)
        assert set(sizes[:-2] + others[:-2]) <= {16} and max(sizes) <= 16
    assert torch.equal(ranks[0]["parameters"], ranks[1]["parameters"])
    assert all(result["stats"]["dropped"] == 0 for result in ranks)
    given = Counter(i for result in ranks for batch in result["batches"] for i in batch)
    if name in SCORED:
        assert given == Counter(i for result in ranks for ids in result["selected"] for i in ids)
    assert given.total() == sum(result["stats"]["trained"] for result in ranks)


@pytest.mark.parametrize("name", ["three times the data", "one batch"])
def test_a_rank_without_candidates_trains_on_with_those_of_others(runs, name):
    ranks = [result[name] for result in runs]
    assert ranks[0]["stats"]["offered"] > 2 * ranks[1]["stats"]["offered"]
    assert all(result["stats"]["scored"] == result["stats"]["offered"] for result in ranks)
    own = {i for ids in ranks[1]["selected"] for i in ids}
    assert sum(i not in own for batch in ranks[1]["batches"] for i in batch) > 16, "examples of rank 0"
    assert abs(ranks[0]["stats"]["trained"] - ranks[1]["stats"]["trained"]) <= len(ranks[0]["sizes"])


def test_everything_is_trained_on_when_nothing_is_selected(runs):
    ranks = [result["three times the data, everything"] for result in runs]
    given = Counter(i for result in ranks for batch in result["batches"] for i in batch)
    assert given == Counter(dict.fromkeys(range(203), 2))


def test_queues_of_skewed_shards_are_evened_out(runs):
    hard, easy = (result["skewed"] for result in runs)
    assert hard["share"] > 2 * easy["share"], "what is selected is on rank 0"
    assert max(hard["longest"], easy["longest"]) <= 3 * 16
    assert abs(hard["stats"]["trained"] - easy["stats"]["trained"]) <= len(hard["sizes"])


def test_examples_of_any_kind_move(runs):
    for result in (ranks["columns"] for ranks in runs):
        assert result["wrong"] == 0 and result["count"] > 20
    assert sum(ranks["columns"]["foreign"] for ranks in runs) > 0


def test_gradient_accumulation(runs):
    first, second = (result["accumulated"] for result in runs)
    assert first["steps"] == second["steps"] > 1 and first["trained"] == second["trained"]
    assert torch.equal(first["parameters"], second["parameters"])


def test_iterable_data_sets_of_different_lengths(runs):
    first, second = (result["without ids"] for result in runs)
    assert len(first["sizes"]) == len(second["sizes"]) > 3 and first["sizes"].count(16) >= len(first["sizes"]) - 6
    assert (first["offered"], second["offered"]) == (120, 270)


def test_workers_change_nothing(runs):
    assert all(result["workers"]["same"] and result["workers"]["batches"] > 2 for result in runs)


def test_rank_0_says_when_selection_is_on(runs):
    """It goes by losses, on which ranks would not agree."""
    scored = [result["kath18"]["stats"]["scored"] for result in runs]
    assert scored[0] == scored[1] > 0, "in the same rounds"


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
    assert "rank 1 has scores that are not finite: see its own error" in first
    assert "21" in second and "nan" in second


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
