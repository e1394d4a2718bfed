"""Nearest neighbours, near-duplicates and votes: slow references, limits, and copies that were planted."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.dynamics import neighbours as nb
from selective_backprop.lab.data.datasets import load_images


def cosines(features):
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    return unit @ unit.T


def test_neighbours_agree_with_a_slow_reference(monkeypatch):
    monkeypatch.setattr(nb, "BLOCK", 7)  # several blocks, the last one smaller
    features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    found, expected = nb.nearest_neighbours(features, 3), cosines(features.astype(np.float64))
    np.fill_diagonal(expected, -2)
    for id in range(40):
        assert found.ids[id].tolist() == np.argsort(-expected[id])[:3].tolist()
        assert np.allclose(found.similarities[id], np.sort(expected[id])[::-1][:3], atol=1e-5)


def slow_groups(features, bound):
    """Take examples in order; each joins the most similar first example of a group, or begins one."""
    similar, first = cosines(features.astype(np.float64)), {}
    for id in range(len(features)):
        leaders = [leader for leader in sorted(set(first.values())) if similar[id, leader] >= bound]
        first[id] = max(leaders, key=lambda leader: similar[id, leader]) if leaders else id
    return first


@pytest.mark.parametrize("block", [5, 1024])
def test_groups_agree_with_a_slow_reference(monkeypatch, block):
    monkeypatch.setattr(nb, "BLOCK", block)
    chance = np.random.default_rng(1)
    centres = chance.normal(size=(12, 6))
    features = np.repeat(centres, 4, axis=0) + 0.02 * chance.normal(size=(48, 6))
    features = np.concatenate([features, chance.normal(size=(12, 6))])[chance.permutation(60)].astype(np.float32)
    found = nb.near_duplicates(features, threshold=0.99)
    similar = cosines(features.astype(np.float64))
    for id in range(60):  # the promise: each member is a near-duplicate of its group's first example
        assert similar[id, found.first[id]] >= 0.99 - 1e-5
    if block == 5:
        assert found.num_groups == 12 and found.spare.sum() == 36
    else:
        slow = slow_groups(features, 0.99)
        assert {id: slow[id] for id in slow} == dict(enumerate(found.first.tolist()))


def test_chains_do_not_become_one_group():
    angles = np.arange(10) * 0.1
    features = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = nb.near_duplicates(features, threshold=float(np.cos(0.15)))
    assert found.num_groups == 5 and np.bincount(found.group).max() == 2


def test_the_threshold_follows_the_median_distance():
    features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    found = nb.near_duplicates(features)
    assert found.threshold == pytest.approx(1 - 0.13 * np.median(1 - found.similarity))
    assert nb.near_duplicates(features, ratio=0.0).num_groups == 0
    copied = torch.cat([features, features])  # every example has a copy: only copies count
    found = nb.near_duplicates(copied)
    assert found.num_groups == 200 and found.first[200:].tolist() == list(range(200))


def test_zeros_have_no_duplicates():
    features = torch.cat([torch.zeros(3, 4), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))])
    assert (nb.near_duplicates(features).group[:3] == -1).all()


def test_conflicts_are_groups_with_two_labels():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    found = nb.near_duplicates(features, threshold=1.0)
    assert found.conflicts([3, 4, 5, 5, 6]).tolist() == [True, True, False, False, False]
    with pytest.raises(ValueError, match="one per example"):
        found.conflicts([1, 2])


def test_votes_agree_with_a_slow_reference():
    chance = np.random.default_rng(2)
    features, labels = chance.normal(size=(50, 4)).astype(np.float32), chance.integers(0, 4, 50)
    found = nb.nearest_neighbours(features, 6)
    votes = nb.label_votes(found, labels)
    for id in range(50):
        weights = np.exp(10 * (found.similarities[id].astype(float) - found.similarities[id, 0]))
        shares = [weights[labels[found.ids[id]] == label].sum() / weights.sum() for label in range(4)]
        own = shares.pop(labels[id])
        assert votes[id] == pytest.approx(np.log(own + 0.05) - np.log(max(shares) + 0.05), abs=1e-6)


def test_what_was_found_can_be_saved(tmp_path):
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    found = nb.near_duplicates(torch.cat([features, features[:5]]))
    found.save(tmp_path / "duplicates.npz")
    again = nb.Duplicates.load(tmp_path / "duplicates.npz")
    assert np.array_equal(again.group, found.group) and again.threshold == found.threshold
    assert np.array_equal(again.neighbours.ids, found.neighbours.ids)
    assert np.array_equal(again.similarity, found.similarity)
    np.savez(tmp_path / "wrong.npz", first=[0, 9], threshold=0.9, ids=[[1], [0]], similarities=[[1.0], [1.0]])
    (tmp_path / "broken.npz").write_bytes(b"broken")
    for name in ("wrong.npz", "broken.npz"):
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            nb.Duplicates.load(tmp_path / name)


def test_exact_copies_are_found_by_content():
    images = torch.randint(0, 255, (20, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[7], images[19] = images[3], images[3]
    expected = np.arange(20)
    expected[[7, 19]] = 3
    assert np.array_equal(nb.exact_copies(images), expected)


def test_bad_features_are_refused():
    with pytest.raises(ValueError, match="one row per example"):
        nb.near_duplicates(torch.zeros(3))
    with pytest.raises(ValueError, match="those of id 1 are not"):
        nb.near_duplicates(torch.tensor([[1.0], [float("nan")]]))
    with pytest.raises(ValueError, match="at least 2 examples"):
        nb.nearest_neighbours(torch.ones(1, 2))
    for wrong in ({"ratio": 1.5}, {"threshold": 2.0}):
        with pytest.raises(ValueError, match=r"must be in|is a cosine"):
            nb.near_duplicates(torch.eye(3), **wrong)


def test_planted_copies_are_found_by_the_networks_features():
    """30 digits are copied with slightly different pixels and another label. All copies are found."""
    digits = load_images("digits")
    images = digits.train_images[:600].float() / 255
    noise = 0.01 * torch.randn(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = torch.cat([images, images[:30] + noise])
    labels = torch.cat([digits.train_labels[:600], (digits.train_labels[:30] + 1) % 10])  # all copies are mislabelled
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    batches = DataLoader(TensorDataset(images, labels), 32, shuffle=True)
    loader = sb.SelectiveLoader(batches, model, nn.CrossEntropyLoss(), sb.traditional(), num_epochs=4, audit=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    before = [parameter.clone() for parameter in model.parameters()]
    features = sb.pruning.last_features(model, batches)
    assert features.shape == (630, 32) and model.training
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    with torch.no_grad():
        assert torch.allclose(features[600:], model[:3](images[600:]))
    found = sb.audit(loader, features=features)
    assert (found.duplicate[600:] >= 0).all() and (found.duplicate[600:] == found.duplicate[:30]).mean() > 0.9
    assert (found.conflict[600:] == 1).all()
    assert not found.spare()[600:].any()  # a copy with another label is an error to look at, not one to drop unseen


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
