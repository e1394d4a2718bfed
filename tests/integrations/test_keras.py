"""Keras' own fit on real digits: equal to it without selection, exact after a kill, with the weights of now."""

import importlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("keras", reason="needs the extra keras")

import keras

import selective_backprop as sb
from selective_backprop.integrations.keras import SelectionCallback, SelectiveDataset
from selective_backprop.integrations.keras.scoring import PerExampleLosses
from tests.helpers import by_class
from tests.integrations.keras_run import (
    METHODS,
    Replay,
    Watch,
    arrays,
    check_same_as_torch,
    fit,
    make_model,
    same_state,
    small_model,
    state_of,
)
from tests.lab.command_line import run_script

# Keras' own, when it turns torch tensors into arrays.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def plain(*data, epochs=3, dropout_seed=None, **options):
    model = make_model(dropout_seed)
    history = model.fit(*data, epochs=epochs, shuffle=False, verbose=0, **options)
    return model, history.history


def test_selectivity_1_is_keras_own_run_to_the_bit():
    validation = {"validation_data": arrays(40), "validation_batch_size": 32}
    expected, history = plain(*arrays(), batch_size=16, **validation)
    model, dataset, watch = fit("everything", shuffle=False, fit_options=validation)
    assert same_state(model, expected)
    assert {name: model.history.history[name] for name in history} == history
    assert dataset.loader.stats.trained == dataset.loader.stats.scored == 3 * 203
    assert len(watch.ids) == 3 * 13 and [len(ids) for ids in watch.ids[:13]] == [16] * 12 + [11]


def test_on_stats_tells_what_every_epoch_did():
    told = []
    x, y = arrays(64)
    dataset = SelectiveDataset(
        model := small_model(), x, y, method=sb.ledger_backprop(), num_epochs=3, batch_size=8, on_stats=told.append
    )
    model.fit(dataset, shuffle=False, epochs=3, callbacks=[SelectionCallback(dataset)], verbose=0)
    assert [numbers["epoch"] for numbers in told] == [1, 2, 3]
    assert sum(numbers["trained"] for numbers in told) == dataset.loader.stats.trained


