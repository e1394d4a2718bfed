"""TensorBoard's own reader on events of real runs with digits."""

import sys

import pytest

from selective_backprop.lab.runs.tensorboard import TensorBoardEvents
from selective_backprop.lab.runs.training import Training, advance, train
from tests.lab.test_ledger_log import CPU, DIGITS, settings_for, train_with_crash

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(path):
    """By tag, (epoch, value) of every event that TensorBoard would draw."""
    events = accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def as_events(records, value):
    return [(record["epoch"], pytest.approx(value(record), rel=1e-6)) for record in records]


def check(events, records):
    for tag in ("test/loss", "test/error", "train/loss", "train/error", "lr", "compute"):
        name = tag.replace("/", "_")
        assert events[tag] == as_events(records, lambda record: record[name])  # noqa: B023
    assert events["selectivity"] == as_events(records, lambda record: record["trained"] / record["offered"])
    for phase in records[0]["seconds"]:
        assert events[f"seconds/{phase}"] == as_events(records, lambda record: record["seconds"][phase])  # noqa: B023
    assert len(events) == 7 + len(records[0]["seconds"])


def test_every_record_is_drawn_against_its_epoch(tmp_path):
    records = train(settings_for(), DIGITS, device=CPU, observers=[TensorBoardEvents(tmp_path)])
    assert len(records) == 3
    check(read(tmp_path), records)


def test_epochs_done_again_are_drawn_once(tmp_path):
    made = []

    def observers(path):
        made.append(TensorBoardEvents(path))
        return made[-1:]

    records = train_with_crash(settings_for(), tmp_path, observers, epoch=1)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    check(read(tmp_path), records)
    for events in made:
        events.close()


def test_events_can_be_read_while_the_run_goes_on(tmp_path):
    training, events = Training(settings_for(), DIGITS, CPU), TensorBoardEvents(tmp_path)
    assert not (tmp_path / "tensorboard").exists()
    for epochs in (1, 2):
        advance(training, observers=[events])
        assert [step for step, _ in read(tmp_path)["test/error"]] == list(range(epochs))
    events.close()
    events.close()


def test_a_missing_package_is_named_with_the_pip_line(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"tensorboard.*: pip install 'selective-backprop\[tensorboard\]'"):
        TensorBoardEvents(tmp_path)
