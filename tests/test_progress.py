import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

import selective_backprop as sb
from tests.helpers import make_loader, make_model, train

EPOCHS, STEPS = 3, 13


def rates(method, make_scheduler, *, by_progress=True):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make_scheduler(optimizer)
    loader = make_loader(method, model=model, num_epochs=EPOCHS)
    seen = []

    def step(number, optimizer):
        seen.append((loader.progress, optimizer.param_groups[0]["lr"]))
        if by_progress:
            sb.step_by_progress(scheduler, loader, total_steps=EPOCHS * STEPS)
        else:
            scheduler.step()

    train(loader, model, EPOCHS, optimizer=optimizer, on_step=step)
    return seen, optimizer.param_groups[0]["lr"]


SCHEDULERS = {
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, EPOCHS * STEPS),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * STEPS),
}
each_scheduler = pytest.mark.parametrize("make_scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())


@each_scheduler
def test_selectivity_1_is_one_step_a_step(make_scheduler):
    assert rates(sb.selective_backprop(1.0), make_scheduler) == rates(
        sb.selective_backprop(1.0), make_scheduler, by_progress=False
    )


@each_scheduler
@pytest.mark.parametrize("method", [sb.selective_backprop(0.3), sb.stale_selective_backprop(0.3)], ids=["sb", "stale"])
def test_the_rate_is_fully_decayed_at_the_end(make_scheduler, method):
    seen, last = rates(method, make_scheduler)
    _, without = rates(method, make_scheduler, by_progress=False)
    assert len(seen) < EPOCHS * STEPS / 2
    assert last < 1e-3 < without
    assert [progress for progress, _ in seen] == sorted(progress for progress, _ in seen)
