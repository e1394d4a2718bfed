"""What waits in the queue when an epoch begins is trained on in it, once; and no epoch passes in silence."""

import itertools
import logging
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import selective_backprop as sb

NUM_EXAMPLES, BATCH, EPOCHS = 500, 64, 20  # of which more than half of all batches used to repeat an id


def data(count=NUM_EXAMPLES):
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def make_network(seed=0):
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    network = nn.Linear(8, 2)
    torch.set_rng_state(state)
    return network


@dataclass
class Run:
    """What a run gave out."""

    loader: sb.SelectiveLoader
    batches: list[list[list[int]]] = field(default_factory=list)
    """Ids, by epoch and batch."""
    weights: torch.Tensor | None = None
    """Sum by id."""

    @property
    def counts(self):
        return [len(epoch) for epoch in self.batches]

    @property
    def repeats(self):
        return sum(len(set(ids)) < len(ids) for epoch in self.batches for ids in epoch)

    @property
    def worst_gap(self):
        """The most epochs between two in which an example was trained on; the start of the run counts as one."""
        seen = [{i for ids in epoch for i in ids} for epoch in self.batches]
        worst = 0
        for i in range(len(self.weights)):
            epochs = [-1, *(epoch for epoch, ids in enumerate(seen) if i in ids), len(seen)]
            worst = max(worst, *(after - before for before, after in itertools.pairwise(epochs)))
        return worst


def run(method, count=NUM_EXAMPLES, candidates=BATCH, epochs=EPOCHS, *, dataset=None, loader_options=None, **options):
    model, generator = make_network(), torch.Generator().manual_seed(3)
    settings = {"shuffle": True, "generator": generator} if loader_options is None else loader_options
    train_loader = DataLoader(dataset or data(count), candidates, **settings)
    options = {"num_epochs": epochs} | options
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method, **options)
    optimizer, result = torch.optim.SGD(model.parameters(), lr=0.1), Run(loader, weights=torch.zeros(count))
    for _ in range(epochs):
        result.batches.append([])
        for inputs, targets in loader:
            optimizer.zero_grad()
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            ids = loader.batch.ids
            if ids is not None:
                result.weights.index_add_(0, ids, loader.batch.weights)
            result.batches[-1].append([] if ids is None else ids.tolist())
        assert len(result.batches[-1]) <= len(loader), "len() is an upper bound"
    return result


METHODS = {
    "SB": lambda: sb.selective_backprop(),
    "SB, unbiased": lambda: sb.selective_backprop(unbiased=True),
    "SB, classes": lambda: sb.selective_backprop(classes=torch.arange(NUM_EXAMPLES) % 2),
    "SB, window": lambda: sb.selective_backprop(0.5, start=0.2, end=0.7),
    "top_k": lambda: sb.top_k(),
    "ledger": lambda: sb.ledger_backprop(),
    "ledger, selectivity": lambda: sb.methods.ledger_percentile(0.3),
    "infobatch": lambda: sb.infobatch(),
    "stale": lambda: sb.stale_selective_backprop(),
    "predicted": lambda: sb.predicted_selective_backprop(),
    "random": lambda: sb.random_backprop(),
    "repeated random": lambda: sb.repeated_random(),
    "composer": lambda: sb.composer_backprop(),
    "reducible": lambda: sb.reducible_loss(make_network(seed=9)),
    "expected": lambda: sb.expected_selective_backprop(),
    "distance": lambda: sb.distance_backprop(),
}


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_no_batch_holds_an_id_twice(make):
    result = run(make())
    assert result.repeats == 0
    stats = result.loader.stats
    assert stats.offered == EPOCHS * NUM_EXAMPLES, "what waits counts as offered"
    assert int(result.loader.ledger.offered.min()) == EPOCHS
    assert stats.trained + stats.queued == int(result.loader.ledger.selected.sum()), "and is not selected again"


def test_draws_with_replacement_may_repeat():
    assert run(sb.kath18(variable_start=False), epochs=4).repeats > 0


def test_waiting_examples_are_neither_loaded_nor_scored_again():
    """Half of 10 wait; of the next 10 candidates, 5 are scored, and they fill the batch with the others."""
    method = sb.Method("half", sb.scorers.ForwardScorer(), sb.policies.TopKPolicy(selectivity=0.5))
    result = run(method, 20, 20, epochs=2, num_epochs=None, batch_size=10)
    assert result.counts == [1, 1]
    result = run(method, 20, 10, epochs=2, num_epochs=None, batch_size=8)
    first, second = result.batches
    assert len(first) == len(second) == 1 and len(set(first[0]) & set(second[0])) <= 8
    assert result.loader.stats.scored == 20 + 18  # two of the first epoch's ten wait
    assert result.loader.stats.skipped_before_loading == 2


@pytest.mark.parametrize("max_age", [1, 2, 3, 5])
@pytest.mark.parametrize("selectivity", [None, 0.3])
def test_max_age_is_exact(max_age, selectivity):
    result = run(sb.methods.ledger_percentile(selectivity, max_age=max_age), epochs=25)
    assert result.worst_gap == max_age
    assert result.repeats == 0


def test_max_age_is_exact_where_selection_ends():
    """The epochs of plain training at the end begin with what waits, and end with a smaller batch."""
    result = run(sb.methods.ledger_percentile(0.3, max_age=2, end=0.6), epochs=15)
    assert result.worst_gap == 2
    assert all(sum(map(len, epoch)) == NUM_EXAMPLES for epoch in result.batches[9:])


