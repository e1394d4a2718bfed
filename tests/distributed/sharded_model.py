"""FSDP2 on the CPU: parameters are spread over ranks, so that every forward pass is one of all ranks."""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import selective_backprop as sb
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.testing import model_trace, same
from tests.distributed.runs import Ids, Run
from tests.helpers import Noisy, digits


def sharded(model):
    for layer in (model[0], model[4]):
        fully_shard(layer)
    return fully_shard(model)


def full(run):
    """The parameters, whole."""
    return torch.cat([parameter.full_tensor().detach().flatten() for parameter in run.model.parameters()])


def job():
    plain = Run(wrap=sharded, epochs=2)
    plain_batches = plain.train_plainly()
    everything = Run(sb.selective_backprop(1.0), wrap=sharded, epochs=2)
    inputs = []
    everything.train(lambda step: inputs.append(everything.loader.batch.data[0].clone()))
    return {
        "same batches as plain": same(inputs, plain_batches),
        "same parameters as plain": torch.equal(full(everything), full(plain)),
        "half": facts(Run(sb.selective_backprop(0.5), wrap=sharded, epochs=2).train()),
        "uneven": uneven(),
        "pruned": pruned(),
        "planned": facts(Run(sb.stale_selective_backprop(0.5, every=2), wrap=sharded, epochs=4).train()),
        "warm-up": facts(Run(sb.top_k(0.5, warmup_epochs=0.5), wrap=sharded, epochs=2).train()),
        "no trace": no_trace(),
        "refused": refused(),
    }


def facts(run):
    return {"batches": run.batches, "sizes": run.sizes, "parameters": full(run)}


def uneven():
    """Rank 1 has no more candidates after its first batch, and has to attend to rank 0's; also after a resume."""
    own = Ids(range(160) if dist.get_rank() == 0 else range(160, 176))

    def new():
        return Run(sb.selective_backprop(0.5), sampler=own, dataset=digits(176), wrap=sharded, epochs=2)

    run, states = new(), []

    def save(step):
        states.append(run.loader.state_dict())

    run.train(save)
    step = 1  # rank 1 has run out of candidates
    file = io.BytesIO()
    torch.save(states[step], file)
    file.seek(0)
    resumed = new()
    resumed.loader.load_state_dict(torch.load(file, weights_only=True))
    rest = resumed.train().batches  # by other weights, so that only the number of batches can be compared
    return facts(run) | {"steps left": len(run.batches) - step - 1, "steps after resume": len(rest)}


def pruned():
    """All examples of rank 1 are pruned: it still has to attend to rank 0's candidates, from the first round on."""
    own = Ids(range(160) if dist.get_rank() == 0 else range(160, 176))
    scores = (torch.arange(176) < 160).float()
    method = sb.diet(method=sb.selective_backprop(0.5), scores=scores, prune=16 / 176)
    return facts(Run(method, sampler=own, dataset=digits(176), wrap=sharded, epochs=2).train())


def no_trace():
    run = Run(sb.selective_backprop(0.5), dataset=Noisy(), wrap=sharded, epochs=1)
    run.train()
    candidates = sb.types.Candidates(digits()[:16], torch.arange(16), 16)
    task = sb.types.Task(run.model, default_forward, PerExampleLoss(nn.CrossEntropyLoss()))
    before = model_trace(run.model), torch.get_rng_state()
    scores = run.loader.scorer.score(candidates, task)
    return same(before, (model_trace(run.model), torch.get_rng_state())) and bool(scores.isfinite().all())


def refused():
    try:
        Run(sb.selective_backprop(0.5, scoring="pipelined"), wrap=sharded)
    except ValueError as error:
        return str(error)
    return ""
