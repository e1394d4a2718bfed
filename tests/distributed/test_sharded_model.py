"""FSDP2 on two ranks."""

import pytest
import torch

from tests.distributed.launch import run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run("sharded_model:job", tmp_path_factory.mktemp("fsdp"))


def test_2_selectivity_1_is_plain_fsdp(runs):
    assert all(ranks["same batches as plain"] and ranks["same parameters as plain"] for ranks in runs)


@pytest.mark.parametrize("name", ["half", "uneven", "pruned", "planned", "warm-up"])
def test_ranks_stay_in_step(runs, name):
    first, second = (ranks[name] for ranks in runs)
    assert [len(sizes) for sizes in first["sizes"]] == [len(sizes) for sizes in second["sizes"]]
    assert len(first["batches"]) > 3
    assert torch.equal(first["parameters"], second["parameters"])


def test_a_rank_without_candidates_attends(runs):
    first, second = (ranks["uneven"] for ranks in runs)
    assert first["steps left"] == second["steps left"] > 2
    assert first["steps after resume"] == second["steps after resume"] > 2


def test_a_rank_whose_examples_are_all_pruned_trains_on_what_others_select(runs):
    first, second = (ranks["pruned"] for ranks in runs)
    assert all(0 <= i < 160 for ranks in (first, second) for batch in ranks["batches"] for i in batch)
    assert second["batches"]


def test_1_scoring_leaves_no_trace(runs):
    assert all(ranks["no trace"] for ranks in runs)


def test_what_cannot_work_is_refused(runs):
    assert all("FSDP" in ranks["refused"] for ranks in runs)
