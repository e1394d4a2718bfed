"""Promise 7: bad input is a clear error at once, with the value, the ids and what to do."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import selective_backprop as sb
from tests.contracts.methods import KINDS
from tests.helpers import digits, make_loader, make_model

every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
CRITERION = nn.CrossEntropyLoss()


def loader_with(loss_fn=CRITERION, *, dataset=None, method=None, model=None, **options):
    train_loader = DataLoader(dataset if dataset is not None else digits(), batch_size=16)
    method = method or sb.selective_backprop(0.5)
    return sb.SelectiveLoader(train_loader, model or make_model(), loss_fn, method, **options)


def poisoned(value, row=37):
    inputs, targets = digits().tensors
    inputs = inputs.clone()
    inputs[row] = value
    return TensorDataset(inputs, targets)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_in_a_selection_pass(value):
    loader = loader_with(dataset=poisoned(value))
    with pytest.raises(ValueError, match=r"nan .*ids \[37\].*lower"):
        list(loader)
    assert loader.stats.offered == 48, "found in the third candidate batch"


@every_kind
def test_a_training_loss_that_is_not_finite(make):
    model = make_model()
    loader = make_loader(make(0.9), model=model, num_epochs=4, loader_options={"shuffle": False})
    with pytest.raises(ValueError, match=r"training loss is nan.*ids \["):
        for inputs, targets in loader:
            loader.loss(model(inputs) * float("nan"), targets)
    assert loader.stats.batches <= 1, "the step after the bad one does not happen"


def test_many_bad_examples_are_summed_up():
    loader = loader_with(lambda outputs, targets: outputs.sum(1) * float("inf"))
    with pytest.raises(ValueError, match=r"ids \[0, 1, 2, 3, 4\] and 11 more"):
        list(loader)


def test_without_ids_positions_are_given():
    loader = sb.SelectiveLoader(list(DataLoader(poisoned(float("nan"), 3), 16)), make_model(), CRITERION, sb.top_k(0.5))
    with pytest.raises(ValueError, match=r"positions \[3\]"):
        list(loader)


# Methods that never look at the model before training cannot find these in the loader; loader.loss does.
SCORING = {name: make for name, make in KINDS.items() if make(0.5).scorer.needs.selection_pass}


@pytest.mark.parametrize("make", SCORING.values(), ids=SCORING.keys())
@pytest.mark.parametrize(
    ("loss_fn", "error", "message"),
    [
        (lambda o, t: nn.functional.cross_entropy(o, t), ValueError, "single number"),
        (nn.BCEWithLogitsLoss(), ValueError, "Target size"),
        (lambda o, t: o, ValueError, r"\(16, 10\) for 16 examples"),
        (lambda o, t: o[:5, 0], ValueError, r"\(5,\) for 16 examples"),
        (lambda o, t: None, TypeError, "NoneType"),
    ],
    ids=["scalar", "wrong loss", "several per example", "too few", "nothing"],
)
def test_a_wrong_loss_is_found_on_the_first_batch_also_while_selection_is_off(make, loss_fn, error, message):
    loader = loader_with(loss_fn, method=make(0.5), num_epochs=4)
    with pytest.raises(error, match=message):
        next(iter(loader))


@every_kind
def test_an_empty_data_set(make):
    with pytest.raises(ValueError, match="empty"):
        loader_with(dataset=TensorDataset(torch.empty(0, 64), torch.empty(0).long()), method=make(0.5), num_epochs=4)


def test_a_loader_that_turns_out_to_be_empty():
    class Nothing(IterableDataset):
        def __iter__(self):
            return iter(())

    loader = loader_with(dataset=Nothing())
    with pytest.raises(ValueError, match="empty"):
        list(loader)


@every_kind
def test_a_batch_that_is_no_pair(make):
    triples = TensorDataset(*digits().tensors, digits().tensors[1])
    loader = loader_with(dataset=triples, method=make(0.5), num_epochs=4)
    if make in SCORING.values():
        with pytest.raises(TypeError, match="pass forward="):
            next(iter(loader))
    else:
        assert len(next(iter(loader))) == 3, "a method without scores has no need to know"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size .* 0"),
        ({"batch_size": 2.5}, TypeError, r"batch_size .* 2\.5"),
        ({"num_epochs": 0}, ValueError, "num_epochs .* 0"),
        ({"num_epochs": "3"}, TypeError, "num_epochs .* '3'"),
        ({"num_epochs": True}, TypeError, "num_epochs .* True"),
        ({"seed": None}, TypeError, "seed .* None"),
        ({"audit": "dynamics"}, TypeError, "audit .* 'dynamics'"),
        ({"method": "ledger-backprop"}, TypeError, r"sb\.ledger_backprop\(\)"),
        ({"method": "adam"}, TypeError, "'adam'.* diet, "),
        ({"method": sb.selective_backprop}, TypeError, r"[Ww]rite selective_backprop\(\)"),
        ({"method": 0.5}, TypeError, r"method .* 0\.5"),
        ({"method": sb.selective_backprop(start=0.5)}, ValueError, "pass num_epochs="),
        ({"model": len}, TypeError, "torch.nn.Module"),
        ({"model": nn.Sequential(nn.LazyLinear(10))}, ValueError, r"lazy.*0\.weight"),
        ({"loss_fn": "cross_entropy"}, TypeError, "loss_fn .*str"),
    ],
)
def test_bad_arguments_of_the_loader(options, error, message):
    with pytest.raises(error, match=message):
        loader_with(**options)


def test_a_loader_that_is_none():
    with pytest.raises(TypeError, match=r"DataLoader.* int"):
        sb.SelectiveLoader(5, make_model(), CRITERION, sb.traditional())


UNIFORM = sb.policies.UniformPolicy(selectivity=1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sb.selective_backprop(0), ValueError, "selectivity .* 0"),
        (lambda: sb.selective_backprop(0.5, beta=1), ValueError, "selectivity or beta"),
        (lambda: sb.selective_backprop(scoring="test"), ValueError, "eval, train, .*'test'"),
        (lambda: sb.selective_backprop(warm_up=1), TypeError, "warm_up"),
        (lambda: sb.selective_backprop(0.5, warmup_epochs=float("nan")), ValueError, "warmup_epochs .* nan"),
        (lambda: sb.stale_selective_backprop(every=0), ValueError, "every .* 0"),
        (lambda: sb.random_backprop(2), ValueError, "selectivity .* 2"),
        (lambda: sb.top_k(-1), ValueError, "selectivity .* -1"),
        (lambda: sb.Method("mine", sb.scorers.ConstantScorer(), None), TypeError, "policy"),
        (lambda: sb.Method("mine", None, UNIFORM), TypeError, "scorer"),
        (
            lambda: sb.Method("mine", sb.scorers.ConstantScorer(), UNIFORM, groups=torch.zeros(9)),
            TypeError,
            "GroupedPolicy",
        ),
    ],
)
def test_bad_arguments_of_methods(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_sampler_of_something_else_than_integers():
    train_loader = DataLoader({"a": torch.ones(3), "b": torch.ones(3)}, sampler=["a", "b"], batch_size=2)
    with pytest.raises(TypeError, match=r"integer.*\['a', 'b'\]"):
        list(sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.traditional()))


def test_progress_without_a_length():
    with pytest.raises(ValueError, match="pass num_epochs="):
        _ = loader_with().progress


def test_loss_before_any_batch_and_of_another_batch():
    model = make_model()
    loader = loader_with(model=model)
    inputs, targets = digits()[:10]
    with pytest.raises(RuntimeError, match=r"no training step.*call your loss function itself"):
        loader.loss(model(inputs), targets)
    iteration = iter(loader)
    next(iteration)
    with pytest.raises(ValueError, match=r"\(10,\) for 16 examples.*call your loss function itself"):
        loader.loss(model(inputs), targets)


def test_an_error_in_the_data_set_comes_through():
    class Broken(TensorDataset):
        def __getitem__(self, index):
            if index == 40:
                raise OSError("cannot read image 40")
            return super().__getitem__(index)

    with pytest.raises(OSError, match="cannot read image 40"):
        list(loader_with(dataset=Broken(*digits().tensors)))


@pytest.mark.parametrize("make", [sb.selective_backprop, sb.random_backprop, sb.ledger_backprop, sb.traditional])
@pytest.mark.parametrize(("indices", "shown"), [([3, -1, 5], "-1"), ([3, 203, 5], "203"), ([3, 900, -7], "900, -7")])
def test_indices_that_the_data_set_has_not(make, indices, shown):
    loader = sb.SelectiveLoader(DataLoader(digits(), 3, sampler=indices), make_model(), CRITERION, make())
    with pytest.raises(ValueError, match=rf"indices {shown},.* 203 examples"):
        list(loader)


def dropping(at):
    calls = []

    def collate(samples):
        calls.append(samples)
        return torch.utils.data.default_collate(samples[1:] if len(calls) == at else samples)

    return collate


@every_kind
@pytest.mark.parametrize("at", [1, 3])
def test_a_collate_function_that_drops_an_example(make, at):
    loader = make_loader(make(0.5), num_epochs=3, loader_options={"collate_fn": dropping(at)})
    with pytest.raises(ValueError, match=r"\d+ examples where the sampler asked for \d+.*in the sampler"):
        for inputs, targets in loader:
            loader.loss(loader.model(inputs), targets)