@pytest.mark.parametrize(("count", "batch"), [(100, 10), (97, 10), (500, 64), (130, 64)])
def test_len_holds_where_everything_is_kept_at_the_end(count, batch):
    result = run(sb.infobatch(until=0.75), count, batch, epochs=4)
    assert result.counts[-1] == len(result.loader) == -(-count // batch)
    assert sum(map(len, result.batches[-1])) == count


@pytest.mark.parametrize("method", [sb.infobatch(until=0.8), sb.selective_backprop(0.7, unbiased=True, max_weight=1e6)])
def test_weights_stay_unbiased_although_waiting_examples_are_no_candidates(method):
    """The expected sum of an example's weights is the number of epochs; within 5 standard errors of the mean."""
    totals = []
    for seed in range(12):
        weights = run(method, epochs=10, seed=seed).weights
        totals.append(float(weights.mean()) / 10)
    totals = torch.tensor(totals)
    error = float(totals.std()) / len(totals) ** 0.5
    assert abs(float(totals.mean()) - 1) < 5 * error
    assert error < 0.01, "a missing weight of one per epoch of waiting would be seen"


class WithoutIds(IterableDataset):
    """Ten batches without ids; how many there are is known."""

    def __iter__(self):
        return iter(data(100))

    def __len__(self):
        return 100


def test_len_is_an_upper_bound_without_ids():
    result = run(
        sb.selective_backprop(0.55, end=0.5), 100, dataset=WithoutIds(), candidates=10, epochs=4, loader_options={}
    )
    assert result.counts[-1] == 11 == len(result.loader), "what waited comes on top of the last epoch"


def test_len_is_an_upper_bound_for_samplers_that_offer_others_each_epoch():
    for seed in range(5):
        torch.manual_seed(seed)
        sampler = WeightedRandomSampler([1.0] * NUM_EXAMPLES, 64)
        options = {"sampler": sampler}
        result = run(sb.selective_backprop(0.5, end=0.7), candidates=8, epochs=6, loader_options=options)
        assert max(result.counts) <= len(result.loader)


def test_a_data_set_smaller_than_a_batch_is_trained_on_as_a_whole(caplog):
    result = run(sb.ledger_backprop(), 20, 32, epochs=12)
    assert [[sorted(ids) for ids in epoch] for epoch in result.batches] == [[list(range(20))]] * 12
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and "training batches of 32 are too large" in messages[0] and " 20 " in messages[0]


def test_a_queue_that_holds_most_of_the_data_set_would_starve(caplog):
    """SB at 1/3 of 20 examples: half of them may wait, or the easiest would hold up all others."""
    result = run(sb.selective_backprop(), 20, 32, epochs=30)
    assert result.repeats == 0
    assert sum(result.counts) >= 6, "two, if all had to wait at once"
    assert result.loader.batch_size == 10


@pytest.mark.parametrize(
    "method", [sb.random_backprop(0.05), sb.repeated_random(0.05), sb.methods.ledger_percentile(0.05)]
)
def test_a_plan_never_leaves_an_epoch_without_a_batch(method):
    result = run(method)
    assert min(result.counts) >= 1
    assert result.repeats == 0
    batch = result.loader.batch
    assert float(batch.weights.min()) == 1


def test_what_tops_up_an_unbiased_plan_has_no_weight():
    """60 of 100 are drawn, 40 more are needed to fill the batch: they are in the expectation of the 60 already."""
    method = sb.Method(
        "half", sb.scorers.ConstantScorer(), sb.policies.PercentilePolicy(selectivity=0.5, unbiased=True)
    )
    result = run(method, 100, 100, epochs=2)
    assert result.counts == [1, 1]
    weights = result.loader.batch.weights
    assert 0 < int((weights == 0).sum()) < 100 and len(weights) == 100
    assert torch.allclose(weights[weights > 0], torch.tensor(2.0), atol=0.3), "1 / probability"


def test_a_record_is_not_topped_up(caplog):
    record = sb.SelectionRecord(NUM_EXAMPLES)
    for _ in range(25):
        record.add_ids(torch.tensor([3, 7]))
    result = run(sb.recorded_backprop(record), epochs=25)
    assert {i for epoch in result.batches for ids in epoch for i in ids} == {3, 7}
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3, "the first of such epochs, and every tenth after it"
    assert "2 of 500 candidates were selected, and 2 selected examples wait for a batch of 64" in messages[0]
    assert "smaller batch_size=" in messages[0] and "higher selectivity" in messages[0]


def test_an_epoch_without_a_batch_is_told(caplog):
    caplog.set_level(logging.WARNING)
    result = run(sb.top_k(0.1), 100, 10, epochs=8, batch_size=24)
    assert 0 in result.counts
    assert sum("gave out no batch" in record.getMessage() for record in caplog.records) == 1
    caplog.clear()
    assert 0 not in run(sb.top_k(0.5), 100, 10, epochs=4).counts
    assert not caplog.records


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(set(METHODS) - {"SB, classes"})),
    st.integers(2, 90),
    st.integers(1, 40),
    st.none() | st.integers(1, 40),
    st.integers(1, 6),
    st.booleans(),
)
def test_any_size(name, count, candidates, size, epochs, drop_last):
    candidates = min(candidates, count)
    options = {"shuffle": True, "generator": torch.Generator().manual_seed(3), "drop_last": drop_last}
    result = run(METHODS[name](), count, candidates, epochs, loader_options=options, batch_size=size)
    assert result.repeats == 0
    planned = name in ("ledger", "ledger, selectivity", "infobatch", "random", "repeated random")
    if planned and not drop_last:
        assert min(result.counts) >= 1
    assert result.loader.progress == 1