def test_shuffled_runs_are_keras_own_on_the_same_order_to_the_bit():
    model, _, watch = fit("everything", model=make_model(1))
    epochs = [[id_ for ids in watch.ids[i : i + 13] for id_ in ids] for i in (0, 13, 26)]
    assert all(sorted(ids) == list(range(203)) for ids in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert watch.ids == fit("everything")[2].ids != fit("everything", seed=1, epochs=1)[2].ids
    expected, _ = plain(Replay(watch.ids), epochs=1, dropout_seed=1)
    assert same_state(model, expected)


def test_a_pydataset_is_keras_own_run_to_the_bit():
    batches = np.split(np.arange(203), range(16, 203, 16))
    expected, _ = plain(Replay(batches))
    model, dataset, _ = fit("everything", data=(Replay(batches),), shuffle=False, batch_size=None)
    assert same_state(model, expected)
    assert dataset.loader.stats.trained == 3 * 203 and not len(dataset.loader.ledger)


def test_sb_trains_on_full_batches_selected_by_the_weights_of_now():
    model, dataset, watch = fit("sb", epochs=6)
    stats = dataset.loader.stats
    assert watch.gave_full_batches()
    assert len(watch.ids) == stats.batches == int(model.optimizer.iterations)
    assert stats.offered == stats.scored == 6 * 203 and stats.queued == stats.dropped == 0
    assert abs(stats.selectivity - 0.4) < 0.06  # 4 standard deviations of 1218 draws
    assert set(watch.ahead) == {0}  # no batch was selected before the step of the one before it
    assert max(watch.queued) < 24  # nor more candidates scored than it took to fill it and half of the next one
    hardest = dataset.loader.ledger.selected.double().topk(60).indices
    assert dataset.loader.ledger.score[hardest].mean() > dataset.loader.ledger.score.mean()


@pytest.mark.parametrize("method", ["unbiased", "sb"])
def test_batches_and_weights_are_what_keras_trains_on(method):
    model, _, watch = fit(method, model=make_model(1))
    weighted = method == "unbiased"
    assert weighted == any((weights != 1).any() for weights in watch.weights)
    expected, _ = plain(Replay(watch.ids, watch.weights if weighted else None), epochs=1, dropout_seed=1)
    assert same_state(model, expected)


def test_scoring_leaves_no_trace():
    model = make_model()
    x, y = arrays()
    model.fit(x, y, batch_size=16, verbose=0)
    dataset = SelectiveDataset(model, x, y, method=METHODS["sb"], batch_size=16, num_epochs=1)
    before, metrics = state_of(model), {name: float(value) for name, value in model.get_metrics_result().items()}
    flags = [module.training for module in model.modules()]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    SelectionCallback(dataset).on_epoch_begin(0)
    assert dataset.loader.stats.scored >= 32
    assert same_state(before, model)
    assert metrics == {name: float(value) for name, value in model.get_metrics_result().items()}
    assert flags == [module.training for module in model.modules()]
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_what_is_logged_and_the_learning_rate_by_progress():
    model, dataset, watch = fit("everything", learning_rate=lambda progress: 0.1 * (1 - progress), shuffle=False)
    assert watch.rates == pytest.approx([0.1 * (1 - step / 39) for step in range(39)])
    model, dataset, watch = fit("sb", learning_rate=lambda progress: 0.1 * (1 - progress))
    assert watch.rates == sorted(watch.rates, reverse=True) and watch.rates[0] == pytest.approx(0.1)
    assert watch.rates[-1] < 0.015
    history = model.history.history
    assert sum(history["selection/trained"]) == dataset.loader.stats.trained
    assert all(0.15 < share < 0.65 for share in history["selection/selectivity"])
    for phase, seconds in dataset.loader.stats.seconds.items():
        assert sum(history[f"selection/seconds_{phase}"]) == pytest.approx(seconds) and seconds > 0


# ---- saving


@pytest.mark.parametrize(
    ("save_freq", "name", "method"),
    [
        (6, "{epoch}-{batch}.weights.h5", "sb"),
        ("epoch", "{epoch}.keras", "stale"),
        (9, "{epoch}-{batch}.weights.h5", "infobatch"),  # in mid-epoch of one that skips nothing
    ],
)
def test_any_checkpoint_of_keras_resumes_exactly(save_freq, name, method, tmp_path):
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(tmp_path / name), save_freq=save_freq, save_weights_only=name.endswith("h5")
    )
    seed = 1 if method == "stale" else None  # dropout from a state of its own, or from the global one
    undisturbed, _, watch = fit(method, epochs=4, callbacks=[checkpoint], model=make_model(seed))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) >= 3
    for path in paths:
        model = make_model(seed)
        dataset = SelectiveDataset(model, *arrays(), method=METHODS[method], batch_size=16, num_epochs=4)
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
        ids = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, d=dataset, i=ids: i.append(d.batch.ids)
        )
        options = {"epochs": 4, "initial_epoch": dataset.epoch, "verbose": 0}
        model.fit(dataset, shuffle=False, callbacks=[SelectionCallback(dataset), note], **options)
        assert same_state(model, undisturbed), path
        assert [batch.tolist() for batch in ids] == watch.ids[len(watch.ids) - len(ids) :]
    if name.endswith("keras"):
        assert keras.models.load_model(paths[-1]).predict(arrays(2)[0], verbose=0).shape == (2, 10)


def test_5_a_pydataset_resumes_exactly(tmp_path):
    def data():
        return Replay(np.split(np.arange(203), range(16, 203, 16)))

    path = tmp_path / "{epoch}-{batch}.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(str(path), save_freq=4, save_weights_only=True)
    undisturbed, *_ = fit("sb", epochs=2, data=(data(),), batch_size=None, callbacks=[checkpoint])
    model = make_model()
    dataset = SelectiveDataset(model, data(), method=METHODS["sb"], num_epochs=2)
    model.optimizer.build(model.trainable_variables)
    model.load_weights(tmp_path / "1-4.weights.h5")
    assert dataset.epoch == 0
    model.fit(dataset, shuffle=False, epochs=2, callbacks=[SelectionCallback(dataset)], verbose=0)
    assert same_state(model, undisturbed)


