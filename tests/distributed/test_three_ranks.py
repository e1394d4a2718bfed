"""No epoch of three ranks has an id twice, and what is due is trained on in time."""

import itertools

import pytest

from tests.distributed.launch import run
from tests.distributed.three_ranks import BATCH, EPOCHS, METHODS, NUM_EXAMPLES

cases = [f"{name}{data}" for name in METHODS for data in ("", ", uneven")]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run("three_ranks:job", tmp_path_factory.mktemp("ranks"), 3)


@pytest.mark.parametrize("name", cases)
def test_no_id_twice_in_an_epoch_and_no_epoch_without_a_batch(ranks, name):
    results = [rank[name] for rank in ranks]
    for epochs in zip(*(result["batches"] for result in results), strict=True):
        counts = {len(batches) for batches in epochs}
        assert len(counts) == 1, "ranks stay in step"
        assert counts.pop() <= results[0]["len"], "len() is an upper bound"
        assert epochs[0], "no epoch is without a batch"
        together = [i for batches in epochs for ids in batches for i in ids]
        assert len(set(together)) == len(together)
    assert sum(result["dropped"] for result in results) < len(ranks) * EPOCHS


@pytest.mark.parametrize("name", [name for name in cases if name.startswith("ledger")])
def test_max_age_is_exact(ranks, name):
    by_epoch = zip(*(rank[name]["batches"] for rank in ranks), strict=True)
    seen = [set(itertools.chain(*itertools.chain(*epochs))) for epochs in by_epoch]
    late = 0
    for i in range(NUM_EXAMPLES):
        epochs = [-1, *(epoch for epoch, ids in enumerate(seen) if i in ids), EPOCHS]
        late += max(after - before for before, after in itertools.pairwise(epochs)) > 3
    assert late == 0


@pytest.mark.parametrize("name", [name for name in cases if name.startswith(("unbiased", "infobatch"))])
def test_weights_stay_unbiased(ranks, name):
    """The mean weight of an example and epoch; its standard deviation is about 0.5 / sqrt(420 * 8)."""
    total = sum(rank[name]["weight"] for rank in ranks)
    assert total / (NUM_EXAMPLES * EPOCHS) == pytest.approx(1, abs=0.05)


def test_a_data_set_smaller_than_a_batch(ranks):
    for result in (rank["tiny"] for rank in ranks):
        assert all(len(batches) == 1 and 2 <= len(batches[0]) < BATCH for batches in result["batches"])
