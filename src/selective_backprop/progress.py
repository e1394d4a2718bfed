"""Learning rate schedules that follow the progress of the run instead of the number of steps."""

from __future__ import annotations

from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from selective_backprop.loader import SelectiveLoader
from selective_backprop.sampler import SelectiveSampler


def step_by_progress(scheduler: LRScheduler, loader: SelectiveLoader | SelectiveSampler, total_steps: int) -> None:
    """Step a learning rate scheduler to the current progress of the run. Call this after each training step.

    Selection takes fewer training steps than the scheduler was built for. If the scheduler were stepped once per
    training step, the learning rate would still be high at the end of the run. This function steps it by the fraction
    of candidates offered so far, so that it has made `total_steps` steps at the end of the run.

    Args:
        scheduler: any torch scheduler that is stepped once per training step, also chained and sequential ones.
        loader: a SelectiveLoader or SelectiveSampler made with num_epochs=. If an iterable has no length, the loader
            takes it as sb.WithLength(iterable, num_batches).
        total_steps: the steps that the scheduler was built for, usually num_epochs * len(user's DataLoader).

    >>> import torch, selective_backprop as sb
    >>> model = torch.nn.Linear(4, 2)
    >>> data = [(torch.randn(4), i % 2) for i in range(64)]
    >>> train_loader = torch.utils.data.DataLoader(data, batch_size=8)
    >>> loader = sb.SelectiveLoader(
    ...     train_loader, model, torch.nn.CrossEntropyLoss(), sb.selective_backprop(selectivity=0.5), num_epochs=2
    ... )
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=16)
    >>> for epoch in range(2):
    ...     for inputs, targets in loader:
    ...         optimizer.zero_grad()
    ...         loader.loss(model(inputs), targets).backward()
    ...         optimizer.step()
    ...         sb.step_by_progress(scheduler, loader, total_steps=16)
    >>> scheduler.last_epoch
    16
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            "ReduceLROnPlateau follows a validation loss, not steps: call scheduler.step(validation_loss) yourself "
            "once per epoch, without step_by_progress"
        )
    # The small number corrects the rounding of the fraction, so that selectivity 1 steps exactly once per step.
    due = int(loader.progress * total_steps + 1e-6)
    while _steps_taken(scheduler) < due:
        scheduler.step()


def _steps_taken(scheduler: LRScheduler) -> int:
    """Return how often the scheduler was stepped. A ChainedScheduler has no count, so its first scheduler is asked."""
    if isinstance(scheduler, ChainedScheduler):
        return _steps_taken(scheduler._schedulers[0])
    return scheduler.last_epoch
