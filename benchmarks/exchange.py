"""What ranks send to each other and what that costs: formulas for any scale, and times of two ranks on one machine.

    python benchmarks/exchange.py

1. Time of one round's messages (header and scores) as a fraction of a training step of ResNet-20 on 32x32 images, with
   a batch of 128 on each of two ranks, one thread each.
2. Time to select from the candidates of k ranks, which every rank does.
3. Bytes and memory per rank, computed. `tests/distributed/test_exchange.py` compares the formulas with what was sent.

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
from selective_backprop_lab.models.cifar_resnet import resnet20

HEADER, COUNT, SCORE, ID, VALUE, ROW = 40, 8, 4, 8, 4, 28  # bytes
AGREE = 44  # bytes by which ranks agree on how much to plan
KINDS, DELIVER_EVERY, BLOCK = 7, 64, 2**22
CANDIDATES, ROUNDS = 128, 200


# ---- formulas: bytes that one rank sends


def round_bytes(k, n):
    """Bytes of the header and scores of one round."""
    return (k - 1) * (HEADER + SCORE * n)


def plan_bytes(k, m):
    """Bytes of the scores of an epoch that is planned before loading, M / k from each rank, and of what is counted."""
    return (k - 1) * (AGREE + SCORE * -(-m // k))


def delivery_bytes(k, scored=0, decided=0, offered=0, selected=0, trained=0):
    """Bytes that a rank sends to the owners of ledger rows. It owns 1/k of the rows itself."""
    written = (ID + VALUE) * (scored + decided + trained) + ID * (offered + selected)
    return (k - 1) * (2 * COUNT + ID * KINDS) + written * (k - 1) // k


def question_bytes(k, asked, columns):
    """Bytes of asking for rows by id, and of answering others with columns of 4 bytes."""
    return (k - 1) * COUNT * (1 + columns) + asked * (ID + VALUE * columns) * (k - 1) // k


def epoch_bytes(k, m, n, s, planned):
    """Bytes of an epoch, except the ids or examples that move between ranks."""
    own, chosen = -(-m // k), round(s * -(-m // k))
    if planned:  # two columns are read, such as loss and age
        batches = -(-chosen // n)
        deliveries = 2 + batches // DELIVER_EVERY  # at the start for the plan, and at the end
        written = delivery_bytes(k, decided=own, offered=own, selected=chosen, trained=chosen)
        told = plan_bytes(k, m) + question_bytes(k, own, 2)
    else:
        rounds = -(-own // n)
        deliveries = 1 + rounds // DELIVER_EVERY
        written = delivery_bytes(k, scored=own, decided=own, offered=own, selected=chosen, trained=chosen)
        told = rounds * round_bytes(k, n) + (k - 1) * HEADER
    return told + written + (deliveries - 1) * delivery_bytes(k)


def memory_bytes(k, m, n, planned):
    """Bytes of ledger rows, undelivered writes, scores of a round and the plan of an epoch, without the queue."""
    rows, waiting = ROW * -(-m // k), DELIVER_EVERY * n * (3 * (ID + VALUE) + 2 * ID)
    of_round = k * n * (3 * SCORE + 8)
    plan = -(-m // k) * (4 * ID + 3 * VALUE + 1) + min(m, BLOCK) * (3 * SCORE + 8) if planned else 0
    return rows + waiting + of_round + plan


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
    model, loss_fn = DistributedDataParallel(resnet20()), nn.CrossEntropyLoss()
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
    for title, function in (("sent in an epoch", epoch_bytes), ("memory", memory_bytes)):
        extra = (1 / 3,) if function is epoch_bytes else ()
        print(
            f"\n| {title} | "
            + " | ".join(f"{m:.0e}, {k} ranks" for m in (10**6, 10**8, 10**10) for k in (8, 64, 1024))
            + " |"
        )
        for planned in (False, True):
            cells = [size(function(k, m, 128, *extra, planned)) for m in (10**6, 10**8, 10**10) for k in (8, 64, 1024)]
            print(f"| {'planned epoch' if planned else 'scored epoch'} | " + " | ".join(cells) + " |")


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
