"""Samplers of billions of indices, batch samplers without an end, and iterators that can be gone through once."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import selective_backprop as sb
from tests.helpers import digits, make_model, train

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


@pytest.mark.parametrize(
    ("train_loader", "why"),
    [(huge(), "an epoch has 10,000,000,000 candidates"), (DataLoader(digits(), batch_sampler=Endless()), "no length")],
    ids=["huge", "endless"],
)
def test_an_epoch_that_is_too_long_cannot_be_saved_in_the_middle(train_loader, why):
    loader = wrap(train_loader, sb.top_k(0.5))
    next(batches := iter(loader))
    with pytest.raises(ValueError, match=f"cannot save in the middle of an epoch: .*{why}"):
        loader.state_dict()
    batches.close()


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


@pytest.mark.parametrize("method", [sb.ledger_backprop(), sb.selective_backprop(0.5)], ids=["planned", "scored"])
def test_a_sampler_that_can_be_used_only_once_is_an_error_in_the_second_epoch(method):
    model = make_model()
    candidates = DataLoader(digits(), 16, sampler=(index for index in range(len(digits()))))
    loader = sb.SelectiveLoader(candidates, model, nn.CrossEntropyLoss(), method)
    train(loader, model, 1)
    with pytest.raises(ValueError, match=r"the loader is empty.* its sampler is an iterator, .*only once: pass a list"):
        train(loader, model, 2)
