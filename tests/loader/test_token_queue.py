"""Training batches by tokens: examples of similar length share a batch."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import selective_backprop as sb

PAD = sb.pad_to_longest({"tokens": 0, "labels": -100})
TOKENS = 128
NUM = 300
LENGTHS = (
    (2 + torch.randn(NUM, generator=torch.Generator().manual_seed(0)).mul(0.8).add(2.5).exp()).long().clamp(max=90)
)


class Texts(Dataset):
    def __len__(self):
        return NUM

    def __getitem__(self, index):
        return 1 + (torch.arange(int(LENGTHS[index])) * (index + 3)) % 19


def collate(texts, side="right"):
    tokens = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_side=side)
    return {"tokens": tokens, "labels": tokens.masked_fill(tokens == 0, -100)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def make(method=None, side="right", **options):
    order = torch.Generator().manual_seed(1)
    batches = DataLoader(Texts(), 20, shuffle=True, generator=order, collate_fn=lambda texts: collate(texts, side))
    return sb.SelectiveLoader(
        batches,
        Model(),
        sb.losses.PerExampleLoss(sb.token_cross_entropy, "mean"),
        method or sb.top_k(0.5),
        **{
            "batch_tokens": TOKENS,
            "pad": sb.pad_to_longest({"tokens": 0, "labels": -100}, side=side),
            "forward": lambda model, batch: (model(batch["tokens"]), batch["labels"]),
            "num_epochs": 3,
            **options,
        },
    )


def epoch(loader, optimizer=None, stop=None):
    """Ids and shapes of the batches of an epoch."""
    found = []
    for batch in loader:
        loss = loader.loss(loader.model(batch["tokens"]), batch["labels"])
        if optimizer is not None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append((loader.batch.ids, batch))
        if len(found) == stop:
            return found, copy.deepcopy(loader.state_dict())
    return found


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "method", [sb.traditional(), sb.top_k(0.5), sb.methods.ledger_percentile(0.5)], ids=lambda m: m.name
)
def test_batches_hold_whole_texts_of_similar_length_within_the_budget(method, side):
    loader, trained_before = make(method, side), 0
    for _ in range(2):
        batches = epoch(loader)
        for ids, batch in batches:
            tokens = batch["tokens"]
            assert tokens.numel() <= TOKENS or len(tokens) == 1
            assert tokens.shape[1] <= 1.19 * int(LENGTHS[ids].max()), "little is padded"
            for number, row, labels in zip(ids.tolist(), tokens, batch["labels"], strict=True):
                assert torch.equal(row[row != 0], Texts()[number]) and torch.equal(
                    labels[labels != -100], row[row != 0]
                )
                content = row[: int(LENGTHS[number])] if side == "right" else row[-int(LENGTHS[number]) :]
                assert (content != 0).all()
        assert loader.stats.queued == 0, "an epoch ends with what is left"
        ids = torch.cat([ids for ids, _ in batches])
        assert len(ids.unique()) == len(ids) == loader.stats.trained - trained_before
        trained_before = loader.stats.trained
        ratios = [int(LENGTHS[ids].max()) / int(LENGTHS[ids].min()) for ids, _ in batches[:-8]]
        assert sorted(ratios)[len(ratios) // 2] < 1.3


def test_little_is_padded():
    padded = {}
    for options in ({}, {"batch_tokens": None, "batch_size": 8}):
        batches = [batch["tokens"] for _, batch in epoch(make(sb.traditional(), **options))]
        padded[len(options)] = sum(int((tokens == 0).sum()) for tokens in batches) / sum(t.numel() for t in batches)
    assert padded[0] < 0.15 < 0.4 < padded[2]


@pytest.mark.parametrize("method", [sb.top_k(0.5), sb.methods.ledger_percentile(0.5)], ids=lambda m: m.name)
def test_a_resumed_run_equals_one_that_never_stopped(method):
    def optimizer_of(loader):
        return torch.optim.SGD(loader.model.parameters(), lr=0.1)

    whole = make(method)
    expected = [[ids.tolist() for ids, _ in epoch(whole, optimizer_of(whole))] for _ in range(3)]
    first = make(method)
    epoch(first, optimizer_of(first))
    before, state = epoch(first, optimizer_of(first), stop=4)
    second = make(method)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(state)
    rest = [[ids.tolist() for ids, _ in epoch(second, optimizer_of(second))] for _ in range(2)]
    assert [ids.tolist() for ids, _ in before] + rest[0] == expected[1] and rest[1] == expected[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"batch_size": 8}, "batch_size"),
        ({"pad": None}, "pad="),
        ({"pad": lambda batches: batches}, "pad="),
        ({"method": sb.methods.expected_selective_backprop(0.5)}, "batch_tokens="),
    ],
)
def test_bad_input_is_a_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
