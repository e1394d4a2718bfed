"""Scoring ahead in the background: when weights are taken, in which order things happen, and what is left behind."""

import copy
import gc
import io
import random
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.testing import same
from tests.helpers import Noisy, digits, make_loader, make_model, train
from tests.processes import ENVIRONMENT, ROOT

WAIT = 30  # seconds after which a test gives up; none waits that long when it passes


def in_background():
    return threading.current_thread() is not threading.main_thread()


def run(scorer, *, forward=default_forward, slow_step=False, epochs=2, **options):
    """Ids of all batches, and the final weights."""
    torch.manual_seed(3)
    model = make_model()
    loader = make_loader(sb.selective_backprop(0.5, scoring=scorer), model=model, forward=forward, **options)
    clock = random.Random()
    batches = train(loader, model, epochs, on_step=lambda *_: time.sleep(clock.random() / 200 if slow_step else 0))
    return batches, model.state_dict()


def test_the_result_does_not_depend_on_the_timing():
    clock = random.Random()  # seeded by the system: another one each time

    def sleepy(model, batch):
        time.sleep(clock.random() / 100 if in_background() else 0)
        return default_forward(model, batch)

    scorer = sb.scorers.PipelinedScorer()
    expected = run(scorer, dataset=Noisy())
    for slow_step in (False, True):
        assert same(run(scorer, forward=sleepy, slow_step=slow_step, dataset=Noisy()), expected)
    assert not same(run(sb.scorers.ForwardScorer(), dataset=Noisy()), expected), (
        "scores are older than without pipelining"
    )


def losses_by(model, state, rows):
    """The independent reference: a model with these weights, in eval mode."""
    reference = copy.deepcopy(model)
    reference.load_state_dict(state)
    inputs, targets = digits()[rows]
    with torch.no_grad():
        return nn.functional.cross_entropy(reference.eval()(inputs), targets, reduction="none")


class Noting(sb.policies.TopKPolicy):
    """Notes the scores that it gets, and does as told then."""

    note = print

    def select(self, scores, generator):
        Noting.note(scores)
        return super().select(scores, generator)


def test_scores_are_those_of_the_model_when_the_batch_was_submitted():
    model, offers = make_model(), []  # the step at which each candidate batch was offered, and its scores
    Noting.note = lambda scores: offers.append((loader.stats.batches, scores.clone()))
    method = sb.Method("top_k", sb.scorers.PipelinedScorer(), Noting(selectivity=0.7))
    loader = make_loader(method, model=model, loader_options={"shuffle": False})
    versions = [copy.deepcopy(model.state_dict())]
    train(loader, model, 2, on_step=lambda *_: versions.append(copy.deepcopy(model.state_dict())))
    assert len(offers) == 26
    for number, (step, scores) in enumerate(offers):
        rows = slice(number % 13 * 16, number % 13 * 16 + 16)
        # Submitted when the batch before was offered, before its training; the first of an epoch is scored at once.
        submitted = step if number % 13 == 0 else offers[number - 1][0]
        assert torch.allclose(scores, losses_by(model, versions[submitted], rows), atol=1e-6)
    assert loader.stats.scored == loader.stats.offered == 406


def test_scoring_and_training_overlap():
    """The background waits for the training step, which waits for the background: both are under way at once."""
    begun, trained, seen = threading.Event(), threading.Event(), []

    def forward(model, batch):
        if in_background():
            begun.set()
            seen.append(trained.wait(WAIT))
        return default_forward(model, batch)

    loader = make_loader(sb.top_k(1 / 2, scoring="pipelined"), forward=forward, batch_size=8)
    for count, _ in enumerate(loader):
        if count == 0:
            assert begun.wait(WAIT)
            assert loader.stats.offered == 16, "what is ahead has not been offered yet"
            trained.set()
    assert seen
    assert all(seen)


def test_fidelity_is_measured_against_the_current_model():
    """Once in a hundred candidate batches."""
    model, options = make_model(), {"dataset": digits(1797), "loader_options": {"batch_size": 32}}
    loader = make_loader(sb.top_k(0.5, scoring="pipelined"), model=model, batch_size=16, **options)
    for _ in loader:
        assert loader.scorer.fidelity == 1
        break
    train(loader, model, 2)
    assert loader.scorer.fidelity < 1


def test_an_error_in_the_background_surfaces():
    def forward(model, batch):
        if in_background():
            raise KeyError("broken")
        return default_forward(model, batch)

    loader = make_loader(sb.top_k(0.5, scoring="pipelined"), forward=forward, batch_size=8)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(KeyError, match="broken"):
        next(iterator)


def test_random_numbers_in_eval_mode_are_refused():
    class Random(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.5, training=True))

    loader = make_loader(sb.selective_backprop(0.5, scoring="pipelined"), model=Random(64, 10))
    with pytest.raises(ValueError, match="random"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: sb.scorers.PipelinedScorer(sb.scorers.ForwardScorer("train")),
            ValueError,
            "'train'",
        ),
        (lambda: sb.scorers.PipelinedScorer(sb.scorers.ConstantScorer()), TypeError, "Const"),
        (lambda: sb.scorers.PipelinedScorer(sb.scorers.PipelinedScorer()), TypeError, "Pipe"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_with_another_score():
    scorer = sb.methods.distance_backprop(scoring="pipelined").scorer
    inputs, targets = torch.rand(5, 3, 8, 8), torch.arange(5)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 10))
    task = sb.types.Task(model, default_forward, PerExampleLoss(nn.CrossEntropyLoss()))
    candidates = sb.types.Candidates((inputs, targets), None, 5)
    alone = sb.methods.distance_backprop().scorer.score(candidates, task)
    scorer.submit(candidates, task)
    assert torch.equal(scorer.score(candidates, task), alone)


