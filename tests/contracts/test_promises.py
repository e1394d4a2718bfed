"""The promises of the design, for every method. Promise 7 (bad input) has a file of its own."""

import copy
import dataclasses
import functools
import io
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

import selective_backprop as sb
from selective_backprop import testing
from selective_backprop.losses import PerExampleLoss, default_forward
from tests.contracts.methods import KINDS, METHODS
from tests.contracts.methods import test_every_method_is_in_the_table as test_every_method_is_in_the_table
from tests.helpers import Noisy, digits, make_loader, make_model, train, train_plainly

EPOCHS = 4

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def learn_without_training(loader):
    """Tell the loader losses, as a training step would, and leave the model as it is."""
    outputs = torch.rand(len(loader.batch), 10, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loader.loss(outputs, loader.batch.data[1])


@every_method
def test_1_scoring_leaves_no_trace(make):
    """Whatever the loader does between two steps, nothing about the model or the global random states changes."""
    random.seed(1)
    np.random.seed(1)
    model = make_model()
    loader = make_loader(make(0.4), model=model, num_epochs=EPOCHS, loader_options={"shuffle": False})
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    before = testing.model_trace(model), testing.global_random_states()
    for _ in range(EPOCHS):
        iterator = iter(loader)
        # Starting a DataLoader draws a seed for its workers, with or without selection: that is not scoring.
        state = torch.get_rng_state()
        batch = next(iterator, None)
        torch.set_rng_state(state)
        while batch is not None:
            assert testing.same(before, (testing.model_trace(model), testing.global_random_states()))
            learn_without_training(loader)
            batch = next(iterator, None)
    assert testing.same(before, (testing.model_trace(model), testing.global_random_states()))


@functools.cache
def plain_training(epochs, workers, drop_last):
    """Options of a loader, and what training makes of its batches."""
    options = {"batch_size": 16, "shuffle": True, "num_workers": workers, "drop_last": drop_last}
    torch.manual_seed(3)
    model = make_model()
    return options, train_plainly(DataLoader(Noisy(), **options), model, epochs), model


@every_kind
@pytest.mark.parametrize("drop_last", [False, True])
def test_2_selectivity_1_is_plain_training(make, drop_last):
    check_plain(make, 3, drop_last=drop_last)


@pytest.mark.parametrize("name", ["selective_backprop", "ledger_percentile"])
def test_2_selectivity_1_is_plain_training_with_workers(name):
    check_plain(KINDS[name], 2, workers=2)


def check_plain(make, epochs, *, workers=0, drop_last=False):
    options, plain, plain_model = plain_training(epochs, workers, drop_last)
    torch.manual_seed(3)
    model, batches = make_model(), []
    loader = make_loader(make(1), dataset=Noisy(), model=model, num_epochs=epochs, loader_options=options)
    train(loader, model, epochs, on_step=lambda step, optimizer: batches.append(loader.batch.data[0].clone()))
    assert testing.same(plain, batches)
    assert testing.same(plain_model.state_dict(), model.state_dict())
    assert len(batches) == epochs * len(loader)


@pytest.mark.parametrize(
    ("make_policy", "prefers_high_scores"),
    [
        (lambda: sb.policies.PercentilePolicy(selectivity=1 / 3), True),
        (lambda: sb.policies.PercentilePolicy(beta=0), True),
        (lambda: sb.policies.PercentilePolicy(beta=5, history_size=16), True),
        (lambda: sb.policies.PercentilePolicy(selectivity=0.3, fixed_size=True), True),
        (lambda: sb.policies.PercentilePolicy(selectivity=0.3, fixed_size=True, history_size=1), True),
        (lambda: sb.policies.PercentilePolicy(selectivity=0.3, unbiased=True), True),
        (lambda: sb.policies.GroupedPolicy(sb.policies.PercentilePolicy(selectivity=0.3)), True),
        (lambda: sb.policies.ExpectedPolicy(selectivity=0.3), True),
        (lambda: sb.policies.LossSharePolicy(loss_share=0.8), True),
        (lambda: sb.policies.ImportancePolicy(selectivity=0.3), True),
        (lambda: sb.policies.ImportancePolicy(selectivity=0.3, unbiased=True), True),
        (lambda: sb.policies.BelowMeanPolicy(prune=0.6), True),
        (lambda: sb.policies.ClippedScorePolicy(minimum=0.1), True),
        (lambda: sb.policies.UniformPolicy(selectivity=0.3), True),
        (lambda: sb.policies.TopKPolicy(selectivity=0.25), True),
    ],
)
def test_3_and_4_policies(make_policy, prefers_high_scores):
    testing.check_policy(make_policy, prefers_high_scores=prefers_high_scores)


@pytest.mark.parametrize(
    "scorer",
    [
        sb.scorers.ForwardScorer(),
        sb.scorers.ForwardScorer("train"),
        sb.scorers.ConstantScorer(),
        sb.scorers.StoredScorer(sb.scorers.ForwardScorer(), every=2),
        sb.scorers.ForwardScorer(measure=sb.functional.softmax_distance),
        sb.scorers.StoredScorer(sb.scorers.ForwardScorer(), every=3, past_scores=4),
        sb.scorers.proxy(make_model(seed=5), train_every=0),
        sb.scorers.proxy(make_model(seed=5), train_every=2),  # which learns after the second of two equal passes
        sb.scorers.PipelinedScorer(),
    ],
)
def test_1_scorers(scorer):
    inputs, targets = digits()[:32]
    candidates = sb.types.Candidates((inputs, targets), torch.arange(32), 32)
    task = sb.types.Task(make_model(), default_forward, PerExampleLoss(nn.CrossEntropyLoss()))
    testing.check_scorer(scorer, candidates, task)


def noting(policy, note):
    """The same policy, which also notes each selection."""

    class Noting(type(policy)):
        def select(self, scores, generator):
            selection = super().select(scores, generator)
            note(selection)
            return selection

    policy = copy.deepcopy(policy)
    object.__setattr__(policy, "__class__", Noting)
    return policy


@every_method
def test_4_inclusion_is_what_the_method_says(make):
    """Over a long run, as many are selected as the probabilities add up to: within 5 standard deviations."""
    chances, selected = [], []

    def note(selection):
        chances.append(selection.probabilities.double())
        selected.append(selection.positions.unique().numel())

    method = make(0.4)
    if isinstance(method.policy, sb.policies.GroupedPolicy):
        policy = sb.policies.GroupedPolicy(noting(method.policy.policy, note))
    else:
        policy = noting(method.policy, note)
    loader = make_loader(dataclasses.replace(method, policy=policy), num_epochs=30, loader_options={"batch_size": 64})
    given_out = 0
    for _ in range(30):
        for _ in loader:
            learn_without_training(loader)
            given_out += len(loader.batch)
    chance = torch.cat(chances) if chances else torch.ones(0)
    assert abs(sum(selected) - float(chance.sum())) <= 5 * float((chance * (1 - chance)).sum()) ** 0.5 + 1e-6
    assert sum(selected) <= given_out == loader.stats.trained <= loader.stats.offered


SAMPLERS = {
    "each once": lambda data: RandomSampler(data),
    "a part of them": lambda data: RandomSampler(data, num_samples=len(data) // 5),
    "with replacement": lambda data: RandomSampler(data, replacement=True),
    "some more often": lambda data: WeightedRandomSampler(torch.linspace(0.1, 2, len(data)), len(data)),
}
UNBIASED = {
    "infobatch": lambda: sb.infobatch(until=1.0),
    "selective_backprop": lambda: sb.selective_backprop(0.6, unbiased=True, max_weight=1e9),
    "ledger_percentile": lambda: sb.methods.ledger_percentile(0.6, unbiased=True, max_weight=1e9),
}


@pytest.mark.parametrize("make_sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("make", UNBIASED.values(), ids=UNBIASED.keys())
def test_4_weights_of_unbiased_methods_add_up_to_the_offers_of_any_sampler(make, make_sampler):
    """Each offer of an example counts 1 on average, hard or easy: within 4 standard deviations."""
    options = {"batch_size": 64, "shuffle": False, "sampler": make_sampler(digits())}
    loader = make_loader(make(), num_epochs=60, loader_options=options)
    weights, variance = torch.zeros(2, len(digits()), dtype=torch.float64)
    for _ in range(60):
        for inputs, targets in loader:
            loader.weights()
            loader.loss(-inputs[:, :10].square(), targets)  # losses that differ and stay the same
            chances = loader.batch.probabilities
            weights.index_add_(0, loader.batch.ids, loader.batch.weights.double())
            variance.index_add_(0, loader.batch.ids, (1 - chances) / chances**2)
    order = loader.ledger.loss.nan_to_num(nan=0.0).argsort()
    for half in order.chunk(2):
        offers, deviation = float(loader.ledger.offered[half].sum()), float(variance[half].sum()) ** 0.5
        assert abs(float(weights[half].sum()) - offers) <= 4 * deviation
        assert deviation <= 0.05 * offers


def save_and_load(loader, model, optimizer):
    """Through a real file format that executes no code."""
    file = io.BytesIO()
    torch.save(
        {
            "loader": loader.state_dict(),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        },
        file,
    )
    file.seek(0)
    return torch.load(file, weights_only=True)


def check_resume(make, stops):
    """Stop after these steps and go on each time."""

    def new():
        model = make_model()
        return model, make_loader(make(0.4), dataset=Noisy(), model=model, num_epochs=EPOCHS)

    saved = []
    torch.manual_seed(5)
    model, loader = new()
    batches = train(
        loader,
        model,
        EPOCHS,
        on_step=lambda step, o: saved.append((step, save_and_load(loader, model, o))) if step in stops else None,
    )
    assert saved
    for step, state in saved:
        torch.manual_seed(99)
        resumed_model, resumed = new()
        optimizer = torch.optim.SGD(resumed_model.parameters(), lr=0.05, momentum=0.9)
        resumed_model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        resumed.load_state_dict(state["loader"])
        torch.set_rng_state(state["rng"])
        rest = train(resumed, resumed_model, EPOCHS, optimizer=optimizer)
        assert rest == batches[step:]
        assert testing.same(resumed_model.state_dict(), model.state_dict())
        assert testing.same(resumed.ledger.state_dict(), loader.ledger.state_dict())
        counts, expected = resumed.stats.state_dict(), loader.stats.state_dict()
        del counts["seconds"], expected["seconds"]
        assert str(counts) == str(expected)  # a NaN is not equal to itself


@every_kind
def test_5_resume_equals_never_having_stopped(make):
    """In the middle of epochs and at their ends, of which the first has 13 batches."""
    check_resume(make, (1, 7, 13, 16, 24))


class Counting(torch.utils.data.TensorDataset):
    """Counts what is loaded."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.loaded = 0

    def __getitem__(self, index):
        self.loaded += 1
        return super().__getitem__(index)


@every_method
def test_6_batches_are_full_and_nothing_is_lost_or_repeated(make):
    method, dataset, model = make(0.4), Counting(*digits().tensors), make_model()
    loader = make_loader(method, dataset=dataset, model=model, num_epochs=EPOCHS)
    kept = torch.ones(len(dataset), dtype=torch.int32) if method.keep is None else method.keep.int()
    given, per_epoch = [], []
    for epoch in range(EPOCHS):
        sizes = []
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            assert torch.equal(inputs, digits().tensors[0][loader.batch.ids])
            assert torch.equal(targets, digits().tensors[1][loader.batch.ids])
            given += loader.batch.ids.tolist()
            sizes.append(len(inputs))
        per_epoch.append(sizes)
        assert torch.equal(loader.ledger.offered, (epoch + 1) * kept), "offered once an epoch, or pruned"
    counts = torch.bincount(torch.tensor(given), minlength=len(dataset))
    assert torch.equal(loader.ledger.selected, counts.int())
    assert loader.stats.queued == loader.stats.dropped == 0, "an epoch gives out all that it selects"
    assert loader.stats.trained == len(given)
    assert loader.stats.offered == EPOCHS * int(kept.sum())
    assert dataset.loaded == loader.stats.offered - loader.stats.skipped_before_loading
    for sizes in per_epoch:
        assert all(size == loader.batch_size for size in sizes[:-2])
        is_plain = sum(sizes) == kept.sum() and sizes[-2] == loader.batch_size
        assert is_plain or all(2 * size >= loader.batch_size for size in sizes[-2:])


@every_method
def test_6_9_10_no_id_twice_no_silent_epoch_and_no_more_batches_than_len(make, caplog):
    """Where training batches are large for the data set."""
    model, epochs = make_model(), 8
    loader = make_loader(make(0.4), model=model, num_epochs=epochs, batch_size=48)
    with_replacement = loader.method.name == "kath18"
    silent = 0
    for _ in range(epochs):
        count, told, scored = 0, set(), loader.stats.scored
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            ids = loader.batch.ids
            assert with_replacement or len(ids.unique()) == len(ids)
            count += 1
            told.add(len(loader))
        assert count <= len(loader)
        assert loader.stats.scored > scored or told == {count}, "exact once the epoch is planned"
        silent += not count
        assert caplog.text.count("gave out no batch") == (silent > 0), "told the first time, and then every tenth"
    assert loader.progress == 1


class KnownLosses(nn.Module):
    """The loss of example i in an epoch is a number that follows from both, whatever is trained on when."""

    def __init__(self):
        super().__init__()
        self.scale, self.epoch = nn.Parameter(torch.ones(())), 0

    def forward(self, ids):
        return self.scale * self.of(ids, self.epoch)

    @staticmethod
    def of(ids, epoch):
        return (ids + 1).float().sqrt() * 7.3 * (epoch + 1) % 5


@every_kind
@pytest.mark.parametrize("drop_last", [False, True])
def test_11_what_is_remembered_belongs_to_the_example_that_it_came_from(make, drop_last):
    """Also where steps are left out, an epoch is left early, and a run is resumed."""

    def new():
        model, options = KnownLosses(), {"shuffle": True, "drop_last": drop_last}
        data = DataLoader(torch.utils.data.TensorDataset(torch.arange(203), torch.zeros(203)), 16, **options)
        method = make(0.4)
        if isinstance(getattr(method.scorer, "model", None), nn.Module):
            method = dataclasses.replace(method, scorer=sb.scorers.proxy(KnownLosses(), train_every=0))
        return model, sb.SelectiveLoader(data, model, lambda outputs, _: outputs, method, num_epochs=EPOCHS)

    model, loader = new()
    while loader.epoch < EPOCHS:
        model.epoch = loader.epoch
        for step, (ids, targets) in enumerate(loader):
            assert torch.equal(ids, loader.batch.ids)
            loss = loader.loss(model(ids), targets)
            if step % 3:  # else the step is left out, as where gradients overflow
                loss.backward()
            if loader.epoch == 1 and step == 2:
                state = loader.state_dict()
                model, loader = new()
                loader.load_state_dict(state)
                break
            if loader.epoch == 2 and step == 4:
                break
    ledger, ids = loader.ledger, torch.arange(203)
    known = ledger.loss_epoch >= 0
    assert int(known.sum()) > 50 and set(ledger.loss_epoch.tolist()) >= {EPOCHS - 1}
    torch.testing.assert_close(ledger.loss[known], KnownLosses.of(ids, ledger.loss_epoch)[known])


@pytest.mark.gpu
@every_kind
def test_8_no_wait_for_the_gpu_but_one_a_candidate_batch(make):
    model = make_model().cuda()
    loader = make_loader(make(0.4), model=model, num_epochs=EPOCHS)
    waits = []
    cpu = torch.Tensor.to

    def to(tensor, *args, **kwargs):
        if tensor.is_cuda and args[:1] == ("cpu",) and not kwargs.get("non_blocking", False):
            waits.append(tensor.shape)
            torch.cuda.set_sync_debug_mode("default")
        try:
            return cpu(tensor, *args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    torch.Tensor.to = to
    try:
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                loader.loss(model(inputs), targets).backward()
    finally:
        torch.Tensor.to = cpu
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) <= EPOCHS * len(loader.dataset) // 16 + EPOCHS, "one for each candidate batch"
