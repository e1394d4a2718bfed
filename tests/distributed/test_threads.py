"""Any number of ranks, any sizes: threads stand in for processes, the loader is the real one."""

import copy
import dataclasses
import functools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.distributed.numbers import Losses, Numbers, cut, go_through, make
from tests.distributed.runs import Ids
from tests.distributed.threads import run_loaders
from tests.helpers import by_class

ROUNDWISE = {
    "selective_backprop": sb.selective_backprop,
    "interrupted": lambda selectivity: sb.selective_backprop(selectivity, interrupt=3),
    "fixed size": lambda selectivity: sb.selective_backprop(selectivity, fixed_size=True),
    "unbiased": lambda selectivity: sb.selective_backprop(selectivity, unbiased=True),
    "window": lambda selectivity: sb.selective_backprop(selectivity, start=0.3, end=0.9),
    "warm-up": lambda selectivity: sb.selective_backprop(selectivity, warmup_epochs=0.5),
    "top_k": sb.top_k,
    "composer": lambda keep: sb.composer_backprop(keep, start=0.2, end=0.8, interrupt=2),
    "kath18": lambda selectivity: sb.kath18(selectivity, unbiased=True, variable_start=False),
}
PLANNED = {
    "stale": lambda selectivity: sb.stale_selective_backprop(selectivity, every=2),
    "ledger": lambda selectivity: sb.ledger_backprop(),
    "ledger, percentile": sb.methods.ledger_percentile,
    "infobatch": lambda selectivity: sb.infobatch(prune=1 - selectivity, until=0.8),
    "predicted": lambda selectivity: sb.methods.predicted_selective_backprop(selectivity, every=2),
    "random": sb.random_backprop,
    "repeated": sb.repeated_random,
}
METHODS = {"traditional": lambda selectivity: sb.traditional()} | ROUNDWISE | PLANNED


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(METHODS)),
    shards=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    candidates=st.integers(1, 9),
    batch_size=st.none() | st.integers(1, 7),
    selectivity=st.sampled_from([0.2, 0.5, 0.9, 1.0]),
    epochs=st.integers(1, 4),
    stop=st.integers(1, 30),
)
def test_any_ranks(name, shards, candidates, batch_size, selectivity, epochs, stop):
    """Equally many batches; nothing is lost or repeated; a resume is exact; the ledger knows all of it."""
    ends = torch.tensor([0, *shards]).cumsum(0).tolist()
    states = {}

    def work(rank):
        batches = cut(range(ends[rank], ends[rank + 1]), candidates)

        def new():
            return make(METHODS[name](selectivity), sum(shards), batches, epochs=epochs, batch_size=batch_size)

        def save(step):
            if step == stop:
                states[rank] = copy.deepcopy(loader.state_dict())

        model, loader = new()
        given, rounds = go_through(model, loader, epochs, save)
        if rank in states:
            again, resumed = new()
            resumed.load_state_dict(states[rank])
            rest, _ = go_through(again, resumed, epochs)
            assert sum(rest, []) == sum(given, [])[stop:]  # noqa: RUF017
            assert same(vars(resumed.ledger.whole()), vars(loader.ledger.whole()))
        assert loader.stats.queued == 0, "nothing waits between epochs"
        return given, rounds, loader.ledger.whole(), loader.batch_size or candidates, loader.stats.dropped

    results = run_loaders(len(shards), work)
    size, dropped = results[0][-2], sum(result[-1] for result in results)
    for by_rank in zip(*(result[0] for result in results), strict=True):
        check_an_epoch(by_rank, size, sum(shards), may_repeat=name == "kath18", own_batches=batch_size is None)
    assert dropped < epochs * len(shards), "only what ranks cannot share evenly"
    given_out = Counter(i for given, *_ in results for epoch in given for batch in epoch for i in batch)
    if name in ROUNDWISE:
        selected = Counter(i for _, rounds, *_ in results for ids in rounds for i in ids)
        assert given_out <= selected and selected.total() == given_out.total() + dropped
    if name == "traditional":
        assert given_out.total() + dropped == epochs * sum(shards)
    ledgers = [ledger for _, _, ledger, *_ in results]
    assert all(same(vars(other), vars(ledgers[0])) for other in ledgers)
    assert ledgers[0].offered.tolist() == [epochs] * sum(shards)
    assert ledgers[0].selected.tolist() == [given_out[i] for i in range(sum(shards))]
    assert (ledgers[0].loss_epoch >= 0).tolist() == [given_out[i] > 0 for i in range(sum(shards))]


