"""The promises on two ranks with DDP, for a method of each kind; one pair of processes runs all of them."""

from collections import Counter

import pytest
import torch

from tests.contracts.methods import KINDS
from tests.distributed.launch import run
from tests.distributed.runs import BATCH, EPOCHS


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run("every_kind:job", tmp_path_factory.mktemp("ranks"))


every_kind = pytest.mark.parametrize("name", KINDS)


@every_kind
def test_2_selectivity_1_is_plain_ddp(runs, name):
    for ranks in runs:
        assert ranks[name]["same batches as plain"]
        assert ranks[name]["same parameters as plain"]


@every_kind
def test_6_ranks_stay_in_step_with_full_batches_and_share_the_data(runs, name):
    first, second = (ranks[name] for ranks in runs)
    for sizes, others in zip(first["sizes"], second["sizes"], strict=True):
        assert len(sizes) == len(others) > 0
        assert set(sizes[:-2] + others[:-2]) <= {BATCH} and max(sizes) <= BATCH
        assert all(abs(one - other) <= 1 for one, other in zip(sizes, others, strict=True))
        assert len(sizes) == 1 or sum(sizes) > 100 or min(sizes) >= BATCH // 2  # 102 are the user's own batches
    assert torch.equal(first["parameters"], second["parameters"])
    given = Counter(i for ranks in (first, second) for batch in ranks["batches"] for i in batch)
    assert given.total() < EPOCHS * 203
    # kath18 draws with replacement. The sampler offers one of the 203 examples twice, so that both ranks have 102.
    assert name == "kath18" or sum(max(0, count - EPOCHS) for count in given.values()) <= EPOCHS


@every_kind
def test_5_resume_equals_never_having_stopped(runs, name):
    for result in (ranks[name] for ranks in runs):
        assert len(result["resumed"]) == 2
        for step, resumed in result["resumed"].items():
            assert resumed["batches"] == result["batches"][step:]
            assert resumed["weights"] == result["weights"][step:]
            assert torch.equal(resumed["parameters"], result["parameters"])
