"""States of ranks dealt out again to another number of ranks: states of real loaders, whose ranks are threads."""

import copy
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import selective_backprop as sb
from selective_backprop.checkpoint.reshard import redeal
from selective_backprop.files.signing import signed
from selective_backprop.sampler.stats import COMBINATIONS, Stats
from selective_backprop.testing import same
from tests.distributed.numbers import Losses, Numbers, go_through
from tests.distributed.threads import run_loaders

METHODS = {
    "traditional": sb.traditional,
    "scored": lambda: sb.selective_backprop(0.5),
    "scored ahead": lambda: sb.selective_backprop(0.5, scoring="pipelined"),
    "planned": lambda: sb.methods.ledger_percentile(0.5),
    "planned with weights": lambda: sb.infobatch(prune=0.6),
    "either": lambda: sb.stale_selective_backprop(0.5, every=2),
}
EPOCHS = 3


class Shared(DistributedSampler):
    """Deals out the ids of an epoch without adding any, and counts its epochs by itself."""

    def __iter__(self):
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1
        return iter(order[self.rank :: self.num_replicas])

    def __len__(self):
        return len(range(self.rank, len(self.dataset), self.num_replicas))


def make(method, count, rank, size, *, batch_size, epoch=0, drop_last=False):
    model, data = Losses(), Numbers(count)
    sampler = Shared(data, size, rank)
    sampler.set_epoch(epoch)
    loader = sb.SelectiveLoader(
        DataLoader(data, 4, sampler=sampler, drop_last=drop_last),
        model,
        lambda outputs, targets: outputs,
        method,
        forward=lambda model, batch: (model(batch), None),
        batch_size=batch_size,
        num_epochs=EPOCHS,
    )
    return model, loader


def saved_runs(method, count, size, stop, **options):
    """What each rank has saved after `stop` steps: ids given out, the state, the whole ledger. None: too few steps."""

    def work(rank):
        model, loader = make(method(), count, rank, size, **options)
        saved, ids = [], []

        def save(step):
            ids.append(loader.batch.ids.tolist())
            if step == stop:
                loader.stepper.end_step()
                state = copy.deepcopy(loader.state_dict())
                saved.append((list(ids), state, copy.deepcopy(loader.ledger.whole()), loader.epoch))

        go_through(model, loader, EPOCHS, save)
        return saved[0] if saved else None

    return run_loaders(size, work)


