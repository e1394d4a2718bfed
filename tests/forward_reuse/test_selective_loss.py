"""Forward reuse: what is trained on, by which loss, what is told, and what it promises."""

import itertools
import logging

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop import testing
from selective_backprop.forward_reuse import SelectiveLoss
from tests.distributed.launch import run
from tests.helpers import Noisy, by_class, digits, make_model, train_plainly
from tests.loader.test_training_loss import Restless, plain_run

INPUTS, TARGETS = digits().tensors
METHODS = {
    "selective_backprop": sb.selective_backprop,
    "unbiased, window": lambda selectivity: sb.selective_backprop(selectivity, unbiased=True, start=0.2, end=0.8),
    "warm-up, interrupt": lambda selectivity: sb.selective_backprop(selectivity, warmup_epochs=0.5, interrupt=3),
    "top_k": sb.top_k,
    "kath18": lambda selectivity: sb.kath18(selectivity, threshold=1.05),
    "kath18, gradient norm": lambda selectivity: sb.kath18(selectivity, threshold=1.05, score="gradient_norm"),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
EPOCHS, BATCHES = 4, 13


def make_loss(method, loss_fn=None, **options):
    options = {"batches_per_epoch": BATCHES, "num_epochs": EPOCHS} | options
    return SelectiveLoss(loss_fn or nn.CrossEntropyLoss(), method, **options)


def make_network(norm=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32) if norm else nn.Identity(), nn.GELU(), nn.Linear(32, 10))


def batches(size=48):
    return DataLoader(TensorDataset(INPUTS, TARGETS), size, shuffle=True)


def grads_of(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


def check_same(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# ---- which loss


@pytest.mark.parametrize("method", [sb.selective_backprop, sb.top_k])
@pytest.mark.parametrize(
    "own",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2, 10)),
        nn.CrossEntropyLoss(reduction="sum"),
    ],
)
def test_gradients_are_those_of_training_on_the_selected_alone(method, own):
    model, loss_fn = make_network(), make_loss(method(1 / 3), own)
    for inputs, targets in batches():
        found = grads_of(model, loss_fn(model(inputs), targets))
        chosen = loss_fn.selection.positions
        assert 0 < len(chosen) < len(inputs)
        check_same(grads_of(model, own(model(inputs[chosen]), targets[chosen])), found)


def test_weights_are_applied():
    model, loss_fn = make_network(), make_loss(sb.selective_backprop(0.5, unbiased=True))
    for inputs, targets in batches():
        found = grads_of(model, loss_fn(model(inputs), targets))
        chosen, chance = loss_fn.selection.positions, loss_fn.selection.probabilities
        weights = (1 / chance[chosen]).clamp(max=10).float()
        losses = F.cross_entropy(model(inputs[chosen]), targets[chosen], reduction="none")
        check_same(grads_of(model, (losses * weights).mean()), found)


def test_an_example_that_is_drawn_twice_counts_twice():
    model, loss_fn = make_network(), make_loss(sb.kath18(1 / 3, variable_start=False))
    repeated = 0
    for inputs, targets in batches():
        found = grads_of(model, loss_fn(model(inputs), targets))
        chosen = loss_fn.selection.positions
        repeated += len(chosen) - len(chosen.unique())
        check_same(grads_of(model, F.cross_entropy(model(inputs[chosen]), targets[chosen])), found)
    assert repeated


def test_the_selection_is_that_of_the_policy():
    """The same policy and seed, fed with the losses of the same training passes, selects the same examples."""
    model, loss_fn = make_network(), make_loss(sb.selective_backprop(1 / 3), seed=5)
    policy, generator = sb.policies.PercentilePolicy(selectivity=1 / 3), torch.Generator().manual_seed(5)
    for inputs, targets in batches():
        outputs = model(inputs)
        loss_fn(outputs, targets)
        expected = policy.select(F.cross_entropy(outputs, targets, reduction="none").detach(), generator)
        assert torch.equal(loss_fn.selection.positions, expected.positions)


