"""No batch of any rank holds an id twice, and what is due is trained on in time; on three ranks."""

import itertools

import pytest

from tests.distributed.launch import run
from tests.distributed.queue import BATCH, EPOCHS, METHODS, NUM_EXAMPLES

cases = [f"{name}, {scope}{data}" for name in METHODS for scope in ("global", "local") for data in ("", ", uneven")]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run("queue:job", tmp_path_factory.mktemp("queue"), 3)


@pytest.mark.parametrize("name", cases)
def test_no_id_twice_in_a_batch_and_no_epoch_without_one(ranks, name):
    results = [rank[name] for rank in ranks]
    for epochs in zip(*(result["batches"] for result in results), strict=True):
        counts = {len(batches) for batches in epochs}
        assert len(counts) == 1, "ranks stay in step"
        assert counts.pop() <= results[0]["len"], "len() is an upper bound"
        if not name.startswith(("SB", "top_k", "stale")):
            assert epochs[0], "a plan never leaves an epoch without a batch"
        for batches in zip(*epochs, strict=True):
            together = [i for ids in batches for i in ids]
            assert len(set(together)) == len(together), "nor on two ranks at once"
    waiting = [i for result in results for i in result["waiting"]]
    assert len(set(waiting)) == len(waiting)


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
        assert result["size"] == 24 // len(ranks) < BATCH
        assert all(len(batches) == 1 and len(batches[0]) == result["size"] for batches in result["batches"])
