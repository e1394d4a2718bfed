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
    """Equally many batches, all of the asked size but the last two of an epoch."""
    first, second = (ranks[name] for ranks in runs)
    full = BATCH if name != "expected_selective_backprop" else round(BATCH / 0.4)  # that much larger
    for sizes, others in zip(first["sizes"], second["sizes"], strict=True):
        assert len(sizes) == len(others) > 0
        assert set(sizes[:-2] + others[:-2]) <= {full} and max(sizes) <= full
        assert all(abs(one - other) <= 1 for one, other in zip(sizes, others, strict=True))
        assert len(sizes) == 1 or sum(sizes) > 100 or min(sizes) >= full // 2  # 102 are the user's own batches
    assert torch.equal(first["parameters"], second["parameters"])


@every_method
def test_6_nothing_is_lost_or_repeated(runs, name):
    ranks = [result[name] for result in runs]
    given = Counter(i for result in ranks for batch in result["batches"] for i in batch)
    queued = Counter(i for result in ranks for i in result["selected"])  # in scored epochs
    assert queued <= given and sum(result["dropped"] for result in ranks) == 0
    assert sum(result["trained"] for result in ranks) == given.total()
    if not name.startswith(("kath18", "expected_selective_backprop")):  # these draw with replacement
        # The sampler offers one of the 203 examples twice, so that both ranks have 102.
        assert sum(max(0, count - epochs_of(name)) for count in given.values()) <= epochs_of(name)


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
