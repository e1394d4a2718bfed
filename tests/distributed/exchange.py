"""What is sent to other ranks; run by every rank."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

import selective_backprop as sb
from selective_backprop.distributed.ledger import ShardedLedger
from selective_backprop.distributed.ranks import current_ranks
from selective_backprop.distributed.team import Team
from selective_backprop.sampler.id_batches import IdBatches
from selective_backprop.sampler.parts import Parts
from selective_backprop.sampler.planner import Planner
from tests.distributed.numbers import Losses, cut, go_through, make

CANDIDATES, BATCHES = 6, 5


class Stream(IterableDataset):
    """Without ids, so that nothing is sent about examples."""

    def __iter__(self):
        return iter(torch.rand(CANDIDATES * BATCHES))


def job():
    return {
        "rounds": rounds(),
        "plan": plan(),
        "ledger": ledger(),
        "epochs": {"scored": epochs(sb.selective_backprop(0.5)), "planned": epochs(sb.random_backprop(0.5))},
    }


def rounds():
    """Rounds of an epoch."""
    model = Losses()
    loader = sb.SelectiveLoader(
        DataLoader(Stream(), batch_size=CANDIDATES),
        model,
        lambda outputs, targets: outputs,
        sb.selective_backprop(0.5),
        forward=lambda model, batch: (model(batch), None),
        batch_size=1000,  # no queue gets so long that examples move
    )
    loader.stepper.begin()
    before = loader.team.ranks.bytes_sent
    for _ in range(BATCHES):
        assert loader.stepper.offer()
    return loader.team.ranks.bytes_sent - before


def plan():
    """Planning an epoch of 30 examples on each rank, without a look at the ledger."""
    ranks = current_ranks()
    team, ids = Team(ranks), torch.arange(ranks.rank * 30, ranks.rank * 30 + 30)
    parts = Parts(sb.random_backprop(1.0), num_epochs=3, seed=0, team=team)
    before = ranks.bytes_sent
    Planner(parts, ShardedLedger(30 * ranks.size, ranks), team).plan(IdBatches.of([ids]), 0)
    return ranks.bytes_sent - before


def ledger():
    """Every rank writes about as many ids of each owner, and asks for two columns of them."""
    ranks = current_ranks()
    count = 12 * ranks.size
    ids = torch.arange(ranks.rank, count, ranks.size)  # 12, dealt out evenly
    ledger = ShardedLedger(count, ranks)
    ledger.record_scores(ids, torch.rand(12), 0)
    ledger.record_probabilities(ids, torch.rand(12))
    ledger.count_offered(ids)
    ledger.count_selected(ids)
    ledger.record_losses(ids, torch.rand(12), 0)
    ledger.deliver()
    delivered, rows = ranks.bytes_sent, ledger.rows(ids)
    assert bool(rows.loss.isfinite().all()) and not rows.loss_epoch.any()
    return {"delivered": delivered, "delivered and asked": ranks.bytes_sent - delivered, "rows": len(ledger.block)}


def epochs(method, count=4):
    """All of a run but the examples that move; random_backprop knows all scores and asks for none."""
    own = range(dist.get_rank(), 300 * dist.get_world_size(), dist.get_world_size())
    model, loader = make(method, 300 * dist.get_world_size(), cut(own, 30), epochs=count)
    ranks, moving = loader.team.ranks, []
    exchange, before = ranks.exchange, ranks.bytes_sent

    def spy(parts):
        sent, result = ranks.bytes_sent, exchange(parts)
        if parts[0].dtype == torch.uint8:
            moving.append(ranks.bytes_sent - sent)
        return result

    ranks.exchange = spy
    go_through(model, loader, count)
    return {"sent": ranks.bytes_sent - before - sum(moving), "trained": loader.stats.trained / loader.stats.offered}
