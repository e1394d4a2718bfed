"""Nearest neighbours, their votes, and the features of a network: slow references, limits and bad input."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.dynamics import neighbours as nb


def cosines(features):
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    return unit @ unit.T


def test_neighbours_agree_with_a_slow_reference(monkeypatch):
    monkeypatch.setattr(nb, "BLOCK", 7)  # several blocks, the last one smaller
    features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    (ids, similarities), expected = nb.nearest_neighbours(features, 3), cosines(features.astype(np.float64))
    np.fill_diagonal(expected, -2)
    for id in range(40):
        assert ids[id].tolist() == np.argsort(-expected[id])[:3].tolist()
        assert np.allclose(similarities[id], np.sort(expected[id])[::-1][:3], atol=1e-5)


def test_votes_agree_with_a_slow_reference():
    chance = np.random.default_rng(2)
    features, labels = chance.normal(size=(50, 4)).astype(np.float32), chance.integers(0, 4, 50)
    ids, similarities = nb.nearest_neighbours(features, 6)
    votes = nb.label_votes(ids, similarities, labels)
    for id in range(50):
        weights = np.exp(10 * (similarities[id].astype(float) - similarities[id, 0]))
        shares = [weights[labels[ids[id]] == label].sum() / weights.sum() for label in range(4)]
        own = shares.pop(labels[id])
        assert votes[id] == pytest.approx(np.log(own + 0.05) - np.log(max(shares) + 0.05), abs=1e-6)


def test_bad_features_are_refused():
    with pytest.raises(ValueError, match="one row per example"):
        nb.nearest_neighbours(torch.zeros(3))
    with pytest.raises(ValueError, match="those of id 1 are not"):
        nb.nearest_neighbours(torch.tensor([[1.0], [float("nan")]]))
    with pytest.raises(ValueError, match="at least 2 examples"):
        nb.nearest_neighbours(torch.ones(1, 2))


def test_features_are_the_inputs_of_the_last_layer():
    inputs = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    batches = DataLoader(TensorDataset(inputs, torch.zeros(50, dtype=torch.int64)), 16, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    before = [parameter.clone() for parameter in model.parameters()]
    features = sb.pruning.last_features(model, batches)
    assert features.shape == (50, 5) and model.training
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    with torch.no_grad():
        assert torch.allclose(features, model[:2](inputs))


def test_features_need_every_example_and_a_linear_layer():
    data = TensorDataset(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="1 of 5 examples have no features"):
        sb.pruning.last_features(nn.Linear(3, 2), DataLoader(data, 2, drop_last=True))
    with pytest.raises(ValueError, match=r"last_features needs an nn\.Linear"):
        sb.pruning.last_features(nn.Identity(), DataLoader(data, 2))


def test_features_of_sequences_are_averaged():
    data = TensorDataset(torch.randn(4, 6, 3), torch.zeros(4, dtype=torch.int64))
    found = sb.pruning.last_features(nn.Linear(3, 2), DataLoader(data, 2))
    assert torch.allclose(found, data.tensors[0].mean(1))
