"""Token-level selection: the loss is the mean over the tokens that carry it."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb


def texts():
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (32, 12), generator=draws)
    labels = torch.randint(1, 20, (32, 12), generator=draws)
    labels[torch.rand(32, 12, generator=draws) < 0.3] = -100
    return TensorDataset(tokens, labels)


def model_of(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 20))


def make(method=None, loss_fn=sb.token_cross_entropy, **options):
    loader = DataLoader(texts(), 8)
    options = {"reducer": "mean", **options}
    return sb.SelectiveLoader(loader, model_of(0), loss_fn, method or sb.traditional(), **options)


def slow_loss(model, tokens, labels, share, reference=None):
    """The mean over the highest tokens, one by one. Equal pairs of tokens tie and are kept together."""
    found = []
    for row in range(len(tokens)):
        for place in range(tokens.shape[1]):
            if labels[row, place] != -100:
                here = (tokens[row, place], labels[row, place])
                loss = nn.functional.cross_entropy(model(here[0]), here[1])
                other = 0.0 if reference is None else nn.functional.cross_entropy(reference(here[0]), here[1])
                found.append(((loss - other).item(), loss))
    lowest = sorted((score for score, _ in found), reverse=True)[max(1, math.ceil(len(found) * share - 1e-6)) - 1]
    return torch.stack([loss for score, loss in found if score > lowest - 1e-5]).mean()


@pytest.mark.parametrize("share", [0.01, 0.4, 0.75, 1.0])
@pytest.mark.parametrize("reference", [None, model_of(5)], ids=["loss", "reference"])
def test_the_loss_is_the_mean_of_the_highest_tokens(share, reference):
    loader = make(token_share=share, token_reference=reference)
    for tokens, labels in loader:
        loss = loader.loss(loader.model(tokens), labels)
        expected = slow_loss(loader.model, tokens, labels, share, reference)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
        gradients = [torch.autograd.grad(value, loader.model[1].weight)[0] for value in (loss, expected)]
        assert torch.allclose(*gradients, atol=1e-5)


def test_all_tokens_are_plain_training():
    plain, all_tokens = make(), make(token_share=1.0)
    for (tokens, labels), _ in zip(plain, all_tokens, strict=True):
        losses = [loader.loss(loader.model(tokens), labels) for loader in (plain, all_tokens)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)


def test_the_ledger_still_has_the_loss_of_whole_examples():
    whole, part = make(sb.methods.ledger_percentile(0.5)), make(sb.methods.ledger_percentile(0.5), token_share=0.3)
    for loader in (whole, part):
        for tokens, labels in loader:
            loader.loss(loader.model(tokens), labels)
    assert torch.equal(whole.ledger.loss, part.ledger.loss)


def test_the_reference_is_left_as_it_was():
    reference = model_of(5).train()
    before = [parameter.clone() for parameter in reference.parameters()]
    loader = make(token_share=0.5, token_reference=reference)
    for tokens, labels in loader:
        loader.loss(loader.model(tokens), labels).backward()
    assert reference.training and all(p.grad is None for p in reference.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, reference.parameters(), strict=True))


def test_weights_of_examples_and_of_tokens_multiply():
    torch.manual_seed(0)
    loader = make(sb.kath18(2, unbiased=True, variable_start=False), token_share=0.5)
    tokens, labels = next(iter(loader))
    raw = sb.token_cross_entropy(loader.model(tokens), labels, reduction="none")
    mask = sb.functional.highest_of_tokens(raw, labels != -100, 0.5)
    expected = (raw * mask * loader.batch.weights[:, None]).sum() / (labels != -100).sum()
    for batch in loader:
        found = loader.loss(loader.model(batch[0]), batch[1])
        break
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"token_share": 0.0}, ValueError, r"token_share must be in \(0, 1\], got 0.0"),
        ({"token_reference": model_of(1)}, ValueError, "pass token_share= too"),
        ({"token_share": 0.5, "token_reference": 3}, TypeError, "token_reference must be a model"),
    ],
)
def test_bad_input_is_a_clear_error(options, kind, message):
    with pytest.raises(kind, match=message):
        make(**options)


def test_a_loss_per_example_is_refused_at_the_first_step():
    loader = make(loss_fn=lambda outputs, labels: outputs.sum((1, 2)), token_share=0.5)
    with pytest.raises(ValueError, match="token_share= needs a loss of each token"):
        for tokens, labels in loader:
            loader.loss(loader.model(tokens), labels)