def test_jax(tmp_path):
    pytest.importorskip("jax", reason="needs JAX")
    done = run_script(Path(__file__).parent / "keras_jax.py", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def test_fit_again_after_a_stop_goes_on_where_it_was():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = int(self.model.optimizer.iterations) in (1, 4)

    undisturbed, _, expected = fit("sb", model=make_model(1))
    model = make_model(1)
    dataset = SelectiveDataset(model, *arrays(), method=METHODS["sb"], batch_size=16, num_epochs=3)
    watch = Watch(dataset)
    for _ in range(3):
        options = {"epochs": 3, "initial_epoch": dataset.epoch, "verbose": 0}
        model.fit(dataset, shuffle=False, callbacks=[watch, Stop(), SelectionCallback(dataset)], **options)
    assert watch.ids == expected.ids
    assert same_state(model, undisturbed)


@pytest.mark.parametrize("kind", ["arrays", "PyDataset"])
def test_drop_last_leaves_one_shape(kind):
    data = arrays() if kind == "arrays" else (Replay(np.split(np.arange(203), range(16, 203, 16))),)
    _, dataset, watch = fit("sb", data=data, drop_last=True)
    stats = dataset.loader.stats
    assert {size for sizes in watch.sizes for size in sizes} == {16}
    assert stats.dropped > 0 and stats.trained == 16 * stats.batches
    assert stats.offered == 3 * (192 if kind == "arrays" else 203)  # torch's DataLoader leaves out 11 rows


class NowAndThen(sb.types.Policy):
    """Selects everything in some epochs of two candidate batches, and nothing in others."""

    selectivity = 0.5

    def __init__(self, *epochs):
        self.epochs, self.calls = epochs, 0

    def select(self, scores, generator):
        kept = torch.arange(len(scores) if self.calls // 2 in self.epochs else 0)
        self.calls += 1
        return sb.types.Selection(kept, torch.ones(len(kept)), torch.ones(len(scores), dtype=torch.float64))


def test_an_epoch_in_which_nothing_is_selected_goes_together_with_the_next():
    def fit_with(*epochs):
        method = sb.Method("now and then", sb.scorers.ForwardScorer(), NowAndThen(*epochs))
        return fit(method, data=arrays(20), epochs=4)

    _, dataset, watch = fit_with(1, 3)
    assert dataset.loader.stats.offered == 80 and dataset.epoch == 4
    assert [sum(sizes) for sizes in watch.sizes] == [20, 20]
    with pytest.raises(RuntimeError, match="nothing was selected in the whole run"):
        fit_with()


# ---- training losses


@pytest.mark.parametrize("method", ["ledger", "infobatch"])
def test_training_losses_select_what_they_select_in_torch(method):
    check_same_as_torch(method)


def noisy_loss(y_true, y_pred):
    """Draws from torch's global random state, as dropout does, and returns one loss per example."""
    noise = keras.random.uniform(keras.ops.shape(y_pred), seed=keras.random.SeedGenerator(int(torch.randint(99, ()))))
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred + noise, from_logits=True)


@pytest.mark.parametrize("loss", [None, noisy_loss])
def test_recording_losses_leaves_no_trace(loss):
    def model():
        made = make_model()
        if loss is not None:
            made.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
        return made

    expected = model()
    history = expected.fit(*arrays(), batch_size=16, epochs=2, shuffle=False, verbose=0).history
    recorded, dataset, _ = fit("ledger_everything", model=model(), epochs=2, shuffle=False)
    assert same_state(recorded, expected)
    assert {name: recorded.history.history[name] for name in history} == history
    assert not dataset.loader.ledger.loss.isnan().any()
    assert sorted(recorded.evaluate(*arrays(40), return_dict=True, verbose=0)) == ["accuracy", "loss"]


class OwnStep(keras.Sequential):
    """As Keras' guide to custom training steps has it."""

    def train_step(self, data):
        x, y, *weights = data
        y_pred = self(x, training=True)
        loss = self.own_loss(y, y_pred, *weights)
        self.zero_grad()
        loss.backward()
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in self.trainable_weights], self.trainable_weights)
        return {"loss": loss}

    def own_loss(self, y, y_pred, sample_weight=None):
        return self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)


class OwnComputeLoss(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight, training)


@pytest.mark.parametrize("kind", [OwnStep, OwnComputeLoss])
def test_models_with_steps_and_losses_of_their_own(kind):
    assert fit("infobatch", model=small_model(kind))[2].ids == fit("infobatch", model=small_model())[2].ids


