"""Ranks divide the plan: equally many ids on each, none twice, and the plan is that of a single process."""

import copy
import threading
from unittest import mock

import pytest
import torch
from torch.utils.data import DistributedSampler

import selective_backprop as sb
from selective_backprop.distributed.ranks import Alone
from tests.distributed.threads import run_threads
from tests.lab.command_line import run_script_on_ranks
from tests.sampler.runs import Ids, load, make, train

_thread = threading.local()


def on_ranks(size, work):
    """work(rank) on each of these ranks, which are threads."""

    def on_thread(ranks):
        _thread.ranks = ranks
        return work(ranks.rank)

    path = "selective_backprop.sampler.selective_sampler.current_ranks"
    with mock.patch(path, lambda: getattr(_thread, "ranks", Alone())):
        return run_threads(size, on_thread)


def ids_of(batches):
    return [id for ids, _ in batches for id in ids]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("method", [sb.ledger_backprop(max_age=2), sb.infobatch(), sb.repeated_random(0.3)])
def test_equally_many_ids_and_none_twice(size, method):
    def work(rank):
        sampler = make(method, num_epochs=4)
        epochs = [ids_of(train(load(sampler), sampler, [epoch])) for epoch in range(4)]
        return epochs, sampler.stats.dropped

    results = on_ranks(size, work)
    alone = make(method, num_epochs=4)
    for epoch in range(4):
        parts = [epochs[epoch] for epochs, _ in results]
        together = [id for part in parts for id in part]
        assert len({len(part) for part in parts}) == 1
        assert len(together) == len(set(together))
        # Ranks plan as one process would, up to the ids that do not divide evenly.
        expected = set(ids_of(train(load(alone), alone, [epoch])))
        if method.name == "ledger_backprop" and epoch < 2:
            assert len(expected - set(together)) <= size + (epoch > 0) * size * size
    assert all(0 <= dropped <= 4 for _, dropped in results)


def test_your_own_sampler_divides_and_the_ledger_is_shared():
    def work(rank):
        source = DistributedSampler(Ids(), num_replicas=2, rank=rank, shuffle=True)
        sampler = make(source=source)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            train(load(sampler), sampler, [epoch])
        list(sampler)
        return sampler.ledger.whole().loss_epoch, sampler.probabilities(), sampler.stats.batches

    first, second = on_ranks(2, work)
    assert torch.equal(first[0], second[0]) and bool((first[0] >= 0).all())
    assert torch.equal(first[1], second[1]) and first[2] == second[2]


def test_saved_by_each_rank_and_resumed():
    def run(saved, states):
        def work(rank):
            sampler = make()
            if saved is not None:
                sampler.load_state_dict(saved[rank])
            steps = []

            def save():
                steps.append(0)
                if len(steps) == 9 and states is not None:
                    states[rank] = copy.deepcopy(sampler.state_dict())  # it changes with the sampler

            return train(load(sampler), sampler, range(sampler.epoch, 3), on_step=save)

        return on_ranks(2, work)

    states = [None, None]
    whole = run(None, states)
    rest = run(states, None)
    assert [batches[9:] for batches in whole] == rest
    with pytest.raises(ValueError, match="saved by rank 1 of 2, but this is rank 0 of 1"):
        make().load_state_dict(states[1])


def test_ranks_that_disagree():
    with pytest.raises(ValueError, match="all ranks need the same seed; rank 0 has 0, rank 1 has 1"):
        on_ranks(2, lambda rank: make(seed=rank))


RUN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import selective_backprop as sb
from tests.helpers import NUM_DIGITS, digits, make_model

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = sb.SelectiveSampler(NUM_DIGITS, sb.infobatch(), num_epochs=4, batch_size=16)
loader = DataLoader(digits(), batch_size=16, sampler=sampler, num_workers=1)
for epoch in range(4):
    for inputs, targets in loader:
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        (losses * sampler.update(losses)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
total = float(sum(parameter.double().sum() for parameter in model.parameters()))
stats = sampler.stats
print(f"{total:.12f} {stats.batches} {stats.trained < stats.offered}\\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_ddp_on_two_ranks(tmp_path):
    """With the variables that torchrun sets."""
    (tmp_path / "run.py").write_text(RUN)
    result = run_script_on_ranks(tmp_path / "run.py")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == second and first.endswith(" True"), "the same model and as many batches on each"
