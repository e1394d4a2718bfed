"""Forward reuse with DDP: each rank selects from its own batch, and gradients are averaged as ever."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import selective_backprop as sb
from tests.helpers import digits


def job():
    inputs, targets = digits()[:96]  # the same on all ranks, which draw different numbers
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10)))
    loss_fn = sb.forward_reuse.SelectiveLoss(nn.CrossEntropyLoss(), sb.selective_backprop(1 / 3))
    loss_fn(model(inputs), targets).backward()
    found, chosen = gradients(model), loss_fn.selection.positions
    model.zero_grad()
    F.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
    return {"gradients": found, "expected": gradients(model), "chosen": chosen.tolist()}


def gradients(model):
    return [parameter.grad.round(decimals=5) for parameter in model.parameters()]
