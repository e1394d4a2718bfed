"""DataLoader subclasses with an `__iter__` of their own: ids are right, or refused."""

import copy
import queue
import sys
import threading
from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb
from selective_backprop.loader.index_stream import Chunk, IndexStream
from selective_backprop.testing import same
from tests.helpers import digits, make_model
from tests.loader.test_loader_kinds import CRITERION, matches

METHODS = {
    "traditional": sb.traditional,
    "selective_backprop": lambda: sb.selective_backprop(0.5),
    "stale_selective_backprop": lambda: sb.stale_selective_backprop(0.5, every=2),
    "random_backprop": lambda: sb.random_backprop(0.5),
}
each_method = pytest.mark.parametrize("method", METHODS)
WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}]
each_workers = pytest.mark.parametrize("options", WORKERS, ids=["no workers", "workers", "persistent workers"])


def wrap(loader_class, method="selective_backprop", **options):
    train_loader = loader_class(digits(), **{"batch_size": 16, "shuffle": True} | options)
    return sb.SelectiveLoader(train_loader, make_model(), CRITERION, METHODS[method](), num_epochs=3)


class KeepsOneIterator(DataLoader):
    """As timm's MultiEpochsDataLoader: an endless batch sampler and one iterator for all epochs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = Again(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Again:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


class Prefetches(DataLoader):
    """As prefetchers to a GPU: the next batch is moved, cast and normalised while the current one is in use."""

    def __iter__(self):
        mean, ahead = torch.tensor(0.3, dtype=torch.float64), None
        for inputs, targets in super().__iter__():
            batch = inputs.to(torch.float64, non_blocking=True).sub_(mean), targets.to("cpu", copy=True)
            if ahead is not None:
                yield ahead
            ahead = batch
        yield ahead


class InAThread(DataLoader):
    """As loaders with a thread that fills a buffer."""

    def __iter__(self):
        buffer = queue.Queue(4)

        def fill():
            for batch in super(InAThread, self).__iter__():
                buffer.put(batch)
            buffer.put(None)

        threading.Thread(target=fill, daemon=True).start()
        yield from iter(buffer.get, None)


class DropsEveryOther(DataLoader):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number % 2:
                yield batch


class Reorders(DataLoader):
    def __iter__(self):
        held = []
        for batch in super().__iter__():
            held.append(batch)
            if len(held) == 3:
                yield from reversed(held)
                held = []
        yield from held


class ReordersStateful(StatefulDataLoader):
    def __iter__(self):
        yield from reversed(list(super().__iter__()))


@each_workers
@each_method
@pytest.mark.parametrize("loader_class", [InAThread, DropsEveryOther, Reorders, ReordersStateful])
def test_ids_are_right_whatever_the_order(loader_class, method, options):
    loader = wrap(loader_class, method, **options)
    given = 0
    for _ in range(3):
        last = 0.0
        for batch in loader:
            assert matches(batch, loader.batch.ids)
            assert type(batch[0]) is type(batch[1]) is torch.Tensor
            assert last <= loader.progress
            last = loader.progress
            given += len(batch[0])
    assert given > 100


@each_workers
@each_method
def test_a_prefetcher_that_changes_batches(method, options):
    loader = wrap(Prefetches, method, **options)
    loader.model.double()
    inputs, targets = digits().tensors
    for _ in range(3):
        for batch in loader:
            ids = loader.batch.ids
            torch.testing.assert_close(batch[0], inputs[ids].double() - 0.3)
            assert torch.equal(batch[1], targets[ids])
    assert loader.stats.trained > 100


def test_it_is_plain_training():
    torch.manual_seed(0)
    expected = [batch for _ in range(2) for batch in Reorders(digits(), 16, shuffle=True)]
    torch.manual_seed(0)
    loader = wrap(Reorders, "traditional")
    assert same(expected, [batch for _ in range(2) for batch in loader])


@pytest.mark.parametrize(("method", "workers"), [("traditional", 0), ("selective_backprop", 1), ("random_backprop", 0)])
def test_one_iterator_for_all_epochs_is_refused(method, workers):
    loader = wrap(KeepsOneIterator, method, num_workers=workers)
    message = (
        r"KeepsOneIterator\.__iter__, which is not torch's, returned a batch without a tensor that .*persistent_work"
    )
    with pytest.raises(ValueError, match=message):
        list(loader)


def test_what_cannot_be_told_apart_is_refused():
    class Twice(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch
                yield batch

    class Joins(DataLoader):
        def __iter__(self):
            batches = super().__iter__()
            for first, second in zip(batches, batches, strict=False):
                yield tuple(torch.cat(parts) for parts in zip(first, second, strict=True))

    class Copies(DataLoader):
        def __iter__(self):
            for inputs, targets in super().__iter__():
                yield torch.tensor(inputs.tolist()), torch.tensor(targets.tolist())

    class LoadsAlone(DataLoader):
        def __iter__(self):
            for indices in self.batch_sampler:
                yield self.collate_fn([self.dataset[i] for i in indices])

    for loader_class, message in [
        (Twice, "a batch for the second time"),
        (Joins, "a batch that mixes 2 batches"),
        (Copies, "a batch without a tensor"),
        (LoadsAlone, "a batch without a tensor"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(wrap(loader_class))

    class OwnIterator(DataLoader):
        def _get_iterator(self):
            return reversed(list(super()._get_iterator()))

    with pytest.raises(ValueError, match="OwnIterator replaces the iterator of torch's DataLoader"):
        wrap(OwnIterator)


def test_the_batch_sampler_s_attributes_can_be_read():
    class Reads(DataLoader):
        def __iter__(self):
            sampler = self.batch_sampler
            assert (sampler.batch_size, sampler.drop_last, len(sampler.sampler)) == (16, True, 203)
            with pytest.raises(AttributeError, match="nothing_of_the_kind"):
                sampler.nothing_of_the_kind  # noqa: B018
            return super().__iter__()

    assert list(wrap(Reads, drop_last=True))


Pair = namedtuple("Pair", ["image", "label"])


class Nested(Reorders):
    """Copies, dicts and lists on the way."""

    def __iter__(self):
        for batch in super().__iter__():
            inputs, targets = copy.deepcopy(batch)
            yield {"parts": [inputs.clone(), inputs[:, :1]], "pair": Pair(inputs, targets)}


class InBatches(Dataset):
    """Loaded a batch at a time."""

    def __len__(self):
        return len(digits())

    def __getitems__(self, indices):
        return [digits()[i] for i in indices]


@each_workers
def test_nested_batches_and_batched_loading(options):
    train_loader = Nested(InBatches(), batch_size=16, shuffle=True, **options)
    loader = sb.SelectiveLoader(
        train_loader,
        make_model(),
        CRITERION,
        sb.stale_selective_backprop(0.5, every=2),
        forward=lambda model, batch: (model(batch["pair"].image), batch["pair"].label),
    )
    for _ in range(2):
        for batch in loader:
            assert matches(batch["pair"], loader.batch.ids)
            assert torch.equal(batch["parts"][0], batch["pair"].image)


@pytest.mark.filterwarnings("ignore:'pin_memory':UserWarning")
def test_pinned_memory():
    loader = wrap(Reorders, pin_memory=True)
    assert all(matches(batch, loader.batch.ids) for batch in loader)


def test_a_thread_may_ask_for_batches_while_others_are_taken():
    """Python switches between the threads as often as it can: one comes in between any two steps of the other."""
    number = 5000
    stream, asked = IndexStream(None, number, "InAThread"), queue.Queue()
    stream.begin(Chunk(torch.tensor([i]), torch.empty(0), i / number) for i in range(number))
    thread = threading.Thread(target=lambda: [asked.put(ids) for ids in stream], daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for i in range(number):
            ids = asked.get(timeout=60)
            assert stream.take("batch")[0].ids.tolist() == ids == [i]
            assert i % 1000 or len(stream.remaining()) == number - i - 1
    finally:
        sys.setswitchinterval(interval)


def test_saving_in_the_middle_of_an_epoch():
    """What reads ahead resumes; what drops or reorders batches says that it cannot."""
    torch.manual_seed(1)
    loader, resumed = wrap(InAThread), wrap(InAThread)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed.load_state_dict(loader.state_dict())
    assert same(list(iterator), list(resumed))
    for loader_class in (DropsEveryOther, Reorders):
        loader = wrap(loader_class)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(
            ValueError, match=rf"{loader_class.__name__}.__iter__ drops or reorders batches.* Save between"
        ):
            loader.state_dict()
        list(iterator)
        loader.state_dict()
