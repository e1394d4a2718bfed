"""Batches taken ahead of training on them, and sequences of different lengths."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.helpers import make_loader, make_model, train


@pytest.mark.parametrize(
    "method", [sb.ledger_backprop(selectivity=0.5), sb.selective_backprop(0.5, unbiased=True), sb.infobatch(0.5)]
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
    loader = make_loader(sb.ledger_backprop(selectivity=0.5), model=model, num_epochs=2)
    for batch in reversed(list(loader.batches())):
        inputs, targets = batch.data
        loader.loss(model(inputs), targets, batch)
    next(loader.batches())  # the next epoch is planned with what was learned since
    inputs, targets = loader._source.user_loader.dataset.tensors
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
    assert shapes == {(4, 7)}


def test_without_padding_the_error_says_what_to_do():
    loader = loader_of_sequences()
    with pytest.raises(ValueError, match=r"cannot share a training batch: .* pass pad= to SelectiveLoader"):
        list(loader)