def background_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("selective_backprop")]


def test_nothing_is_left_running():
    release = threading.Event()

    def forward(model, batch):
        assert not in_background() or release.wait(WAIT)
        return default_forward(model, batch)

    loader = make_loader(sb.top_k(0.5, scoring="pipelined"), forward=forward, batch_size=8)
    for _ in loader:
        assert len(background_threads()) == 1
        release.set()
        break
    gone = weakref.ref(loader.scorer)
    del loader
    gc.collect()
    for thread in background_threads():
        thread.join(WAIT)
    gc.collect()
    assert not background_threads()
    assert gone() is None


LEFT_AT_EXIT = """
import selective_backprop as sb
from tests.helpers import make_loader
loader = make_loader(sb.top_k(0.5, scoring="pipelined"), batch_size=8)
iterator = iter(loader)
next(iterator)
"""


def test_the_interpreter_exits_with_work_under_way():
    command = [sys.executable, "-W", "error", "-c", LEFT_AT_EXIT]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, timeout=120, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_what_is_not_wanted_any_more_is_waited_for():
    """The copy must not change under it, nor a DataLoader fork beside it."""
    done = []

    def forward(model, batch):
        time.sleep(0.2)
        done.append(in_background())
        return default_forward(model, batch)

    loader = make_loader(sb.top_k(0.5, scoring="pipelined"), forward=forward, loader_options={"batch_size": 64})
    for _ in loader:
        done.clear()
        break
    assert done == [True]


class AddNoise:
    """A transform with a state, and one that draws from the global generator."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self, batch):
        inputs, targets = batch
        noise = torch.randn(inputs.shape, generator=self.generator) + torch.randn_like(inputs)
        return inputs + 0.1 * noise, targets

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


KINDS = {
    "pairs": lambda: DataLoader(digits(), 16, shuffle=True),
    "dicts": lambda: DataLoader([{"input": x, "labels": y} for x, y in digits()], 16, shuffle=True),
}


class Linear(nn.Linear):
    def forward(self, input, labels=None):
        return super().forward(input)


@pytest.mark.parametrize("kind", KINDS)
def test_resume_with_a_batch_under_way(kind):
    """Saved after every step; the batch ahead and its scores come back to the bit."""

    def new():
        torch.manual_seed(3)
        model = Linear(64, 10)
        loader = sb.SelectiveLoader(
            KINDS[kind](),
            model,
            nn.CrossEntropyLoss(),
            sb.top_k(0.6, scoring="pipelined"),
            batch_size=8,
            transform=AddNoise() if kind != "dicts" else None,
        )
        return loader, model, torch.optim.SGD(model.parameters(), lr=0.5)

    def steps(loader, model, optimizer, saved=None):
        given = []
        for _ in range(loader.epoch, 2):
            for batch in loader:
                loader.loss(*default_forward(model, batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
                given.append(copy.deepcopy(batch))
                if saved is not None:
                    file = io.BytesIO()
                    torch.save([model.state_dict(), loader.state_dict(), torch.get_rng_state()], file)
                    saved.append(file)
        return given

    saved = []
    loader, model, optimizer = new()
    given = steps(loader, model, optimizer, saved)
    for count, file in list(enumerate(saved, start=1))[::3]:
        file.seek(0)
        weights, state, rng = torch.load(file, weights_only=True)
        resumed, resumed_model, resumed_optimizer = new()
        resumed_model.load_state_dict(weights)
        resumed.load_state_dict(state)
        torch.set_rng_state(rng)
        assert same(steps(resumed, resumed_model, resumed_optimizer), given[count:])
        assert same(resumed_model.state_dict(), model.state_dict())


def test_selection_that_is_switched_off_for_a_batch_ahead():
    """A schedule may decide when the batch has its turn: what was scored for nothing is dropped."""

    class TwoOnTwoOff(sb.schedules.Schedule):
        count = 0

        def advance(self, *place):
            object.__setattr__(self, "count", self.count + 1)

        def is_on(self, *place):
            return self.count % 4 > 1

    method = sb.Method("mine", sb.scorers.PipelinedScorer(), sb.policies.TopKPolicy(selectivity=0.5), TwoOnTwoOff())
    loader = make_loader(method, num_epochs=4)
    trained = [id for batch in train(loader, loader.model, 4) for id in batch]
    assert 0 < loader.stats.scored < loader.stats.offered == 4 * 203
    assert len(trained) == loader.stats.trained
    assert torch.equal(loader.ledger.selected, torch.bincount(torch.tensor(trained), minlength=203).int())


@pytest.mark.gpu
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_model_on_the_gpu(device):
    def ids(scorer):
        torch.manual_seed(1)
        model = make_model().cuda()
        loader = make_loader(sb.top_k(0.5, scoring=scorer), model=model)
        return [loader.batch.ids.tolist() for _ in range(2) for _ in loader], loader.ledger.score

    # Without training the weights stay the same: so do the scores, wherever they are computed.
    ahead, plain = ids(sb.scorers.PipelinedScorer(device=device)), ids(sb.scorers.ForwardScorer())
    assert torch.allclose(ahead[1], plain[1], atol=1e-4)