def resume(method, count, size, saved, **options):
    """Go on with `size` ranks: ids of every batch by epoch, and the loader's statistics and ledger at the end."""
    states, whole, epoch = [state for _, state, *_ in saved], saved[0][2], saved[0][3]
    in_epoch = states[0]["epochs"]["under_way"] is not None

    def work(rank):
        model, loader = make(method(), count, rank, size, epoch=epoch + in_epoch, **options)
        dealt = redeal(states, rank, size, loader.batch_size)
        ledger = loader.ledger.state_dict()
        if size == 1:
            ledger = whole.state_dict()
        else:
            begin, rows = rank * -(-count // size), len(ledger["block"]["loss"])
            ledger["block"] = {name: column[begin : begin + rows] for name, column in whole.state_dict().items()}
        loader.load_state_dict(signed(dealt | {"ledger": ledger}))
        progress = [loader.epoch_progress]
        rest, _ = go_through(model, loader, epoch + 1, lambda step: progress.append(loader.epoch_progress))
        assert progress == sorted(progress)
        first = copy.deepcopy(loader.ledger.whole()), loader.stats.copy()
        later, _ = go_through(model, loader, EPOCHS)
        return rest[0], later, *first, dealt

    return run_loaders(size, work)


def waiting(state):
    """Ids that a rank has still to train on or to decide about in this epoch."""
    epoch = state["epochs"]["under_way"]
    ids = epoch["place"]["batches"]["ids"].tolist()
    if epoch["kind"] == "planned":
        return ids + [i for batch in epoch["ready"] for i in batch["ids"].tolist()]
    ids += [i for kind in ("whole", "pieces") for piece in epoch["queue"][kind] for i in piece[1].tolist()]
    return ids if epoch["ahead"] is None else ids + epoch["ahead"]["asked"]["ids"].tolist()


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(METHODS)),
    old=st.integers(1, 3),
    new=st.integers(1, 4),
    count=st.integers(20, 60),
    batch_size=st.sampled_from([None, 1, 3, 8]),
    stop=st.integers(1, 12),
    drop_last=st.booleans(),
)
def test_another_number_of_ranks_goes_on_and_loses_nothing(name, old, new, count, batch_size, stop, drop_last):
    options = {"batch_size": batch_size, "drop_last": drop_last}
    saved = saved_runs(METHODS[name], count, old, stop, **options)
    if saved[0] is None:
        return
    before = copy.deepcopy([state for _, state, *_ in saved])
    results = resume(METHODS[name], count, new, saved, **options)
    assert same(before, [state for _, state, *_ in saved]), "dealing changes nothing"
    dealt = [result[-1] for result in results]
    assert len({len(rest) for rest, *_ in results}) == 1, "equally many batches"
    assert all(batch for rest, *_ in results for batch in rest), "and none is empty"
    for later in zip(*(later for _, later, *_ in results), strict=True):
        assert len({len(batches) for batches in later}) == 1
    is_planned = before[0]["epochs"]["under_way"]["kind"] == "planned"
    left, given_out = Counter(sum(map(waiting, dealt), [])), Counter(i for rest, *_ in results for b in rest for i in b)  # noqa: RUF017
    lost = Counter(sum(map(waiting, before), [])) - left  # noqa: RUF017
    assert not left - Counter(sum(map(waiting, before), [])), "nothing twice"  # noqa: RUF017
    assert lost.total() < (new if is_planned else 1), "only what ranks cannot share evenly"
    assert given_out == left if is_planned else given_out <= left
    trained = Counter(i for ids, *_ in saved for batch in ids for i in batch) + given_out
    ledger, stats = results[0][2], [result[3] for result in results]
    assert ledger.selected.tolist() == [trained[i] for i in range(count)]
    assert sum(one.trained for one in stats) == trained.total()
    offered = sum(one.offered for one in stats)
    if not drop_last:
        assert offered == (saved[0][3] + 1) * count and ledger.offered.tolist() == [saved[0][3] + 1] * count
    assert offered == int(ledger.offered.sum())


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 3), (3, 1)])
def test_between_epochs_there_is_nothing_to_deal_out_but_the_ledger(name, old, new):
    """The ranks that resume train on what as many ranks would that never stopped: selection sees the same ledger."""

    def begin(rank):
        model, loader = make(METHODS[name](), 48, rank, old, batch_size=4)
        go_through(model, loader, 1)
        return None, loader.state_dict(), loader.ledger.whole(), 1

    saved = run_loaders(old, begin)
    assert all(state["epochs"]["under_way"] is None for _, state, *_ in saved)
    results = resume(METHODS[name], 48, new, saved, batch_size=4)
    ids = [i for rest, *_ in results for batch in rest for i in batch]
    assert len({len(rest) for rest, *_ in results}) == 1 and len(set(ids)) == len(ids)
    assert len(ids) == 48 if name == "traditional" else 4 <= len(ids) < 48 or name.startswith("planned with")
    assert results[0][2].offered.tolist() == [2] * 48


def states_of(size, stop=3, method=METHODS["scored"]):
    return [state for _, state, *_ in saved_runs(method, 48, size, stop, batch_size=4)]


