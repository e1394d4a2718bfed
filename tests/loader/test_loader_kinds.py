"""Every kind of loader a user may have."""

import io
import random
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb
from selective_backprop.inference import random_states, set_random_states
from selective_backprop.testing import same
from tests.helpers import Noisy, digits, make_loader, make_model, train, train_plainly

CRITERION = nn.CrossEntropyLoss()


def matches(batch, ids):
    inputs, targets = digits().tensors
    return torch.equal(batch[0], inputs[ids]) and torch.equal(batch[1], targets[ids])


def check_ids(loader, epochs=2):
    """Each batch given out is made of the examples that its ids name."""
    count = 0
    for _ in range(epochs):
        for batch in loader:
            assert matches(batch, loader.batch.ids)
            count += len(batch[0])
    assert count > 0
    return loader


METHODS = [sb.selective_backprop(0.5), sb.stale_selective_backprop(0.5, every=2), sb.random_backprop(0.5)]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@each_method
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
        {"num_workers": 2, "in_order": False},
        {"drop_last": True},
    ],
    ids=["workers", "persistent workers", "out of order", "drop_last"],
)
def test_dataloader_options(method, options):
    check_ids(make_loader(method, loader_options=options), epochs=4)


class FailingOnce(Noisy):
    """Fails at one example, as files on a network do."""

    has_failed = False

    def __getitem__(self, index):
        if index == 100 and not self.has_failed:
            self.has_failed = True
            raise OSError
        return digits()[index]


@each_method
@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_batch_that_failed_none_comes_with_other_ids(method, workers):
    loader = make_loader(method, dataset=FailingOnce(), loader_options={"num_workers": workers})
    loader.stepper.begin()
    try:
        while True:
            loader.stepper.next()
    except OSError:
        while (batch := loader.stepper.next()) is not None:
            assert matches(batch.data, batch.ids)


def test_a_spawned_worker():
    """In a scored epoch and in a planned one; each imports torch anew."""
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    loader = check_ids(make_loader(sb.stale_selective_backprop(0.5, every=2), loader_options=options), epochs=2)
    assert loader.stats.skipped_before_loading > 0, "the second epoch was planned"


@each_method
def test_workers_do_not_change_what_is_selected(method):
    def ids(workers):
        torch.manual_seed(1)
        model = make_model()
        return train(make_loader(method, model=model, loader_options={"num_workers": workers}), model, 4)

    assert ids(0) == ids(1) == ids(2)


@pytest.mark.filterwarnings("ignore:'pin_memory':UserWarning")
def test_pinned_memory():
    check_ids(make_loader(sb.selective_backprop(0.5), loader_options={"pin_memory": True}))


@each_method
def test_samplers(method):
    data = digits()
    loaders = [
        DataLoader(data, 16, sampler=WeightedRandomSampler(torch.rand(203), 150)),
        DataLoader(data, 16, sampler=RandomSampler(data, replacement=True, num_samples=400)),
        DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 16, drop_last=True)),
        DataLoader(data, batch_sampler=[[5, 3], [1, 9, 200], [7]] * 10),
    ]
    for train_loader, size in zip(loaders, (None, None, None, 3), strict=True):
        check_ids(sb.SelectiveLoader(train_loader, make_model(), CRITERION, method, batch_size=size), epochs=4)


def test_batches_of_a_users_batch_sampler_pass_unchanged_while_everything_is_kept():
    batches = [[5, 3], [1, 9, 200], [7, 8, 11, 12], [0]]
    for method in (sb.traditional(), sb.selective_backprop(1.0), sb.random_backprop(1.0)):
        train_loader = DataLoader(digits(), batch_sampler=batches)
        loader = sb.SelectiveLoader(train_loader, make_model(), CRITERION, method)
        assert [loader.batch.ids.tolist() for _ in loader] == batches


def test_a_sampler_that_adapts_while_the_epoch_runs_is_asked_batch_by_batch():
    asked_at = []

    class Adaptive:
        batch_size = 16

        def __iter__(self):
            for start in range(0, 160, 16):
                asked_at.append(loader.stats.offered)
                yield list(range(start, start + 16))

        def __len__(self):
            return 10

    train_loader = DataLoader(digits(), batch_sampler=Adaptive())
    loader = sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.selective_backprop(0.5))
    for _ in loader:
        pass
    assert asked_at == list(range(0, 160, 16))


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*digits().tensors, strict=True)


def require_full(sizes):
    """All batches of an epoch are full but the last two, which share what is left."""
    assert set(sizes[:-2]) == {16} and all(8 <= size <= 16 for size in sizes[-2:])


