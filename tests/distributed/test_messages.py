"""Messages of plain data, between threads that stand in for ranks."""

import pytest
import torch

from selective_backprop.distributed.messages import collect, gather, hand_out
from selective_backprop.distributed.ranks import Alone
from selective_backprop.testing import same
from tests.distributed.threads import run_threads


def test_a_process_alone_talks_to_itself():
    alone = Alone()
    assert gather(alone, {"a": 1}) == collect(alone, {"a": 1}) == [{"a": 1}]
    assert hand_out(alone, [{"a": 1}]) == {"a": 1}


@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_hears_the_values_of_all(size):
    values = [None, "ä" * 1000, {"of": [1, 2.5]}][:size]
    assert run_threads(size, lambda ranks: gather(ranks, values[ranks.rank])) == [values] * size


@pytest.mark.parametrize("size", [2, 3])
def test_states_come_to_rank_0_and_go_back(size):
    states = [{"rank": rank, "values": torch.arange(rank)} for rank in range(size)]

    def there_and_back(ranks):
        collected = collect(ranks, states[ranks.rank])
        return collected, hand_out(ranks, collected)

    results = run_threads(size, there_and_back)
    assert same([collected for collected, _ in results], [states, *[[]] * (size - 1)])
    assert same([own for _, own in results], states)
