"""The faults of `make torture`: most kinds, and few of the kills."""

import functools
import sys

import pytest

from tests.torture import __main__ as torture
from tests.torture.__main__ import try_out
from tests.torture.faults import OTHERS, Fault, killed_runs, random_layouts
from tests.torture.files import NotHere
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


@pytest.mark.parametrize("fault", [fault for fault in OTHERS if fault.quick], ids=lambda fault: fault.name)
def test_other_faults(fault, tmp_path):
    try:
        assert fault.happen(tmp_path) != 0, "it never happened"
    except NotHere as reason:
        pytest.skip(str(reason))


def test_what_is_not_survived_is_told():
    def fail(scratch):
        raise AssertionError("weights differ")

    assert "weights differ" in try_out(Fault("one", 1, fail))[1]
    assert try_out(Fault("none", 3, lambda scratch: 0))[1] == "it never happened"
    assert try_out(Fault("three", 3, lambda scratch: 3)) == (3, "", "")
    for in_all in (50, 7):
        assert sum(fault.times for fault in killed_runs(in_all)) == in_all
        assert sum(fault.times for fault in random_layouts(in_all)) == in_all
    assert len({(fault.name, fault.part) for fault in killed_runs(300)}) == len(killed_runs(300))


def test_a_stopped_run_goes_on(tmp_path, monkeypatch, capsys):
    """What was survived is not tried again; what was not is."""
    tried = []

    def happen(name, scratch):
        tried.append(name)
        if name == "second" and tried.count(name) == 1:
            raise AssertionError("not survived")
        return 2

    faults = [Fault(name, 2, functools.partial(happen, name)) for name in ("first", "second")]
    monkeypatch.setattr(torture, "PROGRESS", tmp_path / "progress")
    monkeypatch.setattr(torture, "OTHERS", faults)
    for name in ("killed_runs", "killed_ranks", "colliding_saves", "random_layouts"):
        monkeypatch.setattr(torture, name, lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["torture", "--kills", "7"])
    for expected, code, table in (
        (["first", "second"], 1, "4 faults tried, 2 survived, 2 not"),
        (["first", "second", "second"], 0, "4 faults tried, 4 survived, 0 not"),
        (["first", "second", "second"], 0, "4 faults tried, 4 survived, 0 not"),
    ):
        with pytest.raises(SystemExit) as ended:
            torture.main()
        assert tried == expected and ended.value.code == code
        assert table in capsys.readouterr().out
