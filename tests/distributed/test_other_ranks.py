"""A state goes to another number of ranks: in the middle of a planned epoch, and between any two."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

import selective_backprop as sb
from tests.distributed.launch import run_phases
from tests.distributed.numbers import cut, go_through, make

COUNT, EPOCHS = 120, 3
METHODS = {
    "planned": lambda: sb.methods.ledger_percentile(0.5),
    "planned by chance": lambda: sb.random_backprop(0.5),
    "scored": lambda: sb.selective_backprop(0.5),
}


class StopRunError(Exception):
    pass


def new(ranks, name):
    first, last = ranks.rank * COUNT // ranks.size, (ranks.rank + 1) * COUNT // ranks.size
    return make(METHODS[name](), COUNT, cut(range(first, last), 4), epochs=EPOCHS)


def save(ranks, folder, name, epoch, step):
    """Stop in this epoch after a step, or before its first one. Every rank saves its state; rank 0's is read."""
    model, loader = new(ranks, name)
    go_through(model, loader, epoch)
    given, state = [], loader.state_dict()

    def stop(number):
        nonlocal state
        given.append(loader.batch.ids.tolist())
        if number == step:
            state = loader.state_dict()
            raise StopRunError

    if step:
        with pytest.raises(StopRunError):
            go_through(model, loader, epoch + 1, stop)
    if ranks.size > 1:
        dist.barrier()
    torch.save(state, folder / f"{name}-{epoch}-{step}-{ranks.size}-{ranks.rank}.pt")
    return {"given": given}


def resume(ranks, folder, name, epoch, step, size):
    """Go on to the end of this epoch, from the state that rank 0 saved."""
    model, loader = new(ranks, name)
    state = torch.load(folder / f"{name}-{epoch}-{step}-{size}-0.pt", weights_only=True)
    try:
        loader.load_state_dict(state)
    except ValueError as error:
        return {"error": str(error)}
    (rest,) = go_through(model, loader, epoch + 1)
    return {"given": rest, "offered": loader.stats.offered, "epoch": loader.epoch}


CASES = [("planned", 1, 3), ("planned by chance", 1, 3), ("scored", 1, 0), ("scored", 1, 3)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What was given out in the epoch before the stop, and after it on one, two and three ranks."""
    phases = []
    for case in CASES:
        phases += [(2, save, case), *((size, resume, (*case, 2)) for size in (1, 3))]
    results = run_phases(phases, tmp_path_factory.mktemp("ranks"))
    return {case: results[3 * i : 3 * i + 3] for i, case in enumerate(CASES)}


def ids(results):
    return Counter(i for result in results for batch in result["given"] for i in batch)


@pytest.mark.parametrize("case", CASES[:3])
def test_5_nothing_is_lost_or_repeated(runs, case):
    saved, *resumed = runs[case]
    for results in resumed:
        given = ids(saved) + ids(results)
        assert max(given.values()) == 1 and 30 < given.total() < 100
        assert all(result["epoch"] == 2 and result["offered"] == 2 * COUNT for result in results)
        assert len({len(result["given"]) for result in results}) == 1
    if case[2]:  # the same plan, whoever goes on with it, but for what three ranks cannot share evenly
        assert abs(ids(resumed[0]).total() - ids(resumed[1]).total()) < 3


def test_5_a_scored_epoch_goes_on_with_as_many_ranks_alone(runs):
    _, *resumed = runs["scored", 1, 3]
    assert all("2" in result["error"] for results in resumed for result in results)
