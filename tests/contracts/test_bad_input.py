"""Promise 7: bad input is a clear error at once, with the value, the ids and what to do."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import selective_backprop as sb
from tests.contracts.methods import METHODS
from tests.helpers import digits, make_loader, make_model

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
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
    with pytest.raises(ValueError, match=r"loss in a selection pass is nan for the examples with ids \[37\]\. .*lower"):
        list(loader)
    assert loader.stats.offered == 32, "found in the third candidate batch"


@every_method
def test_a_training_loss_that_is_not_finite(make):
    model = make_model()
    loader = make_loader(make(0.9), model=model, num_epochs=4, loader_options={"shuffle": False})
    with pytest.raises(ValueError, match=r"training loss is nan, .* for the examples with ids \["):
        for inputs, targets in loader:
            loader.loss(model(inputs) * float("nan"), targets)
    assert loader.stats.batches == 1, "the step after the bad one does not happen"


def test_many_bad_examples_are_summed_up():
    loader = loader_with(lambda outputs, targets: outputs.sum(1) * float("inf"))
    with pytest.raises(
        ValueError, match=r"ids \[0, 1, 2, 3, 4\] and 11 more\. Training has diverged or these examples"
    ):
        list(loader)


def test_without_ids_positions_are_given():
    loader = sb.SelectiveLoader(list(DataLoader(poisoned(float("nan"), 3), 16)), make_model(), CRITERION, sb.top_k(0.5))
    with pytest.raises(ValueError, match=r"examples with positions \[3\] of the batch"):
        list(loader)


# Methods that never look at the model before training cannot find these in the loader; loader.loss does.
SCORING = {name: make for name, make in METHODS.items() if make(0.5).scorer.needs.selection_pass}


@pytest.mark.parametrize("make", SCORING.values(), ids=SCORING.keys())
@pytest.mark.parametrize(
    ("loss_fn", "error", "message"),
    [
        (lambda o, t: nn.functional.cross_entropy(o, t), ValueError, "a single number for the whole batch"),
        (nn.BCEWithLogitsLoss(), ValueError, "Target size"),
        (lambda o, t: o, ValueError, r"shape \(16, 10\) for 16 examples: make them one per example"),
        (lambda o, t: o[:5, 0], ValueError, r"shape \(5,\) for 16 examples"),
        (lambda o, t: None, TypeError, "must return a tensor with one loss per example, got NoneType"),
    ],
    ids=["scalar", "wrong loss", "several per example", "too few", "nothing"],
)
def test_a_wrong_loss_is_found_on_the_first_batch_also_while_selection_is_off(make, loss_fn, error, message):
    loader = loader_with(loss_fn, method=make(0.5), num_epochs=4)
    with pytest.raises(error, match=message):
        next(iter(loader))


@every_method
@pytest.mark.parametrize("dataset", [TensorDataset(torch.empty(0, 64), torch.empty(0).long())])
def test_an_empty_data_set(make, dataset):
    with pytest.raises(ValueError, match="the loader is empty: it has no batch to offer"):
        loader_with(dataset=dataset, method=make(0.5), num_epochs=4)


def test_a_loader_that_turns_out_to_be_empty():
    class Nothing(IterableDataset):
        def __iter__(self):
            return iter(())

    loader = loader_with(dataset=Nothing())
    with pytest.raises(ValueError, match="the loader is empty: it offered no batch in a whole epoch"):
        list(loader)


@every_method
def test_a_batch_that_is_no_pair(make):
    triples = TensorDataset(*digits().tensors, digits().tensors[1])
    loader = loader_with(dataset=triples, method=make(0.5), num_epochs=4)
    if make in SCORING.values():
        with pytest.raises(TypeError, match=r"batch of type list is neither a pair .* nor a dict: pass forward="):
            next(iter(loader))
    else:
        assert len(next(iter(loader))) == 3, "a method without scores has no need to know"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"num_epochs": 0}, ValueError, "num_epochs must be at least 1, got 0"),
        (
            {"method": "selective_backprop"},
            TypeError,
            r"method must be a Method, .* got the word 'selective_backprop': pass the method itself, "
            r"sb.selective_backprop\(\)",
        ),
        ({"method": "ledger-backprop"}, TypeError, r"pass the method itself, sb.ledger_backprop\(\)"),
        ({"method": "adam"}, TypeError, "got the word 'adam': there are composer_backprop, diet, "),
        (
            {"method": sb.selective_backprop},
            TypeError,
            r"got the function selective_backprop: forgot the parentheses\? Write selective_backprop\(\)",
        ),
        ({"method": 0.5}, TypeError, r"method must be a Method, such as selective_backprop\(.*\), got 0.5"),
        ({"method": sb.selective_backprop(start=0.5)}, ValueError, "selects in a window of training: pass num_epochs="),
        ({"model": len}, TypeError, "model must be a torch.nn.Module, got builtin_function_or_method"),
        ({"loss_fn": "cross_entropy"}, TypeError, "loss_fn must be callable, got str"),
    ],
)
def test_bad_arguments_of_the_loader(options, error, message):
    with pytest.raises(error, match=message):
        loader_with(**options)


def test_a_loader_that_is_none():
    with pytest.raises(TypeError, match="must be a DataLoader or another iterable of batches, got int"):
        sb.SelectiveLoader(5, make_model(), CRITERION, sb.traditional())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sb.selective_backprop(0), ValueError, r"selectivity must be in \(0, 1\], got 0"),
        (lambda: sb.selective_backprop(0.5, beta=1), ValueError, "give either selectivity or beta"),
        (
            lambda: sb.selective_backprop(scoring="test"),
            ValueError,
            "scoring must be a scorer or one of eval, train, .* got 'test'",
        ),
        (
            lambda: sb.stale_selective_backprop(every=0),
            ValueError,
            "every must be a whole number of epochs >= 1, got 0",
        ),
        (lambda: sb.random_backprop(2), ValueError, r"selectivity must be in \(0, 1\], got 2"),
        (lambda: sb.top_k(-1), ValueError, r"selectivity must be in \(0, 1\], got -1"),
        (lambda: sb.selective_backprop(warm_up=1), TypeError, "warm_up"),
        (
            lambda: sb.Method("mine", sb.scorers.ConstantScorer(), None),
            TypeError,
            "policy must be an object of a subclass of",
        ),
        (
            lambda: sb.Method("mine", None, sb.policies.UniformPolicy(selectivity=1)),
            TypeError,
            "scorer must be an object of a subclass of",
        ),
        (
            lambda: sb.Method(
                "mine", sb.scorers.ConstantScorer(), sb.policies.UniformPolicy(selectivity=1), groups=torch.zeros(9)
            ),
            TypeError,
            "groups need a GroupedPolicy, which selects within each group",
        ),
    ],
)
def test_bad_arguments_of_methods(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_sampler_of_something_else_than_integers():
    train_loader = DataLoader({"a": torch.ones(3), "b": torch.ones(3)}, sampler=["a", "b"], batch_size=2)
    with pytest.raises(
        TypeError, match=r"your sampler must yield integer indices, which serve as ids; got \['a', 'b'\]"
    ):
        list(sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.traditional()))


def test_progress_without_a_length():
    with pytest.raises(ValueError, match="pass num_epochs= to SelectiveLoader"):
        _ = loader_with().progress


def test_loss_before_any_batch_and_of_another_batch():
    model = make_model()
    loader = loader_with(model=model)
    inputs, targets = digits()[:10]
    with pytest.raises(RuntimeError, match="no training step is under way"):
        loader.loss(model(inputs), targets)
    iteration = iter(loader)
    next(iteration)
    with pytest.raises(ValueError, match=r"losses of shape \(10,\) for 16 examples.*call your loss function itself"):
        loader.loss(model(inputs), targets)


def test_an_error_in_the_data_set_comes_through():
    class Broken(TensorDataset):
        def __getitem__(self, index):
            if index == 40:
                raise OSError("cannot read image 40")
            return super().__getitem__(index)

    with pytest.raises(OSError, match="cannot read image 40"):
        list(loader_with(dataset=Broken(*digits().tensors)))


def test_states_that_do_not_fit():
    loader = loader_with()
    next(iter(loader))
    state = loader.state_dict()
    cases = [
        (loader_with(method=sb.top_k(0.5)), state, "saved by the method selective_backprop, but this loader has top_k"),
        (loader_with(batch_size=8), state, "saved with training batches of 16, but this loader's have 8"),
        (loader_with(dataset=digits(100)), state, "saved ledger has 203 examples but the data set has 100"),
        (loader_with(), state | {"version": 99}, "this state has version 99, expected 1"),
        (loader_with(), {}, "this is not the state of a SelectiveLoader, which is a dict with a version: got {}"),
        (
            loader_with(),
            {"version": 1},
            "this state lacks batch_size, checksum, dynamics, epochs, generators, learned_length",
        ),
    ]
    for other, saved, message in cases:
        before = other.stats.state_dict()
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(saved)
        assert other.stats.state_dict() == before, "nothing is half loaded"


def test_a_sampler_that_may_never_end_cannot_be_saved_mid_epoch():
    class Endless:
        def __iter__(self):
            while True:
                yield list(range(16))

    train_loader = DataLoader(digits(), batch_sampler=Endless())
    loader = sb.SelectiveLoader(train_loader, make_model(), CRITERION, sb.selective_backprop(0.5))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match="cannot save in the middle of an epoch: the batch sampler has no length"):
        loader.state_dict()
    assert len(next(iterator)[0]) == 16, "and training goes on"


@pytest.mark.parametrize("make", [sb.selective_backprop, sb.random_backprop, sb.ledger_backprop, sb.traditional])
@pytest.mark.parametrize(("indices", "shown"), [([3, -1, 5], "-1"), ([3, 203, 5], "203"), ([3, 900, -7], "900, -7")])
def test_indices_that_the_data_set_has_not(make, indices, shown):
    train_loader = DataLoader(digits(), 3, sampler=indices)
    loader = sb.SelectiveLoader(train_loader, make_model(), nn.CrossEntropyLoss(), make())
    message = rf"yields the indices {shown}, but the data set had 203 examples when .* Do not use negative indices"
    with pytest.raises(ValueError, match=message):
        list(loader)


@pytest.mark.parametrize("make", [sb.selective_backprop, sb.ledger_backprop])
def test_a_data_set_that_grew(make):
    data = list(digits(100))
    loader = sb.SelectiveLoader(DataLoader(data, 16), make_model(), nn.CrossEntropyLoss(), make())
    model = loader.model
    for inputs, targets in loader:
        loader.loss(model(inputs), targets)
    data += list(digits(103))[100:]
    with pytest.raises(ValueError, match=r"100, 101, 102, but the data set had 100 .* when the data set has grown"):
        list(loader)


def dropping(at):
    calls = []

    def collate(samples):
        calls.append(samples)
        return torch.utils.data.default_collate(samples[1:] if len(calls) == at else samples)

    return collate


@every_method
@pytest.mark.parametrize("at", [1, 3])
def test_a_collate_function_that_drops_an_example(make, at):
    loader = make_loader(make(0.5), num_epochs=3, loader_options={"collate_fn": dropping(at)})
    message = r"a batch has \d+ examples where the sampler asked for \d+: .* Leave examples out in the sampler"
    with pytest.raises(ValueError, match=message):
        for inputs, targets in loader:
            loader.loss(loader.model(inputs), targets)


def test_a_collate_function_that_drops_an_example_of_a_list():
    def collate(samples):
        return [image for image, _ in samples[1:]], [int(label) for _, label in samples[1:]]

    loader = make_loader(sb.selective_backprop(0.5), loader_options={"collate_fn": collate})
    with pytest.raises(ValueError, match="a batch has 15 examples where the sampler asked for 16"):
        list(loader)
