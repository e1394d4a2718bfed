"""Losses are reported for every batch that needs them, count once, and an epoch that is left early is over."""

import itertools

import pytest
import torch
from torch import nn

import selective_backprop as sb
from tests.helpers import make_loader, make_model

TRAINED_ON = r"selects by training losses, but got none from this batch: compute the loss with loader\.loss"
WITHOUT = r"gives examples weights, but this batch was trained on without them"


def loop(loader, epochs, on_batch):
    for _ in range(epochs):
        for batch in loader.batches():
            on_batch(batch)


@pytest.mark.parametrize(
    ("method", "epoch", "message"),
    [
        (sb.ledger_backprop(), 1, TRAINED_ON),
        (sb.selective_backprop(0.5, unbiased=True), 1, WITHOUT),
    ],
)
def test_a_loop_over_batches_that_calls_the_loss_function_itself_is_stopped(method, epoch, message):
    loader, loss_fn = make_loader(method), nn.CrossEntropyLoss()
    with pytest.raises(RuntimeError, match=message):
        loop(loader, 2, lambda batch: loss_fn(loader.model(batch.data[0]), batch.data[1]).backward())
    assert loader.epoch == epoch
    make = make_loader(sb.selective_backprop(0.5))
    loop(make, 2, lambda batch: None)  # which needs nothing from the loop


@pytest.mark.parametrize("method", [sb.infobatch(until=1.0), sb.selective_backprop(0.5, unbiased=True)])
def test_losses_that_are_only_told_train_nothing(method):
    """Weights are applied by the loss that is returned, so it must be trained on, or the weights asked for."""
    loss_fn = nn.CrossEntropyLoss(reduction="none")

    def tell(batch):
        loader.loss(loader.model(batch.data[0]).detach(), batch.data[1], batch)
        loss_fn(loader.model(batch.data[0]), batch.data[1]).mean().backward()

    def tell_and_weigh(batch):
        loader.loss(loader.model(batch.data[0]).detach(), batch.data[1], batch)
        (loss_fn(loader.model(batch.data[0]), batch.data[1]) * loader.weights(batch)).mean().backward()

    def tell_and_train(batch):
        with torch.no_grad():
            loader.loss(loader.model(batch.data[0]), batch.data[1], batch)
        loader.loss(loader.model(batch.data[0]), batch.data[1], batch).backward()

    for on_batch in (tell_and_weigh, tell_and_train):
        loader = make_loader(method, num_epochs=3)
        loop(loader, 3, on_batch)
        assert loader.batch.is_weighted
    loader = make_loader(method, num_epochs=3)
    with pytest.raises(RuntimeError, match=WITHOUT):
        loop(loader, 3, tell)
    loader = make_loader(method, num_epochs=3)
    with pytest.raises(RuntimeError, match=WITHOUT + ".*, whose result had no gradient here"):
        for _ in range(3):
            for _ in loader:
                tell(loader.batch)


def test_a_very_long_epoch_is_stopped_before_its_end():
    data = torch.utils.data.TensorDataset(torch.randn(1100, 64), torch.zeros(1100, dtype=torch.long))
    loader = make_loader(sb.ledger_backprop(), dataset=data, model=nn.Linear(64, 2), loader_options={"batch_size": 1})
    with pytest.raises(RuntimeError, match=TRAINED_ON):
        loop(loader, 1, lambda batch: None)
    assert loader.stats.batches == 1001


def test_weights_of_batches_taken_ahead_can_be_asked_for():
    loader = make_loader(sb.selective_backprop(0.5, unbiased=True))
    loop(loader, 2, lambda batch: torch.testing.assert_close(loader.weights(batch), batch.weights))
    infobatch = make_loader(sb.infobatch(), num_epochs=3)
    with pytest.raises(RuntimeError, match=TRAINED_ON):  # it needs losses, too
        loop(infobatch, 3, infobatch.weights)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_loss_that_is_computed_twice_for_a_batch_is_recorded_once(ahead):
    """As by SAM, by LBFGS, for an auxiliary head or to print it."""
    method = sb.ledger_backprop()
    loaders = [make_loader(method, audit=True, loader_options={"shuffle": False}) for _ in range(2)]
    for loader, calls in zip(loaders, (1, 3), strict=True):
        for _ in range(3):
            for batch in loader.batches() if ahead else (loader.batch for _ in loader):
                inputs, targets = batch.data
                for call in range(calls):
                    loader.loss(loader.model[0](inputs)[:, :10] * (1 + call), targets, batch if ahead else None)
    once, thrice = loaders
    assert once.stats.loss_sums == thrice.stats.loss_sums
    torch.testing.assert_close(once.ledger.state_dict(), thrice.ledger.state_dict(), equal_nan=True)
    assert thrice.dynamics.num_rows == once.dynamics.num_rows == thrice.stats.trained


def test_epochs_that_are_left_early_are_over_in_a_resumed_run_too():
    def new():
        torch.manual_seed(3)
        return make_loader(sb.selective_backprop(0.5), model=make_model(), num_epochs=6)

    def run(loader, epochs):
        for _ in range(epochs):
            for _ in itertools.islice(loader, 4):
                trained.append(loader.batch.ids.tolist())
            states.append((loader.state_dict(), torch.get_rng_state()))

    trained, states = [], []
    loader = new()
    run(loader, 6)
    expected, saved = list(trained), list(states)
    assert len(expected) == 24 and loader.epoch == 6
    for epoch in (1, 3):
        resumed, trained = new(), []
        resumed.load_state_dict(saved[epoch - 1][0])
        torch.set_rng_state(saved[epoch - 1][1])
        assert resumed.epoch == epoch
        run(resumed, 6 - epoch)
        assert trained == expected[4 * epoch :]


def test_saving_in_an_epoch_that_is_left_early_later_changes_nothing():
    def run(resume=None, *, saves=False):
        """Leave each of three epochs after four steps. resume: steps done and the state."""
        loader_options = {"generator": torch.Generator().manual_seed(3)}
        loader = make_loader(sb.selective_backprop(0.5), model=make_model(), loader_options=loader_options)
        steps, state = resume or (0, None)
        if state is not None:
            loader.load_state_dict(state)
        while steps < 12:
            for _ in itertools.islice(loader, 4 - steps % 4):
                steps += 1
                trained.append(loader.batch.ids.tolist())
                if saves:
                    states.append((steps, loader.state_dict()))

    trained, states = [], []
    run()
    expected, trained = trained, []
    run(saves=True)
    assert trained == expected
    for steps, state in states[:2] + states[4:6]:
        trained = []
        run((steps, state))
        assert trained == expected[steps:], steps
