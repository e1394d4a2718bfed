"""Examples that wait in a saved state: plain data whatever they are made of, no larger than they are, and copies."""

import dataclasses
import enum
import io
import pathlib
from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.batches.layout import Layout
from selective_backprop.batches.plain import loaded_columns, saved_columns
from tests.helpers import digits, make_loader, make_model

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Box:
    corner: tuple[int, int]
    pixels: np.ndarray


ENTRIES = {
    "arrays": lambda i: np.arange(6, dtype=np.int16).reshape(2, 3)[:, : i % 4],
    "array without dimensions": lambda i: np.array(i),
    "numpy scalars": lambda i: np.float64(i),
    "numpy strings and times": lambda i: [np.str_("é" * i), np.datetime64("2020-01-01") + i],
    "a path, bytes, None": lambda i: (pathlib.Path("images") / str(i), bytes([i % 256]) * (i % 3), None),
    "dataclasses": lambda i: Box((i, 2), np.ones(i % 3)),
    "named tuples and dicts": lambda i: {"point": Point(i, [torch.ones(i % 3)]), 3: UserDict(name=str(i))},
}


def with_entries(make):
    """Batches with a list that has one such entry per example."""

    def collate(samples):
        images, labels = torch.utils.data.default_collate(samples)
        return {"image": images, "label": labels, "more": {"entry": [make(int(label)) for label in labels]}}

    model = make_model()
    candidates = DataLoader(digits(80), 16, collate_fn=collate)
    forward = lambda model, batch: (model(batch["image"]), batch["label"])  # noqa: E731
    return sb.SelectiveLoader(candidates, model, nn.CrossEntropyLoss(), sb.selective_backprop(0.4), forward=forward)


def saved(loader):
    torch.save(loader.state_dict(), buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize("make", ENTRIES.values(), ids=ENTRIES.keys())
def test_a_state_with_any_plain_entries_is_read_without_running_code_and_goes_on_alike(make):
    states, batches, loader = [], [], with_entries(make)
    for batch in loader:
        batches.append(repr(batch))
        states.append(saved(loader))
    assert any(torch.load(io.BytesIO(state))["stats"]["queued"] for state in states)
    for step, state in enumerate(states):
        resumed = with_entries(make)
        resumed.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        assert [repr(batch) for batch in resumed] == batches[step + 1 :]


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda i: {"colour": Colour.RED}, r"\['more'\]\['entry'\]\[\d+\]\['colour'\], which is a tests.*Colour"),
        (lambda i: np.array([object()]), r"\['more'\]\['entry'\]\[\d+\], which is a numpy.ndarray"),
        (lambda i: Box((i, 2), frozenset([1])), r".*\['pixels'\], which is a builtins.frozenset"),
        (lambda i: nn.Parameter(torch.ones(1)), r".*, which is a torch.nn.parameter.Parameter"),
        (lambda i: torch.eye(2).to_sparse(), r".*, which is a sparse or nested torch.Tensor"),
        (lambda i: {"edges": torch.eye(2).to_sparse()}, r".*\['edges'\], which is a sparse or nested torch.Tensor"),
    ],
)
def test_what_cannot_be_read_again_is_refused_when_it_is_saved(make, name):
    loader = with_entries(make)
    for _ in loader:
        if loader.stats.queued:
            with pytest.raises(TypeError, match=rf"cannot save batch{name}.*plain data.*collate.*save between epochs"):
                loader.state_dict()
    saved(loader)  # between epochs no example waits


def test_classes_and_keys_that_cannot_be_found_again_are_refused_when_they_are_saved():
    @dataclasses.dataclass
    class Local:
        image: torch.Tensor

    columns = [torch.ones(2)]
    with pytest.raises(
        ValueError, match=r"cannot save a batch of the class .*Local.*define it at the top of its module"
    ):
        Layout.of(Local(torch.ones(2))).state_dict()
    with pytest.raises(ValueError, match=r"cannot save a batch of the class .*Local"):
        saved_columns(Layout("column"), [[Local(torch.ones(2))]])
    with pytest.raises(TypeError, match=r"cannot save batches with the key <Colour\.RED: 1>"):
        Layout.of({Colour.RED: columns[0]}).state_dict()


def test_arrays_come_back_writable_and_of_the_same_kind():
    entries = [np.ones((2, 0), np.float32), np.array(3), np.int8(3), np.ones((3, 2), order="F")]
    ((found),) = loaded_columns(saved_columns(Layout("column"), [entries]))
    assert [(type(value), value.dtype, value.shape) for value in found] == [
        (type(value), value.dtype, value.shape) for value in entries
    ]
    found[3][:] = 5
    assert found[3].tolist() == [[5, 5]] * 3 and entries[3].tolist() == [[1, 1]] * 3


def test_an_array_of_pointers_in_a_file_of_a_stranger_is_refused():
    ((entry,),) = saved_columns(Layout("column"), [[np.ones(1)]])
    with pytest.raises(ValueError, match="of type object: the state is damaged or was tampered with"):
        loaded_columns([[entry | {"dtype": "O"}]])


def test_a_state_holds_the_examples_that_wait_and_no_more():
    images = torch.randn(256, 64 * 64)
    data = torch.utils.data.TensorDataset(images, (images.sum(1) > 0).long())
    model = make_model(inputs=64 * 64, classes=2)
    loader = make_loader(sb.selective_backprop(0.4), dataset=data, model=model, loader_options={"batch_size": 64})
    for _ in loader:
        waiting = loader.stats.queued * 64 * 64 * 4
        assert len(saved(loader)) < waiting + 40_000


def test_a_batch_that_is_written_to_during_a_look_comes_back_as_it_was():
    # Large candidate batches, so that whole training batches wait in the state.
    options = {"loader_options": {"shuffle": False, "batch_size": 64}, "batch_size": 16}
    loader = make_loader(sb.selective_backprop(0.6), **options)
    for _ in loader:
        state = loader.state_dict()
        if loader.stats.queued >= 16:
            break
    resumed = make_loader(sb.selective_backprop(0.6), **options)
    resumed.load_state_dict(state)
    (expected, _), looks = next(iter(resumed)), []
    expected = expected.clone()
    for _ in range(2):
        looks.append(next(iter(resumed))[0])
        assert torch.equal(looks[-1], expected)
        looks[-1].zero_()
    assert torch.equal(next(iter(resumed))[0], expected)
