"""Batches taken ahead of training on them, and sequences of different lengths."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.helpers import make_loader, make_model, train


@pytest.mark.parametrize(
    "method",
    [sb.methods.ledger_percentile(selectivity=0.5), sb.selective_backprop(0.5, unbiased=True), sb.infobatch(prune=0.5)],
)
def test_taken_one_by_one_it_is_the_usual_loop(method):
    models = make_model(), make_model()
    loaders = [make_loader(method, model=model, num_epochs=3, seed=5) for model in models]
    torch.manual_seed(0)
    expected = train(loaders[0], models[0], 3)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(models[1].parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(3):
        for batch in loaders[1].batches():
            optimizer.zero_grad()
            inputs, targets = batch.data
            loaders[1].loss(models[1](inputs), targets, batch).backward()
            optimizer.step()
            found.append(batch.ids.tolist())
    assert expected == found
    assert same(*[model.state_dict() for model in models])


def test_losses_find_their_examples_when_batches_are_taken_ahead():
    model = make_model().eval()
    loader = make_loader(sb.methods.ledger_percentile(selectivity=0.5), model=model, num_epochs=1)
    for batch in reversed(list(loader.batches())):
        inputs, targets = batch.data
        loader.loss(model(inputs), targets, batch)
    inputs, targets = loader.dataset.tensors
    expected = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    torch.testing.assert_close(loader.ledger.loss, expected.detach())


def collate(examples):
    length = max(map(len, examples))
    rows = [nn.functional.pad(example, (0, length - len(example)), value=9) for example in examples]
    return {"tokens": torch.stack(rows), "length": torch.tensor([len(example) for example in examples])}


def loader_of_sequences(**options):
    """The shorter, the higher the loss."""
    data = [torch.full((1 + i % 7,), i) for i in range(60)]
    return sb.SelectiveLoader(
        DataLoader(data, batch_size=4, collate_fn=collate),
        nn.Linear(1, 1),
        lambda outputs, batch: -outputs,
        sb.top_k(0.75),
        forward=lambda model, batch: (batch["length"].float(), batch),
        **options,
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_sequences_of_different_lengths_share_a_batch(side):
    loader = loader_of_sequences(pad=sb.pad_to_longest({"tokens": 9}, side=side))
    shapes = set()
    for batch in loader.batches():
        shapes.add(tuple(batch.data["tokens"].shape))
        for identity, row, length in zip(batch.ids, batch.data["tokens"], batch.data["length"], strict=True):
            assert identity == 9 or (row == identity).sum() == length  # 9 is the padding
    assert {(4, 7)} <= shapes and max(shape[1] for shape in shapes) == 7


def test_without_padding_the_error_says_what_to_do():
    loader = loader_of_sequences()
    with pytest.raises(ValueError, match=r"cannot share a training batch: .* pass pad= to SelectiveLoader"):
        list(loader)


def pair_of_sequences(examples):
    batch = collate(examples)
    return batch["tokens"], batch["length"]


@pytest.mark.parametrize("make", [tuple, list])
def test_pairs_are_padded_by_position(make):
    data = [torch.full((1 + i % 7,), i) for i in range(60)]
    loader = sb.SelectiveLoader(
        DataLoader(data, batch_size=4, collate_fn=lambda examples: make(pair_of_sequences(examples))),
        nn.Linear(1, 1),
        lambda outputs, batch: -outputs,
        sb.top_k(0.75),
        forward=lambda model, batch: (batch[1].float(), batch[1]),
        pad=sb.pad_to_longest({0: 9}),
    )
    for tokens, length in loader:
        assert tokens.shape[1] == 7 or len(tokens) < 4
        for identity, row, count in zip(loader.batch.ids, tokens, length, strict=True):
            assert identity == 9 or (row == identity).sum() == count


def test_what_pad_to_longest_cannot_pad():
    pair = torch.ones(2, 3), ["a", "b"]
    with pytest.raises(ValueError, match=r"how to fill \['input_ids'\], but .* type tuple, have the entries \[0, 1\]"):
        sb.pad_to_longest({"input_ids": 0})([pair, pair])
    with pytest.raises(TypeError, match="the entry 1 of the batches is a list"):
        sb.pad_to_longest({1: 0})([pair, pair])
    with pytest.raises(TypeError, match="a batch of type Tensor has no entries"):
        sb.pad_to_longest({0: 0})([pair[0], pair[0]])


def first_token(model, batch):
    return model(batch["tokens"][:, :1].float()).squeeze(1).square(), batch


def sequences(method, **options):
    data = [torch.full((1 + i // 8,), i) for i in range(64)]
    return sb.SelectiveLoader(
        DataLoader(data, batch_size=8, collate_fn=collate),
        nn.Linear(1, 1),
        lambda outputs, batch: outputs,
        method,
        forward=first_token,
        **options,
    )


@pytest.mark.parametrize(
    "method",
    [sb.selective_backprop(0.5, warmup_epochs=1), sb.stale_selective_backprop()],
    ids=lambda method: method.name,
)
def test_missing_padding_is_found_in_the_first_epoch(method):
    """Where selected examples are queued. The batches of a planned epoch are made by the user's collate function."""
    loader = sequences(method, num_epochs=4)
    with pytest.raises(ValueError, match=r"shape \(1,\) .* and \(2,\) .* cannot share a training batch: .* pass pad="):
        for batch in loader:
            loader.loss(*first_token(loader.model, batch))
    assert loader.stats.offered <= 8, "at the second candidate batch"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (sb.traditional(), {}),
        (sb.selective_backprop(1.0), {}),
        (sb.random_backprop(1.0), {}),
    ],
    ids=["traditional", "sb", "random"],
)
def test_batches_that_are_never_mixed_need_no_padding(method, options):
    loader = sequences(method, **options)
    lengths = set()
    for batch in loader.batches():
        lengths.add(batch.data["tokens"].shape[1])
        loader.loss(*first_token(loader.model, batch.data), batch)
    assert lengths == set(range(1, 9))
