"""Predictions are arithmetic on costs; how costs are measured is tested by what it leaves alone."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset

import selective_backprop as sb
from selective_backprop.advice.advise import predict
from selective_backprop.advice.costs import Costs, measure_costs
from selective_backprop.advice.evidence import evidence_of, growth
from selective_backprop.testing import global_random_states, model_trace, same


def costs(*, loading=0.0, forward=1.0, training=3.0, loads_ahead=False, num_candidates=100):
    losses = torch.linspace(0.1, 2, 100)
    return Costs(
        loading=loading,
        training=training,
        forward=forward,
        losses=losses,
        num_candidates=num_candidates,
        has_ids=num_candidates is not None,
        loads_ahead=loads_ahead,
    )


def seconds_of(advice, method):
    return next(option.seconds for option in advice.options if option.method.startswith(method))


def test_the_paper_s_bounds():
    advice = predict(costs())
    assert advice.options[0].seconds == pytest.approx(300)
    assert seconds_of(advice, "selective_backprop(0.33)") == pytest.approx(200)  # 1 + 3s against 3
    assert seconds_of(advice, "stale_selective_backprop(0.33") == pytest.approx(100 * (1 / 3 + 1))
    assert seconds_of(advice, "random_backprop(0.33)") == pytest.approx(100)
    assert advice.break_even == pytest.approx(2 / 3)
    assert advice.best.method == "ledger_backprop()"
    text = str(advice)
    assert "Try ledger_backprop() first" in text
    rows = [line.split() for line in text.splitlines() if line.endswith("x")]
    multipliers = {row[0]: float(row[-4]) for row in rows if len(row) == 5}
    assert max(multipliers, key=multipliers.get) == "ledger_backprop()", "what the table shows is what is recommended"


def test_the_table_is_ordered_by_what_counts():
    first, *others = predict(costs()).options
    assert first.name == "traditional"
    keys = [(-option.multiplier, option.seconds) for option in others]
    assert keys == sorted(keys)


def test_what_is_skipped_before_loading_is_not_loaded():
    advice = predict(costs(loading=3.0))
    assert advice.options[0].seconds == pytest.approx(600)
    assert seconds_of(advice, "selective_backprop(0.25)") == pytest.approx(100 * (3 + 1 + 0.75))
    assert seconds_of(advice, "random_backprop(0.25)") == pytest.approx(150)
    stale_load = 3 * (1 / 3 + 2 / 3 / 4)
    assert seconds_of(advice, "stale_selective_backprop(0.25") == pytest.approx(100 * (stale_load + 1 / 3 + 0.75))


def test_workers_that_are_slower_than_training_decide_alone():
    advice = predict(costs(loading=4.0, loads_ahead=True))
    assert advice.options[0].seconds == pytest.approx(400)
    assert seconds_of(advice, "selective_backprop(0.25)") == pytest.approx(400)
    assert advice.break_even == 0


def test_it_says_when_nothing_pays():
    """Without ids there is a selection pass for every candidate, and here it costs as much as training."""
    advice = predict(costs(forward=2.8, training=3.0, num_candidates=None))
    assert advice.best is None
    assert "Nothing pays here" in str(advice)
    assert "need a map-style data set" in str(advice)
    assert "Nothing pays" not in str(predict(costs(forward=2.8, training=3.0)))


def test_without_ids_it_counts_per_candidate_and_names_no_method_that_needs_them():
    advice = predict(costs(num_candidates=None))
    assert advice.options[0].seconds == pytest.approx(3)
    assert "s per candidate" in str(advice)
    assert all(option.method.startswith(("traditional", "selective")) for option in advice.options)
    # On the leaderboard plain training needs less compute than SB for the same error, so SB is not recommended.
    assert advice.best is None
    assert "Nothing is recommended here: selective_backprop(0.33)" in str(advice)
    assert "needs a map-style data set" in str(advice)


def test_what_the_ledger_trains_on_is_predicted_by_how_many_examples_carry_the_loss():
    redundant = dataclasses.replace(costs(), losses=torch.cat([torch.zeros(800), torch.ones(200)]))
    advice = predict(redundant)
    assert advice.best.selectivity == pytest.approx(0.2 * sb.ledger_backprop().policy.loss_share)
    assert advice.best.selectivity == sb.ledger_backprop().policy.keep_fraction(redundant.losses)
    assert "19% of the examples" in str(advice)
    even = predict(dataclasses.replace(costs(), losses=torch.ones(100)))
    assert even.best.selectivity == 1 == sb.ledger_backprop().policy.keep_fraction(torch.ones(100))
    assert "it would train on everything" in str(even)


def test_what_cannot_be_measured_is_refused_and_nothing_is_taken_away(image_task, capsys):
    model, loader = image_task
    batches, loss_fn = iter(list(loader)), nn.CrossEntropyLoss()
    with pytest.raises(TypeError, match="first 8 batches"):
        sb.advise(model, loss_fn, batches)
    with pytest.raises(TypeError, match="list_iterator"):
        sb.advise(model, loss_fn, sb.WithLength(batches, 4))
    assert len(list(batches)) == 4
    wrapped = sb.SelectiveLoader(loader, model, loss_fn, sb.ledger_backprop())
    with pytest.raises(TypeError, match="your own DataLoader"):
        sb.advise(model, loss_fn, wrapped)
    assert not capsys.readouterr().err, "what is refused is not announced"
    sb.advise(model, loss_fn, loader, seconds=0.01)
    assert capsys.readouterr().err == "advise: measuring for about 0.01 s\n"
    with pytest.raises(ValueError, match="requires gradients"):
        sb.advise(model.requires_grad_(False), loss_fn, loader)


def test_evidence_is_that_of_the_method_on_the_leaderboard():
    assert evidence_of("ledger_backprop").median > 1 > evidence_of("selective_backprop").median


@pytest.fixture
def image_task():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    data = TensorDataset(torch.randn(50, 1, 8, 8), torch.randint(3, (50,)))
    loader = DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(1))
    return model, loader


@pytest.mark.parametrize("training", [True, False])
def test_measuring_leaves_no_trace(image_task, training):
    model, loader = image_task
    model.train(training)
    before = model_trace(model), global_random_states(), loader.generator.get_state()
    measure_costs(model, nn.CrossEntropyLoss(), loader, seconds=0.01)
    assert same(before, (model_trace(model), global_random_states(), loader.generator.get_state()))
    assert all(parameter.grad is None for parameter in model.parameters())


def samplers(data, generator):
    yield 12, {"batch_size": 8, "sampler": SubsetRandomSampler(range(12), generator=generator)}
    yield 8, {"batch_size": 8, "sampler": SubsetRandomSampler(range(12), generator=generator), "drop_last": True}
    yield 90, {"batch_size": 8, "sampler": RandomSampler(data, num_samples=90, generator=generator)}
    yield 50, {"batch_sampler": BatchSampler(RandomSampler(data, generator=generator), 8, drop_last=False)}


def test_what_is_measured(image_task):
    model, loader = image_task
    found = measure_costs(model, nn.CrossEntropyLoss(), loader, seconds=0.01)
    assert found.num_candidates == 50
    assert len(found.losses) == 50
    assert min(found.loading, found.forward, found.training) > 0
    exact = nn.functional.cross_entropy(
        model.eval()(loader.dataset.tensors[0]), loader.dataset.tensors[1], reduction="none"
    )
    torch.testing.assert_close(found.losses.sort().values, exact.detach().sort().values)


def test_bad_input():
    model, data = nn.Linear(2, 2), TensorDataset(torch.randn(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        sb.advise(model, nn.CrossEntropyLoss(), DataLoader(data, 2), seconds=0)
    with pytest.raises(ValueError, match="the loader is empty"):
        sb.advise(model, nn.CrossEntropyLoss(), [], seconds=0.1)
    with pytest.raises(TypeError, match="NoneType"):
        sb.advise(None, nn.CrossEntropyLoss(), DataLoader(data, 2))
    with pytest.raises(ValueError, match="got 'nonsense'"):
        sb.advise(model, nn.CrossEntropyLoss(), DataLoader(data, 2), device="nonsense")
    with pytest.raises(ValueError, match="one loss per example"):
        sb.advise(model, lambda outputs, targets: outputs.mean(), DataLoader(data, 2), seconds=0.1)


def test_advice_tells_how_the_gain_grew_and_where_there_is_no_telling():
    assert "fewer, 5,000" in growth(5_000)
    assert "more, 1,000,000" in growth(1_000_000)
    assert "your 30,000 examples that makes about " in growth(30_000)
    assert "you" not in growth(None), "a loader without a length"
