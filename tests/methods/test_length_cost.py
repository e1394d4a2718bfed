"""The option cost= of methods, in the loader."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import selective_backprop as sb

NUM = 240
LENGTHS = torch.randint(2, 40, (NUM,), generator=torch.Generator().manual_seed(0))
TOKENS = (0, 1, 0)


def sequences():
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 30, (NUM, 40), generator=draws)
    tokens[torch.arange(40) >= LENGTHS[:, None]] = 0
    return TensorDataset(tokens, tokens.masked_fill(tokens == 0, -100))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(30, 8), nn.Linear(8, 30)

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def make(method, **options):
    order = torch.Generator().manual_seed(2)
    batches = DataLoader(sequences(), 24, shuffle=True, generator=order)
    model = Model()
    return sb.SelectiveLoader(batches, model, sb.token_cross_entropy, method, reducer="mean", num_epochs=3, **options)


def train(loader, epochs=3, stop=None):
    optimizer = torch.optim.SGD(loader.model.parameters(), lr=0.1)
    spent, steps = [], 0
    for _ in range(epochs):
        before = loader.ledger.selected.clone()
        for tokens, labels in loader:
            loader.loss(loader.model(tokens), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == stop:
                return spent
        spent.append(int(((loader.ledger.selected - before) * LENGTHS).sum()))
    return spent


METHODS = {
    "ledger_backprop": sb.ledger_backprop,
    "selective_backprop": sb.selective_backprop,
    "stale_selective_backprop": sb.stale_selective_backprop,
    "predicted_selective_backprop": sb.predicted_selective_backprop,
    "top_k": sb.top_k,
    "reducible_loss": lambda **options: sb.reducible_loss(torch.zeros(NUM), **options),
}


@pytest.mark.parametrize("name", METHODS)
def test_epochs_spend_the_budget(name):
    budget = 0.4 * int(LENGTHS.sum())
    cost = sb.LengthCost(LENGTHS, tokens_per_epoch=budget, coefficients=TOKENS)
    spent = train(make(METHODS[name](cost=cost)))
    if name == "ledger_backprop":
        assert spent[0] == int(LENGTHS.sum()), "no loss is known yet"
    # 240 examples in batches of 24: the coin on the border of each stratum, and batches that must be full.
    assert all(abs(tokens / budget - 1) < 0.25 for tokens in spent[1:])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_costs_without_a_budget(name):
    own = {"loss_share": 0.8, "skip_at_least": 0} if name == "ledger_backprop" else {}
    loader = make(METHODS[name](cost=sb.LengthCost(LENGTHS, coefficients=TOKENS), **own))
    train(loader)
    assert 0 < loader.stats.selectivity < 1
    assert f"lengths=<{NUM} values>" in repr(loader.method)


def test_the_loader_measures_its_steps_and_fits_costs():
    loader = make(sb.top_k(0.5, cost=sb.LengthCost(LENGTHS)))
    assert loader.policy.fit.known is None
    train(loader)
    loader.policy.exchange(lambda numbers: [numbers])
    assert loader.policy.fit.known is not None and sum(loader.policy.fit.known) > 0


def test_steps_that_overlap_are_not_measured():
    loader = make(sb.top_k(0.5, cost=sb.LengthCost(LENGTHS)))
    for batch in loader.batches():
        loader.loss(loader.model(batch.data[0]), batch.data[1], batch).backward()
    loader.policy.exchange(lambda numbers: [numbers])
    assert loader.policy.fit.known is None


@pytest.mark.parametrize("name", ["ledger_backprop", "top_k"])
def test_a_resumed_run_equals_one_that_never_stopped(name):
    cost = sb.LengthCost(LENGTHS, tokens_per_epoch=0.4 * int(LENGTHS.sum()), coefficients=TOKENS)
    method = METHODS[name](cost=cost)
    whole, first = make(method), make(method)
    train(whole)
    train(first, stop=13)
    first_state, weights = copy.deepcopy(first.state_dict()), first.model.state_dict()
    second = make(method)
    second.model.load_state_dict(weights)
    second.load_state_dict(first_state)
    optimizer = torch.optim.SGD(second.model.parameters(), lr=0.1)
    while second.epoch < 3:
        for tokens, labels in second:
            second.loss(second.model(tokens), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(whole.ledger.selected, second.ledger.selected)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*sequences().tensors, strict=True)


def test_a_stream_gets_lengths_from_a_function_of_the_batch():
    seen = []

    def lengths(batch):
        seen.append(len(batch[0]))
        return (batch[0] != 0).sum(1)

    model = Model()
    method = sb.top_k(0.5, cost=sb.LengthCost(lengths, coefficients=TOKENS))
    loader = sb.SelectiveLoader(DataLoader(Stream(), 24), model, sb.token_cross_entropy, method, reducer="mean")
    kept = [int((tokens != 0).sum()) for tokens, _ in loader for tokens in tokens]
    assert seen == [24] * 10 and abs(len(kept) - NUM / 2) < 24
    assert sum(kept) / len(kept) < float(LENGTHS.float().mean()), "cheap ones are preferred"


def test_a_function_of_the_wrong_shape_is_refused():
    method = sb.top_k(0.5, cost=sb.LengthCost(lambda batch: torch.ones(3), coefficients=TOKENS))
    loader = sb.SelectiveLoader(DataLoader(Stream(), 24), Model(), sb.token_cross_entropy, method, reducer="mean")
    with pytest.raises(ValueError, match=r"your function of lengths returned a tensor of shape \(3,\) for 24"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("make_method", "kind", "message"),
    [
        (lambda: sb.LengthCost([1.5, 2.0]), TypeError, "lengths must be whole numbers, one per id"),
        (lambda: sb.LengthCost([3, 0, 2]), ValueError, r"those of the ids \[1\] are not"),
        (lambda: sb.LengthCost([3], tokens_per_epoch=1, seconds_per_epoch=1), ValueError, "not both"),
        (lambda: sb.LengthCost([3], tokens_per_epoch=-1), ValueError, "must be above 0, got -1"),
        (lambda: sb.LengthCost(len, tokens_per_epoch=5), ValueError, "needs the lengths of all examples"),
        (lambda: sb.LengthCost([3], coefficients=(1, 2)), ValueError, "coefficients must be three numbers"),
        (lambda: sb.top_k(cost=[3, 4]), TypeError, "cost must be a LengthCost"),
        (lambda: sb.ledger_backprop(cost=[3, 4]), TypeError, "cost must be a LengthCost"),
        (lambda: sb.top_k(0.5, cost=sb.LengthCost([3], tokens_per_epoch=2)), ValueError, "leave out selectivity"),
        (
            lambda: sb.ledger_backprop(loss_share=0.5, cost=sb.LengthCost([3], tokens_per_epoch=2)),
            ValueError,
            "leave out loss_share",
        ),
        (
            lambda: sb.selective_backprop(beta=1, cost=sb.LengthCost([3], tokens_per_epoch=2)),
            ValueError,
            "leave out beta",
        ),
        (
            lambda: sb.selective_backprop(0.5, classes=[0], cost=sb.LengthCost([3])),
            ValueError,
            "leave out classes= or cost=",
        ),
        (
            lambda: sb.selective_backprop(0.5, unbiased=True, cost=sb.LengthCost([3])),
            ValueError,
            "cannot be joined with unbiased",
        ),
        (lambda: make(sb.top_k(0.5, cost=sb.LengthCost([3, 4]))), ValueError, "top_k has lengths for 2 ids"),
        (
            lambda: make(sb.ledger_backprop(0.5, cost=sb.LengthCost(lambda batch: batch))),
            ValueError,
            "decides before loading",
        ),
    ],
)
def test_bad_input_is_a_clear_error(make_method, kind, message):
    with pytest.raises(kind, match=message):
        make_method()
