"""Messages of plain data, between threads that stand in for ranks."""

import pytest

from selective_backprop.distributed.ranks import Alone
from tests.distributed.threads import run_threads


def test_a_process_alone_talks_to_itself():
    assert Alone().gather_plain({"a": 1}) == [{"a": 1}]


@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_hears_the_values_of_all(size):
    values = [None, "ä" * 1000, {"of": [1, 2.5]}][:size]
    assert run_threads(size, lambda ranks: ranks.gather_plain(values[ranks.rank])) == [values] * size
