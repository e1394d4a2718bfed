"""Random layouts of ranks: how data, methods and models meet; each a short run, many in one start of ranks."""

import random
from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import selective_backprop as sb
from tests.contracts.methods import METHODS
from tests.distributed.runs import Ids
from tests.distributed.sharded_model import sharded
from tests.helpers import NUM_DIGITS, Noisy

SIZES = (2, 3, 4)
_MORE_THAN_ONCE = ("kath18", "expected_selective_backprop")  # draw with replacement
_NOT_SHARDED = ("pipelined", "proxy", "kath18", "distance", "predicted")
_DATA = ("even", "uneven", "one has few", "one has none after its first batch")


@dataclass(frozen=True)
class Layout:
    """All that a run is made of."""

    method: str
    selectivity: float
    model: str
    """ "DDP" or "FSDP2"."""
    data: str
    batch_size: int
    candidates: int
    """Examples in a candidate batch."""
    epochs: int
    shuffled: bool
    stopped_at: int
    """The step after which the run is saved and another one goes on; 0: never."""


def draw(chance):
    """One at random."""
    model = chance.choice(["DDP", "DDP", "FSDP2"])
    names = list(METHODS)
    if model == "FSDP2":
        names = [name for name in names if not any(word in name for word in _NOT_SHARDED)]
    return Layout(
        method=chance.choice(names),
        selectivity=chance.choice([0.2, 0.33, 0.5, 0.8, 1.0]),
        model=model,
        data=chance.choice(_DATA),
        batch_size=chance.choice([4, 8, 16]),
        candidates=chance.choice([4, 8, 16, 24]),
        epochs=chance.choice([1, 2, 3]),
        shuffled=chance.random() < 0.5,
        stopped_at=chance.choice([0, 0, 1, 2, 3]),
    )


def layouts_of(seed, size, first, count):
    """The same on every rank and in every process."""
    return [draw(random.Random(f"layout {seed} {size} {first + i}")) for i in range(count)]


def ids_of(layout, rank, size, chance):
    """Examples of this rank. Those of all ranks together are different from each other."""
    ids = list(range(NUM_DIGITS))
    if layout.shuffled:
        chance.shuffle(ids)
    few = max(layout.candidates // 2, 1)
    if layout.data == "even":
        share = NUM_DIGITS // size
        return ids[rank * share : (rank + 1) * share]
    if layout.data == "uneven":
        cuts = [0, *sorted(chance.sample(range(few, NUM_DIGITS - few), size - 1)), NUM_DIGITS]
        return ids[cuts[rank] : cuts[rank + 1]] or ids[:1]
    least = few if layout.data == "one has few" else layout.candidates
    rest = (NUM_DIGITS - least) // (size - 1)
    return ids[:least] if rank == size - 1 else ids[least + rank * rest : least + (rank + 1) * rest]


def small_model():
    """Without BatchNorm, which refuses a batch of one: such a batch may be what is left at the end of a rank's data."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(16, 10))


class LayoutRun:
    """One rank of a layout's run."""

    def __init__(self, layout, seed):
        rank, size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(seed + rank)
        own = Ids(ids_of(layout, rank, size, random.Random(f"ids {seed}")))
        model = small_model()
        self.model = sharded(model) if layout.model == "FSDP2" else DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.loader = sb.SelectiveLoader(
            DataLoader(Noisy(), layout.candidates, sampler=own),
            self.model,
            nn.CrossEntropyLoss(),
            METHODS[layout.method](layout.selectivity),
            batch_size=layout.batch_size,
            num_epochs=layout.epochs,
            seed=seed,
        )
        self.epochs, self.batches = layout.epochs, []

    def train(self, stop_at=0):
        for _ in range(self.loader.epoch, self.epochs):
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                self.loader.loss(self.model(inputs), targets).backward()
                self.optimizer.step()
                self.batches.append(self.loader.batch.ids.tolist())
                if stop_at == len(self.batches):
                    return

    def parameters(self):
        parts = [parameter.detach() for parameter in self.model.parameters()]
        return torch.cat([(part.full_tensor() if hasattr(part, "full_tensor") else part).flatten() for part in parts])


def run_layout(layout, seed):
    run = LayoutRun(layout, seed)
    run.train(layout.stopped_at)
    if layout.stopped_at:
        state = run.loader.state_dict()
        other = LayoutRun(layout, seed)
        other.loader.load_state_dict(state)
        other.model.load_state_dict(run.model.state_dict())
        other.optimizer.load_state_dict(run.optimizer.state_dict())
        other.batches = run.batches
        other.train()
        run = other
    selected = run.loader.ledger.whole().selected
    return {
        "batches": run.batches,
        "selected": selected,
        "dropped": run.loader.stats.dropped,
        "parameters": run.parameters(),
        "progress": run.loader.progress,
    }


def job(seed, first, count):
    """What each layout came to on this rank; an error is told, and ends this start of ranks."""
    size = dist.get_world_size()
    results = []
    for number, layout in enumerate(layouts_of(int(seed), size, int(first), int(count)), start=int(first)):
        print(f"layout {number}: {layout}", flush=True)
        results.append(run_layout(layout, 1000 * int(seed) + number))
    return results


def check(layout, ranks):
    """Raise an AssertionError unless all is as promised; `ranks` are the results of `run_layout`, by rank."""
    batches = [result["batches"] for result in ranks]
    assert len({len(mine) for mine in batches}) == 1, f"ranks have {[len(mine) for mine in batches]} batches"
    assert all(batch for mine in batches for batch in mine), "a batch is empty"
    assert all(torch.equal(result["parameters"], ranks[0]["parameters"]) for result in ranks), "parameters differ"
    assert all(bool(result["parameters"].isfinite().all()) for result in ranks)
    assert all(result["progress"] == 1 for result in ranks), [result["progress"] for result in ranks]
    given = Counter(i for mine in batches for batch in mine for i in batch)
    selected = Counter({i: int(count) for i, count in enumerate(ranks[0]["selected"].tolist()) if count})
    assert given == selected, "the ledger counts other examples than were given out"
    dropped = sum(result["dropped"] for result in ranks)
    assert dropped < layout.epochs * len(ranks), f"{dropped} examples were dropped"
    if not layout.method.startswith(_MORE_THAN_ONCE):
        for together in zip(*batches, strict=True):
            ids = [i for batch in together for i in batch]
            assert len(set(ids)) == len(ids), f"an id twice in one step: {sorted(ids)}"
