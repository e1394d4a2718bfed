"""What a batch may be made of, in a scored epoch, in a planned one and in a saved state; and padding."""

import io
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from tests.helpers import digits, make_loader, make_model

Pair = namedtuple("Pair", ["image", "label"])
SCORED, PLANNED = sb.selective_backprop(0.5), sb.random_backprop(0.5)


@dataclass
class Record:
    image: torch.Tensor
    label: torch.Tensor
    name: list[str]


torch.export.register_dataclass(Record)  # as for any class that torch is to look into


def names(labels):
    return [f"label {int(label)}" for label in labels]


BATCHES = {
    "tuple": lambda images, labels: (images, labels),
    "list": lambda images, labels: [images, labels],
    "dict": lambda images, labels: {"image": images, "label": labels},
    "ordered dict": lambda images, labels: OrderedDict(image=images, label=labels),
    "named tuple": Pair,
    "dataclass": lambda images, labels: Record(images, labels, names(labels)),
    "strings and arrays": lambda images, labels: {
        "image": images,
        "label": labels,
        "more": {"name": names(labels), "array": [np.full((2, int(label)), 0.5) for label in labels], "none": None},
    },
    "an array": lambda images, labels: {"image": images, "label": labels, "array": labels.numpy() * 2},
    "views": lambda images, labels: {"image": images, "label": labels, "views": (images + 1, images + 2)},
}


def parts(batch):
    """Images and labels of a batch of any kind."""
    if isinstance(batch, dict):
        return batch["image"], batch["label"]
    return (batch[0], batch[1]) if isinstance(batch, (tuple, list)) else (batch.image, batch.label)


def loader_of(make, method, **options):
    torch.manual_seed(0)
    collate = lambda samples: make(*torch.utils.data.default_collate(samples))  # noqa: E731
    order = torch.Generator().manual_seed(3)
    candidates = DataLoader(digits(80), 16, shuffle=True, generator=order, collate_fn=collate)

    def forward(model, batch):
        images, labels = parts(batch)
        return model(images), labels

    options = {"forward": forward, **options}
    return sb.SelectiveLoader(candidates, make_model(), nn.CrossEntropyLoss(), method, **options)


def saved(loader):
    torch.save(loader.state_dict(), buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize("method", [SCORED, PLANNED], ids=["scored", "planned"])
@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES.keys())
def test_batches_of_any_kind_keep_it_and_resume(make, method):
    """Also with examples that wait in the state, which is read without running code."""
    loader, states, batches = loader_of(make, method, batch_size=6), [], []
    for batch in loader:
        images, labels = parts(batch)
        ids = loader.batch.ids
        assert torch.equal(images, digits().tensors[0][ids]) and torch.equal(labels, digits().tensors[1][ids])
        assert type(batch) is type(make(images, labels)) and repr(batch) == repr(again := make(images, labels)), again
        batches.append(repr(batch))
        states.append(saved(loader))
    for step in (1, 3):
        resumed = loader_of(make, method, batch_size=6)
        resumed.load_state_dict(torch.load(io.BytesIO(states[step]), weights_only=True))
        assert [repr(batch) for batch in resumed] == batches[step + 1 :]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda images, labels: (images, labels, torch.ones(3)), ValueError, r"\(3,\)"),
        (lambda images, labels: (images, labels, 0.5), TypeError, "float"),
        (lambda images, labels: (images.to_sparse(), labels), TypeError, "sparse"),
        (lambda images, labels: (images, labels, "many words"), TypeError, "str"),
    ],
    ids=["too few rows", "a number", "sparse", "a word"],
)
def test_what_examples_cannot_be_picked_from_is_refused_in_a_scored_epoch_and_passes_in_a_planned_one(
    make, error, message
):
    forward = lambda model, batch: (model(batch[0].to_dense()), batch[1])  # noqa: E731
    with pytest.raises(error, match=message):
        list(loader_of(make, SCORED, forward=forward))
    assert all(len(batch) == len(make(torch.ones(1), torch.ones(1))) for batch in loader_of(make, PLANNED))


