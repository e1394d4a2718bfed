"""Token-level selection: the loss is the mean over the tokens that carry it."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.losses import PerExampleLoss, TokenShare, WithReference

PLAIN = PerExampleLoss(sb.token_cross_entropy, "mean")


def texts():
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (32, 12), generator=draws)
    labels = torch.randint(1, 20, (32, 12), generator=draws)
    labels[torch.rand(32, 12, generator=draws) < 0.3] = -100
    return TensorDataset(tokens, labels)


def model_of(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 20))


def make(loss_fn, method=None):
    loader = DataLoader(texts(), 8)
    return sb.SelectiveLoader(loader, model_of(0), loss_fn, method or sb.traditional())


def share_of(share):
    return TokenShare(sb.token_cross_entropy, share)


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
    loader = make(share_of(share))
    for tokens, labels in loader:
        targets = labels
        if reference is not None:
            losses = sb.token_cross_entropy(reference(tokens), labels, reduction="none")
            targets = WithReference(labels, losses)
        loss = loader.loss(loader.model(tokens), targets)
        assert torch.equal(loss, share_of(share)(loader.model(tokens), targets)), "without a loader, too"
        expected = slow_loss(loader.model, tokens, labels, share, reference)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
        gradients = [torch.autograd.grad(value, loader.model[1].weight)[0] for value in (loss, expected)]
        assert torch.allclose(*gradients, atol=1e-5)


def test_all_tokens_are_plain_training():
    plain, all_tokens = make(PLAIN), make(share_of(1.0))
    for (tokens, labels), _ in zip(plain, all_tokens, strict=True):
        losses = [loader.loss(loader.model(tokens), labels) for loader in (plain, all_tokens)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)


def test_the_ledger_still_has_the_loss_of_whole_examples():
    method = sb.methods.ledger_percentile(0.5)
    whole, part = (make(loss_fn, method) for loss_fn in (PLAIN, share_of(0.3)))
    for loader in (whole, part):
        for tokens, labels in loader:
            loader.loss(loader.model(tokens), labels)
    assert torch.equal(whole.ledger.loss, part.ledger.loss)


def test_a_selection_pass_scores_whole_examples():
    whole, part = (make(loss_fn, sb.top_k(0.5)) for loss_fn in (PLAIN, share_of(0.3)))
    for (tokens, _), (others, _) in zip(whole, part, strict=True):
        assert torch.equal(tokens, others)
    assert torch.equal(whole.ledger.score, part.ledger.score)


def test_no_gradient_flows_into_the_reference():
    reference, loss_fn = model_of(5), share_of(0.5)
    tokens, labels = texts()[:8]
    losses = sb.token_cross_entropy(reference(tokens), labels, reduction="none")
    loss_fn(model_of(0)(tokens), WithReference(labels, losses)).backward()
    assert all(parameter.grad is None for parameter in reference.parameters())


def test_weights_of_examples_and_of_tokens_multiply():
    torch.manual_seed(0)
    loader = make(share_of(0.5), sb.kath18(0.5, unbiased=True, variable_start=False))
    for tokens, labels in loader:
        raw = sb.token_cross_entropy(loader.model(tokens), labels, reduction="none")
        mask = sb.functional.highest_of_tokens(raw, labels != -100, 0.5)
        weights = loader.batch.weights[:, None]
        expected = weights.mean() * (raw * mask * weights).sum() / ((labels != -100) * weights).sum()
        found = loader.loss(loader.model(tokens), labels)
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_summed_loss_stays_a_sum():
    """The scale is that of the loss itself: the mean of the kept tokens times the number of all that count."""
    tokens, labels = texts()[:8]
    logits = model_of(0)(tokens)
    found = TokenShare(functools.partial(sb.token_cross_entropy, reduction="sum"), 0.5)(logits, labels)
    expected = share_of(0.5)(logits, labels) * (labels != -100).sum()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_bad_input_is_a_clear_error():
    with pytest.raises(ValueError, match=r"share of tokens to train on must be in \(0, 1\], got 0.0"):
        share_of(0.0)
    with pytest.raises(TypeError, match="loss_fn must be callable, got int"):
        TokenShare(3, 0.5)
    tokens, labels = texts()[:8]
    logits = model_of(0)(tokens)
    with pytest.raises(ValueError, match=r"losses have shape \(8, 11\) on cpu, but the model's have \(8, 12\)"):
        share_of(0.5)(logits, WithReference(labels, torch.zeros(8, 11)))
    loader = make(TokenShare(lambda outputs, labels: outputs.sum((1, 2)), 0.5))
    with pytest.raises(ValueError, match="TokenShare needs a loss of each token"):
        for tokens, labels in loader:
            loader.loss(loader.model(tokens), labels)
