"""What other people's scripts met, each by its message; and copies of a model that changes."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset

import selective_backprop as sb
from tests.helpers import digits, make_loader, make_model, train

EPOCHS, STEPS = 2, 13


class Tupled(nn.Linear):
    def forward(self, x):
        return super().forward(x), None


class Dicted(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x)}


@pytest.mark.parametrize("kind", [Tupled, Dicted])
def test_outputs_that_the_loss_does_not_take_name_forward(kind):
    with pytest.raises(ValueError, match="pass forward=") as found:
        next(iter(make_loader(sb.selective_backprop(0.5), model=kind(64, 10))))
    assert isinstance(found.value.__cause__, TypeError)


def test_targets_of_tokens_name_token_cross_entropy():
    data = TensorDataset(torch.randn(32, 7, 4), torch.randint(9, (32, 7)))
    with pytest.raises(ValueError, match=r"PerExampleLoss\(sb\.token_cross_entropy, reducer='mean'\)"):
        next(iter(make_loader(sb.selective_backprop(0.5), model=nn.Linear(4, 9), dataset=data)))


class WholeBatches(Dataset):
    """As the data sets of DLRM: each item is a batch of 32 examples."""

    def __init__(self):
        self.examples = digits()[:192]

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return tuple(part[32 * i : 32 * i + 32] for part in self.examples)


def test_items_that_are_whole_batches_name_batch_size_none():
    data, loss_fn = WholeBatches(), nn.CrossEntropyLoss()
    for method in (sb.selective_backprop(0.5), sb.ledger_backprop(), sb.random_backprop(0.5)):
        joined = DataLoader(data, batch_size=1, collate_fn=lambda items: items[0])
        loader = sb.SelectiveLoader(joined, make_model(), loss_fn, method)
        with pytest.raises(ValueError, match="batch_size=None"):
            next(iter(loader))
    loader = sb.SelectiveLoader(DataLoader(data, batch_size=None), model := make_model(), loss_fn, method)
    train(loader, model, 1)
    assert 50 < loader.stats.trained < 150


def rates(make_scheduler, selectivity):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = make_scheduler(optimizer)
    loader = make_loader(sb.selective_backprop(selectivity), model=model, num_epochs=EPOCHS)
    seen = []

    def step(number, optimizer):
        sb.step_by_progress(scheduler, loader, total_steps=EPOCHS * STEPS)
        seen.append(optimizer.param_groups[0]["lr"])

    train(loader, model, EPOCHS, optimizer=optimizer, on_step=step)
    return seen


def chained(optimizer):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, 5), lr_scheduler.LinearLR(optimizer, 1, 0.01, EPOCHS * STEPS)]
    )


def sequential(optimizer):
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 5), lr_scheduler.LinearLR(optimizer, 1, 0.01, EPOCHS * STEPS - 5)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[5])


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # of SequentialLR's own making
@pytest.mark.parametrize("make", [chained, sequential])
@pytest.mark.parametrize("selectivity", [1.0, 0.4])
def test_schedulers_of_schedulers_end_where_they_should(make, selectivity):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, expected = make(optimizer), []
    for _ in range(EPOCHS * STEPS):
        optimizer.step()
        scheduler.step()
        expected.append(optimizer.param_groups[0]["lr"])
    found = rates(make, selectivity)
    assert (
        found == expected if selectivity == 1 else found[-1] == pytest.approx(expected[-1]) and set(found) < {*expected}
    )


def test_a_scheduler_that_goes_by_validation_loss_is_refused():
    with pytest.raises(TypeError, match=r"scheduler\.step\(validation_loss\)"):
        rates(lr_scheduler.ReduceLROnPlateau, 0.5)


def select(losses, count=4):
    def loss_fun(outputs, targets, reduction="mean"):
        return losses

    return sb.functional.select_using_loss(torch.randn(count, 3), torch.arange(count), nn.Linear(3, 2), loss_fun, 0.5)


def test_select_using_loss_takes_a_column_of_losses_and_refuses_what_cannot_be_ranked():
    assert len(select(torch.rand(4, 1))[0]) == 2
    with pytest.raises(ValueError, match=r"2 .*nan"):
        select(torch.tensor([1.0, 2.0, float("nan"), 1.0]))
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        select(torch.rand(4, 2))
    with pytest.raises(ValueError, match="no examples"):
        select(torch.rand(0), count=0)
