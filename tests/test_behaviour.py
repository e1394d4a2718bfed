"""The recording of what every method does is repeatable, and notices a change."""

from tests import behaviour


def test_a_run_is_recorded_the_same_again_and_a_change_is_noticed(monkeypatch):
    first = {"top_k": behaviour.record_run("top_k", seed=0, workers=0)}
    assert {"batches", "weights", "parameters", "resumed"} == first["top_k"].keys()
    again = {"top_k": behaviour.record_run("top_k", seed=0, workers=0)}
    assert list(behaviour.differences(first, again)) == []
    monkeypatch.setattr(behaviour, "SELECTIVITY", 0.5)
    other = {"top_k": behaviour.record_run("top_k", seed=0, workers=0)}
    (line,) = behaviour.differences(first, other)
    assert "batches" in line and "parameters" in line
    assert list(behaviour.differences(first, {})) == ["top_k: not there any more"]