def test_models_that_keep_losses_to_themselves_are_refused():
    class WithoutTraining(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return super().compute_loss(x, y, y_pred, sample_weight)

    class OwnMetrics(keras.Sequential):
        @property
        def metrics(self):
            return []

    with pytest.raises(RuntimeError, match=r"self\.compute_loss"):
        fit("ledger", model=small_model(WithoutComputeLoss))
    with pytest.raises(TypeError, match="give it the argument training=True"):
        fit("ledger", model=small_model(WithoutTraining))
    model = small_model(OwnMetrics)
    with pytest.raises(TypeError, match=r"\[\*super\(\)\.metrics"):
        fit("ledger", model=model)
    assert "compute_loss" not in vars(model)
    fit("sb", model=model, epochs=1)  # which needs no training losses


class WithoutWeights(OwnStep):
    def own_loss(self, y, y_pred, sample_weight=None):
        return self.compute_loss(y=y, y_pred=y_pred)


class WithoutComputeLoss(OwnStep):
    def own_loss(self, y, y_pred, sample_weight=None):
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True))


@pytest.mark.parametrize("kind", [WithoutWeights, WithoutComputeLoss])
@pytest.mark.parametrize("method", ["infobatch", "unbiased"])
def test_steps_that_leave_out_the_weights_of_the_method_are_refused_at_the_first_one(kind, method):
    steps = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    with pytest.raises(RuntimeError, match="train_step"):
        fit(method, model=small_model(kind), callbacks=[note])
    assert len(steps) <= 1
    fit("sb", model=small_model(kind), epochs=1)  # which gives none


class LossWithoutWeights(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True))


@pytest.mark.parametrize("method", ["infobatch", "unbiased"])
def test_a_compute_loss_that_leaves_out_the_weights_is_refused(method):
    with pytest.raises(TypeError, match="sample_weight"):
        fit(method, model=small_model(LossWithoutWeights))
    fit("ledger", model=small_model(LossWithoutWeights), epochs=1)  # which gives none


# ---- weights


def test_own_sample_weights_and_those_of_the_method_are_multiplied():
    own = np.linspace(0.5, 2, 203, dtype=np.float32)
    model, dataset, watch = fit("infobatch", model=small_model(), data=(*arrays(), own), epochs=2)
    assert any((weights > 1).any() for weights in watch.weights)
    products = [weights * own[ids] for ids, weights in zip(watch.ids, watch.weights, strict=True)]
    expected = small_model()
    expected.fit(Replay(watch.ids, products), shuffle=False, verbose=0)
    assert same_state(model, expected)
    # A learning rate of 0 keeps the model as it is, so that its losses can be computed afterwards.
    still = small_model(optimizer=keras.optimizers.SGD(0.0))
    _, dataset, watch = fit("infobatch", model=still, data=(*arrays(), own), epochs=2)
    assert any((weights > 1).any() for weights in watch.weights)
    np.testing.assert_allclose(dataset.loader.ledger.loss, losses_of(still, *arrays(), own), rtol=1e-6)


def test_weights_of_classes_are_keras_own_to_the_bit_and_count_in_scores():
    """As the guide says: by sample_weight. Keras' class_weight is the same training."""
    x, y = arrays()
    weights = np.array([3.0, *[1.0] * 3, 0.25, *[1.0] * 5], dtype=np.float32)
    expected, history = plain(x, y, batch_size=16, class_weight=dict(enumerate(weights.tolist())))
    model, *_ = fit("everything", data=(x, y, weights[y]), shuffle=False, batch_size=16)
    assert same_state(model, expected)
    assert model.history.history["loss"] == history["loss"]
    only_threes = (100.0 * (y == 3)).astype(np.float32)
    _, _, watch = fit(sb.top_k(0.25), data=(x, y, only_threes), candidate_batch_size=64, epochs=1)
    trained = [y[id_] for ids in watch.ids for id_ in ids]
    assert np.mean(np.equal(trained, 3)) > 2 * np.mean(y == 3)


def test_class_weight_of_fit_is_refused_by_keras():
    with pytest.raises(ValueError, match="`class_weight` is not supported for torch DataLoader"):
        fit("sb", epochs=1, fit_options={"class_weight": {3: 2.0}})


# ---- scores


def losses_of(model, *batch, loss_fn=None):
    return PerExampleLosses(model, loss_fn)(batch).numpy()