def test_iterable_data_set():
    loader = sb.SelectiveLoader(DataLoader(Stream(), 16), make_model(), CRITERION, sb.selective_backprop(0.5))
    for _ in range(2):
        require_full([len(inputs) for inputs, _ in loader])
    assert loader.batch.ids is None
    assert loader.stats.offered == loader.stats.scored == 406


def test_random_backprop_on_a_stream_makes_no_selection_pass():
    loader = sb.SelectiveLoader(DataLoader(Stream(), 16), make_model(), CRITERION, sb.random_backprop(0.5))
    assert sum(len(inputs) for inputs, _ in loader) > 60
    assert loader.stats.scored == 0


def test_a_method_that_needs_ids_says_so():
    message = "stale_selective_backprop must know the id of each example, and your loader has no ids"
    with pytest.raises(ValueError, match=message):
        sb.SelectiveLoader(DataLoader(Stream(), 16), make_model(), CRITERION, sb.stale_selective_backprop(0.5))


def test_any_iterable_of_batches():
    batches = list(DataLoader(digits(), 16))
    loader = sb.SelectiveLoader(batches, make_model(), CRITERION, sb.selective_backprop(0.5), num_epochs=2)
    require_full([len(inputs) for inputs, _ in loader])
    assert loader.progress == 0.5


def test_batches_made_by_the_data_set_itself():
    class Batches(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            inputs, targets = digits().tensors
            return inputs[index * 16 : index * 16 + 16], targets[index * 16 : index * 16 + 16]

    train_loader = DataLoader(Batches(), batch_size=None)
    loader = sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.selective_backprop(0.5))
    for _ in range(2):
        require_full([len(inputs) for inputs, _ in loader])


@dataclass
class Example:
    image: torch.Tensor
    label: torch.Tensor
    names: list[str]


def to_example(samples):
    images, labels = zip(*samples, strict=True)
    return Example(torch.stack(images), torch.stack(labels), [f"label {int(label)}" for label in labels])


def to_dict(samples):
    example = to_example(samples)
    return {"input": example.image, "labels": example.label}


def forward_example(model, batch):
    return model(batch.image), batch.label


@each_method
@pytest.mark.parametrize("workers", [0, 2])
def test_custom_collate_to_a_dataclass_with_strings(method, workers):
    train_loader = DataLoader(digits(), 16, shuffle=True, collate_fn=to_example, num_workers=workers)
    loader = sb.SelectiveLoader(train_loader, make_model(), CRITERION, method, forward=forward_example)
    for _ in range(2):
        for batch in loader:
            assert matches((batch.image, batch.label), loader.batch.ids)
            assert batch.names == [f"label {int(label)}" for label in batch.label]


def test_resume_with_a_queue_of_dataclasses():
    def new():
        torch.manual_seed(0)
        train_loader = DataLoader(digits(), 16, shuffle=True, collate_fn=to_example)
        return sb.SelectiveLoader(
            train_loader, make_model(), CRITERION, sb.selective_backprop(0.5), forward=forward_example, batch_size=4
        )

    loader = new()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert loader.stats.queued >= 4, "a full batch is waiting"
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    resumed = new()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    rest = [batch.names for batch in iterator]
    assert [batch.names for batch in resumed] == rest


def test_dict_batches_go_to_the_model_as_keywords():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, input, labels):
            return self.linear(input)

    model = Model()
    train_loader = DataLoader(digits(), 16, collate_fn=to_dict)
    loader = sb.SelectiveLoader(train_loader, model, CRITERION, sb.selective_backprop(0.5))
    for batch in loader:
        loader.loss(model(**batch), batch["labels"]).backward()
        assert matches((batch["input"], batch["labels"]), loader.batch.ids)


def test_token_losses_with_a_named_reducer():
    tokens = torch.randint(0, 11, (64, 7))
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def forward(model, batch):
        return model(batch[0]).transpose(1, 2), batch[1]

    train_loader = DataLoader(torch.utils.data.TensorDataset(tokens, tokens.roll(-1, 1)), 16)
    loader = sb.SelectiveLoader(
        train_loader, model, sb.losses.PerExampleLoss(CRITERION, "mean"), sb.selective_backprop(0.5), forward=forward
    )
    for batch in loader:
        loader.loss(*forward(model, batch)).backward()
    raw = nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens.roll(-1, 1), reduction="none")
    assert torch.allclose(loader.ledger.score, raw.mean(1), atol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: method.name)
