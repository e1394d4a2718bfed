"""Ranks that fail, each in one process group of its own; run by every rank."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

import selective_backprop as sb
from tests.helpers import digits
from tests.ranks.numbers import cut, go_through, make
from tests.ranks.runs import Run


class Broken(torch.utils.data.Dataset):
    """Loading fails on rank 1, after a while."""

    def __len__(self):
        return 203

    def __getitem__(self, index):
        if index == 150:
            raise OSError("cannot read image 150")
        return digits()[index]


def nan(scope):
    """Example 21, which is rank 1's, has a loss that is not a number."""
    batches = cut(range(12) if dist.get_rank() == 0 else range(12, 24), 4)
    model, loader = make(sb.selective_backprop(0.5), 24, batches, epochs=2, scope=scope)
    forward = model.forward
    model.forward = lambda values: torch.where(values == 21, float("nan"), forward(values))
    go_through(model, loader, 2)


def worker():
    """A worker of rank 1 raises."""
    own = torch.utils.data.SequentialSampler(range(100)) if dist.get_rank() == 0 else range(103, 203)
    Run(sb.selective_backprop(0.5), dataset=Broken(), sampler=own, loader_options={"num_workers": 1}).train()


def killed():
    """Rank 1 is killed in its third step."""

    def die(step):
        if step == 3 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    Run(sb.selective_backprop(0.5), wrap=alone).train(die)


def alone(model):
    """Without DDP, so that the loader is what notices."""
    return model


def states():
    """What is said of a state that another rank saved, or other ranks."""
    rank = dist.get_rank()
    run, messages = Run(sb.selective_backprop(0.5)), []
    state = run.loader.state_dict()
    wrong_rank = state | {"ranks": {"rank": 1 - rank, "size": 2}}
    one_process = state | {"ranks": {"rank": 0, "size": 1}}
    for other in (wrong_rank, one_process):
        try:
            run.loader.load_state_dict(other)
        except ValueError as error:
            messages.append(str(error))
    return messages


def main():
    """Under torchrun: rank 1 fails, and the job with it."""
    dist.init_process_group("gloo")
    model = nn.Linear(64, 10)
    loader = sb.SelectiveLoader(
        torch.utils.data.DataLoader(digits(), 16), model, nn.CrossEntropyLoss(), sb.selective_backprop(0.5)
    )
    for step, (inputs, targets) in enumerate(loader):
        loader.loss(model(inputs), targets).backward()
        if step == 1 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)


if __name__ == "__main__":
    main()