def test_scores_are_the_losses_of_keras():
    model, (x, y) = make_model(), arrays(8)
    logits = torch.tensor(model.predict(x, verbose=0))
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(y), reduction="none").numpy()
    weights = np.linspace(0, 2, 8, dtype=np.float32)
    assert losses_of(model, x, y) == pytest.approx(expected, abs=1e-5)
    assert losses_of(model, x, y, weights) == pytest.approx(expected * weights, abs=1e-5)
    targets = np.eye(10, dtype=np.float32)[y]
    squares = ((logits.numpy() - targets) ** 2).mean(1)
    by_hand = lambda y_true, y_pred: keras.ops.square(y_true - y_pred)  # noqa: E731, several losses of each example
    for loss_fn in ("mse", keras.losses.MeanSquaredError(reduction="sum"), keras.losses.mean_squared_error, by_hand):
        assert losses_of(model, x, targets, loss_fn=loss_fn) == pytest.approx(squares, abs=1e-5)


# ---- what cannot work


class Inputs(keras.utils.PyDataset):
    def __init__(self, batch=None, count=3, **options):
        super().__init__(**options)
        self.batch, self.count = batch, count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return self.batch


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("sb", "method must be a Method"),
        (sb.selective_backprop(0.5, scoring="train"), "scoring='eval' only"),
        (sb.stale_selective_backprop(0.5, scoring="train"), "scoring='eval' only"),
        (sb.selective_backprop(0.5, scoring="pipelined"), "PipelinedScorer runs torch modules"),
        (
            sb.selective_backprop(0.5, scoring=sb.scorers.proxy(torch.nn.Linear(64, 10))),
            "ProxyScorer runs torch modules",
        ),
        (sb.methods.distance_backprop(), "the loss for a score only"),
        (sb.methods.composer_backprop(scale_factor=0.5), "scoring='eval' only"),
    ],
)
def test_methods_that_cannot_work_are_refused(method, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SelectiveDataset(make_model(), *arrays(), method=method, num_epochs=1)


@pytest.mark.parametrize(
    "method",
    [
        sb.traditional(),
        sb.methods.predicted_selective_backprop(0.4),
        sb.methods.expected_selective_backprop(0.5),
        sb.methods.composer_backprop(),
        sb.top_k(0.4),
        sb.repeated_random(0.4),
        by_class(sb.selective_backprop(0.4), torch.arange(203) % 2),
        sb.diet(method=sb.selective_backprop(0.4), scores=torch.arange(203.0), prune=0.5),
    ],
    ids=lambda method: method.name,
)
def test_methods_that_work(method):
    model, dataset, watch = fit(method)
    assert len(watch.ids) == dataset.loader.stats.batches > 0
    assert all(np.isfinite(weights).all() for weights in model.get_weights())
    assert dataset.loader.stats.offered == 3 * (101 if method.keep is not None else 203)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((arrays()[0],), {}, "needs y="),
        ((arrays()[0], arrays(100)[1]), {}, r"one row per example, got shapes \(\(203, 64\), \(100,\)\)"),
        ((arrays()[0][:0], arrays()[1][:0]), {}, "x is empty"),
        ((np.array(["a", "b"]), np.arange(2)), {}, "cannot select from an array of <U1"),
        (arrays(), {"num_epochs": 0}, "num_epochs must be at least 1"),
        (arrays(), {"batch_size": 0}, "batch_size"),
        (arrays(), {"method": sb.methods.composer_backprop(), "num_epochs": None}, "pass num_epochs="),
        (arrays(), {"loss_fn": {"a": "mse"}}, "no single loss can be told"),
        ((Inputs(arrays(8)), arrays()[1]), {}, "leave them out"),
        ((Inputs(arrays(8)),), {"method": METHODS["stale"]}, "a PyDataset gives none"),
        ((Inputs(arrays(8)),), {"candidate_batch_size": 8}, "leave out candidate_batch_size"),
        ((Inputs(arrays(8), workers=2),), {}, "workers=1 and use_multiprocessing=False, got 2"),
        ((Inputs(arrays(8), count=None),), {}, "needs a number of batches"),
        ((Inputs({"x": 1}),), {}, r"have to be \(x, y\) or"),
    ],
)
def test_data_that_cannot_work_is_refused(data, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SelectiveDataset(make_model(), *data, **({"method": METHODS["sb"], "num_epochs": 1} | options))


def test_models_and_fits_that_cannot_work_are_refused():
    def dataset_for(model, **options):
        return SelectiveDataset(model, *arrays(), method=METHODS["sb"], **({"num_epochs": 1} | options))

    with pytest.raises(TypeError, match=r"must be a keras\.Model"):
        dataset_for(torch.nn.Linear(64, 10))
    with pytest.raises(ValueError, match="the model has no weights yet"):
        dataset_for(keras.Sequential([keras.layers.Dense(10)]))
    with pytest.raises(ValueError, match="compiled loss"):
        dataset_for(keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)]))
    model = make_model()
    dataset = dataset_for(model)
    callbacks = [SelectionCallback(dataset)]
    with pytest.raises(ValueError, match="made for another model"):
        make_model().fit(dataset, shuffle=False, callbacks=callbacks, verbose=0)
    with pytest.raises(ValueError, match="leave out steps_per_epoch=4"):
        model.fit(dataset, shuffle=False, steps_per_epoch=4, callbacks=callbacks, verbose=0)
    with pytest.raises(ValueError, match="num_epochs=1"):
        model.fit(dataset, shuffle=False, epochs=2, callbacks=callbacks, verbose=0)
    dataset_for(model)
    with pytest.raises(ValueError, match="another SelectiveDataset"):
        model.fit(dataset, shuffle=False, callbacks=callbacks, verbose=0)
    with pytest.raises(ValueError, match="mean_with_sample_weight"):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
        fit("infobatch", model=small_model(loss=loss))
    with pytest.raises(RuntimeError, match="steps_per_execution above 1"):
        fit("sb", model=small_model(steps_per_execution=2))


