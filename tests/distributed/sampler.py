"""SelectiveSampler on every rank: with known losses, with a sampler of the user's own, and with DDP."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import selective_backprop as sb
from tests.helpers import NUM_DIGITS, all_rows, digits, make_model
from tests.sampler.runs import Ids, load, make, train

METHODS = {
    "ledger": lambda: sb.ledger_backprop(max_age=2),
    "infobatch": sb.infobatch,
    "repeated random": lambda: sb.repeated_random(0.3),
}


def job():
    return {
        "epochs": {name: epochs_of(method()) for name, method in METHODS.items()},
        "own": with_a_sampler_of_its_own(),
        "resumed": resumed(),
        "another number": for_another_number_of_ranks(),
        "disagree": disagree(),
        "ddp": with_ddp(),
    }


def epochs_of(method):
    """The ids of four epochs."""
    sampler = make(method, num_epochs=4)
    return [[i for ids, _ in train(load(sampler), sampler, [epoch]) for i in ids] for epoch in range(4)]


def with_a_sampler_of_its_own():
    source = DistributedSampler(Ids(), num_replicas=dist.get_world_size(), rank=dist.get_rank(), shuffle=True)
    sampler = make(source=source)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(load(sampler), sampler, [epoch])
    list(sampler)
    return {"loss_epoch": all_rows(sampler.ledger).loss_epoch, "probabilities": sampler.probabilities()}


def resumed():
    """The batches from the fifth one on, of a run that never stopped and of one that was saved there."""
    sampler, states = make(), []

    def save():
        states.append(copy.deepcopy(sampler.state_dict()))  # it changes with the sampler

    whole = train(load(sampler), sampler, range(3), on_step=save)
    again = make()
    again.load_state_dict(states[3])
    return {"whole": whole[4:], "again": train(load(again), again, range(again.epoch, 3))}


def for_another_number_of_ranks():
    """Rank 0's states in mid-epoch and between epochs, and what all ranks trained on before the first."""
    sampler, states, trained = make(batch_size=16), [], []

    def save():
        if len(states) < 1 and sampler.stats.batches == 3:
            states.append(copy.deepcopy(sampler.state_dict()))

    for epoch in range(2):
        for ids, _ in train(load(sampler), sampler, [epoch], on_step=save):
            trained.append(ids)
    states.append(copy.deepcopy(sampler.state_dict()))
    return {"states": states, "trained": [i for ids in trained[:3] for i in ids], "ledger": sampler.ledger.state_dict()}


def disagree():
    try:
        make(seed=dist.get_rank())
    except ValueError as error:
        return str(error)
    return ""


def with_ddp():
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sampler = sb.SelectiveSampler(NUM_DIGITS, sb.infobatch(), num_epochs=4, batch_size=16)
    loader, steps = DataLoader(digits(), batch_size=16, sampler=sampler), 0
    for _ in range(4):
        for inputs, targets in loader:
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            (losses * sampler.update(losses)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"parameters": parameters, "steps": steps, "skips": sampler.stats.trained < sampler.stats.offered}
