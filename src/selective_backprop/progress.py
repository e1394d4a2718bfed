"""Learning rate schedules by progress instead of by steps."""

from __future__ import annotations

from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from selective_backprop.loader.selective_loader import SelectiveLoader


def step_by_progress(scheduler: LRScheduler, loader: SelectiveLoader, total_steps: int) -> None:
    """Bring a scheduler to where it would be had every candidate been trained on. Call it after each step.

    With selection fewer training steps are taken than the scheduler was built for, so stepping it once a step
    would leave the learning rate high at the end of the run. This steps it as often as the fraction of
    candidates offered asks for: at the end of the run, `total_steps` times in all.

    Args:
        scheduler: any torch scheduler that is stepped once per training step, chained and sequential ones too.
        loader: made with num_epochs=, and with total_batches= if the DataLoader has no length.
        total_steps: the steps the scheduler was built for: num_epochs * len(user's DataLoader), as a rule.

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
            "ReduceLROnPlateau goes by a validation loss, not by steps: call scheduler.step(validation_loss) once an "
            "epoch yourself, without step_by_progress"
        )
    # The small allowance undoes the rounding of the fraction, so that selectivity 1 steps exactly once a step.
    due = int(loader.progress * total_steps + 1e-6)
    while _steps_taken(scheduler) < due:
        scheduler.step()


def _steps_taken(scheduler: LRScheduler) -> int:
    """A ChainedScheduler steps several others together, and has no count of its own."""
    if isinstance(scheduler, ChainedScheduler):
        return _steps_taken(scheduler._schedulers[0])
    return scheduler.last_epoch