def check_an_epoch(by_rank, size, num_candidates, *, may_repeat, own_batches):
    """Ranks have equally many batches, which are full but for the last two, and no id twice."""
    sizes = [[len(batch) for batch in batches] for batches in by_rank]
    assert len({len(mine) for mine in sizes}) == 1
    ids = [i for batches in by_rank for batch in batches for i in batch]
    assert may_repeat or len(set(ids)) == len(ids)
    if own_batches and len(ids) == num_candidates:
        return  # an epoch that keeps everything may pass the user's own batches
    for mine in sizes:
        assert set(mine[:-2]) <= {size} and all(0 < count <= size for count in mine[-2:])
        assert len(mine) == 1 or min(mine, default=size) >= size // 2
    for counts in zip(*sizes, strict=True):
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", sorted(ROUNDWISE))
def test_ranks_select_what_one_process_would(name, size):
    """The same candidates in the same order: the same ids in every round, whose batches are dealt out to ranks."""
    count, candidates, epochs = 120, 5, 3
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()

    def work(rank, ranks=size):
        share = candidates * size // ranks
        batches = [part[rank * share : (rank + 1) * share] for part in cut(order, candidates * size)]
        model, loader = make(ROUNDWISE[name](0.4), count, batches, epochs=epochs, batch_size=4 * size // ranks)
        _, rounds = go_through(model, loader, epochs)
        return rounds, loader.policy.state_dict(), sum(map(len, rounds))

    (rounds, policy, total), *_ = run_loaders(1, lambda rank: work(rank, ranks=1))
    results = run_loaders(size, work)
    together = [sum(parts, []) for parts in zip(*(result[0] for result in results), strict=True)]  # noqa: RUF017
    assert together == rounds and total < epochs * count
    assert all(same(result[1], policy) for result in results)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["ledger", "ledger, percentile", "infobatch", "random", "repeated"])
def test_ranks_plan_what_one_process_would(name, size):
    """With the same candidates in the same order, ranks together load the same ids in every epoch."""
    count, epochs = 120, 5
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()

    def work(rank, ranks=size):
        share = count // ranks
        model, loader = make(PLANNED[name](0.4), count, cut(order[rank * share : (rank + 1) * share], 5), epochs=epochs)
        given, _ = go_through(model, loader, epochs)
        assert loader.stats.scored == 0
        return given

    (alone,), together = run_loaders(1, lambda rank: work(rank, ranks=1)), run_loaders(size, work)
    for expected, *by_rank in zip(alone, *together, strict=True):
        assert sorted(sum(expected, [])) == sorted(i for batches in by_rank for ids in batches for i in ids)  # noqa: RUF017
        assert max(map(len, by_rank)) == min(map(len, by_rank))
    assert name == "ledger" or sum(len(ids) for batches in alone for ids in batches) < epochs * count


class Swapped:
    """Candidates that are another rank's in the next epoch."""

    def __init__(self, shards, rank):
        self.shards, self.rank, self.epoch = shards, rank, -1

    def __iter__(self):
        self.epoch += 1
        return iter(self.shards[(self.rank + self.epoch) % len(self.shards)])

    def __len__(self):
        return len(self.shards[0])


@pytest.mark.parametrize("name", ["stale", "predicted", "ledger, percentile"])
def test_scores_follow_examples_to_other_ranks(name):
    """What one rank learned about an example decides about it before another loads it."""
    shards = [cut(range(first, first + 30), 5) for first in (0, 30, 60)]

    def work(rank):
        model, loader = make(PLANNED[name](0.5), 90, Swapped(shards, rank), epochs=2)
        go_through(model, loader, 1)
        scored = loader.stats.scored
        go_through(model, loader, 2)
        return loader.stats.scored - scored, loader.stats.skipped_before_loading

    results = run_loaders(3, work)
    assert all(scored == 0 for scored, _ in results)
    assert sum(skipped for _, skipped in results) > 20