def test_stateful_dataloader_resumes_mid_epoch(kind, workers, method):
    if kind == "stream":
        method = sb.selective_backprop(0.5)

    def new():
        torch.manual_seed(2)
        dataset = digits() if kind == "map" else Stream()
        train_loader = StatefulDataLoader(dataset, 16, num_workers=workers, shuffle=kind == "map")
        return sb.SelectiveLoader(train_loader, make_model(), CRITERION, method)

    loader, saved = new(), []
    batches = []
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            if len(batches) in (3, 8):
                saved.append((len(batches), torch.get_rng_state(), loader.state_dict()))
    for count, rng, state in saved:
        resumed = new()
        resumed.load_state_dict(state)
        torch.set_rng_state(rng)
        rest = [batch for _ in range(resumed.epoch, 2) for batch in resumed]
        assert same(rest, batches[count:])


@pytest.mark.parametrize("options", [{"seed": 5}, {"num_workers": 2}, {"num_workers": 2, "seed": 5}], ids=str)
@pytest.mark.parametrize("method", [sb.traditional(), sb.selective_backprop(1.0)], ids=["traditional", "everything"])
def test_a_stateful_dataloader_that_keeps_everything_is_itself(method, options):
    """Its samplers draw the order when an iteration begins, before the seed for workers is drawn."""

    def new():
        torch.manual_seed(3)
        seed = options.get("seed")
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        workers = options.get("num_workers", 0)
        return StatefulDataLoader(digits(), 64, shuffle=True, num_workers=workers, generator=generator)

    plain = train_plainly(new(), make_model(), 3)
    loader = sb.SelectiveLoader(new(), (model := make_model()), nn.CrossEntropyLoss(), method)
    seen = []
    train(loader, model, 3, on_step=lambda *_: seen.append(loader.batch.data[0].clone()))
    assert same(seen, plain)


def test_an_iterable_without_state_resumes_by_loading_again():
    def new():
        return sb.SelectiveLoader(DataLoader(Stream(), 16), make_model(), CRITERION, sb.selective_backprop(0.5))

    loader, resumed = new(), new()
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    resumed.load_state_dict(loader.state_dict())
    assert same(list(iterator), list(resumed))


class Shuffled(IterableDataset):
    """A stream that draws its order when an epoch begins, as from a buffer of shuffled examples."""

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        worker = get_worker_info()
        order = self.draw()
        yield from (digits()[index] for index in (order if worker is None else order[worker.id :: worker.num_workers]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randperm(128).tolist(),
        lambda: random.sample(range(128), 128),
        lambda: numpy.random.permutation(128).tolist(),
    ],
    ids=["torch", "random", "numpy"],
)
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_an_iterable_that_shuffles_resumes_in_the_same_order(kind, draw, workers):
    def new():
        stream = kind(Shuffled(draw), 16, num_workers=workers)
        return sb.SelectiveLoader(stream, make_model(), CRITERION, sb.random_backprop(0.5))

    loader, resumed = new(), new()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state, between = loader.state_dict(), random_states(torch.device("cpu"))
    rest = [*iterator, *loader]
    resumed.load_state_dict(state)
    set_random_states(between, torch.device("cpu"))
    assert same(rest, [*resumed, *resumed])


def test_the_dataloaders_generator_is_saved():
    """With a generator of its own, the order of later epochs needs no global state."""

    def new(seed):
        generator = torch.Generator().manual_seed(seed)
        return make_loader(sb.selective_backprop(0.5), loader_options={"generator": generator})

    loader, resumed = new(1), new(2)
    iterator = iter(loader)
    next(iterator)
    resumed.load_state_dict(loader.state_dict())
    torch.manual_seed(123)
    first = list(iterator) + [batch for _ in range(2) for batch in loader]
    torch.manual_seed(456)
    second = [batch for _ in range(3) for batch in resumed]
    assert same(first, second)


def test_the_users_loader_is_not_changed():
    train_loader = DataLoader(digits(), 16, shuffle=True)
    sampler = train_loader.batch_sampler
    loader = sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.random_backprop(0.5))
    for _ in loader:
        pass
    assert train_loader.batch_sampler is sampler
    assert sum(len(inputs) for inputs, _ in train_loader) == 203


def test_set_epoch_reaches_the_users_distributed_sampler():
    sampler = torch.utils.data.DistributedSampler(digits(), num_replicas=1, rank=0)
    train_loader = DataLoader(digits(), 16, sampler=sampler)
    loader = sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.traditional())
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append([loader.batch.ids.tolist() for _ in loader])
    assert orders[0] == orders[2] != orders[1]


