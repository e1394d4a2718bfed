"""Losses find their examples: an epoch's losses are written at its end, and only if they fit what was handed out."""

import copy
import io
import pickle

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import selective_backprop as sb
from selective_backprop.testing import same
from tests.sampler.runs import SIZE, Ids, load, losses_of, make, train

LOADERS = [{}, {"num_workers": 2}, {"drop_last": True}, {"num_workers": 2, "drop_last": True}]
every_loader = pytest.mark.parametrize("options", LOADERS, ids=str)


def truth(sampler, epoch):
    """Whether every loss that is known from this epoch is that of its example."""
    ledger = sampler.ledger
    ids = (ledger.loss_epoch == epoch).nonzero().flatten()
    return len(ids), torch.allclose(ledger.loss[ids], losses_of(ids, epoch))


# ---- steps that are left out


@every_loader
@pytest.mark.parametrize(("batch_size", "left_out"), [(None, 0), (16, 0), (None, 3), (16, 3)])
def test_a_step_without_update_is_an_error_and_nothing_is_written(options, batch_size, left_out):
    sampler = make(batch_size=batch_size)
    train(load(sampler, **options), sampler, [0])
    with pytest.raises((RuntimeError, ValueError), match=r"update\(None\).*update\(losses, ids\)|call update once"):
        for number, ids in enumerate(load(sampler, **options)):
            if number != left_out:
                sampler.update(losses_of(ids, 1))  # with batch_size=, the last batch is too small for its place
        assert number >= 3, "the plan is long enough"
        next(iter(sampler))
    if sampler.epoch == 1:
        with pytest.raises(RuntimeError):
            next(iter(sampler))
    assert truth(sampler, 1) == (0, True)
    assert truth(sampler, 0)[1]
    train(load(sampler, **options), sampler, [2, 3])
    next(iter(sampler))
    assert truth(sampler, 3)[0] and truth(sampler, 3)[1], "the next epochs are as always"


@every_loader
@pytest.mark.parametrize(("batch_size", "left_out"), [(None, 0), (16, 0), (None, 12), (16, 3)])
def test_none_for_a_step_that_is_left_out(options, batch_size, left_out):
    sampler, skipped = make(batch_size=batch_size), None
    for number, ids in enumerate(load(sampler, **options)):
        if number == min(left_out, 11):
            skipped = ids
            sampler.update(None, size=None if batch_size or number else len(ids))
        else:
            sampler.update(losses_of(ids, 0))
    list(sampler)
    count, right = truth(sampler, 0)
    given = SIZE - SIZE % 16 if options.get("drop_last") else SIZE
    assert right and count == given - 16
    assert sampler.ledger.loss[skipped].isnan().all() and not sampler.ledger.selected[skipped].any()


@every_loader
def test_ids_that_travel_with_the_batch(options):
    """In any order, with steps left out, and with losses of part of a batch."""
    sampler = make()
    for epoch in range(3):
        assert sampler.epoch == epoch
        for number, ids in enumerate(load(sampler, **options)):
            if number != 2:
                part = ids.flip(0)[: 10 if number == 1 else None]
                sampler.update(losses_of(part, epoch), part)
    assert sampler.epoch == 3
    list(sampler)
    assert all(truth(sampler, epoch)[1] for epoch in range(3)) and truth(sampler, 2)[0] > 20