def test_token_losses():
    """The mean over tokens that are not ignored, of the selected sequences alone; or over the half that is hardest."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
    tokens = torch.randint(20, (64, 7))
    labels = tokens.roll(-1, 1).masked_fill(torch.rand(64, 7) < 0.3, -100)

    def own(outputs, targets, reduction="mean"):
        return F.cross_entropy(outputs.transpose(1, 2), targets, reduction=reduction)

    loss_fn = make_loss(sb.top_k(0.25), sb.losses.PerExampleLoss(own, "mean"))
    for inputs, targets in DataLoader(TensorDataset(tokens, labels), 32):
        found = grads_of(model, loss_fn(model(inputs), targets))
        chosen = loss_fn.selection.positions
        assert len(chosen) == 8
        check_same(grads_of(model, own(model(inputs[chosen]), targets[chosen])), found)


def test_outputs_of_several_tensors():
    """Those with one row per example are divided, here by examples that are drawn twice, too; others stay whole."""
    torch.manual_seed(0)
    one, other = nn.Linear(64, 10), nn.Linear(64, 3)

    def own(outputs, targets, reduction="mean"):
        scale, (first, second) = outputs["scale"], outputs["heads"]
        losses = F.cross_entropy(first * scale, targets, reduction="none") + second.square().sum(1)
        return losses if reduction == "none" else losses.mean()

    def outputs(inputs):
        return {"heads": (one(inputs), other(inputs)), "scale": torch.tensor([2.0]), "names": ["a"]}

    loss_fn = make_loss(sb.kath18(1 / 3, variable_start=False), own)
    parameters = [*one.parameters(), *other.parameters()]
    inputs, targets = INPUTS[:48], TARGETS[:48]
    found = torch.autograd.grad(loss_fn(outputs(inputs), targets), parameters)
    chosen = loss_fn.selection.positions
    assert len(chosen.unique()) < len(chosen)
    check_same(torch.autograd.grad(own(outputs(inputs[chosen]), targets[chosen]), parameters), found)


def test_a_compiled_model_gets_the_masked_loss_and_says_so_once(caplog):
    model = make_network()
    compiled = torch.compile(model, backend="aot_eager")
    loss_fn = make_loss(sb.top_k(0.25))
    with caplog.at_level(logging.INFO, logger="selective_backprop"):
        for inputs, targets in itertools.islice(batches(), 2):
            found = grads_of(model, loss_fn(compiled(inputs), targets))
            chosen = loss_fn.selection.positions
            check_same(grads_of(model, F.cross_entropy(model(inputs[chosen]), targets[chosen])), found)
    (record,) = caplog.records
    assert "compiled" in record.message


def test_none_selected_is_a_step_without_gradient():
    class Nothing(sb.policies.TopKPolicy):
        def select(self, scores, generator):
            selection = super().select(scores, generator)
            return sb.types.Selection(selection.positions[:0], selection.weights[:0], selection.probabilities)

    method = sb.Method("nothing", sb.scorers.ForwardScorer(), Nothing(selectivity=0.5))
    model, loss_fn = make_network(), make_loss(method)
    inputs, targets = next(iter(batches()))
    gradients = grads_of(model, loss_fn(model(inputs), targets))
    assert not any(gradient.any() for gradient in gradients) and loss_fn.counts.trained == 0


# ---- when


def test_the_schedule_is_asked_about_every_batch():
    model, on = make_network(), []
    loss_fn = make_loss(sb.top_k(0.5, start=0.25, end=0.75, interrupt=3))
    for _ in range(EPOCHS):
        for inputs, targets in batches(16):
            before = loss_fn.counts.scored
            loss_fn(model(inputs), targets)
            on.append(loss_fn.counts.scored > before)
    schedule = sb.schedules.Schedule(start=0.25, end=0.75, interrupt=3)
    assert on == [schedule.is_on(e + i / BATCHES, i, EPOCHS) for e in range(EPOCHS) for i in range(BATCHES)]


def test_kath18_starts_by_training_losses():
    """While selection is off, training losses of all candidates tell tau at no cost."""
    model, loss_fn = nn.Identity(), SelectiveLoss(lambda outputs, targets: outputs, sb.kath18(0.5))
    even, uneven = torch.ones(64), torch.cat([torch.zeros(60), torch.ones(4)])
    for losses in (even, even, uneven, *[uneven] * 9):
        loss_fn(model(losses.requires_grad_()), None)
    counts = loss_fn.counts
    assert counts.offered == 12 * 64 > counts.scored > 0
    assert counts.trained == counts.offered - counts.scored / 2


def test_what_is_counted():
    model, loss_fn = make_network(), make_loss(sb.selective_backprop(1 / 3))
    selected = 0
    for inputs, targets in batches(16):
        loss_fn(model(inputs), targets)
        selected += len(loss_fn.selection.positions)
    counts = loss_fn.counts
    assert counts.offered == counts.scored == len(INPUTS) and counts.batches == BATCHES
    assert counts.trained == selected == round(counts.selectivity * len(INPUTS)) < len(INPUTS)


# ---- promises


@every_method
def test_selectivity_1_is_plain_training(make):
    options = {"batch_size": 16, "shuffle": True}
    torch.manual_seed(3)
    plain = make_model()
    train_plainly(DataLoader(Noisy(), **options), plain, EPOCHS)
    torch.manual_seed(3)
    model, loss_fn = make_model(), make_loss(make(1))
    train(loss_fn, DataLoader(Noisy(), **options), model, EPOCHS)
    assert testing.same(plain.state_dict(), model.state_dict())


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"reduction": "none"}])
def test_a_loss_with_a_state_sees_as_many_calls_as_in_plain_training(options):
    torch.manual_seed(3)
    plain_loss = Restless(**options)
    plain = plain_run(plain_loss, 2)
    torch.manual_seed(3)
    own, model = Restless(**options), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    train(make_loss(sb.selective_backprop(1), own), batches(16), model, 2, optimizer)
    assert testing.same(plain.state_dict(), model.state_dict())
    assert testing.same(plain_loss.state_dict(), own.state_dict())
    assert (own.calls, own.seen) == (plain_loss.calls, plain_loss.seen)
    own = Restless(**options)
    selected = make_loss(sb.selective_backprop(0.4), own)
    train(selected, batches(16), model, 2, optimizer)
    assert len(own.seen) == len(plain_loss.seen) and sum(own.seen) == selected.counts.trained < sum(plain_loss.seen)


@every_method
def test_selecting_touches_no_global_random_state(make):
    model, loss_fn = make_network(), make_loss(make(0.4))
    for inputs, targets in batches(16):
        outputs, before = model(inputs), testing.global_random_states()
        loss_fn(outputs, targets)
        assert testing.same(before, testing.global_random_states())


@every_method
@pytest.mark.parametrize("stop", [7, 30])
def test_resume_equals_never_having_stopped(make, stop):
    model, loss_fn, kept = make_model(), make_loss(make(0.4)), []
    torch.manual_seed(5)
    data = [batch for _ in range(EPOCHS) for batch in batches(16)]
    train(loss_fn, data[:stop], model, 1)
    state, weights = loss_fn.state_dict(), {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    train(loss_fn, data[stop:], model, 1, selections=kept)
    again, resumed, model_again = [], make_loss(make(0.4), seed=99), make_model()
    model_again.load_state_dict(weights)
    resumed.load_state_dict(state)
    torch.set_rng_state(random_state)
    train(resumed, data[stop:], model_again, 1, selections=again)
    assert again == kept and resumed.counts == loss_fn.counts
    assert testing.same(model_again.state_dict(), model.state_dict())


def test_a_state_of_another_method_is_refused_and_changes_nothing():
    state, loss_fn = make_loss(sb.top_k(0.2)).state_dict(), make_loss(sb.selective_backprop(0.4))
    before = loss_fn.state_dict()
    with pytest.raises(ValueError, match="top_k"):
        loss_fn.load_state_dict(state)
    assert testing.same(before, loss_fn.state_dict())


def train(loss_fn, data, model, epochs, optimizer=None, selections=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for inputs, targets in data:
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
            if selections is not None:
                selections.append(loss_fn.selection.positions.tolist())


# ---- what cannot work


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sb.methods.composer_backprop(scale_factor=0.5), "ForwardScorer"),
        (lambda: sb.selective_backprop(scoring="pipelined"), "PipelinedScorer"),
        (lambda: sb.stale_selective_backprop(), "StoredScorer"),
        (lambda: sb.ledger_backprop(), "TrainingLossScorer"),
        (lambda: sb.traditional(), "ConstantScorer"),
        (lambda: by_class(sb.selective_backprop(), torch.zeros(9).long()), "groups"),
        (lambda: sb.diet(method=sb.top_k(), scores=torch.rand(9), prune=0.5), "pruned"),
        (lambda: sb.methods.expected_selective_backprop(), "larger"),
        (lambda: sb.top_k(warmup_epochs=1), "batches_per_epoch=len"),
        (lambda: sb.top_k(start=0.5), "batches_per_epoch=len"),
    ],
)
def test_methods_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        SelectiveLoss(nn.CrossEntropyLoss(), make())


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"top_k\(\)"):
        SelectiveLoss(nn.CrossEntropyLoss(), sb.top_k)
    with pytest.raises(ValueError, match="num_epochs="):
        SelectiveLoss(nn.CrossEntropyLoss(), sb.top_k(start=0.5), batches_per_epoch=3)
    with pytest.raises(ValueError, match=r"batches_per_epoch .* 0"):
        SelectiveLoss(nn.CrossEntropyLoss(), sb.top_k(), batches_per_epoch=0)
    loss_fn = make_loss(sb.top_k(0.5))
    with torch.no_grad(), pytest.raises(RuntimeError, match="call your loss function itself"):
        loss_fn(make_network()(INPUTS), TARGETS)
    assert loss_fn.counts.batches == 0
    with pytest.raises(ValueError, match=r"nan .*\[3\]"):
        loss_fn(make_network()(INPUTS.index_fill(0, torch.tensor(3), torch.nan)), TARGETS)
    by_time = make_loss(sb.top_k(0.5), lambda outputs, targets: outputs.mean((0, 2)))
    with pytest.raises(ValueError, match=r"\(9, 6, 3\)"):
        by_time(torch.rand(9, 6, 3, requires_grad=True), None)
    negative = make_loss(sb.kath18(0.5, variable_start=False), lambda outputs, targets: outputs)
    with pytest.raises(ValueError, match=r"-1 .*\[1\]"):
        negative(torch.tensor([1.0, -1.0], requires_grad=True), None)


@pytest.mark.parametrize("method", [sb.traditional(), sb.ledger_backprop(), sb.top_k()], ids=lambda method: method.name)
def test_a_loader_refuses_it_and_its_audit_needs_the_loss_of_the_loader(method):
    """Otherwise statistics and audit would count every candidate as trained on."""
    model, loss_fn = make_network(), make_loss(sb.top_k(0.25))
    with pytest.raises(TypeError, match="SelectiveLoss"):
        sb.SelectiveLoader(batches(), model, loss_fn, method, audit=True)
    loader = sb.SelectiveLoader(batches(), model, nn.CrossEntropyLoss(), method, audit=True)
    with pytest.raises(RuntimeError, match="training losses"):
        for inputs, targets in loader:
            loss_fn(model(inputs), targets).backward()


# ---- several ranks, and a network with BatchNorm


def test_each_rank_selects_from_its_own_batch(tmp_path):
    one, other = run("selective_loss:job", tmp_path)
    assert testing.same(one["gradients"], other["gradients"]), "DDP averaged them"
    assert one["chosen"] != other["chosen"], "ranks draw different numbers"
    assert testing.same(one["gradients"], one["expected"])


def error_with_batch_norm(loss_of, epochs=10):
    """On a fifth of scikit-learn's digits, after training on the others."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    held_out = torch.arange(len(labels)) % 5 == 0
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = DataLoader(TensorDataset(images[~held_out], labels[~held_out]), 48, shuffle=True)
    batches, loss_fn = loss_of(data, model)
    for epoch in range(epochs):
        for inputs, targets in batches:
            optimizer.param_groups[0]["lr"] = 0.05 * (1.001 - epoch / epochs)
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
    return float((model.eval()(images[held_out]).argmax(1) != labels[held_out]).float().mean())


def test_batch_norm_trains_as_well_as_plain_sb():
    """Its statistics are those of all candidates. Both were at 1.4% to 2.8% over four seeds."""

    def plain(data, model):
        loader = sb.SelectiveLoader(data, model, nn.CrossEntropyLoss(), sb.selective_backprop(), batch_size=16)
        return loader, loader.loss

    def reused(data, model):
        return data, make_loss(sb.selective_backprop())

    assert error_with_batch_norm(reused) <= error_with_batch_norm(plain) + 0.02
