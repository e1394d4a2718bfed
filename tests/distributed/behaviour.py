"""Every method on several ranks, for the recording of `tests.behaviour`."""

import torch

from tests.behaviour import METHODS, SELECTIVITY, digest, parameters
from tests.distributed.runs import Run


def job(seed, only):
    results = {}
    for name in METHODS:
        if only not in name:
            continue
        files = []
        run = Run(METHODS[name](SELECTIVITY), seed=int(seed))
        run.train(lambda step, run=run, files=files: files.append(run.save()) if step == 4 else None)
        again = Run(METHODS[name](SELECTIVITY), seed=int(seed)).load(files[0]).train()
        results[name] = {
            "batches": digest(run.batches),
            "weights": digest(run.weights),
            "parameters": digest(parameters(run.model)),
            "resumed": digest(again.batches, parameters(again.model)),
        }
        torch.manual_seed(0)
    return results
