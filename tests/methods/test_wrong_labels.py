"""Behaviour on a small real task: digits with 20% of the labels flipped."""

import pytest
import torch
from torch.utils.data import TensorDataset

import selective_backprop as sb
from tests.helpers import digits, make_loader, make_model, train

COUNT, EPOCHS = 1200, 8


def flipped_digits(seed):
    inputs, targets = digits(COUNT).tensors
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(COUNT, generator=generator) < 0.2
    shift = torch.randint(1, 10, (COUNT,), generator=generator)
    return TensorDataset(inputs, torch.where(wrong, (targets + shift) % 10, targets)), wrong


def trained_on(method, seed):
    """Share of wrong labels among what was trained on after the first epochs, and the loader."""
    dataset, wrong = flipped_digits(seed)
    torch.manual_seed(seed)
    model = make_model(seed)
    loader = make_loader(method, dataset=dataset, model=model, seed=seed)
    train(loader, model, 2)
    before = loader.ledger.selected.clone()
    train(loader, model, EPOCHS)
    chosen = (loader.ledger.selected - before).float()
    return float(chosen[wrong].sum() / chosen.sum()), loader, wrong


@pytest.mark.parametrize("seed", [0, 1])
def test_selective_backprop_chases_wrong_labels(seed):
    found, _, wrong = trained_on(sb.selective_backprop(1 / 3), seed)
    assert found > 1.5 * float(wrong.float().mean())


def test_top_loss_examples_in_the_ledger_are_enriched_in_wrong_labels():
    _, loader, wrong = trained_on(sb.selective_backprop(0.5), seed=0)
    top = loader.ledger.score.argsort(descending=True)[: COUNT // 10]
    assert float(wrong[top].float().mean()) > 3 * float(wrong.float().mean())