def test_a_state_of_another_run_is_refused():
    state = fit("sb", epochs=1)[1].state_dict()
    other = SelectiveDataset(make_model(), *arrays(), method=METHODS["stale"], batch_size=16, num_epochs=1)
    with pytest.raises(ValueError, match="selective_backprop"):
        other.load_state_dict(state)


@pytest.mark.parametrize("loaded", [False, True])
def test_the_data_set_is_for_fit_alone(loaded):
    state = fit("sb", epochs=1)[1].state_dict()
    model = make_model()
    dataset = SelectiveDataset(model, *arrays(), method=METHODS["sb"], batch_size=16, num_epochs=2)
    if loaded:
        dataset.load_state_dict(state)
    offered, callbacks = dataset.loader.stats.offered, [SelectionCallback(dataset)]
    for act in (
        lambda: model.evaluate(dataset, verbose=0),
        lambda: model.predict(dataset, verbose=0),
        lambda: list(dataset),
        lambda: model.fit(dataset, shuffle=False, epochs=2, initial_epoch=1, verbose=0),
    ):
        with pytest.raises(RuntimeError, match="your own data"):
            act()
    assert dataset.loader.stats.offered == offered, "they cost nothing"
    with pytest.raises(RuntimeError, match="your own data"):
        model.fit(
            dataset, shuffle=False, validation_data=dataset, epochs=2, initial_epoch=1, callbacks=callbacks, verbose=0
        )
    assert dataset.loader.stats.offered == offered + 203


def test_a_second_fit_goes_on_until_the_run_is_over():
    model, dataset, watch = fit("sb", num_epochs=4, epochs=2)
    callbacks = [SelectionCallback(dataset), watch]
    history = model.fit(dataset, shuffle=False, epochs=2, callbacks=callbacks, verbose=0)
    assert len(history.epoch) == 2 and len(watch.sizes) == dataset.epoch == 4
    assert dataset.loader.stats.offered == 4 * 203
    with pytest.raises(RuntimeError, match="num_epochs"):
        model.fit(dataset, shuffle=False, callbacks=callbacks, verbose=0)


def test_other_callbacks_can_end_the_run_wherever_they_are():
    for place in (0, 1):
        model = make_model()
        dataset = SelectiveDataset(model, *arrays(), method=METHODS["sb"], batch_size=16, num_epochs=4)
        callbacks = [SelectionCallback(dataset)]
        callbacks.insert(place, keras.callbacks.EarlyStopping("loss", mode="max", patience=0, start_from_epoch=1))
        history = model.fit(dataset, shuffle=False, epochs=4, callbacks=callbacks, verbose=0)
        assert len(history.epoch) == dataset.epoch == 3


def test_a_missing_extra_names_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.delitem(sys.modules, SelectiveDataset.__module__)
    with pytest.raises(ImportError, match=r"pip install 'selective-backprop\[keras\]'"):
        importlib.import_module(SelectiveDataset.__module__)
