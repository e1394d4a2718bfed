from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.batches.layout import Layout, count_rows, map_tensors, move
from tests.helpers import digits, make_model

Pair = namedtuple("Pair", ["image", "label"])


@dataclass
class Record:
    image: torch.Tensor
    names: list[str]
    mask: torch.Tensor | None = None


@dataclass
class Unknown:
    image: torch.Tensor


@dataclass
class Checked:
    image: torch.Tensor
    mask: torch.Tensor | None = None
    total: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.image, self.mask, self.total = self.image.float(), self.image > 0, self.image.sum(1)


@dataclass
class Scaled:
    image: torch.Tensor

    def __post_init__(self):
        self.image = self.image / 2


@dataclass
class ScaledInPlace(Scaled):
    def __post_init__(self):
        self.image /= 2


@dataclass
class Counted:
    image: torch.Tensor
    number: int

    def __post_init__(self):
        self.number += 1


def rows(n):
    return torch.arange(n * 2.0).view(n, 2)


BATCHES = {
    "tensor": lambda n: rows(n),
    "tuple": lambda n: (rows(n), torch.arange(n)),
    "list, as default_collate makes it": lambda n: [rows(n), torch.arange(n)],
    "dict": lambda n: {"x": rows(n), "y": torch.arange(n)},
    "ordered dict": lambda n: OrderedDict(x=rows(n), y=torch.arange(n)),
    "mapping of a class of its own": lambda n: UserDict(x=rows(n), y=torch.arange(n)),
    "named tuple": lambda n: Pair(rows(n), torch.arange(n)),
    "dataclass": lambda n: Record(rows(n), [f"name {i}" for i in range(n)]),
    "strings": lambda n: (rows(n), [f"name {i}" for i in range(n)]),
    "nested": lambda n: {"views": (rows(n), rows(n) + 1), "meta": {"name": [str(i) for i in range(n)], "none": None}},
    "images of different sizes": lambda n: ([torch.ones(3, i + 1) for i in range(n)], [{"box": i} for i in range(n)]),
    "examples as they are": lambda n: [{"x": i} for i in range(n)],
}


def flat(value):
    return repr(value)


@dataclass
class Marked:
    image: torch.Tensor
    mark: torch.Tensor | None = field(init=False, default=None)


def test_what_is_set_after_a_batch_was_made_is_kept_or_refused():
    batch = Marked(torch.zeros(3, 2))
    batch.mark = torch.ones(3)
    assert move(batch, torch.device("cpu")) is batch
    with pytest.raises(ValueError, match=r"Marked\.mark was set after the batch was made, and would be lost"):
        move(batch, torch.device("meta"))
    with pytest.raises(ValueError, match=r"Marked\.mark was set after"):
        Layout.of(batch)


def test_a_dataclass_that_checks_its_fields_or_derives_others_comes_back():
    batch = move(Checked(rows(3)), torch.device("cpu"))
    assert flat(batch) == flat(Checked(rows(3)))


@pytest.mark.parametrize("batch", [Scaled(rows(3)), ScaledInPlace(rows(3)), Counted(rows(3), 1)])
def test_a_dataclass_that_would_change_its_fields_again_is_refused(batch):
    with pytest.raises(ValueError, match=r"changes its field (image|number) when it is made.*not in __post_init__"):
        map_tensors(batch, torch.clone)


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES.keys())
def test_rows_of_any_batch(make):
    layout = Layout.of(make(5))
    assert flat(layout.batch(layout.columns(make(5)))) == flat(make(5))
    first = layout.batch([column[:2] for column in layout.columns(make(5))])
    expected = make(2)
    if isinstance(expected, tuple) and isinstance(expected[0], list):
        assert len(first[0]) == len(first[1]) == 2
    else:
        assert flat(first) == flat(expected)
    assert type(first) is type(make(5))


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES.keys())
def test_layout_survives_as_plain_data(make):
    layout = Layout.of(make(5))
    assert Layout.from_state_dict(layout.state_dict()) == layout


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_short_batch_does_not_change_the_reading(n):
    layout = Layout.of(BATCHES["images of different sizes"](5))
    batch = ([torch.ones(n, 2) for _ in range(n)], [{"box": i} for i in range(n)])
    images, _ = layout.columns(batch)
    assert isinstance(images, list)
    pairs = Layout.of(BATCHES["nested"](5))
    assert all(len(column) == n for column in pairs.columns(BATCHES["nested"](n)))


def test_number_of_rows():
    assert [count_rows(make(7)) for name, make in BATCHES.items() if "different" not in name] == [7] * 11