def test_the_generator_of_a_sampler_inside_a_batch_sampler_is_saved():
    def new(seed):
        sampler = RandomSampler(digits(), generator=torch.Generator().manual_seed(seed))
        train_loader = DataLoader(digits(), batch_sampler=BatchSampler(sampler, 16, drop_last=False))
        return sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.traditional())

    loader, resumed = new(1), new(2)
    list(loader)
    resumed.load_state_dict(loader.state_dict())
    assert same(list(loader), list(resumed))


def test_a_sampler_that_makes_its_generator_when_it_is_iterated_over():
    """As accelerate's SeedableRandomSampler."""

    class Seeded(RandomSampler):
        def __iter__(self):
            self.generator = torch.Generator().manual_seed(7)
            yield from super().__iter__()

    def new():
        train_loader = DataLoader(digits(), batch_sampler=BatchSampler(Seeded(digits()), 16, drop_last=False))
        return sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.traditional())

    loader, resumed = new(), new()
    list(loader)
    resumed.load_state_dict(loader.state_dict())
    assert same(list(loader), list(resumed))


class DrawnOneByOne(torch.utils.data.Sampler):
    """Draws from Python's random state while the epoch runs."""

    def __len__(self):
        return 203

    def __iter__(self):
        return (random.randrange(203) for _ in range(203))


def test_5_a_sampler_that_draws_from_a_global_random_state_resumes_if_it_is_saved_last():
    """Saving lets the sampler draw the rest of the epoch, which it would have drawn anyway."""

    def new():
        train_loader = DataLoader(digits(), 16, sampler=DrawnOneByOne())
        return sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.traditional())

    def ids(loader, epochs, save_at=None):
        found = []
        while loader.epoch < epochs:
            for inputs, targets in loader:
                loader.loss(loader.model(inputs), targets)
                found.append(loader.batch.ids.tolist())
                if len(found) == save_at:
                    before, state = random.getstate(), loader.state_dict()
                    assert random.getstate() != before, "the sampler draws the rest of the epoch"
                    return found, state, random.getstate()
        return found

    undisturbed, stopped, resumed = new(), new(), new()
    random.seed(3)
    whole = ids(undisturbed, 3)
    random.seed(3)
    before, state, drawn = ids(stopped, 3, save_at=2)
    resumed.load_state_dict(state)
    random.setstate(drawn)
    assert before + ids(resumed, 3) == whole


def noisy_loader(workers, method=None, *, persistent=False):
    options = {"num_workers": workers, "generator": torch.Generator().manual_seed(3), "persistent_workers": persistent}
    return make_loader(method or sb.selective_backprop(0.5), dataset=Noisy(), loader_options=options)


@pytest.mark.parametrize("persistent", [False, True])
def test_augmentation_inside_workers_resumes_exactly_between_epochs_if_they_end_with_each(persistent, caplog):
    loader, resumed = noisy_loader(2, persistent=persistent), noisy_loader(2, persistent=persistent)
    for _ in loader:
        pass
    resumed.load_state_dict(loader.state_dict())
    assert not caplog.records
    assert same(list(loader), list(resumed)) != persistent, (
        "should persistent workers go on exactly, say so in the guide"
    )


def test_saving_in_the_middle_of_an_epoch_with_workers_warns_once(caplog):
    loader, resumed = noisy_loader(2), noisy_loader(2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.state_dict()
    assert [record.message[:57] for record in caplog.records] == [
        "saving in the middle of an epoch with 2 workers: a resume"
    ]
    resumed.load_state_dict(state)
    rest = [(loader.batch.ids, batch) for batch in iterator]
    again = [(resumed.batch.ids, batch) for batch in resumed]
    assert not same(rest, again), "should this hold, then the warning and README are wrong"


def test_saving_in_the_middle_of_an_epoch_without_workers_is_exact_and_says_nothing(caplog):
    loader, resumed = noisy_loader(0), noisy_loader(0)
    iterator = iter(loader)
    next(iterator)
    state, random_state = loader.state_dict(), torch.get_rng_state()
    rest = list(iterator)
    resumed.load_state_dict(state)
    torch.set_rng_state(random_state)
    assert same(rest, list(resumed)) and not caplog.records


def test_a_subclass_with_its_own_order_is_refused_and_told_of_the_sampler():
    class Prefetching(DataLoader):
        def __iter__(self):
            yield from super().__iter__()

    with pytest.raises(ValueError, match=r"Prefetching has its own __iter__.*sampler=sb\.SelectiveSampler"):
        sb.SelectiveLoader(Prefetching(digits(), 16), make_model(), CRITERION, sb.selective_backprop(0.5))
