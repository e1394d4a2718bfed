"""Trains with every method on the toy device and on the CPU, and prints as JSON what happened."""

import json
import sys
import traceback

import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.forward_reuse import SelectiveLoss
from tests import toy_device
from tests.contracts.methods import METHODS
from tests.helpers import NUM_DIGITS, digits, make_loader

EPOCHS, BATCH = 3, 11  # 19 batches: more than losses may wait


class Run:
    """A small model and its training loop. It notes the ids of each batch, and the waits of each epoch."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.device = torch.device(device, 0) if device == "toy" else torch.device(device)
        self.model = nn.Sequential(nn.Linear(64, 10)).to(self.device)
        self.ids, self.epochs = [], []

    def step(self, loss, ids):
        assert loss.device == self.device
        loss.backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        self.ids.append(ids.tolist())
        toy_device.num_steps += 1

    def end_epoch(self, *, is_planned):
        self.epochs.append({"planned": is_planned, "waits": toy_device.waits.copy()})
        toy_device.waits.clear()

    def with_loader(self, method, **options):
        if isinstance(reference := getattr(method.scorer, "reference", None), nn.Module):
            reference.to(self.device)
            toy_device.waits.clear()
        shape = {"batch_size": BATCH}
        loader = make_loader(method, model=self.model, num_epochs=EPOCHS, loader_options=shape, **options)
        for _ in range(EPOCHS):
            scored = loader.stats.scored
            for inputs, targets in loader:
                self.step(loader.loss(self.model(inputs), targets), loader.batch.ids)
            self.end_epoch(is_planned=loader.stats.scored == scored)

    def with_sampler(self):
        sampler = sb.SelectiveSampler(NUM_DIGITS, sb.ledger_backprop(skip_at_least=0), num_epochs=EPOCHS)
        for _ in range(EPOCHS):
            for inputs, targets in DataLoader(digits(), batch_size=BATCH, sampler=sampler):
                inputs, targets = (part.to(self.device, non_blocking=True) for part in (inputs, targets))
                losses = nn.functional.cross_entropy(self.model(inputs), targets, reduction="none")
                weights = sampler.update(losses)
                self.step((losses * weights).mean(), sampler.ids)
            self.end_epoch(is_planned=True)

    def with_forward_reuse(self):
        loss_fn = SelectiveLoss(nn.CrossEntropyLoss(), sb.selective_backprop(0.4))
        for _ in range(EPOCHS):
            for inputs, targets in DataLoader(digits(), batch_size=BATCH):
                inputs, targets = (part.to(self.device, non_blocking=True) for part in (inputs, targets))
                self.step(loss_fn(self.model(inputs), targets), loss_fn.selection.positions)
            self.end_epoch(is_planned=False)


RUNS = {name: lambda run, make=make: run.with_loader(make(0.4)) for name, make in METHODS.items()} | {
    "an audit": lambda run: run.with_loader(sb.ledger_backprop(skip_at_least=0), audit=True),
    "SelectiveSampler": Run.with_sampler,
    "SelectiveLoss": Run.with_forward_reuse,
}


def report(train):
    runs = []
    try:
        for device in ("toy", "cpu"):
            runs.append(Run(device))
            toy_device.waits.clear()
            train(runs[-1])
    except Exception:
        return {"error": traceback.format_exc()}
    return {"error": "", "epochs": runs[0].epochs, "as on the CPU": runs[0].ids == runs[1].ids}


if __name__ == "__main__":
    wanted = sys.argv[1:] or RUNS
    json.dump({name: report(RUNS[name]) for name in wanted}, sys.stdout)
