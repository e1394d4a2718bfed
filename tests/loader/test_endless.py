"""Samplers of billions of indices, batch samplers without an end, and iterators that can be gone through once."""

import copy
import itertools

import pytest
import torch
from selective_backprop.loader.sampler_place import batches_with_place
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb
from tests.helpers import digits, make_model

HUGE = 10**10  # as minGPT's trainer asks for
PLANNING = [sb.ledger_backprop, sb.random_backprop, sb.repeated_random]


class Endless:
    def __iter__(self):
        for first in itertools.cycle(range(0, 192, 16)):
            yield list(range(first, first + 16))


def huge():
    return DataLoader(digits(), 16, sampler=RandomSampler(digits(), replacement=True, num_samples=HUGE))


def wrap(train_loader, method, **options):
    return sb.SelectiveLoader(train_loader, make_model(), nn.CrossEntropyLoss(), method, **options)


@pytest.mark.parametrize(
    "make", [*(make for make in PLANNING if make is not sb.random_backprop), sb.stale_selective_backprop]
)
def test_a_sampler_too_long_to_plan_is_refused_at_once(make):
    message = r"your sampler has 10,000,000,000 indices per epoch, for a data set of 203 .* such as selective_backprop"
    with pytest.raises(ValueError, match=message):
        wrap(huge(), make())


@pytest.mark.parametrize("make", PLANNING)
def test_a_batch_sampler_without_an_end_is_refused(make):
    loader = wrap(DataLoader(digits(), batch_sampler=Endless()), make())
    with pytest.raises(ValueError, match=r"has yielded 1,0\d+,\d+ indices without an end, for a data set of 203"):
        next(iter(loader))


@pytest.mark.parametrize("make", [sb.selective_backprop, sb.traditional, sb.top_k, sb.kath18])
@pytest.mark.parametrize(
    "train_loader", [huge(), DataLoader(digits(), batch_sampler=Endless())], ids=["huge", "endless"]
)
def test_methods_that_decide_batch_by_batch_need_no_end(train_loader, make):
    loader = wrap(train_loader, make())
    for batch in itertools.islice(loader, 5):
        assert torch.equal(batch[0], digits().tensors[0][loader.batch.ids])


def test_an_endless_batch_sampler_without_a_state_cannot_be_saved():
    loader = wrap(DataLoader(digits(), batch_sampler=Endless()), sb.top_k(0.5))
    next(batches := iter(loader))
    with pytest.raises(ValueError, match=r"cannot save in the middle of an epoch: .* Give it state_dict"):
        loader.state_dict()
    batches.close()


class Countdown(torch.utils.data.Sampler):
    """A sampler of the user's own, with very many indices and no state."""

    def __len__(self):
        return HUGE

    def __iter__(self):
        yield from itertools.cycle(range(202, -1, -1))


class CountdownWithState(Countdown):
    place = start = 0

    def __iter__(self):
        start, self.start = self.start, 0
        for self.place in range(start + 1, HUGE + 1):
            yield 202 - (self.place - 1) % 203

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.start = self.place = state["place"]


class EndlessWithState(Endless):
    place = start = 0

    def __iter__(self):
        start, self.start = self.start, 0
        for self.place in itertools.count(start + 1):
            yield [(16 * self.place + i) % 203 for i in range(16)]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.start = self.place = state["place"]


def test_a_sampler_of_your_own_needs_a_state_to_be_saved():
    loader = wrap(DataLoader(digits(), 16, sampler=Countdown()), sb.top_k(0.5))
    next(batches := iter(loader))
    with pytest.raises(ValueError, match=r"of 10,000,000,000 candidates: .* give your own sampler state_dict"):
        loader.state_dict()
    batches.close()


def of_permutations(**options):
    return DataLoader(digits(), 16, sampler=RandomSampler(digits(), num_samples=HUGE), **options)


def own_generator(**options):
    draws = torch.Generator().manual_seed(5)
    sampler = RandomSampler(digits(), replacement=True, num_samples=HUGE, generator=draws)
    return DataLoader(digits(), 16, sampler=sampler, generator=draws, **options)


LOADERS = {
    "replacement": lambda **options: DataLoader(digits(), 16, sampler=huge().sampler, **options),
    "own generator": own_generator,
    "permutations": of_permutations,
    "own sampler": lambda **options: DataLoader(digits(), 16, sampler=CountdownWithState(), **options),
    "endless": lambda **options: DataLoader(digits(), batch_sampler=EndlessWithState(), **options),
    "StatefulDataLoader": lambda **options: StatefulDataLoader(digits(), 16, sampler=huge().sampler, **options),
}


def seen(loader, count):
    """The ids of the next batches, and torch's global random state after them."""
    found = []
    for inputs, targets in loader:
        loader.loss(loader.model(inputs), targets)
        found.append(loader.batch.ids.tolist())
        if len(found) == count:
            return found, torch.get_rng_state()
    raise AssertionError("the epoch has ended")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, sb.selective_backprop) for name in LOADERS),
        ("replacement", sb.traditional),
        ("replacement", sb.random_backprop),
    ],
)
@pytest.mark.parametrize("count", [1, 8])
def test_5_a_sampler_of_billions_resumes_in_mid_epoch(name, make, count):
    torch.manual_seed(1)
    whole, _ = seen(wrap(LOADERS[name](), make()), 14)
    torch.manual_seed(1)
    first = wrap(LOADERS[name](), make())
    before, random = seen(first, count)
    state = copy.deepcopy(first.state_dict())
    assert sum(len(chunk) for chunk in state["source"]["chunks"]["ids"].split(16)) < 100, "not the ids that are left"
    torch.manual_seed(2)
    second = wrap(LOADERS[name](), make())
    second.load_state_dict(state)
    second.model.load_state_dict(first.model.state_dict())
    torch.set_rng_state(random)
    after, _ = seen(second, 14 - count)
    assert before + after == whole
    again = second.state_dict()
    assert again["source"]["position"] > state["source"]["position"]


