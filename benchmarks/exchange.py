"""What ranks send to each other and what that costs: formulas for any scale, and times of two ranks on one machine.

    python benchmarks/exchange.py

1. Time of one round's messages (header and scores) as a fraction of a training step of ResNet-20 on 32x32 images, with
   a batch of 128 on each of two ranks, one thread each.
2. Time to select from the candidates of k ranks, which every rank does.
3. Bytes and memory per rank, computed.

# M = examples, k = ranks, N = candidates of a rank in a round, s = selectivity
"""

import platform
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from selective_backprop.policies import PercentilePolicy
from selective_backprop.ranks import current_ranks
from selective_backprop_lab.models.cifar_resnet import cifar_resnet

HEADER, COUNT, SCORE, ID, VALUE, ROW = 40, 8, 4, 8, 4, 28  # bytes
STEP, EXCHANGE_EVERY, BLOCK, DECISION = 24, 64, 2**22, 90
CANDIDATES, ROUNDS = 128, 200


# ---- formulas: bytes that one rank sends


def round_bytes(k, n):
    """Bytes of the header and scores of one round."""
    return (k - 1) * (HEADER + SCORE * n)


def draw_bytes(k, m, n):
    """Bytes of the ids that a rank drew for an epoch, M / k of them, and of the sizes of its batches."""
    own = -(-m // k)
    return (k - 1) * (2 * COUNT + ID * own + COUNT * -(-own // n))


def learn_bytes(k, trained, n):
    """Bytes of what a rank learned from training: losses, ids, numbers of steps, and ids that were trained on."""
    steps = -(-trained // n)
    exchanges = 2 + steps // EXCHANGE_EVERY  # also when an epoch begins, and at its end
    return (k - 1) * ((ID + VALUE + ID) * trained + STEP * steps + exchanges * 6 * COUNT)


def epoch_bytes(k, m, n, s, planned):
    """Bytes of an epoch, except the examples that move between ranks."""
    own = -(-m // k)
    rounds = 0 if planned else 1 + -(-own // n)
    return draw_bytes(k, m, n) + rounds * round_bytes(k, n) + learn_bytes(k, round(s * own), n)


def memory_bytes(m, n, planned):
    """Bytes of ledger rows, the ids of the epoch, losses that wait and a decision, without the queue."""
    waiting = EXCHANGE_EVERY * n * (ID + VALUE + ID)
    plan = (VALUE + ID) * m + min(m, BLOCK) * DECISION if planned else 0
    return (ROW + ID) * m + waiting + plan


# ---- times


def timed(action, repeats):
    """Seconds of the fastest call, because other programs may slow one rank down and the other waits for it."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def measure(rank, store, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ranks, scores = current_ranks(), torch.rand(CANDIDATES)
    header = torch.zeros(5, dtype=torch.float64)
    sizes = [CANDIDATES] * 2

    def exchange():
        ranks.gather(header, [5, 5])
        ranks.gather(scores, sizes)

    timed(exchange, 20)
    model, loss_fn = DistributedDataParallel(cifar_resnet(20)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(CANDIDATES, 3, 32, 32), torch.randint(10, (CANDIDATES,))

    def step():
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()

    timed(step, 1)
    results[rank] = torch.tensor([timed(exchange, ROUNDS), timed(step, 6)], dtype=torch.float64)
    dist.barrier()
    dist.destroy_process_group()


def select_seconds(k, repeats=30):
    """Seconds to select from the candidates of k ranks."""
    policy, generator = PercentilePolicy(selectivity=1 / 3), torch.Generator().manual_seed(0)
    batches = iter([torch.randn(k * CANDIDATES).exp() for _ in range(repeats + 1)])
    policy.select(next(batches), generator)
    return timed(lambda: policy.select(next(batches), generator), repeats)


def size(count):
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def tables():
    """Print the computed tables."""
    print("\ncomputed, per rank, N = 128, s = 1/3")
    print("sent in a round: " + ", ".join(f"{k} ranks {size(round_bytes(k, 128))}" for k in (2, 8, 64, 1024)))
    for planned in (False, True):
        sent = [size(epoch_bytes(k, m, 128, 1 / 3, planned)) for m in (10**6, 10**8) for k in (8, 64, 1024)]
        held = [size(memory_bytes(m, 128, planned)) for m in (10**6, 10**7, 10**8)]
        print(f"| {'planned epoch' if planned else 'scored epoch'} | " + " | ".join(sent) + " |")
        print(f"| memory, {'planned epoch' if planned else 'scored epoch'} | " + " | ".join(held) + " |")


def main():
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    results = torch.multiprocessing.Manager().dict()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure, args=(f"{folder}/store", results), nprocs=2)
    alone, step = torch.stack([results[0], results[1]]).mean(0).tolist()
    print(f"two ranks: a training step {1e3 * step:.1f} ms; header and scores of {CANDIDATES} {1e6 * alone:.0f} us:")
    print(f"  {alone / step:.3%} of a training step")
    for k in (8, 64, 1024):
        seconds = select_seconds(k)
        print(f"selecting from {k} x {CANDIDATES} candidates {1e6 * seconds:.0f} us: {seconds / step:.3%} of that step")
    print(f"selecting from 2**20 scores, as in a planned epoch: {select_seconds(2**20 // CANDIDATES, 3):.2f} s")
    tables()


if __name__ == "__main__":
    sys.exit(main())