def test_what_is_left_is_divided_evenly():
    for name in ("scored", "planned"):
        states = states_of(2, stop=7 if name == "planned" else 2, method=METHODS[name])
        dealt = [redeal(states, rank, 3)["epochs"]["under_way"] for rank in range(3)]
        sizes = [part["place"]["batches"]["sizes"].tolist() for part in dealt]
        assert max(map(len, sizes)) - min(map(len, sizes)) <= (name == "scored")
        if name == "scored":
            lengths = dealt[0]["queue"]["lengths"]
            assert all(part["queue"]["lengths"] == lengths for part in dealt) and max(lengths) - min(lengths) <= 1
            assert [part["queue"]["pieces"] != [] for part in dealt] == [length > 0 for length in lengths]


def test_what_ranks_share_stays_and_what_differs_is_not_repeated():
    states = states_of(2)
    shared = [redeal(states, rank, 3) for rank in range(3)]
    assert all(torch.equal(part["parts"]["generator"], states[0]["parts"]["generator"]) for part in shared)
    assert all(part["stats"]["batches"] == 3 for part in shared)
    for rank, state in enumerate(states):
        state["generators"] = [torch.Generator().manual_seed(rank).get_state()]
    differing = [redeal(states, rank, 4)["generators"][0] for rank in range(4)]
    assert torch.equal(differing[0], states[0]["generators"][0])
    assert torch.equal(differing[1], states[1]["generators"][0])
    assert len({str(saved.tolist()) for saved in differing}) == 4


def test_batches_may_have_another_size():
    (state,) = states_of(1)
    assert redeal([state], 0, 2)["batch_size"] == 4
    assert redeal([state], 0, 2, batch_size=2)["batch_size"] == 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.rand(40))


def test_data_without_ids_cannot_be_dealt_out():
    loader = sb.SelectiveLoader(
        DataLoader(Stream(), 4),
        Losses(),
        lambda outputs, targets: outputs,
        sb.selective_backprop(0.5),
        forward=lambda model, batch: (model(batch), None),
    )
    next(iterator := iter(loader))
    state = loader.state_dict()
    del iterator
    with pytest.raises(ValueError, match="saved by 1 ranks in the middle of an epoch, and these are 3"):
        redeal([state], 0, 3)


def test_states_of_different_moments_are_refused():
    with pytest.raises(ValueError, match="number of batches in the epoch is 3 on rank 0 and 4 on rank 1"):
        redeal([states_of(2)[0], states_of(2, stop=4)[1]], 0, 1)


# ---- statistics


def redeal_stats(all_stats, size):
    states = [states_of(1)[0] | {"stats": stats.state_dict()} for stats in all_stats]
    for state in states:
        state["epochs"]["under_way"] = None
    result = [Stats() for _ in range(size)]
    for rank, stats in enumerate(result):
        stats.load_state_dict(redeal(states, rank, size)["stats"])
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_counts_of_ranks_add_up_to_the_same(size):
    for name in (name for name, how in COMBINATIONS.items() if how == "count"):
        dealt = redeal_stats([Stats(**{name: 100}), Stats(**{name: 7}), Stats()], size)
        parts = [getattr(stats, name) for stats in dealt]
        assert sum(parts) == 107 and max(parts) - min(parts) <= 1


def test_losses_are_those_of_all_ranks():
    first, second = Stats(), Stats()
    first.count_losses(6.0, 3, "trained")
    second.count_losses(10.0, 1, "trained")
    second.count_losses(11.0, 2, "candidates")
    for size in (1, 3):
        for stats in redeal_stats([first, second], size):
            assert stats.mean_trained_loss == pytest.approx(4.0)
            assert stats.mean_candidate_loss == pytest.approx(5.5)


def test_seconds_are_those_of_the_slowest_rank():
    seconds = [{"loading": 1.5, "scoring": 2.0, "selecting": 0.0, "training": 4.0} for _ in range(2)]
    seconds[1] |= {"loading": 3.0, "training": 1.0}
    for stats in redeal_stats([Stats(seconds=one) for one in seconds], 3):
        assert stats.seconds == {"loading": 3.0, "scoring": 2.0, "selecting": 0.0, "training": 4.0}
