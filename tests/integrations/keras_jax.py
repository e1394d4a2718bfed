"""What the tests of Keras ask of JAX, in a process of its own: Keras has one backend per process."""

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
# Most of the time is that of compiling, and no program is large.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

import jax
import keras

from selective_backprop.integrations.keras import SelectionCallback, SelectiveDataset
from tests.integrations.keras_run import (
    METHODS,
    Watch,
    arrays,
    check_same_as_torch,
    fit,
    make_model,
    same_state,
    state_of,
)

DATA = arrays(208)  # in full batches: every shape has to be compiled


def check_selectivity_1():
    plain = make_model()
    plain.fit(*DATA, batch_size=16, epochs=2, shuffle=False, verbose=0)
    model, dataset, watch = fit("everything", data=DATA, epochs=2, shuffle=False)
    assert same_state(model, plain)
    assert dataset.loader.stats.scored == 416 and len(watch.ids) == 26


def check_recorded_losses_leave_no_trace():
    plain = make_model()
    history = plain.fit(*DATA, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    model, dataset, _ = fit("ledger_everything", data=DATA, epochs=2, shuffle=False)
    assert same_state(model, plain)
    assert {name: model.history.history[name] for name in history} == history
    assert not dataset.loader.ledger.loss.isnan().any()


def check_resume(folder, method, *, ahead):
    name = str(folder / "{epoch}-{batch}.weights.h5")
    # By training losses, more steps are taken.
    checkpoint = keras.callbacks.ModelCheckpoint(name, save_freq=3 if method == "sb" else 8, save_weights_only=True)
    model, dataset, watch = fit(method, data=DATA, callbacks=[checkpoint])
    assert watch.gave_full_batches()
    stats = dataset.loader.stats
    assert stats.offered == 624 and max(watch.ahead) == ahead
    if method == "sb":
        assert stats.scored == 624
        assert abs(stats.selectivity - 0.4) < 0.08  # 4 standard deviations
        assert ahead or max(watch.queued) < 24
    paths = sorted(folder.iterdir())
    assert len(paths) >= 4
    for path in paths[1:2]:  # on torch all of them are tested
        resumed = make_model()
        dataset = SelectiveDataset(resumed, *DATA, method=METHODS[method], batch_size=16, num_epochs=3)
        resumed.optimizer.build(resumed.trainable_variables)
        resumed.load_weights(path)
        try:
            ids = go_on(resumed, dataset)
        except RuntimeError as error:
            assert "epochs of the run are over" in str(error), "after the last step of all"
            ids = []
        assert same_state(resumed, model), path
        assert ids == watch.ids[len(watch.ids) - len(ids) :]


def go_on(model, dataset):
    watch = Watch(dataset)
    options = {"epochs": 3, "initial_epoch": dataset.epoch, "verbose": 0}
    model.fit(dataset, shuffle=False, callbacks=[SelectionCallback(dataset), watch], **options)
    return watch.ids


def check_no_trace():
    model = make_model()
    dataset = SelectiveDataset(model, *arrays(40), method=METHODS["sb"], batch_size=16, num_epochs=1)
    before = state_of(model)
    SelectionCallback(dataset).on_epoch_begin(0)
    assert dataset.loader.stats.scored == 40  # the last 8 of them in a smaller batch
    assert same_state(before, model)


def check_refused():
    model = make_model(steps_per_execution=2)
    dataset = SelectiveDataset(model, *DATA, method=METHODS["sb"], batch_size=16, num_epochs=1)
    try:
        model.fit(dataset, shuffle=False, callbacks=[SelectionCallback(dataset)], verbose=0)
    except ValueError as error:
        assert "steps_per_execution=2" in str(error)
    else:
        raise AssertionError("two steps at once were not refused")


def main():
    folder = Path(sys.argv[1])
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    check_selectivity_1()
    check_no_trace()
    check_refused()
    check_recorded_losses_leave_no_trace()
    for ahead, method in ((0, "sb"), (1, "infobatch")):
        (folder / f"{method}{ahead}").mkdir()
        check_resume(folder / f"{method}{ahead}", method, ahead=ahead)
        # Keras asks this to decide on loading a batch ahead, as it does on a GPU.
        jax.default_backend = lambda: "gpu"
    check_same_as_torch("ledger")


if __name__ == "__main__":
    main()
