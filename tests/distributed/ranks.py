"""Loaders of several ranks over numbers whose losses are known; run by every rank, in one start of them."""

import copy
import functools
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import selective_backprop as sb
from selective_backprop.testing import same
from tests.distributed.numbers import cut, go_through, make
from tests.helpers import all_rows

SCORED = {
    "selective_backprop": sb.selective_backprop,
    "interrupted": lambda selectivity: sb.selective_backprop(selectivity, interrupt=3),
    "fixed size": lambda selectivity: sb.selective_backprop(selectivity, fixed_size=True),
    "unbiased": lambda selectivity: sb.selective_backprop(selectivity, unbiased=True),
    "window": lambda selectivity: sb.selective_backprop(selectivity, start=0.3, end=0.9),
    "top_k": sb.top_k,
    "kath18": lambda selectivity: sb.kath18(selectivity, unbiased=True, variable_start=False),
}
PLANNED = {
    "stale": lambda selectivity: sb.stale_selective_backprop(selectivity, every=2),
    "ledger": lambda selectivity: sb.ledger_backprop(max_age=3),
    "ledger, percentile": sb.methods.ledger_percentile,
    "infobatch": lambda selectivity: sb.infobatch(prune=1 - selectivity, until=0.75),
    "random": sb.random_backprop,
    "repeated": sb.repeated_random,
}
METHODS = {"traditional": lambda selectivity: sb.traditional()} | SCORED | PLANNED
COUNT, EPOCHS = 120, 4
ORDER = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).tolist()


def job():
    return {
        "like one process": {name: like_one_process(name, dist.get_rank(), dist.get_world_size()) for name in METHODS},
        "drawn": [drawn(seed) for seed in range(20)],
        "moved": {name: moved(METHODS[name](0.5)) for name in MOVED},
        "refused": {said: error_of(lambda said=said: different(said)) for said in DIFFERENT},
        "wrong on rank 1": {said: error_of(lambda said=said: wrong_on_rank_1(said)) for said in WRONG},
        "index 20 on rank 1": error_of(index_that_is_not_there),
        "not finite": error_of(not_finite),
        "pruned": {name: pruned(METHODS[name](0.5)) for name in ("selective_backprop", "kath18", "random")},
    }