def test_ids_in_some_steps_only_are_an_error():
    sampler = make()
    batches = iter(load(sampler))
    sampler.update(losses_of(next(batches), 0))
    ids = next(batches)
    with pytest.raises(ValueError, match="every step or in none"):
        sampler.update(losses_of(ids, 0), ids)
    sampler.update(losses_of(ids, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_left_early(workers):
    """Losses count as long as every batch so far came back. With a gap, nothing is written."""
    for gap in (None, 2):
        sampler = make(sb.traditional())
        loader = load(sampler, batch_size=4, num_workers=workers)
        train(loader, sampler, [0])
        for number, ids in enumerate(loader):
            if number != gap:
                sampler.update(losses_of(ids, 1))
            if number == 5:
                break
        if gap is None:
            next(iter(sampler))
            assert truth(sampler, 1) == (24, True)
        else:
            with pytest.raises(RuntimeError, match=r"update\(None\)"):
                next(iter(sampler))
            assert truth(sampler, 1) == (0, True)


@pytest.mark.parametrize("first", [0, 1])
def test_a_first_epoch_that_is_left_early_by_a_loader_that_asks_ahead(first, caplog):
    """A first step without update looks like a loader that asks ahead, so nothing is written, and a line says so."""
    sampler = make()
    for number, ids in enumerate(load(sampler, num_workers=2 * (1 - first))):
        if number >= first:
            sampler.update(losses_of(ids, 0))
        if number == 5:
            break
    next(iter(sampler))
    assert truth(sampler, 0) == (0, True) and sampler.epoch == 1
    assert "update(losses, ids)" in caplog.text


def test_batches_of_different_sizes():
    """With a batch sampler of the user's own, a step that is left out cannot pass for what drop_last drops."""

    class Uneven:
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            ids, size = list(self.sampler), 0
            while ids:
                size = size % 7 + 3
                yield ids[:size]
                ids = ids[size:]

    for left_out in (None, 3):
        sampler = make()
        for number, ids in enumerate(DataLoader(Ids(), batch_sampler=Uneven(sampler))):
            if number != left_out:
                sampler.update(losses_of(ids, 0))
        if left_out is None:
            assert truth(sampler, 0) == (SIZE, True)
        else:
            with pytest.raises(RuntimeError, match=r"update\(None\)"):
                next(iter(sampler))


def test_the_ledger_shows_epochs_that_are_over():
    sampler = make()
    for ids in load(sampler):
        assert not sampler.ledger.has_losses()
        sampler.update(losses_of(ids, 0))
    assert truth(sampler, 0) == (SIZE, True), "with the last loss, the epoch is over"


# ---- epochs are counted rightly


@every_loader
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("method", [sb.ledger_backprop(), sb.repeated_random(0.5)], ids=repr)
def test_while_and_progress_and_a_resume_between_epochs(options, told, method):
    def make_one():
        return make(method, num_epochs=4, drop_last=options.get("drop_last", False) if told else None)

    sampler, loops, states = make_one(), [], []
    while sampler.epoch < 4:
        loops.append([ids for ids, _ in train(load(sampler, **options), sampler, [len(loops)])])
        if told or len(loops) > 1 or len(options) < 2:  # a last batch may be on its way, if a loader asks ahead
            assert sampler.epoch == len(loops) and sampler.progress == len(loops) / 4
        file = io.BytesIO()
        torch.save(sampler.state_dict(), file)
        states.append(file)
    assert len(loops) == 4
    for number, file in enumerate(states):
        file.seek(0)
        rest = make_one()
        rest.load_state_dict(torch.load(file, weights_only=True))
        found = [[ids for ids, _ in train(load(rest, **options), rest, [epoch])] for epoch in range(rest.epoch, 4)]
        assert [one for one in found if one] == loops[number + 1 :]
        assert rest.epoch == 4


def test_methods_without_losses_need_no_update():
    sampler = make(sb.repeated_random(0.5), num_epochs=3)
    for epoch in range(3):
        assert sampler.epoch == epoch
        list(load(sampler))
    assert sampler.epoch == 3 and sampler.progress == 1
    assert sampler.ledger.selected.sum() == sampler.stats.trained and sampler.stats.offered == 3 * SIZE


# ---- a look


@pytest.mark.parametrize("method", [sb.ledger_backprop(), sb.repeated_random(0.3), sb.infobatch()], ids=repr)
@pytest.mark.parametrize("source", [SIZE, RandomSampler(Ids(), generator=torch.Generator())], ids=["size", "sampler"])
def test_a_look_changes_nothing(method, source):
    def run(look):
        generator = getattr(source, "generator", None)
        if generator is not None:
            generator.manual_seed(3)
        sampler = make(method, source=source, num_epochs=4)
        batches = []
        for epoch in range(4):
            if look:
                next(iter(load(sampler)))
                sampler.update(torch.rand(16))
            batches += train(load(sampler), sampler, [epoch])
        return batches, sampler.stats.trained, sampler.stats.offered, sampler.ledger.state_dict()

    assert same(run(look=True), run(look=False))


def test_a_look_by_workers_that_ask_for_all_ids_of_a_short_epoch():
    """It cannot be told from a loop without updates, so it is an error that says what to do. Nothing is changed."""
    sampler, other = make(source=40), make(source=40)
    next(iter(load(sampler, size=40, num_workers=2)))
    with pytest.raises(RuntimeError, match="second DataLoader"):
        next(iter(sampler))
    assert train(load(sampler, size=40), sampler, [0, 1]) == train(load(other, size=40), other, [0, 1])
    assert sampler.epoch == 2


# ---- what is refused


def test_evaluating_over_its_loader_is_refused():
    sampler = make(sb.repeated_random(0.5))
    with torch.no_grad(), pytest.raises(RuntimeError, match="evaluate over a second DataLoader"):
        next(iter(load(sampler)))
    sampler = make()
    train(load(sampler), sampler, [0])
    list(load(sampler))
    with pytest.raises(RuntimeError, match="second DataLoader"):
        next(iter(load(sampler)))
    with pytest.raises(RuntimeError, match="second DataLoader"):
        sampler.update(torch.rand(16))


def test_copies_and_samplers_around_samplers_are_refused():
    sampler = make()
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"state_dict\(\)"):
            call(sampler)
    with pytest.raises(TypeError, match="SelectiveSampler already"):
        sb.SelectiveSampler(sampler, sb.ledger_backprop())
    assert len(list(BatchSampler(sampler, 16, drop_last=False))) == 13


def test_none_needs_a_size_before_any_batch_came():
    sampler = make()
    next(iter(load(sampler)))
    with pytest.raises(ValueError, match="size="):
        sampler.update(None)
    sampler.update(None, size=16)


# ---- another number of ranks


def test_an_epoch_goes_on_with_another_number_of_ranks(monkeypatch):
    """A state names the plans of all ranks. What no rank has trained on is divided anew: here among one."""
    sampler = make()
    for number, ids in enumerate(load(sampler)):
        sampler.update(losses_of(ids, 0))
        if number == 3:
            break
    state = copy.deepcopy(sampler.state_dict())
    under_way = state["now"]["under_way"]
    ids, weights = under_way["plans"][0]
    under_way["plans"] = [[ids[:101], weights], [ids[101:202], weights]]  # as two ranks would have saved it
    rest = make()
    rest.load_state_dict(state)
    left = [i for batch in load(rest) for i in batch.tolist()]
    assert sorted(left) == sorted(ids[64:101].tolist() + ids[101 + 64 : 202].tolist())