def test_a_part_that_not_all_batches_have_is_refused():
    calls = []

    def make(images, labels):
        calls.append(1)
        return {"image": images, "label": labels} | ({"extra": images} if len(calls) > 1 else {})

    with pytest.raises(ValueError, match="'image', 'label'"):
        list(loader_of(make, SCORED))


def test_a_state_holds_the_examples_that_wait_and_no_more():
    images = torch.randn(256, 64 * 64)
    data = TensorDataset(images, (images.sum(1) > 0).long())
    model = make_model(inputs=64 * 64, classes=2)
    loader = make_loader(sb.selective_backprop(0.4), dataset=data, model=model, loader_options={"batch_size": 64})
    for _ in loader:
        assert len(saved(loader)) < loader.stats.queued * 64 * 64 * 4 + 40_000


# ---- sequences of different lengths


def collate(examples):
    length = max(map(len, examples))
    rows = [nn.functional.pad(example, (0, length - len(example)), value=9) for example in examples]
    return {"tokens": torch.stack(rows), "length": torch.tensor([len(example) for example in examples])}


def loader_of_sequences(method=None, *, make=lambda batch: batch, **options):
    """The shorter, the higher the loss."""
    data = [torch.full((1 + i % 7,), i) for i in range(60)]
    return sb.SelectiveLoader(
        DataLoader(data, batch_size=4, collate_fn=lambda examples: make(collate(examples))),
        nn.Linear(1, 1),
        lambda outputs, batch: -outputs,
        method or sb.top_k(0.75),
        forward=lambda model, batch: (tuple_of(batch)[1].float(), batch),
        **options,
    )


def tuple_of(batch):
    return tuple(batch.values()) if isinstance(batch, dict) else tuple(batch)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("make", "pad"),
    [(lambda batch: batch, {"tokens": 9}), (lambda batch: [batch["tokens"], batch["length"]], {0: 9})],
    ids=["dict", "list"],
)
def test_sequences_of_different_lengths_share_a_batch(make, pad, side):
    loader = loader_of_sequences(make=make, pad=sb.pad_to_longest(pad, side=side))
    widths = set()
    for batch in loader:
        tokens, lengths = tuple_of(batch)
        widths.add(tokens.shape[1])
        for identity, row, length in zip(loader.batch.ids, tokens, lengths, strict=True):
            assert identity == 9 or (row == identity).sum() == length  # 9 is the padding
    assert max(widths) == 7


@pytest.mark.parametrize("method", [sb.top_k(0.75), sb.top_k(0.75, warmup_epochs=1)], ids=["scored", "warm-up"])
def test_without_padding_the_error_says_what_to_do_in_the_first_epoch(method):
    loader = loader_of_sequences(method, num_epochs=4)
    with pytest.raises(ValueError, match="pass pad="):
        list(loader)
    assert loader.stats.offered <= 60, "in the first epoch"


@pytest.mark.parametrize("method", [sb.traditional(), sb.selective_backprop(1.0), PLANNED], ids=["all", "1", "planned"])
def test_batches_that_are_never_mixed_need_no_padding(method):
    assert len(list(loader_of_sequences(method))) >= 7


@pytest.mark.parametrize(
    ("pad", "batch", "error"),
    [
        ({"input_ids": 0}, (torch.ones(2, 3), ["a", "b"]), ValueError),
        ({1: 0}, (torch.ones(2, 3), ["a", "b"]), TypeError),
    ],
)
def test_what_pad_to_longest_cannot_pad(pad, batch, error):
    with pytest.raises(error, match=str(next(iter(pad)))):
        sb.pad_to_longest(pad)([batch, batch])


def test_a_defaultdict_stays_one():
    def make(images, labels):
        batch = defaultdict(list)
        batch["image"], batch["label"] = images, labels
        return batch

    assert all(type(batch) is defaultdict for batch in loader_of(make, SCORED))


def test_padding_needs_a_value_for_each_entry():
    with pytest.raises(TypeError, match=r"fill value for each entry.*got 'a'"):
        sb.pad_to_longest("a")
