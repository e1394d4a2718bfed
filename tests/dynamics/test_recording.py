"""What the loader records: values against a slow reference, exact resume, and every kind of input."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.dynamics import Dynamics, class_values


def data(num_examples=60, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_examples, 5, generator=generator)
    return TensorDataset(inputs, torch.randint(classes, (num_examples,), generator=generator))


def make(method=None, *, audit=True, seed=0, epochs=4, dataset=None):
    torch.manual_seed(seed)
    model = nn.Linear(5, 4)
    batches = DataLoader(dataset or data(), 16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    loader = sb.SelectiveLoader(
        batches, model, nn.CrossEntropyLoss(), method or sb.traditional(), num_epochs=epochs, audit=audit
    )
    return loader, model, torch.optim.SGD(model.parameters(), 0.5)


def step(loader, model, optimizer, inputs, targets):
    loss = loader.loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def same(one, other):
    assert one.epochs == other.epochs
    assert np.array_equal(one.labels, other.labels)
    assert all(np.array_equal(one.rows(epoch), other.rows(epoch)) for epoch in one.epochs)


def test_values_agree_with_a_slow_reference():
    logits, targets = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 7
    values = class_values(logits, targets)
    for row, target, found in zip(logits.tolist(), targets.tolist(), values.tolist(), strict=True):
        others = {label: value for label, value in enumerate(row) if label != target}
        best = max(others, key=others.get)
        chance = float(torch.tensor(row).softmax(0)[target])
        assert found == pytest.approx([row[target] - others[best], chance, best, target], abs=1e-5)


def test_a_target_that_is_no_class_is_not_known():
    values = class_values(torch.randn(3, 4), torch.tensor([1, -100, 9]))
    assert not values[0].isnan().any() and values[1:].isnan().all()


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.randn(8), torch.randn(8)),  # regression
        (torch.randn(8, 1), torch.zeros(8).long()),
        (torch.randn(8, 5, 6), torch.zeros(8, 5).long()),  # sequences
        (torch.randn(8, 4), torch.rand(8, 4)),  # probabilities as targets
        ((torch.randn(8, 4),), torch.zeros(8).long()),
    ],
)
def test_other_tasks_have_no_class_values(outputs, targets):
    assert class_values(outputs, targets) is None


def test_logits_are_found_in_the_outputs_of_transformers():
    logits, targets = torch.randn(3, 4), torch.tensor([0, 1, 2])
    assert torch.equal(class_values({"logits": logits}, targets), class_values(logits, targets))


def test_everything_that_was_trained_on_is_recorded():
    """The log against what the loop itself sees."""
    loader, model, optimizer = make(sb.methods.ledger_percentile(0.5))
    seen = []
    for epoch in range(4):
        for inputs, targets in loader:
            with torch.no_grad():
                losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            seen += [(epoch, id, loss) for id, loss in zip(loader.batch.ids.tolist(), losses.tolist(), strict=True)]
            step(loader, model, optimizer, inputs, targets)
    dynamics = loader.dynamics
    rows = [(epoch, row["id"], row["loss"]) for epoch in dynamics.epochs for row in dynamics.rows(epoch)]
    assert [row[:2] for row in rows] == [row[:2] for row in seen]
    assert [row[2] for row in rows] == pytest.approx([row[2] for row in seen], abs=1e-6)
    assert np.array_equal(dynamics.labels, data().tensors[1].numpy())
    assert dynamics.num_rows == loader.stats.trained


def test_recording_does_not_change_training():
    weights = []
    for audit in (False, True):
        loader, model, optimizer = make(sb.selective_backprop(0.5), audit=audit)
        for _ in range(3):
            for batch in loader:
                step(loader, model, optimizer, *batch)
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)


@pytest.mark.parametrize("method", [sb.traditional(), sb.ledger_backprop(audit=True)])
def test_a_resumed_run_has_the_same_dynamics(method):
    """Saved after every third step, and continued by a new loader."""
    whole, model, optimizer = make(method)
    for _ in range(4):
        for batch in whole:
            step(whole, model, optimizer, *batch)
    loader, model, optimizer = make(method)
    count = 0
    while loader.epoch < 4:
        left = False
        for batch in loader:
            step(loader, model, optimizer, *batch)
            count += 1
            if count % 3 == 0:
                left = True
                state = loader.state_dict()
                break
        if left:
            weights = model.state_dict()
            loader, model, optimizer = make(method)
            model.load_state_dict(weights)
            loader.load_state_dict(state)
    same(loader.dynamics, whole.dynamics)


def test_a_log_survives_a_file(tmp_path):
    loader, model, optimizer = make()
    for batch in loader:
        step(loader, model, optimizer, *batch)
    loader.dynamics.save(tmp_path / "dynamics.pt")
    same(Dynamics.load(tmp_path / "dynamics.pt"), loader.dynamics)
    assert len(sb.audit(tmp_path)) == 60
    (tmp_path / "dynamics.pt").write_bytes(b"broken")
    with pytest.raises(ValueError, match="damaged"):
        sb.audit(tmp_path)


def test_wrong_options_say_what_to_do():
    batches = [(torch.randn(4, 5), torch.zeros(4).long())]
    with pytest.raises(ValueError, match="your loader has none"):
        sb.SelectiveLoader(batches, nn.Linear(5, 4), nn.CrossEntropyLoss(), sb.traditional(), audit=True)
    with pytest.raises(RuntimeError, match="pass audit=True"):
        _ = make(audit=False)[0].dynamics


def test_a_step_without_loader_loss_is_refused():
    loader, *_ = make()
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(RuntimeError, match="audit=True"):
        next(iterator)


def test_a_state_of_a_loader_that_records_otherwise_is_refused():
    one, other = make()[0], make(audit=False)[0]
    with pytest.raises(ValueError, match="saved with audit=True"):
        other.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="saved without audit=True"):
        one.load_state_dict(other.state_dict())
