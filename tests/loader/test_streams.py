"""One long epoch, generators and streams, with their own ways to resume."""

import copy

import datasets
import pytest
import torch
import webdataset
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb
from selective_backprop.files.signing import signed

NUM, SIZE = 96, 8


def make(loader, method=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return sb.SelectiveLoader(loader, model, nn.CrossEntropyLoss(), method or sb.top_k(0.5), **options)


def take(loader, count=None, *, save=True):
    """The first inputs of each batch of an epoch."""
    found = []
    for inputs, targets in loader:
        loader.loss(loader.model(inputs), targets)
        found.append(inputs.clone())
        if len(found) == count:
            if save:
                loader.saved = copy.deepcopy(loader.state_dict())
            break
    return found


def has_length(stream):
    try:
        return len(stream) > 0
    except TypeError:
        return False


def rows():
    draws = torch.Generator().manual_seed(3)
    return torch.randn(NUM, 4, generator=draws), torch.randint(3, (NUM,), generator=draws)


# ---- functions and generators


def get_batch(draws):
    return torch.randn(SIZE, 4, generator=draws), torch.randint(3, (SIZE,), generator=draws)


def function_loader(seed=1):
    draws = torch.Generator().manual_seed(seed)
    return sb.BatchFunction(lambda: get_batch(draws), 12, generator=draws)


def test_a_function_is_an_epoch_of_known_length():
    loader = make(function_loader(), num_epochs=1)
    batches = take(loader)
    assert len(batches) == 6 and loader.progress == 1 and len(loader) >= 6


def test_a_function_resumes_without_calling_it_for_batches_that_are_gone():
    whole = take(make(function_loader(), num_epochs=2))
    first = make(function_loader(), num_epochs=2)
    before = take(first, 2)
    calls = []
    resumed = function_loader(seed=9)
    function = resumed.function
    generator = torch.Generator()

    def counted():
        calls.append(1)
        return get_batch(generator)

    resumed.function, resumed.generator = counted, generator
    second = make(resumed, num_epochs=2)
    second.load_state_dict(first.saved)
    after = take(second)
    assert function is not counted and len(calls) == 12 - first.saved["epochs"]["under_way"]["place"]["position"] < 12
    assert all(torch.equal(*pair) for pair in zip(whole, before + after, strict=True))


def test_a_function_that_is_not_called_is_refused():
    def stream():
        yield 1

    with pytest.raises(TypeError, match=r"got the function stream: if it yields batches, call it, stream\(\)"):
        make(stream)


@pytest.mark.parametrize(("arguments", "kind"), [((3, 4), TypeError), ((len, 0), ValueError), ((len, 1.5), ValueError)])
def test_wrong_functions_are_refused(arguments, kind):
    with pytest.raises(kind, match="must be"):
        sb.BatchFunction(*arguments)


def test_an_endless_generator_has_progress_if_it_is_told_its_length():
    def endless():
        draws = torch.Generator().manual_seed(1)
        while True:
            yield get_batch(draws)

    loader, seen = make(sb.WithLength(endless(), 20), num_epochs=1), []
    for inputs, targets in loader:
        loader.loss(loader.model(inputs), targets)
        seen.append(loader.progress)
        if len(seen) == 5:
            break
    assert seen == sorted(seen) and seen[-1] == pytest.approx(0.5, abs=0.1)


class TwelveBatches:
    """Twelve batches, the same in each epoch."""

    def __iter__(self):
        draws = torch.Generator().manual_seed(1)
        return iter([get_batch(draws) for _ in range(12)])


@pytest.mark.parametrize("told", [8, 20])
@pytest.mark.parametrize("stop", [None, 2], ids=["between epochs", "in mid-epoch"])
def test_5_the_length_that_the_first_epoch_taught_is_kept_by_a_resume(told, stop):
    """The stream has 12 batches."""

    def stream():
        return make(sb.WithLength(TwelveBatches(), told), sb.top_k(0.5, start=0.4, end=0.8), num_epochs=3)

    def progress(loader, epoch, count=None):
        found = []
        while loader.epoch < epoch:
            for inputs, targets in loader:
                loader.loss(loader.model(inputs), targets)
                found.append((loader.progress, inputs.tolist()))
                if len(found) == count:
                    loader.saved = copy.deepcopy(loader.state_dict())
                    return found
        loader.saved = copy.deepcopy(loader.state_dict())
        return found

    expected = progress(stream(), 3)
    first, second = stream(), stream()
    found = progress(first, 1)
    found += [] if stop is None else progress(first, 2, stop)
    second.load_state_dict(first.saved)
    assert found + progress(second, 3) == expected


# ---- samplers that go on nearly forever


@pytest.mark.parametrize("name", ["selective_backprop", "top_k", "traditional", "random_backprop"])
def test_a_sampler_of_ten_billion_indices_gives_batches_at_once(name):
    data = TensorDataset(*rows())
    batches = DataLoader(data, SIZE, sampler=RandomSampler(data, replacement=True, num_samples=10**10))
    loader = make(batches, getattr(sb, name)(), num_epochs=1)
    assert len(take(loader, 5, save=False)) == 5
    assert (loader.stats.selectivity < 0.6) == (name != "traditional")


def test_random_subsets_of_a_stream_have_the_share_asked_for():
    loader = make([get_batch(torch.Generator()) for _ in range(60)], sb.random_backprop(0.25))
    take(loader)
    assert loader.stats.selectivity == pytest.approx(0.25, abs=0.08)  # 480 coins


@pytest.mark.parametrize("name", ["ledger_backprop", "repeated_random"])
def test_methods_that_plan_an_epoch_refuse_it_at_once(name):
    data = TensorDataset(*rows())
    batches = DataLoader(data, SIZE, sampler=RandomSampler(data, replacement=True, num_samples=10**10))
    with pytest.raises(ValueError, match="your sampler has 10,000,000,000 indices per epoch"):
        make(batches, getattr(sb, name)())


# ---- streams of other packages


def hugging_face():
    inputs, targets = rows()
    table = datasets.Dataset.from_dict({"inputs": inputs.tolist(), "targets": targets.tolist()})
    return table.to_iterable_dataset(num_shards=4)


def collate(examples):
    return torch.tensor([e["inputs"] for e in examples]), torch.tensor([e["targets"] for e in examples])


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_a_stream_of_hugging_face_resumes_by_its_own_state(kind, monkeypatch):
    def loader():
        return make(sb.WithLength(kind(hugging_face(), SIZE, collate_fn=collate), NUM // SIZE), num_epochs=1)

    whole, first = take(loader()), loader()
    before, state = take(first, 2), first.saved
    assert state["epochs"]["under_way"]["place"]["inner"] is not None, "the stream's own state"
    second = loader()
    second.load_state_dict(state)
    after = take(second)
    assert all(torch.equal(*pair) for pair in zip(whole, before + after, strict=True))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # WebDataset closes its files when they are collected
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_shards_are_a_stream(tmp_path):
    inputs, targets = rows()
    with webdataset.TarWriter(str(tmp_path / "part-0.tar")) as writer:
        for number in range(NUM):
            writer.write(
                {
                    "__key__": f"{number:05d}",
                    "inputs.json": inputs[number].tolist(),
                    "targets.cls": int(targets[number]),
                }
            )

    def loader():
        shards = webdataset.WebDataset(f"file:{tmp_path}/part-0.tar", shardshuffle=False).decode()
        examples = shards.to_tuple("inputs.json", "targets.cls")

        def join(pairs):
            return torch.tensor([inputs for inputs, _ in pairs]), torch.tensor([target for _, target in pairs])

        return make(sb.WithLength(DataLoader(examples, SIZE, collate_fn=join), NUM // SIZE), num_epochs=1)

    whole, first = take(loader()), loader()
    assert len(whole) == 6
    before = take(first, 2)
    second = loader()
    second.load_state_dict(first.saved)  # loads and drops what is gone
    assert all(torch.equal(*pair) for pair in zip(whole, before + take(second), strict=True))


# ---- between epochs


def shuffled_stream(kind):
    """A stream that comes in another order in each epoch."""
    return kind(Reshuffled(), SIZE)


class Reshuffled(torch.utils.data.IterableDataset):
    """Keeps its place as MosaicML's StreamingDataset does: the epoch, and how many rows of it are gone."""

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


EPOCHS = {
    "function": (function_loader, 12),
    "own state": (lambda: shuffled_stream(DataLoader), 12),
    "StatefulDataLoader": (lambda: shuffled_stream(StatefulDataLoader), 12),
    "hugging face": (lambda: DataLoader(hugging_face(), SIZE, collate_fn=collate), 12),
    "hugging face, stateful": (lambda: StatefulDataLoader(hugging_face(), SIZE, collate_fn=collate), 12),
}


@pytest.mark.parametrize("name", EPOCHS)
@pytest.mark.parametrize("count", [None, 6, 2], ids=["between epochs", "after the last batch", "in mid-epoch"])
def test_5_the_next_epoch_of_a_stream_goes_on_after_a_resume(name, count):
    make_stream, total = EPOCHS[name]

    def loader():
        stream = make_stream()
        return make(
            stream if hasattr(type(stream), "__len__") and has_length(stream) else sb.WithLength(stream, total),
            num_epochs=3,
        )

    whole = loader()
    epochs = [take(whole) for _ in range(3)]
    assert name.startswith("hugging face") or not torch.equal(epochs[0][0], epochs[1][0]), "epochs differ"
    first = loader()
    take(first, count)
    second = loader()
    second.load_state_dict(copy.deepcopy(first.state_dict()) if count is None else first.saved)
    third = loader()
    third.load_state_dict(copy.deepcopy(second.state_dict()))  # nothing was read since
    if count is not None:
        assert all(torch.equal(*pair) for pair in zip(epochs[0][count:], take(third), strict=True))
    for expected in epochs[1:]:
        assert all(torch.equal(*pair) for pair in zip(expected, take(third), strict=True))


class Stateless(torch.utils.data.IterableDataset):
    """A stream that cannot say where it is."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        inputs, targets = rows()
        yield from zip(inputs[number::count], targets[number::count], strict=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_5_a_second_resume_in_an_epoch_loses_nothing(workers):
    """torchdata counts the batches twice that it passes over in a stream without a state."""

    def loader():
        stream = StatefulDataLoader(Stateless(), SIZE, num_workers=workers)
        return make(sb.WithLength(stream, NUM // SIZE), sb.random_backprop(1.0), num_epochs=2)

    whole = loader()
    expected = take(whole) + take(whole)
    first, second, third = loader(), loader(), loader()
    found = take(first, 2)
    second.load_state_dict(first.saved)
    found += take(second, 3)
    third.load_state_dict(second.saved)
    found += take(third)
    fourth = loader()
    fourth.load_state_dict(copy.deepcopy(third.state_dict()))
    found += take(fourth)
    assert len(found) == 24 and all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


class CountedDataset(torch.utils.data.IterableDataset):
    """Like MosaicML's StreamingDataset: its state must be told how many samples are gone."""

    def __iter__(self):
        yield from zip(*rows(), strict=True)

    def state_dict(self, num_samples, from_beginning):
        raise AssertionError("only its own loader can call this")

    def load_state_dict(self, state):
        raise AssertionError("only its own loader can call this")


def test_a_state_that_must_be_told_its_place_is_left_to_its_own_loader():
    loader = make(sb.WithLength(DataLoader(CountedDataset(), SIZE), 12))
    take(loader, 2)
    assert loader.saved["epochs"]["under_way"]["place"]["inner"] is None


def test_a_place_of_another_kind_of_loader_is_refused():
    first = make(function_loader(), num_epochs=1)
    take(first, 2)
    batches = [get_batch(torch.Generator()) for _ in range(12)]
    second = make(batches, num_epochs=1)
    second.load_state_dict(signed(first.saved | {"generators": []}))
    with pytest.raises(ValueError, match="resume with the same kind of loader"):
        take(second)
