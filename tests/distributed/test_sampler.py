"""Ranks divide the sampler's plan: equally many ids on each, none twice, and the plan is that of a single process."""

import pytest
import torch

from selective_backprop.testing import same
from tests.distributed.launch import run
from tests.distributed.sampler import METHODS, epochs_of
from tests.sampler.runs import SIZE, load, make


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    return run("sampler:job", tmp_path_factory.mktemp("sampler"), request.param)


@pytest.mark.parametrize("name", METHODS)
def test_equally_many_ids_and_none_twice(ranks, name):
    alone = epochs_of(METHODS[name]())
    for epoch, parts in enumerate(zip(*(rank["epochs"][name] for rank in ranks), strict=True)):
        together = [i for part in parts for i in part]
        assert len({len(part) for part in parts}) == 1
        assert len(together) == len(set(together))
        if name == "ledger" and epoch < 2:  # up to the ids that do not divide evenly
            assert len(set(alone[epoch]) - set(together)) <= len(ranks) + epoch * len(ranks) ** 2


def test_your_own_sampler_divides_and_the_ledger_is_shared(ranks):
    first, *others = (rank["own"] for rank in ranks)
    assert bool((first["loss_epoch"] >= 0).all())
    for other in others:
        assert torch.equal(first["loss_epoch"], other["loss_epoch"])
        assert torch.equal(first["probabilities"], other["probabilities"])


def test_5_saved_by_each_rank_and_resumed(ranks):
    assert all(rank["resumed"]["whole"] == rank["resumed"]["again"] for rank in ranks)
    assert all(len(rank["resumed"]["whole"]) > 3 for rank in ranks)


def test_rank_0_s_state_will_do_for_another_number_of_ranks(ranks):
    """In mid-epoch what is left is divided anew, here among one; between epochs all losses are there."""
    found = [rank["another number"] for rank in ranks]
    in_epoch, between = found[0]["states"]
    alone = make(batch_size=16)
    alone.load_state_dict(in_epoch)
    left = [i for ids in load(alone) for i in ids.tolist()]
    trained = [i for rank in found for i in rank["trained"]]
    assert len(trained) + len(left) == len({*trained, *left}) >= SIZE - len(ranks)
    alone.load_state_dict(between)
    assert alone.epoch == 2 and same(alone.ledger.state_dict(), found[-1]["ledger"])


def test_7_ranks_that_disagree(ranks):
    assert all("seed" in rank["disagree"] for rank in ranks)


def test_with_ddp_the_models_and_the_numbers_of_batches_are_the_same(ranks):
    first, *others = (rank["ddp"] for rank in ranks)
    assert first["skips"]
    for other in others:
        assert torch.equal(first["parameters"], other["parameters"]) and first["steps"] == other["steps"]