def errors_of(size, work):
    """What each rank raises."""

    def one(rank):
        try:
            work(rank)
        except (ValueError, TypeError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"

    return run_loaders(size, one)


LEDGER = sb.ledger_backprop
DIFFERENT = {
    "batch_size; rank 0 has 4, rank 1 has 5": lambda rank: {"batch_size": 4 + rank},
    "seed; rank 0 has 0, rank 1 has 1": lambda rank: {"seed": rank},
    "number of examples in the data set, whose indices are their ids; rank 0 has 20, rank 1 has 21": (
        lambda rank: {"count": 20 + rank}
    ),
    "num_epochs; rank 0 has 3, rank 1 has 4": lambda rank: {"epochs": 3 + rank},
    "transform; rank 0 has None, rank 1 has one": lambda rank: {"transform": [None, torch.clone][rank]},
    "reducer; rank 0 has None, rank 1 has one": lambda rank: {"reducer": [None, "max"][rank]},
    "label_smoothing of loss_fn; rank 0 has 0, rank 1 has 0.1": (
        lambda rank: {"loss_fn": nn.CrossEntropyLoss(label_smoothing=[0.0, 0.1][rank])}
    ),
    "weight of loss_fn; rank 0 has ": lambda rank: {"loss_fn": nn.CrossEntropyLoss(weight=torch.tensor([1.0, rank]))},
    "beta of loss_fn; rank 0 has 1, rank 1 has 2": (
        lambda rank: {"loss_fn": functools.partial(F.smooth_l1_loss, beta=1 + rank)}
    ),
    "loss_fn; rank 0 has MSELoss, rank 1 has L1Loss": lambda rank: {"loss_fn": [nn.MSELoss, nn.L1Loss][rank]()},
    "pad; rank 0 has None, rank 1 has one": lambda rank: {"pad": [None, sb.pad_to_longest({"x": 0})][rank]},
    "method; rank 0 has selective_backprop, rank 1 has top_k": (
        lambda rank: {"method": [sb.selective_backprop, sb.top_k][rank](0.5)}
    ),
    "selectivity; rank 0 has 0.5, rank 1 has 0.4": lambda rank: {"method": sb.top_k([0.5, 0.4][rank])},
    "max_age; rank 0 has 10, rank 1 has 5": lambda rank: {"method": LEDGER(max_age=[10, 5][rank])},
    "every; rank 0 has 2, rank 1 has 3": lambda rank: {"method": sb.stale_selective_backprop(0.5, every=2 + rank)},
    "warmup_epochs; rank 0 has 0, rank 1 has 1": lambda rank: {"method": LEDGER(warmup_epochs=rank)},
    "end; rank 0 has 0.5, rank 1 has 0.75": lambda rank: {"method": sb.infobatch(prune=0.5, until=[0.5, 0.75][rank])},
    "past_scores; rank 0 has 2, rank 1 has 3": (
        lambda rank: {"method": sb.methods.predicted_selective_backprop(0.5, past_scores=2 + rank)}
    ),
    "keep; rank 0 has checksum ": (
        lambda rank: {"method": sb.diet(method=sb.traditional(), scores=torch.arange(20.0).roll(rank), prune=0.5)}
    ),
}


@pytest.mark.parametrize("said", DIFFERENT)
def test_ranks_that_differ_in_an_option_are_refused_at_the_start(said):
    def work(rank):
        usual = {"count": 20, "method": sb.selective_backprop(0.5), "epochs": 3}
        make(batches=cut(range(20), 5), **usual | DIFFERENT[said](rank))

    first, second = errors_of(2, work)
    assert first == second and first.startswith(f"ValueError: all ranks need the same {said}")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batches": []}, "ValueError: the loader is empty: it has no batch to offer"),
        ({"batch_size": 0}, "ValueError: batch_size must be at least 1, got 0"),
        ({"method": None}, "TypeError: method must be a Method"),
        ({"device": "abacus"}, "RuntimeError: Expected one of cpu"),
    ],
)
def test_an_error_of_one_rank_at_the_start_is_raised_on_all(wrong, said):
    def work(rank):
        usual = {"method": sb.selective_backprop(0.5), "batches": cut(range(20), 5)}
        make(count=20, epochs=1, **usual | (wrong if rank == 1 else {}))

    first, second, third = errors_of(3, work)
    assert second.startswith(said)
    sentence = second if "device" in wrong else second.partition(": ")[2]
    assert first == third == f"RuntimeError: rank 1 could not start: {sentence}"


