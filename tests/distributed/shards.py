"""Data that is spread over two ranks unevenly, in many shapes; run by every rank."""

import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import selective_backprop as sb
from tests.distributed.runs import BATCH, Ids, Run
from tests.helpers import digits, make_loader, make_model


def facts(run):
    """What the tests look at."""
    return {"batches": run.batches, "sizes": run.sizes, "parameters": run.parameters}


def job():
    rank = dist.get_rank()
    return {
        "three times the data": facts(uneven([150, 50][rank], [0, 150][rank], sb.selective_backprop(0.5))),
        "everything": facts(uneven([150, 53][rank], [0, 150][rank], sb.traditional())),
        "planned": facts(uneven([150, 50][rank], [0, 150][rank], sb.methods.ledger_percentile(0.5), epochs=4)),
        "one batch": facts(uneven([187, 16][rank], [0, 187][rank], sb.selective_backprop(0.5))),
        "interrupted": facts(uneven([50, 150][rank], [0, 50][rank], sb.selective_backprop(0.4, interrupt=3))),
        "skewed": skewed(),
        "columns": columns(),
        "accumulated": accumulated(),
        "without ids": without_ids(),
        "kath18": kath18_without_losses(),
        "everything on both": logged(),
    }


def kath18_without_losses():
    """As with mixup: no rank calls loader.loss, and one has fewer candidates than the other."""
    rank = dist.get_rank()
    method = sb.kath18(0.5, threshold=1.001)
    run = Run(method, sampler=Ids(range([0, 150][rank], [150, 203][rank])), dataset=digits(), epochs=4)
    loader, optimizer = run.loader, torch.optim.SGD(run.model.parameters(), lr=0.5)
    last = run.model.module[-1]
    nn.init.zeros_(last.weight)  # all losses are the same at first, so that tau is 1
    nn.init.zeros_(last.bias)
    sizes = []
    for _ in range(4):
        sizes.append([])
        for inputs, targets in loader:
            nn.functional.cross_entropy(run.model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            sizes[-1].append(len(targets))
    return {"sizes": sizes, "parameters": run.parameters}


def uneven(count, first, method, epochs=2, **options):
    return Run(method, sampler=Ids(range(first, first + count)), dataset=digits(), epochs=epochs, **options).train()


def skewed():
    """All hard examples, those with wrong labels, are on rank 0."""
    inputs, targets = digits(200)[:]
    targets = torch.where(torch.arange(200) < 100, (targets + 1) % 10, targets)
    own = Ids(range(100) if dist.get_rank() == 0 else range(100, 200))
    run = Run(
        sb.selective_backprop(0.5, history_size=64),
        dataset=torch.utils.data.TensorDataset(inputs, targets),
        sampler=own,
        model=trained_model(),
        epochs=4,
    )
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0  # the one stays hard and the other easy
    return facts(run.train())


def trained_model():
    model = make_model()
    optimizer, (inputs, targets) = torch.optim.Adam(model.parameters(), lr=0.01), digits(200)[:]
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


class Sentences(torch.utils.data.Dataset):
    """Dicts with a tensor of any length, a string and a nested tensor."""

    def __len__(self):
        return 120

    def __getitem__(self, index):
        tokens = torch.arange(1 + index % 7) + index
        return {"tokens": tokens, "name": f"number {index}", "more": (torch.tensor(float(index)),)}


def collate(examples):
    tokens = nn.utils.rnn.pad_sequence([example["tokens"] for example in examples], batch_first=True)
    more = torch.stack([example["more"][0] for example in examples])
    return {"tokens": tokens, "name": [example["name"] for example in examples], "more": (more,)}


class Hardness(nn.Module):
    """The loss of example i is i, so that one rank's are all harder; with a parameter, as DDP needs one."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, values):
        return self.scale * values


def columns():
    own = Ids(range(60) if dist.get_rank() == 0 else range(60, 120))
    model = DistributedDataParallel(Hardness())
    loader = sb.SelectiveLoader(
        DataLoader(Sentences(), batch_size=10, sampler=own, collate_fn=collate),
        model,
        lambda outputs, targets: outputs,
        sb.selective_backprop(0.5, history_size=60),
        forward=lambda model, batch: (model(batch["more"][0]), None),
        pad=sb.pad_to_longest({"tokens": 0}),
        num_epochs=3,
    )
    names, wrong = [], 0
    for _ in range(3):
        for batch in loader:
            loader.loss(model(batch["more"][0]), None).backward()
            names += batch["name"]
            for row, i in enumerate(loader.batch.ids.tolist()):
                expected = Sentences()[i]
                length = len(expected["tokens"])
                tokens = batch["tokens"][row]
                wrong += batch["name"][row] != expected["name"] or batch["more"][0][row] != float(i)
                wrong += not torch.equal(tokens[:length], expected["tokens"]) or bool(tokens[length:].any())
    foreign = sum(name not in {f"number {i}" for i in own} for name in names)
    return {"count": len(names), "wrong": wrong, "foreign": foreign}


def accumulated():
    """Two batches to a step, gradients exchanged at the second alone."""
    run = Run(sb.selective_backprop(0.5), dataset=digits())
    steps = 0
    for epoch in range(run.epochs):
        run.sampler.set_epoch(epoch)
        iterator = iter(run.loader)
        for inputs, targets in iterator:
            with run.model.no_sync():
                run.loader.loss(run.model(inputs), targets).backward()
            if (second := next(iterator, None)) is None:
                run.optimizer.zero_grad()
                break
            run.loader.loss(run.model(second[0]), second[1]).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            steps += 1
    return {"steps": steps, "parameters": run.parameters}


class Stream(IterableDataset):
    """Examples without ids; more on rank 1."""

    def __iter__(self):
        count = 40 if dist.get_rank() == 0 else 90
        yield from (digits()[i] for i in range(count))


def without_ids():
    model = DistributedDataParallel(make_model())
    loader = sb.SelectiveLoader(
        DataLoader(Stream(), batch_size=BATCH), model, nn.CrossEntropyLoss(), sb.selective_backprop(0.5), num_epochs=3
    )
    sizes = []
    for _ in range(3):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
            sizes.append(len(targets))
    return {"sizes": sizes}


def logged():
    """What is said, on each rank, when all ranks go through all the data, and when they share it."""
    messages = []

    class Handler(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("selective_backprop"), Handler()
    logger.addHandler(handler)
    make_loader(sb.selective_backprop(0.5), model=DistributedDataParallel(make_model()))
    alone = len(messages)
    Run(sb.selective_backprop(0.5))
    logger.removeHandler(handler)
    return {"messages": messages, "about shared data": len(messages) - alone}
