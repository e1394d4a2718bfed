"""What is sent to other ranks; run by every rank."""

import torch
import torch.distributed as dist
from selective_backprop.loader.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import selective_backprop as sb
from selective_backprop.distributed.ledger import ShardedLedger
from selective_backprop.distributed.ranks import current_ranks
from selective_backprop.distributed.team import Team
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.sampler.stats import Stats
from tests.distributed.numbers import Losses, cut, go_through, make

CANDIDATES, BATCHES = 6, 5


class Stream(IterableDataset):
    """Without ids, so that nothing is sent about examples."""

    def __iter__(self):
        return iter(torch.rand(CANDIDATES * BATCHES))


def job():
    return {
        "rounds": {scope: rounds(scope) for scope in ("global", "local")},
        "plan": {scope: plan(scope) for scope in ("global", "local")},
        "ledger": ledger(),
        "epochs": {
            name: {scope: epochs(make_method(0.5), scope) for scope in ("global", "local")}
            for name, make_method in (("selection pass", sb.selective_backprop), ("planned", sb.random_backprop))
        },
    }


def rounds(scope):
    """An epoch of rounds, and the word that it is over."""
    model = Losses()
    loader = sb.SelectiveLoader(
        DataLoader(Stream(), batch_size=CANDIDATES),
        model,
        lambda outputs, targets: outputs,
        sb.selective_backprop(0.5),
        forward=lambda model, batch: (model(batch), None),
        batch_size=1000,  # no queue gets so long that examples move
        scope=scope,
    )
    before = loader.team.ranks.bytes_sent
    assert list(loader) == []
    return loader.team.ranks.bytes_sent - before


def plan(scope):
    """Selecting before loading, from 30 examples of each rank."""
    ids = range(dist.get_rank() * 30, dist.get_rank() * 30 + 30)
    ranks = current_ranks()
    task = sb.types.Task(Losses(), default_forward, PerExampleLoss(nn.MSELoss()))
    ledger = ShardedLedger(30 * ranks.size, ranks)
    team = Team(ranks, scope)
    runner = Runner(sb.methods.ledger_percentile(0.5), task, ledger, Stats(), num_epochs=3, seed=0, team=team)
    before = ranks.bytes_sent
    runner.select_planned(torch.rand(30), torch.as_tensor(ids))
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


def epochs(method, scope, count=4):
    """All of a run, without what was sent to even out queues; random_backprop knows all scores and asks for none."""
    own = range(dist.get_rank(), 300 * dist.get_world_size(), dist.get_world_size())
    model, loader = make(method, 300 * dist.get_world_size(), cut(own, 30), epochs=count, scope=scope)
    ranks, even_out, moving = loader.team.ranks, loader.queue.even_out, []

    def spy():
        before = ranks.bytes_sent
        even_out()
        moving.append(ranks.bytes_sent - before)

    loader.queue.even_out, before = spy, ranks.bytes_sent
    go_through(model, loader, count)
    return {"sent": ranks.bytes_sent - before - sum(moving), "trained": loader.stats.trained / loader.stats.offered}
