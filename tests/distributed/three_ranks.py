"""Methods on three ranks with even and uneven data; run by every rank."""

import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import selective_backprop as sb
from tests.distributed.runs import Ids

NUM_EXAMPLES, BATCH, EPOCHS = 420, 32, 8

METHODS = {
    "SB": lambda: sb.selective_backprop(0.4),
    "SB, window": lambda: sb.selective_backprop(0.4, start=0.2, end=0.7),
    "top_k": lambda: sb.top_k(0.3),
    "ledger": lambda: sb.ledger_backprop(max_age=3),
    "ledger, selectivity": lambda: sb.methods.ledger_percentile(0.3, max_age=3),
    "infobatch": lambda: sb.infobatch(until=0.7),
    "stale": lambda: sb.stale_selective_backprop(0.4),
    "random": lambda: sb.random_backprop(0.3),
    "random, few": lambda: sb.random_backprop(0.03),
    "repeated random": lambda: sb.repeated_random(0.3),
    "unbiased": lambda: sb.methods.ledger_percentile(0.6, unbiased=True, max_weight=1e6),
}


def data(count=NUM_EXAMPLES):
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def uneven(count):
    """A sampler of this rank's part: rank 0 has most of the data."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = [0, *(count - (size - 1 - i) * (count // (2 * size)) for i in range(size))]
    return Ids(range(ends[rank], ends[rank + 1]))


def run(method, *, count=NUM_EXAMPLES, sampler=None, batch=BATCH, epochs=EPOCHS):
    torch.manual_seed(0)
    model, dataset = nn.Linear(8, 2), data(count)
    sampler = sampler or DistributedSampler(dataset, seed=1)
    train_loader = DataLoader(dataset, batch, sampler=sampler)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method, num_epochs=epochs, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches, weight = [], 0.0
    for epoch in range(epochs):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        batches.append([])
        for inputs, targets in loader:
            optimizer.zero_grad()
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            batches[-1].append(loader.batch.ids.tolist())
            weight += float(loader.batch.weights.sum())
    return {"batches": batches, "len": len(loader), "weight": weight, "dropped": loader.stats.dropped}


def job():
    logging.disable(logging.WARNING)
    results = {}
    for name, make in METHODS.items():
        results[name] = run(make())
        results[f"{name}, uneven"] = run(make(), sampler=uneven(NUM_EXAMPLES))
    results["tiny"] = run(sb.ledger_backprop(), count=24, batch=32)
    return results
