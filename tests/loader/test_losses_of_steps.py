"""What a loop must tell the loader about its steps: losses of the batch given out, and that weights were applied."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import selective_backprop as sb
from tests.helpers import digits, make_loader

UNBIASED = sb.selective_backprop(0.5, unbiased=True)
LOSS, LOSSES = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")


def go_through(loader, epochs, on_batch):
    for _ in range(epochs):
        for inputs, targets in loader:
            on_batch(loader, inputs, targets)


def call_the_loss_function_itself(loader, inputs, targets):
    LOSS(loader.model(inputs), targets).backward()


def only_tell(loader, inputs, targets):
    """As with mixup: the loss against the given targets is reported, and another one trained on."""
    loader.loss(loader.model(inputs).detach(), targets)
    LOSS(loader.model(inputs), targets).backward()


def tell_and_weigh(loader, inputs, targets):
    loader.loss(loader.model(inputs).detach(), targets)
    (LOSSES(loader.model(inputs), targets) * loader.weights()).mean().backward()


def tell_and_train(loader, inputs, targets):
    with torch.no_grad():
        loader.loss(loader.model(inputs), targets)
    loader.loss(loader.model(inputs), targets).backward()


@pytest.mark.parametrize(
    ("method", "loop"),
    [
        (sb.ledger_backprop(), call_the_loss_function_itself),
        (sb.infobatch(), call_the_loss_function_itself),
        (UNBIASED, call_the_loss_function_itself),
        (UNBIASED, only_tell),  # weights are applied by the loss that is returned
    ],
)
def test_a_loop_that_leaves_out_losses_or_weights_is_stopped_in_its_first_epoch_that_needs_them(method, loop):
    loader = make_loader(method, num_epochs=3)
    with pytest.raises(RuntimeError, match=r"loader\.loss"):
        go_through(loader, 3, loop)
    assert loader.epoch <= 1


@pytest.mark.parametrize(
    ("method", "loop"),
    [
        (sb.selective_backprop(0.5), call_the_loss_function_itself),  # it needs nothing from the loop
        (sb.ledger_backprop(), only_tell),
        (sb.infobatch(until=1.0), tell_and_weigh),
        (UNBIASED, tell_and_weigh),
        (UNBIASED, tell_and_train),
        (UNBIASED, lambda loader, inputs, targets: loader.weights()),
    ],
)
def test_a_loop_that_tells_what_the_method_needs_goes_on(method, loop):
    loader = make_loader(method, num_epochs=3)
    go_through(loader, 3, loop)
    assert loader.progress == 1 and loader.stats.trained > 0


def test_looking_at_the_weights_is_not_using_them():
    loader = make_loader(UNBIASED)
    with pytest.raises(RuntimeError, match=r"loader\.weights\(\)"):
        go_through(loader, 1, lambda loader, *_: loader.batch.weights.sum())
    for _ in loader:
        assert torch.equal(loader.weights(), loader.batch.weights)


def test_a_loss_that_is_computed_several_times_for_a_batch_is_recorded_once():
    """As by SAM, by LBFGS, for an auxiliary head or to print it."""
    loaders = [make_loader(sb.ledger_backprop(), audit=True, loader_options={"shuffle": False}) for _ in range(2)]
    for loader, calls in zip(loaders, (1, 3), strict=True):
        for _ in range(2):
            for inputs, targets in loader:
                for call in range(calls):
                    loader.loss(loader.model[0](inputs)[:, :10] * (1 + call), targets)
    once, thrice = loaders
    assert once.stats.mean_trained_loss == thrice.stats.mean_trained_loss
    torch.testing.assert_close(once.ledger.state_dict(), thrice.ledger.state_dict(), equal_nan=True)
    assert thrice.dynamics.num_rows == once.dynamics.num_rows == thrice.stats.trained


@pytest.mark.parametrize("method", [sb.ledger_backprop(), sb.infobatch()], ids=lambda method: method.name)
@pytest.mark.parametrize(
    "change",
    [lambda labels: labels.roll(1), lambda labels: digits()[:16][1][: len(labels)]],
    ids=["rolled", "of another batch"],
)
def test_targets_of_other_examples_are_refused(change, method):
    loader = make_loader(method, num_epochs=2)
    with pytest.raises(ValueError, match=r"outputs\.detach\(\), targets"):
        go_through(loader, 1, lambda loader, inputs, targets: loader.loss(loader.model(inputs), change(targets)))


@pytest.mark.parametrize(
    "change",
    [torch.clone, lambda labels: F.one_hot(labels, 10).float(), lambda labels: 0.9 * F.one_hot(labels, 10) + 0.01],
    ids=["copied", "one-hot", "smoothed"],
)
def test_what_is_computed_from_targets_is_fine(change):
    loader = make_loader(sb.ledger_backprop())
    go_through(loader, 1, lambda loader, inputs, targets: loader.loss(loader.model(inputs), change(targets)))
    assert not loader.ledger.loss.isnan().any()
