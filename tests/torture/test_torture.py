"""A few of the kills of `make torture`."""

import functools

import pytest

from tests.torture.kills import kill_at_instant, kill_at_operation, kill_while_writing, survive

FEW = {
    # Three ways, one after the other, on one run; the numbers are those of operations within an epoch's save.
    "sb": [
        functools.partial(kill_while_writing, name="checkpoint.pt", written=30_000),
        functools.partial(kill_at_instant, epochs=1, seconds=0.02),
        functools.partial(kill_at_operation, number=28),
    ],
    "sb, pipelined": [functools.partial(kill_at_operation, number=29)],
}


@pytest.mark.parametrize("method", FEW)
def test_killed_runs_end_as_if_nothing_had_happened(method, tmp_path):
    assert survive(method, tmp_path, FEW[method]) == len(FEW[method])
