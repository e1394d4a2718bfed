"""Keras' own fit on real digits: equal to it without selection, exact after a kill, with the weights of now."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("keras", reason="needs the extra keras")

import keras

import selective_backprop as sb
from selective_backprop.integrations.keras import SelectionCallback, SelectiveDataset
from tests.integrations.keras_run import METHODS, Replay, arrays, fit, make_model, same_state, state_of
from tests.test_processes import ENVIRONMENT, ROOT

# Keras' own, when it turns torch tensors into arrays.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
SCRIPT = Path(__file__).parent / "keras_run.py"


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
    assert [len(ids) for ids in watch.ids[:-1]] == [16] * (len(watch.ids) - 1)
    assert len(watch.ids) == stats.batches == int(model.optimizer.iterations)
    assert stats.offered == stats.scored == 6 * 203 and stats.queued == 0
    assert abs(stats.selectivity - 0.4) < 0.06  # 4 standard deviations of 1218 draws
    assert set(watch.ahead) == {0}  # no batch was selected before the step of the one before it
    assert max(watch.queued) < 16  # nor more candidates scored than it took to fill it
    hardest = dataset.loader.ledger.selected.double().topk(60).indices
    assert dataset.loader.ledger.scores[hardest, 0].mean() > dataset.loader.ledger.score.mean()


@pytest.mark.parametrize("method", ["unbiased", "sb"])
def test_batches_and_weights_are_what_keras_trains_on(method):
    model, _, watch = fit(method, model=make_model(1))
    weighted = method == "unbiased"
    assert weighted == any((weights != 1).any() for weights in watch.weights)
    expected, _ = plain(Replay(watch.ids, watch.weights if weighted else None), epochs=1, dropout_seed=1)
    assert same_state(model, expected)


@pytest.mark.parametrize("method", ["stale", "random"])
def test_what_known_scores_reject_is_never_loaded(method):
    class Watched:
        def __init__(self, array):
            self.array, self.loaded = array, []

        def __getitem__(self, indices):
            self.loaded += indices
            return self.array[indices]

    model = make_model()
    dataset = SelectiveDataset(model, *arrays(), method=METHODS[method], batch_size=16, num_epochs=2)
    rows = dataset.loader._source.user_loader.dataset
    rows._arrays = (watched := Watched(rows._arrays[0]), rows._arrays[1])
    trained = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: trained.extend(dataset.batch.ids.tolist())
    )
    model.fit(dataset, epochs=2, callbacks=[note, SelectionCallback(dataset)], verbose=0)
    stats = dataset.loader.stats
    assert stats.offered == 406 and stats.scored == (203 if method == "stale" else 0)
    assert len(watched.loaded) == 406 - stats.skipped_before_loading
    if method == "stale":
        assert sorted(watched.loaded[:203]) == list(range(203))  # the first epoch scores them all
        assert watched.loaded[203:] == trained[-len(watched.loaded) + 203 :] and 40 < len(watched.loaded) - 203 < 122
    else:
        assert watched.loaded == trained and 0.3 < len(trained) / 406 < 0.5  # 4 standard deviations


def test_a_pydataset_in_batches_of_another_size():
    batches = np.split(np.arange(192), 4)
    _, dataset, watch = fit("everything", data=(Replay(batches),), epochs=2)
    assert watch.ids == [None] * 24 and dataset.loader.stats.trained == 384
    _, dataset, watch = fit(sb.kath18(3, variable_start=False), candidate_batch_size=48)
    assert [len(ids) for ids in watch.ids[:-1]] == [16] * (len(watch.ids) - 1) and len(watch.ids) == 13


def test_scoring_leaves_no_trace():
    model = make_model()
    x, y = arrays()
    model.fit(x, y, batch_size=16, verbose=0)
    dataset = SelectiveDataset(model, x, y, method=METHODS["sb"], batch_size=16, num_epochs=1)
    before, metrics = state_of(model), {name: float(value) for name, value in model.get_metrics_result().items()}
    flags = [module.training for module in model.modules()]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert dataset.has_batch_for(0) and dataset.loader.stats.scored >= 32
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
    ("save_freq", "name", "method"), [(3, "{epoch}-{batch}.weights.h5", "sb"), ("epoch", "{epoch}.keras", "stale")]
)
def test_any_checkpoint_of_keras_resumes_exactly(save_freq, name, method, tmp_path):
    # Before and after the callback of the selection: its place in the list does not matter.
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(tmp_path / name), save_freq=save_freq, save_weights_only=name.endswith("h5")
    )
    undisturbed, _, watch = fit(method, epochs=4, callbacks=[checkpoint])
    paths = sorted(tmp_path.iterdir())
    assert len(paths) >= 4
    for path in paths:
        model = make_model()
        dataset = SelectiveDataset(model, *arrays(), method=METHODS[method], batch_size=16, num_epochs=4)
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
        ids = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, d=dataset, i=ids: i.append(d.batch.ids)
        )
        options = {"epochs": 4, "initial_epoch": dataset.epoch, "verbose": 0}
        model.fit(dataset, callbacks=[SelectionCallback(dataset), note], **options)
        assert same_state(model, undisturbed), path
        assert [batch.tolist() for batch in ids] == watch.ids[len(watch.ids) - len(ids) :]
    if name.endswith("keras"):
        assert keras.models.load_model(paths[-1]).predict(arrays(2)[0], verbose=0).shape == (2, 10)


def run(folder, *options, backend="torch"):
    folder.mkdir(exist_ok=True)
    environment = ENVIRONMENT | {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(SCRIPT), str(folder), *options], cwd=ROOT, env=environment).returncode


def result(folder):
    with np.load(folder / "result.npz") as file:
        return [file[name] for name in file.files]


def test_killed_for_real_and_resumed_by_backup_and_restore(tmp_path):
    undisturbed, *_ = fit("sb", epochs=4)
    for die_at in (3, 7):  # of each process
        assert run(tmp_path, "--die-at", str(die_at)) == -signal.SIGKILL
    assert run(tmp_path) == 0
    assert same_state(result(tmp_path), undisturbed)
