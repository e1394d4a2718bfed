"""Losses of which a few are far larger than the rest, and negative ones."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb

SIZE, BATCH = 2000, 64


def regression(seed, outlier=None, broken=slice(7, 8)):
    """Inputs and noisy targets to train on, the same to test on; one target to train on is broken, or more."""
    draws = torch.Generator().manual_seed(seed)
    slopes = torch.randn(10, 1, generator=draws)
    sets = []
    for _ in range(2):
        inputs = torch.randn(SIZE, 10, generator=draws)
        sets.append((inputs, inputs @ slopes + 0.3 * torch.randn(SIZE, 1, generator=draws)))
    if outlier is not None:
        sets[0][1][broken] = outlier
    return sets


def make_loader(data, model, method, loss_fn, epochs, batch_size=BATCH):
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(*data), batch_size, shuffle=True, generator=order)
    return sb.SelectiveLoader(loader, model, loss_fn, method, num_epochs=epochs)


def trained(method, seed, outlier, make_optimizer, epochs=12, **options):
    """Test error, and training batches of each epoch."""
    train, test = regression(seed, outlier, **options)
    torch.manual_seed(seed)
    model = nn.Linear(10, 1)
    optimizer = make_optimizer(model.parameters())
    rate = optimizer.param_groups[0]["lr"]
    loader, batches = make_loader(train, model, method, nn.MSELoss(), epochs), []
    for _ in range(epochs):
        batches.append(0)
        for inputs, targets in loader:
            optimizer.param_groups[0]["lr"] = rate * (1 - loader.progress)
            loss = loader.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches[-1] += 1
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(test[0]), test[1])), batches


@pytest.mark.parametrize("outlier", [300.0, 1e4])
@pytest.mark.parametrize(
    "make_optimizer",
    [lambda p: torch.optim.Adam(p, lr=0.05), lambda p: torch.optim.SGD(p, lr=0.005)],
    ids=["adam", "sgd"],
)
def test_one_broken_target_does_not_stop_the_ledger(outlier, make_optimizer):
    """Its loss is over 99% of all. Test errors are within 10% of plain training's, over two seeds.

    With a target of 10,000 all losses rise and fall by chance, and the check for forgetting may end the skipping.
    """
    plain = [trained(sb.traditional(), seed, outlier, make_optimizer)[0] for seed in range(2)]
    ledger = [trained(sb.ledger_backprop(), seed, outlier, make_optimizer) for seed in range(2)]
    assert sum(error for error, _ in ledger) < 1.1 * sum(plain)
    for _, batches in ledger:
        assert min(batches) > 0.2 * batches[0]
        assert outlier > 300 or sum(batches) < 0.8 * len(batches) * batches[0]  # and not everything is trained on


def test_an_outlier_has_no_larger_part_in_the_steps_than_in_plain_training():
    """Not even when an epoch with few selected examples is filled up. 1 of 31 steps in plain training; 4 seeds.

    Expected are 40 steps with it, with a standard deviation of 4, so 40% above plain training's rate is 3 of these.
    """
    steps = with_outlier = 0
    for seed in range(4):
        train, _ = regression(seed, 300.0)
        torch.manual_seed(seed)
        model = nn.Linear(10, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = make_loader(train, model, sb.ledger_backprop(), nn.MSELoss(), 20)
        for epoch in range(20):
            for inputs, targets in loader:
                if epoch:  # the first epoch trains on everything
                    steps += 1
                    with_outlier += 7 in loader.batch.ids
                loss = loader.loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert 0 < with_outlier < 1.4 * steps * BATCH / SIZE


@pytest.mark.parametrize("size", [2_000, 10_000])
def test_a_rare_class_is_no_outlier(size):
    """Logistic regression with 0.4% positives, whose losses are over 100 times those of nearly all negatives."""
    draws = torch.Generator().manual_seed(0)
    targets = (torch.arange(size) < 0.004 * size).long()
    inputs = torch.randn(size, 5, generator=draws) + torch.outer(targets, torch.tensor([1.5, 0, 0, 0, 0]))
    model = nn.Linear(5, 2)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = sb.ledger_backprop(skip_at_least=0.1, most_rise=None)
    loader = make_loader((inputs, targets), model, method, nn.CrossEntropyLoss(), 5)
    trained_on, high = torch.zeros(size), 0
    for _ in range(5):
        for inputs, labels in loader:
            trained_on[loader.batch.ids] += 1
            loss = loader.loss(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses = loader.ledger.loss
        high += int((losses[targets == 1] > 100 * losses.quantile(0.99)).sum())
    assert high > 0.004 * size and trained_on.mean() < 4.5
    assert (trained_on[targets == 1] == 5).all()


def test_the_rule_without_a_cap_does_stop():
    """What the test above is there to see."""
    method = sb.ledger_backprop(cap=float("inf"), keep_at_least=0, most_rise=None)
    _, batches = trained(method, 0, 1e4, lambda p: torch.optim.Adam(p, lr=0.05))
    assert sum(batches[1:10]) < 0.5 * batches[0]  # until all is trained on for its age


def test_three_percent_of_broken_targets_do_little_more_harm_than_in_plain_training():
    """Too many to be outliers. What tells them from examples still to be learned: all other losses rise.

    The error is 1.0 to 1.1 times that of plain training, without the check for forgetting over 3 times.
    """

    def error(method):
        options = {"epochs": 20, "broken": slice(60)}
        return trained(method, 0, 30.0, lambda p: torch.optim.Adam(p, lr=0.03), **options)[0]

    plain = error(sb.traditional())
    assert error(sb.ledger_backprop()) < 1.5 * plain
    assert error(sb.ledger_backprop(most_rise=None)) > 2.5 * plain


@pytest.mark.parametrize("share", [0.02, 0.03, 0.04, 0.08])
@pytest.mark.parametrize("high", [10.0, 1000.0])
def test_the_rest_is_skipped_where_a_few_examples_are_still_to_be_learned(share, high):
    """Losses of 0.001, and a few far higher, which carry the loss in spite of the cap."""
    number = round(share * 10_000)
    losses = torch.cat([torch.full((number,), high), torch.full((10_000 - number,), 0.001)])
    policy = sb.ledger_backprop().policy
    assert policy.keep_fraction(losses) == 0.1
    positions = policy.select(losses, torch.Generator()).positions
    assert len(positions) == 1000 and int((positions < number).sum()) == number


def test_the_ledger_trains_on_a_tenth_at_least():
    torch.manual_seed(0)
    inputs, targets = torch.randn(1000, 1), torch.zeros(1000, dtype=torch.long)
    targets[:30] = 1  # wrong, and all of the loss, as the model is sure of the others
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([10.0, -10.0]))
    for keep_at_least, expected in ((0.1, [1000, 100, 100]), (0.0, [1000, 29, 29])):  # 95% of the 30 wrong ones
        method = sb.ledger_backprop(cap=100, keep_at_least=keep_at_least, most_rise=None)
        loader = make_loader((inputs, targets), model, method, nn.CrossEntropyLoss(), 3, batch_size=50)
        trained_on = [0, 0, 0]
        for epoch in range(3):
            for batch_inputs, batch_targets in loader:
                loader.loss(model(batch_inputs), batch_targets)
                trained_on[epoch] += len(batch_inputs)
        assert trained_on == expected


class GaussianLoss(nn.Module):
    """Negative log likelihood of a Gaussian with a learned variance: below zero where the model is sure and right."""

    reduction = "mean"

    def forward(self, outputs, targets):
        losses = nn.functional.gaussian_nll_loss(
            outputs[:, :1], targets, outputs[:, 1:].exp(), reduction="none"
        ).flatten()
        return losses.mean() if self.reduction == "mean" else losses


def gaussian_task(method, epochs):
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 4, generator=draws)
    targets = 0.05 * torch.randn(400, 1, generator=draws)
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    loader = make_loader((inputs, targets), model, method, GaussianLoss(), epochs, batch_size=40)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch_inputs, batch_targets in loader:
            loss = loader.loss(model(batch_inputs), batch_targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loader


def test_the_ledger_goes_on_with_negative_losses():
    loader = gaussian_task(sb.ledger_backprop(loss_share=0.8, skip_at_least=0, most_rise=None), 6)
    losses = loader.ledger.loss
    assert float(losses.median()) < -1
    assert 0.2 < loader.stats.selectivity < 0.95


def test_kath18_refuses_negative_losses_with_their_ids_and_what_to_use():
    with pytest.raises(ValueError, match=r"negative.* ids \[\d+") as caught:
        gaussian_task(sb.kath18(0.5, variable_start=False), 6)
    assert "ledger_backprop" in str(caught.value)


def test_kath18_refuses_negative_losses_at_the_first_batch_even_while_it_is_off():
    targets = torch.zeros(40, 1)
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([0.0, -4.0]))  # sure, and right
    loader = make_loader((torch.randn(40, 4), targets), model, sb.kath18(0.5), GaussianLoss(), 4, batch_size=20)
    with pytest.raises(ValueError, match=r"-2, -2, .* and 15 more"):
        next(iter(loader))
    plain = make_loader((torch.randn(40, 4), targets), model, sb.kath18(1), GaussianLoss(), 4, batch_size=20)
    assert len(list(plain)) == 2  # everything is kept: nothing is drawn in proportion to anything
