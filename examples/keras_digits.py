"""Selective-Backprop in Keras 3, on scikit-learn's digits. New lines are marked with NEW.

    python examples/keras_digits.py
    KERAS_BACKEND=jax python examples/keras_digits.py
    python examples/keras_digits.py --backup backup      # if killed and started again, it continues exactly

It needs the extras [keras] and [lab]; [lab] brings the data.
"""

import argparse
import math
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

try:
    import keras
    import numpy as np
    import sklearn  # noqa: F401, because the data come from it
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'selective-backprop[keras,lab]'") from None

import selective_backprop as sb  # NEW
from selective_backprop.integrations.keras import SelectionCallback, SelectiveDataset  # NEW
from selective_backprop_lab.data.datasets import load_images


def make_model() -> keras.Model:
    """A small network, the same as without selection."""
    layers = keras.layers

    def block(filters: int) -> list[keras.layers.Layer]:
        norm = layers.BatchNormalization(
            momentum=0.9
        )  # Keras' default of 0.99 would take longer than this run to settle
        return [layers.Conv2D(filters, 3, padding="same"), norm, layers.ReLU(), layers.MaxPool2D()]

    head = [layers.Flatten(), layers.Dropout(0.2), layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *block(32), *block(64), *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, and print the test error and what selection did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--loss-share", type=float, default=0.95, help="share of the loss to train on")
    parser.add_argument("--backup", help="folder for the state of the run; if it holds one, the run continues")
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    data = load_images("digits")
    x_train, x_test = (np.moveaxis(images.numpy() / 16, 1, -1) for images in (data.train_images, data.test_images))
    y_train, y_test = data.train_labels.numpy(), data.test_labels.numpy()
    model = make_model()

    method = sb.ledger_backprop(loss_share=args.loss_share)  # NEW
    dataset = SelectiveDataset(model, x_train, y_train, method=method, batch_size=32, num_epochs=args.epochs)  # NEW
    selection = SelectionCallback(dataset, lambda progress: 0.025 * (1 + math.cos(math.pi * progress)))  # NEW
    callbacks = [selection]
    if args.backup:
        callbacks.append(keras.callbacks.BackupAndRestore(args.backup, save_freq=10))
    # Without selection: model.fit(x_train, y_train, batch_size=32, ...)
    model.fit(
        dataset, shuffle=False, epochs=args.epochs, validation_data=(x_test, y_test), callbacks=callbacks, verbose=2
    )

    accuracy = model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
    print(f"test error {1 - accuracy:.2%} after {int(model.optimizer.iterations)} steps")
    print(dataset.loader.stats)  # NEW


if __name__ == "__main__":
    main()
