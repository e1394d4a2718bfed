"""The loaders that people have: samplers, collate functions, StatefulDataLoader, transforms; and their generators."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.helpers import Noisy, digits, make_loader, make_model, train, train_plainly

CRITERION = nn.CrossEntropyLoss()
INPUTS, TARGETS = digits().tensors
METHODS = [sb.selective_backprop(0.5), sb.stale_selective_backprop(0.5, every=2), sb.random_backprop(0.5)]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def wrap(train_loader, method, **options):
    return sb.SelectiveLoader(train_loader, make_model(), CRITERION, method, **options)


@each_method
def test_samplers(method):
    """Each batch given out is made of the examples that its ids name."""
    loaders = [
        DataLoader(digits(), 16, sampler=WeightedRandomSampler(torch.rand(203), 150)),
        DataLoader(digits(), 16, sampler=RandomSampler(digits(), replacement=True, num_samples=400)),
        DataLoader(digits(), 16, shuffle=True, drop_last=True),
        DataLoader(digits(), batch_sampler=BatchSampler(RandomSampler(digits()), 16, drop_last=True)),
        DataLoader(digits(), batch_sampler=[[5, 3], [1, 9, 200], [7]] * 10),
    ]
    for train_loader, size in zip(loaders, (None, None, None, None, 3), strict=True):
        loader, count = wrap(train_loader, method, batch_size=size), 0
        for _ in range(3):
            for inputs, targets in loader:
                ids = loader.batch.ids
                assert torch.equal(inputs, INPUTS[ids]) and torch.equal(targets, TARGETS[ids])
                count += len(ids)
        assert count > 0


def test_batches_of_a_users_batch_sampler_pass_unchanged_while_everything_is_kept():
    batches = [[5, 3], [1, 9, 200], [7, 8, 11, 12], [0]]
    for method in (sb.traditional(), sb.selective_backprop(1.0), sb.random_backprop(1.0)):
        loader = wrap(DataLoader(digits(), batch_sampler=batches), method)
        assert [loader.batch.ids.tolist() for _ in loader] == batches


@each_method
def test_after_a_batch_that_failed_the_epoch_is_over_and_the_next_one_is_whole(method):
    class FailingOnce(Noisy):
        """As files on a network do."""

        failures = 0

        def __getitem__(self, index):
            if index == 100 and not self.failures:
                FailingOnce.failures = 1
                raise OSError("no network")
            return digits()[index]

    loader = make_loader(method, dataset=FailingOnce())
    with pytest.raises(OSError, match="no network"):
        for _ in range(4):
            list(loader)
    for inputs, _ in loader:
        assert torch.equal(inputs, INPUTS[loader.batch.ids])


def test_dict_batches_go_to_the_model_as_keywords():
    class Model(nn.Linear):
        def forward(self, input, labels):
            return super().forward(input)

    model = Model(64, 10)
    data = [{"input": image, "labels": label} for image, label in digits()]
    loader = sb.SelectiveLoader(DataLoader(data, 16), model, CRITERION, sb.selective_backprop(0.5))
    for batch in loader:
        loader.loss(model(**batch), batch["labels"]).backward()
        assert torch.equal(batch["input"], INPUTS[loader.batch.ids])
    assert loader.stats.trained < 203


def test_token_losses_with_a_named_reducer():
    tokens = torch.randint(0, 11, (64, 7))
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def forward(model, batch):
        return model(batch[0]).transpose(1, 2), batch[1]

    train_loader = DataLoader(torch.utils.data.TensorDataset(tokens, tokens.roll(-1, 1)), 16)
    loss_fn = sb.losses.PerExampleLoss(CRITERION, "mean")
    loader = sb.SelectiveLoader(train_loader, model, loss_fn, sb.selective_backprop(0.5), forward=forward)
    for batch in loader:
        loader.loss(*forward(model, batch)).backward()
    raw = nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens.roll(-1, 1), reduction="none")
    assert torch.allclose(loader.ledger.score, raw.mean(1), atol=1e-6)


@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: method.name)
def test_stateful_dataloader_resumes_mid_epoch(method):
    def new():
        torch.manual_seed(2)
        return wrap(StatefulDataLoader(digits(), 16, shuffle=True), method)

    loader, saved, batches = new(), [], []
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            if len(batches) in (3, 8):
                saved.append((len(batches), torch.get_rng_state(), loader.state_dict()))
    for count, rng, state in saved:
        resumed = new()
        resumed.load_state_dict(state)
        torch.set_rng_state(rng)
        assert same([batch for _ in range(resumed.epoch, 2) for batch in resumed], batches[count:])


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("method", [sb.traditional(), sb.selective_backprop(1.0)], ids=["traditional", "everything"])
def test_a_stateful_dataloader_that_keeps_everything_is_itself(method, seed):
    """Its samplers draw the order when an iteration begins, before the seed for workers is drawn."""

    def new():
        torch.manual_seed(3)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return StatefulDataLoader(digits(), 64, shuffle=True, generator=generator)

    plain = train_plainly(new(), make_model(), 3)
    loader = sb.SelectiveLoader(new(), (model := make_model()), CRITERION, method)
    seen = []
    train(loader, model, 3, on_step=lambda *_: seen.append(loader.batch.data[0].clone()))
    assert same(seen, plain)


@pytest.mark.parametrize("where", ["loader", "sampler", "inner sampler"])
def test_the_generator_that_draws_the_order_is_saved(where):
    """The order of later epochs needs no global state."""

    def new(seed):
        generator = torch.Generator().manual_seed(seed)
        if where == "loader":
            return make_loader(METHODS[0], loader_options={"generator": generator})
        sampler = RandomSampler(digits(), generator=generator)
        if where == "sampler":
            return make_loader(METHODS[0], loader_options={"sampler": sampler, "shuffle": False})
        return wrap(DataLoader(digits(), batch_sampler=BatchSampler(sampler, 16, drop_last=False)), METHODS[0])

    loader, resumed = new(1), new(2)
    iterator = iter(loader)
    next(iterator)
    resumed.load_state_dict(loader.state_dict())
    first, second = [], []
    for given, batches, seed in ((loader, first, 123), (resumed, second, 456)):
        torch.manual_seed(seed)
        batches += [given.batch.ids.tolist() for _ in (iterator if given is loader else given)]
        batches += [given.batch.ids.tolist() for _ in range(2) for _ in given]
    assert first == second


def test_the_users_loader_is_not_changed():
    train_loader = DataLoader(digits(), 16, shuffle=True)
    sampler = train_loader.batch_sampler
    list(wrap(train_loader, sb.random_backprop(0.5)))
    assert train_loader.batch_sampler is sampler
    assert sum(len(inputs) for inputs, _ in train_loader) == 203


def test_set_epoch_reaches_the_users_sampler_also_through_the_loader():
    sampler = DistributedSampler(digits(), num_replicas=1, rank=0)
    loader = wrap(DataLoader(digits(), 16, sampler=sampler), sb.traditional())
    orders = []
    for epoch, holder in ((0, sampler), (1, loader.sampler), (0, loader.sampler)):
        holder.set_epoch(epoch)
        orders.append([loader.batch.ids.tolist() for _ in loader])
    assert orders[0] == orders[2] != orders[1]


def test_a_subclass_with_its_own_order_is_refused_and_told_of_the_sampler():
    class Prefetching(DataLoader):
        def __iter__(self):
            yield from super().__iter__()

    with pytest.raises(ValueError, match=r"Prefetching.*sb\.SelectiveSampler"):
        wrap(Prefetching(digits(), 16), METHODS[0])


# ---- attributes of the user's loader


def test_attributes_of_the_users_loader_can_be_read():
    class Mine(DataLoader):
        vocabulary = ("a", "b")

    train_loader = Mine(digits(), 16, drop_last=True)
    loader = wrap(train_loader, sb.random_backprop(0.5), batch_size=4)
    for name in ("dataset", "sampler", "batch_sampler", "drop_last", "num_workers", "collate_fn", "vocabulary"):
        assert getattr(loader, name) is getattr(train_loader, name)
    with pytest.raises(AttributeError, match="dataset"):
        loader.dataset = None
    assert loader.batch_size == 4, "its own names come first"
    pruned = make_loader(sb.diet(method=sb.random_backprop(0.5), scores=torch.rand(203), prune=0.5))
    assert len(pruned.dataset) == 203
    of_list = wrap(list(train_loader), sb.selective_backprop(0.5))
    assert getattr(of_list, "dataset", None) is None
    with pytest.raises(AttributeError, match="vocabulary"):
        _ = of_list.vocabulary


# ---- transforms


class AddNoise:
    """Augmentation with a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self, batch):
        inputs, targets = batch
        return inputs + 0.1 * torch.randn(inputs.shape, generator=self.generator), targets

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


