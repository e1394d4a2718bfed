"""The promises on two ranks with DDP, for every method; one pair of processes runs all of them."""

from collections import Counter

import pytest
import torch

from tests.contracts.methods import METHODS
from tests.distributed.every_method import epochs_of
from tests.distributed.launch import run
from tests.distributed.runs import BATCH


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run("every_method:job", tmp_path_factory.mktemp("ranks"))


every_method = pytest.mark.parametrize("name", METHODS)


@every_method
def test_2_selectivity_1_is_plain_ddp(runs, name):
    for ranks in runs:
        assert ranks[name]["same batches as plain"]
        assert ranks[name]["same parameters as plain"]


@every_method
def test_ranks_stay_in_step(runs, name):
    """As many batches, all of the asked size but the last of the run or of an epoch of plain training."""
    first, second = (ranks[name] for ranks in runs)
    assert first["sizes"] == second["sizes"]
    full = BATCH if name != "expected_selective_backprop" else round(BATCH / 0.4)  # that much larger
    for sizes in first["sizes"]:
        may_end_smaller = sizes is first["sizes"][-1] or sum(sizes) == 102
        assert sizes and set(sizes[:-1] if may_end_smaller else sizes) <= {full} and sizes[-1] <= full
    assert torch.equal(first["parameters"], second["parameters"])


@every_method
def test_6_nothing_is_lost_or_repeated(runs, name):
    ranks = [result[name] for result in runs]
    together = {key: Counter(i for result in ranks for i in result[key]) for key in ("selected", "queued")}
    given = Counter(i for result in ranks for batch in result["batches"] for i in batch)
    assert given + together["queued"] == together["selected"]
    assert ranks[0]["lengths"] == ranks[1]["lengths"] == [len(result["queued"]) for result in ranks]
    # Two do not divide by two, and a single one on each rank would be too few for BatchNorm.
    assert together["queued"].total() < 2 * len(ranks)
    assert sum(result["trained"] for result in ranks) == given.total()


@every_method
def test_5_resume_equals_never_having_stopped(runs, name):
    for result in (ranks[name] for ranks in runs):
        assert len(result["resumed"]) == 2
        for step, resumed in result["resumed"].items():
            assert resumed["batches"] == result["batches"][step:]
            assert resumed["weights"] == result["weights"][step:]
            assert torch.equal(resumed["parameters"], result["parameters"])


@every_method
def test_the_two_ranks_share_the_data(runs, name):
    """Each is offered its half, and a method that leaves out half of it trains on about as much."""
    epochs = epochs_of(name)
    kept = 152 if name.startswith("diet") else 203  # a quarter is pruned
    for result in (ranks[name] for ranks in runs):
        assert abs(result["offered"] - epochs * kept / 2) <= epochs * 8  # which ids are pruned differs by rank
    if name not in ("traditional", "expected_selective_backprop"):
        assert sum(ranks[name]["trained"] for ranks in runs) < epochs * kept