def test_5_with_workers_that_load_ahead():
    options = {"num_workers": 1, "prefetch_factor": 3}
    torch.manual_seed(1)
    whole, _ = seen(wrap(LOADERS["replacement"](**options), sb.top_k(0.5)), 6)
    torch.manual_seed(1)
    first = wrap(LOADERS["replacement"](**options), sb.top_k(0.5))
    before, random = seen(first, 2)
    state = copy.deepcopy(first.state_dict())
    second = wrap(LOADERS["replacement"](**options), sb.top_k(0.5))
    second.load_state_dict(state)
    second.model.load_state_dict(first.model.state_dict())
    torch.set_rng_state(random)
    loading, inner = seen(second, 1)
    third = wrap(LOADERS["replacement"](), sb.top_k(0.5))
    third.load_state_dict(copy.deepcopy(second.state_dict()))  # before all that was loaded ahead is used up
    third.model.load_state_dict(second.model.state_dict())
    torch.set_rng_state(inner)
    after, _ = seen(third, 3)
    assert before + loading + after == whole


def test_5_saved_before_the_first_batch():
    torch.manual_seed(1)
    whole, _ = seen(wrap(huge(), sb.top_k(0.5)), 3)
    torch.manual_seed(1)
    first = wrap(huge(), sb.top_k(0.5))
    first.begin_epoch()
    state = copy.deepcopy(first.state_dict())
    second = wrap(huge(), sb.top_k(0.5))
    second.load_state_dict(state)
    assert seen(second, 3)[0] == whole


def test_a_resume_draws_nothing_of_what_is_gone():
    first = wrap(huge(), sb.top_k(0.5), num_epochs=1)
    seen(first, 2)
    state = copy.deepcopy(first.state_dict())
    place = state["source"]["place"]
    place["count"], place["sampler"]["block"] = HUGE // 32, HUGE // 64  # in the middle: to draw as many takes an hour
    second = wrap(huge(), sb.top_k(0.5), num_epochs=1)
    second.load_state_dict(state)
    seen(second, 2)
    assert second.progress == pytest.approx(0.5)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("num", "options"),
    [(0, None), (64, {"replacement": True}), (75, {"replacement": True}), (406, {}), (500, {}), (7, {})],
)
def test_batches_with_a_place_are_those_of_the_sampler(num, options, own, drop_last):
    def make():
        generator = torch.Generator().manual_seed(3) if own else None
        random = None if options is None else RandomSampler(digits(), num_samples=num, generator=generator, **options)
        return BatchSampler(random or SequentialSampler(digits()), 7, drop_last)

    torch.manual_seed(4)
    expected, random = list(make()), torch.get_rng_state()
    torch.manual_seed(4)
    assert list(batches_with_place(make())) == expected and torch.equal(torch.get_rng_state(), random)
    for place in range(0, len(expected) + 1, 4):
        torch.manual_seed(4)
        sampler = make()
        first = iter(batches_with_place(sampler))
        assert [next(first) for _ in range(place)] == expected[:place]
        second = make()
        resumed = batches_with_place(second)
        if place:
            resumed.load_state_dict(copy.deepcopy(first.state_dict()))
        if own and options is not None:
            second.sampler.generator.set_state(sampler.sampler.generator.get_state())
        torch.manual_seed(4)
        assert list(resumed) == expected[place:] and resumed.count == len(expected)


def test_the_place_in_another_kind_of_sampler_is_refused():
    first = wrap(huge(), sb.top_k(0.5))
    seen(first, 2)
    second = wrap(DataLoader(digits(), 16), sb.top_k(0.5))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with pytest.raises(ValueError, match="resume with the same sampler"):
        seen(second, 1)


def test_a_warm_up_of_billions_of_batches_starts_at_once():
    loader = wrap(huge(), sb.selective_backprop(0.5, warmup_epochs=1))
    assert len(next(iter(loader))[0]) == 16


def test_a_sampler_without_a_length_that_ends_is_planned():
    class Unknown:
        def __iter__(self):
            yield from ([i, i + 1] for i in range(0, 200, 2))

    loader = wrap(DataLoader(digits(), batch_sampler=Unknown()), sb.random_backprop(0.5))
    assert 50 < sum(len(inputs) for inputs, _ in loader) < 150


def generator():
    yield from DataLoader(digits(), 16)


class OwnNext:
    """An iterator that starts anew when it is asked for one, as prefetchers do."""

    def __iter__(self):
        self.batches = iter(DataLoader(digits(), 16))
        return self

    def __next__(self):
        return next(self.batches)


@pytest.mark.parametrize("make", [sb.selective_backprop, sb.traditional])
def test_a_generator_is_used_up_after_an_epoch(make):
    loader = wrap(generator(), make())
    assert len(list(loader)) > 0
    with pytest.raises(
        ValueError, match=r"\(a generator\), which can be used only once, .*starts anew for every epoch"
    ):
        list(loader)


def test_an_iterator_that_starts_anew_goes_on():
    loader = wrap(OwnNext(), sb.traditional())
    assert [len(list(loader)) for _ in range(3)] == [13, 13, 13]


def test_an_empty_generator_is_an_empty_loader():
    with pytest.raises(ValueError, match="the loader is empty"):
        list(wrap(iter([]), sb.traditional()))