def test_a_transform_is_applied_once_before_scoring():
    scored = []

    class Spy(nn.Linear):
        def forward(self, x):
            if not self.training:
                scored.append(x)
            return super().forward(x)

    loader = make_loader(sb.selective_backprop(0.3), model=Spy(64, 10), transform=AddNoise())
    trained = torch.cat([inputs for inputs, _ in loader])
    rows = {tuple(row.tolist()) for row in torch.cat(scored)}
    assert all(tuple(row.tolist()) in rows for row in trained)
    plain = {tuple(row.tolist()) for row in INPUTS}
    assert not any(tuple(row.tolist()) in plain for row in trained)


def test_the_state_of_a_transform_is_saved():
    def new():
        torch.manual_seed(0)
        return make_loader(sb.selective_backprop(0.3), transform=AddNoise())

    loader, resumed = new(), new()
    iterator = iter(loader)
    next(iterator)
    resumed.load_state_dict(loader.state_dict())
    assert all(torch.equal(a[0], b[0]) for a, b in zip(iterator, resumed, strict=True))
    with pytest.raises(ValueError, match="transform"):
        make_loader(sb.selective_backprop(0.3)).load_state_dict(loader.state_dict())


class Shifted:
    """Adds a number to each example that follows from its id and the epoch, and notes what it is called with."""

    takes_ids = True

    def __init__(self):
        self.calls = []

    def __call__(self, batch, ids, epoch):
        self.calls.append((ids.tolist(), epoch))
        return batch[0] + self.numbers(ids, epoch), batch[1]

    @staticmethod
    def numbers(ids, epoch):
        return (ids * 37 % 101 + epoch)[:, None] / 100


