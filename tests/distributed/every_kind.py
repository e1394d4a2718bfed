"""A method of each kind on two ranks: plain training at selectivity 1, a run at 0.4, and the same run resumed."""

import random

import torch

from tests.contracts.methods import KINDS
from tests.distributed.runs import Run

PLAIN_EPOCHS = 2
"""At selectivity 1: a scored epoch, and one that is planned by methods that plan."""
LATE = 0.8
"""Progress from which the next step may be the last one."""


def job():
    plain = Run(epochs=PLAIN_EPOCHS)
    plain_batches = plain.train_plainly()
    return {name: compare(make, plain, plain_batches, random.Random(name)) for name, make in KINDS.items()}


def compare(make, plain, plain_batches, chance):
    everything = Run(make(1), epochs=PLAIN_EPOCHS)
    inputs = []
    everything.train(lambda step: inputs.append(everything.loader.batch.data[0].clone()))
    run, saved, stop = Run(make(0.4)), {}, chance.uniform(0, 0.5)

    def save(step):
        """Save once at a random place of the first half, and near the end, where any step may be the last but one."""
        progress = run.loader.progress
        if progress > LATE or (progress >= stop and not saved):
            saved[step] = run.save()

    run.train(save)
    resumed = {}
    for step in (min(saved), len(run.batches) - 1):  # the last batches have a way of their own
        again = Run(make(0.4)).load(saved[step]).train()
        resumed[step] = {"batches": again.batches, "weights": again.weights, "parameters": again.parameters}
    return {
        "same batches as plain": len(inputs) == len(plain_batches) and all(map(torch.equal, inputs, plain_batches)),
        "same parameters as plain": torch.equal(everything.parameters, plain.parameters),
        "batches": run.batches,
        "sizes": run.sizes,
        "weights": run.weights,
        "parameters": run.parameters,
        "resumed": resumed,
    }
