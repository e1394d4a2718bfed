"""Readers of files on any content: a value, or an error that names the file. Never another exception."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import selective_backprop as sb
from selective_backprop_lab.runs.ledger_log import read_ledger_log
from selective_backprop_lab.runs.methods import MethodSpec, parse_option
from selective_backprop_lab.runs.records import RunFolder, read_records
from tests.lab.report.made_up import made_up_run
from tests.lab.states import seal

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner), max_leaves=6
)
RECORDS = made_up_run("sb", [0.3, 0.2]).records
OFTEN_THERE = {"label_noise": 0.1, "validation": 0.0, "length": None, "label": "sb"}
RECIPE = {"image_size": None, "decay": {"kind": "cosine"}}
CONFIG = made_up_run("sb", [0.3, 0.2], recipe=RECIPE, **{k: v for k, v in OFTEN_THERE.items() if k != "label"}).config
CONFIG["label"] = "sb"


def lines_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


HALVES, COUNTS = torch.zeros(3, dtype=torch.float16), torch.zeros(3, dtype=torch.uint8)
LEDGER = seal({"kind": "arrays 1", "loss": HALVES, "probability": HALVES, "selected": COUNTS})
# A good content, and what reads it from a folder; the name it has there.
READERS = {
    "records.jsonl": (lines_of(RECORDS), lambda folder: read_records(folder)),
    "config.json": (json.dumps(CONFIG).encode(), lambda folder: RunFolder(folder, CONFIG).close()),
    "data.json": (b'{"train": {"examples": 3}}', lambda folder: _open_with_data(folder)),
    "ledger/epoch-0000.pt": (LEDGER, lambda folder: read_ledger_log(folder)),
    "scores.pt": (
        seal({"kind": "scores 1", "scores": torch.ones(4)}),
        lambda folder: sb.pruning.load_scores(folder / "scores.pt"),
    ),
    "checkpoint.pt": (seal({"kind": "run 1", "records": RECORDS}), lambda folder: _checkpoint(folder)),
}


def _open_with_data(folder):
    RunFolder(folder, CONFIG, {"train": {"examples": 3}}).close()


def _checkpoint(folder):
    with RunFolder(folder, CONFIG) as run:
        return run.checkpoint()


def damages(content):
    """Random bytes; and the good content cut, with bytes changed, with some put in."""
    position = st.integers(0, len(content))

    def change(at, new):
        return content[:at] + new + content[at + len(new) :]

    return st.one_of(
        st.binary(max_size=300),
        position.map(lambda at: content[:at]),
        st.builds(change, position, st.binary(min_size=1, max_size=4)),
        st.builds(lambda at, new: content[:at] + new + content[at:], position, st.binary(min_size=1, max_size=4)),
    )


@pytest.mark.parametrize("name", READERS)
def test_any_content_is_read_or_refused(name, tmp_path_factory):
    content, read = READERS[name]
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    read(folder)

    @settings(max_examples=40)
    @given(damages(content))
    def check(damaged):
        (folder / name).write_bytes(damaged)
        try:
            read(folder)
        except ValueError as error:
            assert str(folder) in str(error), "it says where"

    check()


@given(st.text(max_size=30))
def test_methods_written_in_one_word(text):
    for read in (MethodSpec.parse, parse_option):
        try:
            read(text)
        except ValueError as error:
            assert str(error)
