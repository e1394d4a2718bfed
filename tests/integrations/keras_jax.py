"""What the tests of Keras ask of JAX, in a process of its own: Keras has one backend per process."""

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras

from selective_backprop.integrations.keras import SelectionCallback, SelectiveDataset
from tests.integrations.keras_run import METHODS, Watch, arrays, fit, make_model, same_state, state_of

DATA = arrays(208)  # in full batches: every shape has to be compiled


def check_selectivity_1():
    plain = make_model()
    plain.fit(*DATA, batch_size=16, epochs=2, shuffle=False, verbose=0)
    model, dataset, watch = fit("everything", data=DATA, epochs=2, shuffle=False)
    assert same_state(model, plain)
    assert dataset.loader.stats.scored == 416 and len(watch.ids) == 26


def check_sb_and_resume(folder, *, ahead):
    name = str(folder / "{epoch}-{batch}.weights.h5")
    checkpoint = keras.callbacks.ModelCheckpoint(name, save_freq=3, save_weights_only=True)
    model, dataset, watch = fit("sb", data=DATA, callbacks=[checkpoint])
    assert [len(ids) for ids in watch.ids[:-1]] == [16] * (len(watch.ids) - 1)
    stats = dataset.loader.stats
    assert stats.offered == stats.scored + stats.skipped_before_loading == 624
    assert abs(dataset.loader.stats.selectivity - 0.4) < 0.08  # 4 standard deviations
    assert max(watch.ahead) == ahead and (ahead or max(watch.queued) < 16)
    paths = sorted(folder.iterdir())
    assert len(paths) >= 4
    for path in paths:
        resumed = make_model()
        dataset = SelectiveDataset(resumed, *DATA, method=METHODS["sb"], batch_size=16, num_epochs=3)
        resumed.optimizer.build(resumed.trainable_variables)
        resumed.load_weights(path)
        try:
            ids = go_on(resumed, dataset)
        except RuntimeError as error:
            assert "the run was over when this state was saved" in str(error), "after the last step of all"
            ids = []
        assert same_state(resumed, model), path
        assert ids == watch.ids[len(watch.ids) - len(ids) :]


def go_on(model, dataset):
    watch = Watch(dataset)
    options = {"epochs": 3, "initial_epoch": dataset.epoch, "verbose": 0}
    model.fit(dataset, callbacks=[SelectionCallback(dataset), watch], **options)
    return watch.ids


def check_no_trace():
    model = make_model()
    dataset = SelectiveDataset(model, *arrays(40), method=METHODS["sb"], batch_size=16, num_epochs=1)
    before = state_of(model)
    assert dataset.has_batch_for(0) and dataset.loader.stats.scored == 40  # the last 8 of them in a smaller batch
    assert same_state(before, model)


def check_refused():
    model = make_model(steps_per_execution=2)
    dataset = SelectiveDataset(model, *DATA, method=METHODS["sb"], batch_size=16, num_epochs=1)
    try:
        model.fit(dataset, callbacks=[SelectionCallback(dataset)], verbose=0)
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
    for ahead in (0, 1):
        (folder / f"{ahead}").mkdir()
        check_sb_and_resume(folder / f"{ahead}", ahead=ahead)
        # Keras asks this to decide on loading a batch ahead, as it does on a GPU.
        jax.default_backend = lambda: "gpu"
    check_selectivity_1()


if __name__ == "__main__":
    main()