def like_one_process(name, rank, size):
    """Ids by epoch; the ranks together are offered the same candidates in the same order as one process is."""
    if name in PLANNED:
        batches = cut(ORDER[rank * COUNT // size : (rank + 1) * COUNT // size], 5)
    else:
        batches = [part[rank * 30 // size : (rank + 1) * 30 // size] for part in cut(ORDER, 30)]
    batch_size = None if name in PLANNED else 24 // size
    model, loader = make(METHODS[name](0.4), COUNT, batches, epochs=EPOCHS, batch_size=batch_size)
    return go_through(model, loader, EPOCHS)


def configuration(seed, size):
    """All that a run is made of, at random; the same on every rank."""
    chance = random.Random(seed)
    return {
        "name": chance.choice(sorted(METHODS)),
        "shards": [chance.randint(1, 40) for _ in range(size)],
        "candidates": chance.randint(1, 9),
        "batch_size": chance.choice([None, 1, 3, 7]),
        "selectivity": chance.choice([0.2, 0.5, 1.0]),
        "epochs": chance.randint(1, 3),
        "stop": chance.randint(1, 12),
    }


def drawn(seed):
    """A run of any size, stopped and resumed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one = configuration(seed, size)
    first, epochs = sum(one["shards"][:rank]), one["epochs"]
    batches = cut(range(first, first + one["shards"][rank]), one["candidates"])
    states = []

    def new():
        method = METHODS[one["name"]](one["selectivity"])
        return make(method, sum(one["shards"]), batches, epochs=epochs, batch_size=one["batch_size"])

    model, loader = new()
    save = lambda step: states.append(copy.deepcopy(loader.state_dict())) if step == one["stop"] else None  # noqa: E731
    given = go_through(model, loader, epochs, save)
    resumes_exactly = True
    if states:
        again, resumed = new()
        resumed.load_state_dict(states[0])
        rest = go_through(again, resumed, epochs)
        resumes_exactly = sum(rest, []) == sum(given, [])[one["stop"] :]  # noqa: RUF017
        resumes_exactly &= same(all_rows(resumed.ledger).loss, all_rows(loader.ledger).loss)
    ledger = all_rows(loader.ledger)
    columns = {name: getattr(ledger, name) for name in ("loss", "loss_epoch", "offered", "selected")}
    return {"given": given, "resumes exactly": resumes_exactly, "ledger": columns, "queued": loader.stats.queued}


MOVED = ("stale", "ledger, percentile", "top_k", "traditional")


class Moved:
    """Candidates that are another rank's in the next epoch."""

    def __init__(self):
        size = dist.get_world_size()
        self.shards, self.epoch = [cut(range(30 * rank, 30 * rank + 30), 5) for rank in range(size)], -1

    def __iter__(self):
        self.epoch += 1
        return iter(self.shards[(dist.get_rank() + self.epoch) % dist.get_world_size()])

    def __len__(self):
        return len(self.shards[0])


def moved(method):
    """What one rank learned about an example decides about it before another loads it."""
    model, loader = make(method, 30 * dist.get_world_size(), Moved(), epochs=4)
    given, known, scored = [], [], []
    for epoch in range(4):
        given += go_through(model, loader, epoch + 1)
        known.append(loader.ledger.loss_epoch.clone())
        scored.append(loader.stats.scored)
    stats = loader.stats
    counts = [stats.offered, stats.scored, stats.trained, stats.skipped_before_loading]
    return {"given": given, "known": known, "scored": scored, "counts": counts}


def error_of(work):
    try:
        work()
    except (ValueError, TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


LEDGER = sb.ledger_backprop
DIFFERENT = {
    "batch_size": lambda rank: {"batch_size": 4 + rank},
    "seed": lambda rank: {"seed": rank},
    "examples": lambda rank: {"count": 20 + rank},
    "num_epochs": lambda rank: {"epochs": 3 + rank},
    "label_smoothing": lambda rank: {"loss_fn": nn.CrossEntropyLoss(label_smoothing=0.1 * rank)},
    "beta": lambda rank: {"loss_fn": functools.partial(F.smooth_l1_loss, beta=1 + rank)},
    "method": lambda rank: {"method": [sb.selective_backprop, sb.top_k, sb.kath18][rank](0.5)},
    "selectivity": lambda rank: {"method": sb.top_k([0.5, 0.4, 0.3][rank])},
    "max_age": lambda rank: {"method": LEDGER(max_age=5 + rank)},
    "keep": lambda rank: {"method": sb.diet(method=sb.traditional(), scores=torch.arange(20.0).roll(rank), prune=0.5)},
}


def different(said):
    usual = {"count": 20, "method": sb.selective_backprop(0.5), "epochs": 3}
    make(batches=cut(range(20), 5), **usual | DIFFERENT[said](dist.get_rank()))


WRONG = {"empty": {"batches": []}, "batch_size": {"batch_size": 0}, "method": {"method": None}}


def wrong_on_rank_1(said):
    usual = {"method": sb.selective_backprop(0.5), "batches": cut(range(20), 5)}
    make(count=20, epochs=1, **usual | (WRONG[said] if dist.get_rank() == 1 else {}))


def index_that_is_not_there():
    last = 20 if dist.get_rank() == 1 else 19
    go_through(*make(sb.ledger_backprop(), 20, cut([0, 1, 2, last], 2), epochs=1), 1)


def not_finite():
    """Example 21, which is rank 1's, has a loss that is not a number."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model, loader = make(sb.selective_backprop(0.5), 16 * size, cut(range(16 * rank, 16 * rank + 16), 16), epochs=1)
    forward = model.forward
    model.forward = lambda values: torch.where(values == 21, float("nan"), forward(values))
    go_through(model, loader, 1)


def pruned(method):
    """All examples of rank 1 are pruned: it trains on what others select."""
    size, rank = dist.get_world_size(), dist.get_rank()
    scores = torch.arange(20.0 * size)
    scores[20:40] = -1
    method = sb.diet(method=method, scores=scores, prune=1 / size)
    model, loader = make(method, 20 * size, cut(range(20 * rank, 20 * rank + 20), 5), epochs=3, batch_size=2)
    return go_through(model, loader, 3)
