"""Loaders without ids: functions, generators and streams. A stream resumes by its own state, or between epochs."""

import copy

import datasets
import pytest
import torch
import webdataset
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb

NUM, SIZE = 96, 8


def make(loader, method=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return sb.SelectiveLoader(loader, model, nn.CrossEntropyLoss(), method or sb.top_k(0.5), **options)


def take(loader, count=None):
    """The first inputs of each batch of an epoch, and the state after the last of them."""
    found = []
    for inputs, targets in loader:
        loader.loss(loader.model(inputs), targets)
        found.append(inputs.clone())
        if len(found) == count:
            loader.saved = copy.deepcopy(loader.state_dict())
            break
    return found


def equal(ones, others):
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def rows():
    draws = torch.Generator().manual_seed(3)
    return torch.randn(NUM, 4, generator=draws), torch.randint(3, (NUM,), generator=draws)


class Stream(IterableDataset):
    """In a new order in each epoch. It keeps its place: the epoch, and how many rows of it are gone."""

    def __init__(self):
        self.epoch, self.start, self.place = -1, None, (0, 0)

    def __iter__(self):
        self.epoch, start = (self.epoch + 1, 0) if self.start is None else self.start
        self.start = None
        order = torch.randperm(NUM, generator=torch.Generator().manual_seed(self.epoch))
        inputs, targets = rows()
        for gone in range(start, NUM):
            self.place = self.epoch, gone + 1
            yield inputs[order[gone]], targets[order[gone]]

    def state_dict(self):
        return {"place": list(self.place)}

    def load_state_dict(self, state):
        self.start = tuple(state["place"])


def function_loader(seed=1):
    draws = torch.Generator().manual_seed(seed)
    get_batch = lambda: (torch.randn(SIZE, 4, generator=draws), torch.randint(3, (SIZE,), generator=draws))  # noqa: E731
    return sb.BatchFunction(get_batch, 12, generator=draws)


def hugging_face():
    inputs, targets = rows()
    table = datasets.Dataset.from_dict({"inputs": inputs.tolist(), "targets": targets.tolist()})
    return table.to_iterable_dataset(num_shards=4)


def collate(examples):
    return torch.tensor([e["inputs"] for e in examples]), torch.tensor([e["targets"] for e in examples])


STREAMS = {
    "function": function_loader,
    "own state": lambda: DataLoader(Stream(), SIZE),
    "StatefulDataLoader": lambda: StatefulDataLoader(Stream(), SIZE),
    "hugging face": lambda: DataLoader(hugging_face(), SIZE, collate_fn=collate),
    "hugging face, stateful": lambda: StatefulDataLoader(hugging_face(), SIZE, collate_fn=collate),
}


def with_length(stream):
    return stream if isinstance(stream, sb.BatchFunction) else sb.WithLength(stream, NUM // SIZE)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("count", [None, 2], ids=["between epochs", "in mid-epoch"])
def test_5_a_stream_with_a_state_goes_on_after_a_resume(name, count):
    def loader():
        return make(with_length(STREAMS[name]()), num_epochs=3)

    whole = loader()
    epochs = [take(whole) for _ in range(3)]
    assert name.startswith("hugging face") or not torch.equal(epochs[0][0], epochs[1][0]), "epochs differ"
    assert len(epochs[0]) == 6 and whole.progress == 1 and len(whole) >= 6
    first, second = loader(), loader()
    take(first, count)
    second.load_state_dict(copy.deepcopy(first.state_dict()) if count is None else first.saved)
    if count is not None:
        assert equal(take(second), epochs[0][count:])
    assert all(equal(take(second), expected) for expected in epochs[1:])


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # WebDataset closes its files when they are collected
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_shards_are_a_stream_that_resumes_between_epochs(tmp_path):
    inputs, targets = rows()
    with webdataset.TarWriter(str(tmp_path / "part-0.tar")) as writer:
        for number in range(NUM):
            values = {"inputs.json": inputs[number].tolist(), "targets.cls": int(targets[number])}
            writer.write({"__key__": f"{number:05d}"} | values)

    def loader():
        shards = webdataset.WebDataset(f"file:{tmp_path}/part-0.tar", shardshuffle=False).decode()
        examples = shards.to_tuple("inputs.json", "targets.cls")
        join = lambda pairs: (torch.tensor([one for one, _ in pairs]), torch.tensor([one for _, one in pairs]))  # noqa: E731
        return make(sb.WithLength(DataLoader(examples, SIZE, collate_fn=join), NUM // SIZE), num_epochs=2)

    first, second = loader(), loader()
    assert len(take(first)) == 6
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.epoch == 1 and equal(take(second), take(first))


def test_a_list_of_batches_and_a_data_set_of_batches_are_streams():
    inputs, targets = rows()
    batches = [(inputs[start : start + SIZE], targets[start : start + SIZE]) for start in range(0, NUM, SIZE)]
    for given in (batches, DataLoader(batches, batch_size=None)):
        loader = make(given, num_epochs=2)
        sizes = [len(inputs) for inputs in take(loader)]
        assert set(sizes[:-2]) == {SIZE} and sum(sizes) == NUM // 2 and loader.progress == 0.5
        assert loader.stats.offered == loader.stats.scored == NUM


def test_random_backprop_on_a_stream_makes_no_selection_pass_and_keeps_its_share():
    loader = make(DataLoader(Stream(), SIZE), sb.random_backprop(0.25))
    for _ in range(5):
        take(loader)
    assert loader.stats.scored == 0
    assert loader.stats.selectivity == pytest.approx(0.25, abs=0.1)  # 480 coins


def test_a_method_that_needs_ids_says_so():
    with pytest.raises(ValueError, match="ids"):
        make(DataLoader(Stream(), SIZE), sb.stale_selective_backprop(0.5))


# ---- lengths


@pytest.mark.parametrize(("total", "logged"), [(12, False), (10, True), (20, True)])
def test_a_stream_is_told_its_length(total, logged, caplog):
    loader, seen = make(sb.WithLength(DataLoader(Stream(), SIZE), total), sb.traditional(), num_epochs=2), []
    assert len(loader) == total
    for _ in range(2):
        for _ in loader:
            seen.append(loader.progress)
    assert seen == sorted(seen) and seen[5] == pytest.approx(6 / total / 2) and loader.progress == 1
    assert len(caplog.records) == logged
    assert not logged or "12" in caplog.text


def test_progress_needs_a_length():
    loader = make(DataLoader(Stream(), SIZE), num_epochs=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(loader.model.parameters(), lr=0.1), lambda step: 1.0)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"sb\.WithLength"):
        sb.step_by_progress(scheduler, loader, total_steps=26)


@pytest.mark.parametrize(("batches", "length"), [(iter([1]), 0), ([1, 2], 2)])
def test_a_length_of_the_wrong_kind(batches, length):
    with pytest.raises(ValueError, match=str(length)):
        sb.WithLength(batches, length)


@pytest.mark.parametrize(("arguments", "kind"), [((3, 4), TypeError), ((len, 0), ValueError), ((len, 1.5), ValueError)])
def test_wrong_functions_are_refused(arguments, kind):
    with pytest.raises(kind, match="must be"):
        sb.BatchFunction(*arguments)


# ---- what can be gone through once, or never ends


def generator():
    yield from [(torch.randn(SIZE, 4), torch.randint(3, (SIZE,))) for _ in range(12)]


def test_a_generator_is_called_and_used_up_after_an_epoch():
    with pytest.raises(TypeError, match=r"generator\(\)"):
        make(generator)
    loader = make(generator())
    assert len(take(loader)) > 0
    with pytest.raises(ValueError, match="only once"):
        take(loader)
    with pytest.raises(ValueError, match="empty"):
        take(make(iter([])))


@pytest.mark.parametrize("method", [sb.ledger_backprop(), sb.selective_backprop(0.5)], ids=["planned", "scored"])
def test_a_sampler_that_can_be_used_only_once_is_an_error_in_the_second_epoch(method):
    examples = list(zip(*rows(), strict=True))
    loader = make(DataLoader(examples, SIZE, sampler=iter(range(NUM))), method)
    take(loader)
    with pytest.raises(ValueError, match="empty"):
        take(loader)


@pytest.mark.parametrize("name", ["ledger_backprop", "repeated_random", "stale_selective_backprop"])
def test_a_sampler_too_long_to_draw_is_refused_at_once(name):
    data = list(zip(*rows(), strict=True))
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=10**10)
    with pytest.raises(ValueError, match="10,000,000,000"):
        make(DataLoader(data, SIZE, sampler=sampler), getattr(sb, name)())