def test_a_transform_may_take_the_ids_and_the_epoch_of_what_is_loaded():
    shifted, again, model = Shifted(), Shifted(), make_model()
    options = {"model": model, "num_epochs": 3}
    loader = make_loader(sb.methods.ledger_percentile(0.3), transform=shifted, **options)
    for epoch in range(3):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            if epoch == 0:
                ids = loader.batch.ids
                assert torch.equal(inputs, INPUTS[ids] + Shifted.numbers(ids, 0))
            if epoch == 1:
                state = loader.state_dict()
    by_epoch = [[i for ids, epoch in shifted.calls if epoch == number for i in ids] for number in range(3)]
    assert sorted(by_epoch[0]) == list(range(203))
    assert 0 < len(by_epoch[2]) < 203, "skipped examples are not even loaded"
    resumed = make_loader(sb.methods.ledger_percentile(0.3), transform=again, **options)
    resumed.load_state_dict(state)
    train(resumed, model, 3)
    assert {epoch for _, epoch in again.calls} == {2}, "the state is that of the last step of the second epoch"
    with pytest.raises(ValueError, match="ids"):
        wrap(list(DataLoader(digits(), 16)), sb.top_k(0.5), transform=Shifted())


# ---- batches of many sizes


@pytest.mark.parametrize("make", [sb.ledger_backprop, lambda: sb.selective_backprop(0.5)], ids=["planned", "scored"])
def test_batches_of_many_sizes_ask_for_one(make):
    def of_sizes(sizes, **options):
        ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
        batches = [list(range(*pair)) for pair in itertools.pairwise(ends)]
        return wrap(DataLoader(digits(), batch_sampler=batches), make(), **options)

    for sizes in ([4, 10, 64, 64, 10, 4], [64, 10, 4]):
        loader = of_sizes(sizes)
        with pytest.raises(ValueError, match=r"batch_size=.*batch_tokens="):
            train(loader, loader.model, 1)
        loader = of_sizes(sizes, batch_size=16)
        length = len(loader)
        assert 0 < len(train(loader, loader.model, 1)) <= length
    loader = of_sizes([10] * 19 + [3])
    train(loader, loader.model, 2)
    assert loader.batch_size in (10, None), "a smaller last batch is usual"


# ---- pruned data


@pytest.mark.parametrize("method", [sb.traditional(), sb.ledger_backprop()], ids=lambda method: method.name)
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": True, "drop_last": True},
        {"sampler": SubsetRandomSampler(range(70))},
        {"sampler": SubsetRandomSampler([*range(5), *range(120, 200)])},
        {"sampler": RandomSampler(range(203), replacement=True)},
        {"sampler": list(range(0, 203, 3))},
    ],
    ids=["all", "drop_last", "a part", "mostly pruned", "with replacement", "a list"],
)
def test_a_diet_with_any_sampler_counts_batches_and_progress(options, method):
    torch.manual_seed(3)
    model = make_model()
    diet = sb.diet(method=method, scores=torch.arange(203).flip(0).float(), prune=0.5)  # the first 101 are kept
    loader = sb.SelectiveLoader(DataLoader(digits(), 16, **options), model, CRITERION, diet, num_epochs=2)
    for epoch in range(2):
        progress = []
        for inputs, targets in loader:
            progress.append(loader.progress)
            loader.loss(model(inputs), targets)
            assert int(loader.batch.ids.max()) < 102 and len(inputs) > 1, "BatchNorm cannot train on one example"
        assert 0 < len(progress) <= len(loader) and progress == sorted(progress)
        assert progress[-1] == (epoch + 1) / 2