def test_an_error_of_one_rank_in_planning_is_raised_on_all():
    def work(rank):
        go_through(*make(sb.ledger_backprop(), 20, cut([0, 1, 2, 20 + rank], 2), epochs=1), 1)

    first, second = errors_of(2, work)
    assert "the sampler yields the indices 20," in first and "the sampler yields the indices 21," in second

    def only_one(rank):
        go_through(*make(sb.ledger_backprop(), 20, cut([0, 1, 2, 19 + rank], 2), epochs=1), 1)

    first, second = errors_of(2, only_one)
    assert first.startswith("RuntimeError: rank 1 could not plan this epoch: the sampler yields the indices 20,")


BROKEN = {"all": (3, 21, 37), "some": (21,)}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("classes", [None, torch.arange(48) % 3], ids=["", "by class"])
def test_7_each_rank_names_its_own_examples_that_are_not_finite(broken, classes):
    shards = [range(first, first + 16) for first in (0, 16, 32)]
    ids = BROKEN[broken]

    def work(rank):
        method = sb.selective_backprop(0.5)
        method = method if classes is None else by_class(method, classes)
        model, loader = make(method, 48, cut(shards[rank], 16), epochs=1)
        forward = model.forward
        model.forward = lambda values: torch.where(torch.isin(values, torch.tensor(ids)), float("nan"), forward(values))
        go_through(model, loader, 1)

    for rank, said in enumerate(errors_of(3, work)):
        own = [i for i in ids if i in shards[rank]]
        if own:
            assert f"ids {own}" in said and "not finite" in said
        else:
            assert said.startswith("ValueError: rank 1 ") and "see its own error" in said


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_rank_whose_examples_are_all_pruned_takes_part_without_any(name):
    shards = [cut(range(first, first + 20), 5) for first in (0, 20, 40)]
    scores = torch.arange(60.0)
    scores[20:40] = -1  # those of rank 1
    states = {}

    def work(rank, state=None):
        method = sb.diet(method=METHODS[name](0.5), scores=scores, prune=1 / 3)
        model, loader = make(method, 60, shards[rank], epochs=3, batch_size=2)
        if state is not None:
            loader.load_state_dict(state)

        def save(step):
            if state is None:
                states[rank, step] = copy.deepcopy(loader.state_dict())

        given, _ = go_through(model, loader, 3, save)
        return given, loader.stats.offered

    results = run_loaders(3, work)
    assert [offered for _, offered in results] == [60, 0, 60]
    batches = [[len(batch) for epoch in given for batch in epoch] for given, _ in results]
    assert len(batches[0]) == len(batches[1]) == len(batches[2]) and sum(batches[1]) > 10
    for step in (1, len(results[0][0][0])):  # in the first epoch, and at its end
        resumed = run_loaders(3, lambda rank, step=step: work(rank, states[rank, step]))
        for (whole, _), (rest, _) in zip(results, resumed, strict=True):
            assert sum(rest, []) == sum(whole, [])[step:]  # noqa: RUF017


@pytest.mark.parametrize(("keep", "offered"), [(range(20), [20, 0]), ((), None)])
def test_a_rank_that_knows_that_its_examples_are_all_pruned(keep, offered):
    """A sampler of torch tells how many are left; none on any rank is an error at the start."""
    method = dataclasses.replace(sb.selective_backprop(0.5), keep=torch.isin(torch.arange(40), torch.tensor([*keep])))

    def work(rank):
        sampler = torch.utils.data.SubsetRandomSampler(range(20 * rank, 20 * rank + 20))
        data, model = DataLoader(Numbers(40), 5, sampler=sampler), Losses()
        options = {"forward": lambda model, batch: (model(batch), None), "num_epochs": 1, "batch_size": 2}
        loader = sb.SelectiveLoader(data, model, lambda outputs, targets: outputs, method, **options)
        go_through(model, loader, 1)
        return loader.stats.offered

    if offered is not None:
        assert run_loaders(2, work) == offered
    else:
        assert set(errors_of(2, work)) == {"ValueError: the loader is empty: it has no batch to offer, on any rank"}


def test_loaders_that_are_all_empty_are_refused():
    class Nothing(Ids):
        """A batch sampler that has less than it says."""

        def __len__(self):
            return 3

    def work(rank):
        go_through(*make(sb.selective_backprop(0.5), 60, Nothing([]), epochs=1), 1)

    (error,) = set(errors_of(2, work))
    assert error.startswith("ValueError: the loader is empty: it offered no batch in a whole epoch")