def test_move_reaches_every_tensor():
    moved = move({"a": [torch.ones(1), ("x", torch.ones(2))], "b": None}, torch.device("meta"))
    assert moved["a"][0].device.type == moved["a"][1][1].device.type == "meta"
    assert moved["a"][1][0] == "x"


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((torch.ones(4, 2), torch.ones(3)), ValueError, r"tensor of shape \(3,\) in a batch of 4 examples"),
        ((torch.ones(4, 2), torch.tensor(1.0)), ValueError, r"tensor of shape \(\) in a batch of 4 examples"),
        (
            (torch.ones(4, 2), 0.5),
            TypeError,
            "cannot pick examples from a float in a batch: make it a tensor or a list",
        ),
        (torch.tensor(1.0), ValueError, "first tensor has no dimensions"),
        (object(), TypeError, "cannot find the examples in a batch of type object"),
        (
            (torch.ones(4), ["a", "b"]),
            TypeError,
            "cannot pick examples from a str.* contrastive loss .* cannot be used",
        ),
        ((torch.ones(4, 2).to_sparse(), torch.ones(4)), TypeError, "from a sparse tensor: make it dense in the coll"),
        (
            ((torch.ones(2), torch.ones(2)), torch.ones(2)),
            ValueError,
            "may be one entry per example or a group of columns",
        ),
    ],
)
def test_batches_without_rows(batch, error, message):
    with pytest.raises(error, match=message):
        Layout.of(batch)


def test_a_batch_of_another_structure():
    with pytest.raises(ValueError, match=r"changed their structure: expected dict of \['x', 'y'\]"):
        Layout.of(BATCHES["dict"](4)).columns({"x": rows(4)})


def optional_part(first, then):
    """A loader's data and forward pass: the `extra` part of the second batch of an epoch is another than the first."""

    def collate(examples):
        images, labels = torch.utils.data.default_collate(examples)
        is_first = torch.equal(images[0], digits().tensors[0][0])
        return {"image": images, "label": labels, "extra": first(images) if is_first else then(images)}

    loader = DataLoader(digits(), 16, collate_fn=collate)
    return loader, lambda model, batch: (model(batch["image"]), batch["label"])


PARTS = {"none": lambda images: None, "tensor": lambda images: images, "text": lambda images: "a" * len(images)}
PARTS |= {"list": list, "dict": lambda images: dict.fromkeys(range(len(images)))}


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ("none", "tensor", "expected None, got tensor"),
        ("tensor", "none", "expected a tensor or a list with one entry per example, got None"),
        ("list", "text", "expected a tensor or a list with one entry per example, got 'aaa"),
        ("list", "dict", "expected a tensor or a list with one entry per example, got {0: None"),
        ("tensor", "list", r"examples of shape \(64,\) \(torch.float32\) and \(\) \(a list\) cannot share"),
    ],
)
def test_a_part_that_not_all_batches_have_is_refused_or_passed_on_but_never_lost(first, then, message):
    loader, forward = optional_part(PARTS[first], PARTS[then])
    options = {"model": make_model(), "loss_fn": nn.CrossEntropyLoss(), "forward": forward}
    with pytest.raises(ValueError, match=message):
        list(sb.SelectiveLoader(loader, method=sb.selective_backprop(0.5), **options))
    planned = sb.SelectiveLoader(loader, method=sb.methods.random_backprop(0.5), **options)
    for batch in planned:  # the user's own collate function made it
        assert type(batch["extra"]) in (type(PARTS[first](batch["image"])), type(PARTS[then](batch["image"])))


def test_keys_may_come_in_any_order():
    batch = BATCHES["dict"](4)
    other = dict(reversed(batch.items()))
    found = Layout.of(batch).columns(other)
    assert found[0] is other["x"] and found[1] is other["y"]


def test_a_later_batch_with_uneven_parts():
    with pytest.raises(ValueError, match=r"expected 4 rows, found \(3,\)"):
        Layout.of(BATCHES["tuple"](4)).columns((rows(4), torch.arange(3)))


def test_a_checkpoint_cannot_name_any_class():
    state = Layout.of(Unknown(rows(3))).state_dict()
    for name in ("os:system", "not_imported_anywhere:Batch", "builtins:eval", "subprocess:Popen"):
        with pytest.raises(ValueError, match=f"holds batches of type {name}: import it before"):
            Layout.from_state_dict(state | {"class": name})


def test_a_defaultdict_stays_one():
    def collate(samples):
        batch = defaultdict(list)
        batch["image"], batch["label"] = torch.utils.data.default_collate(samples)
        return batch

    loader = sb.SelectiveLoader(
        DataLoader(digits(), 16, collate_fn=collate),
        make_model(),
        nn.CrossEntropyLoss(),
        sb.selective_backprop(0.5),
        forward=lambda model, batch: (model(batch["image"]), batch["label"]),
    )
    for batch in loader:
        assert type(batch) is defaultdict and list(batch) == ["image", "label"]
        assert torch.equal(batch["image"], digits().tensors[0][loader.batch.ids])


def test_a_mapping_that_cannot_be_made_from_its_parts():
    class Strict(dict):
        def __init__(self, *, image, label):
            super().__init__(image=image, label=label)

    batch = Strict(image=torch.ones(2, 3), label=torch.ones(2))
    with pytest.raises(
        TypeError, match=r"cannot make a Strict .* \['image', 'label'\]: .* collate function return a dict"
    ):
        map_tensors(batch, torch.clone)
