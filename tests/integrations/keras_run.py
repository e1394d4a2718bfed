"""A Keras model on digits that the tests train, in their own process or as a script in another one, on any backend."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch

import selective_backprop as sb
from selective_backprop.integrations.keras import SelectionCallback, SelectiveDataset
from selective_backprop.integrations.keras.data import to_numpy
from tests.helpers import digits

METHODS = {
    "everything": sb.selective_backprop(1.0),
    "sb": sb.selective_backprop(0.4, history_size=64),
    "stale": sb.stale_selective_backprop(0.4, every=2, history_size=64),
    "random": sb.random_backprop(0.4),
    "unbiased": sb.selective_backprop(0.4, unbiased=True, history_size=64),
    "ledger": sb.ledger_backprop(skip_at_least=0),
    "ledger_everything": sb.methods.ledger_percentile(1.0),
    "infobatch": sb.infobatch(until=1),
    "ledger_unbiased": sb.methods.ledger_percentile(0.4, unbiased=True, max_age=2, history_size=64),
}


def arrays(count=203):
    inputs, targets = digits(count).tensors
    return inputs.numpy(), targets.numpy()


@keras.saving.register_keras_serializable("tests")
class Counting(keras.layers.Layer):
    """Writes to a variable whenever it is called, in inference too."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign(self.calls + 1)
        return inputs


def make_model(dropout_seed=None, **options):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32), keras.layers.BatchNormalization(), keras.layers.ReLU(), Counting()]
    dropout = keras.layers.Dropout(0.2, seed=dropout_seed)  # without a seed, in torch, from the global random state
    model = keras.Sequential([keras.Input((64,)), *layers, dropout, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"], **options)
    return model


def small_model(kind=keras.Sequential, **options):
    """Without anything random, so that torch can train its twin."""
    keras.utils.set_random_seed(0)
    model = kind([keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": loss, **options})
    return model


def run_of_torch(method, weights, *, epochs, count=203):
    """Train the twin of the small model with SelectiveLoader itself: ids and weights of each batch, and the loader."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(array.T))
    order = torch.Generator().manual_seed(0)
    train_loader = torch.utils.data.DataLoader(digits(count), 16, shuffle=True, generator=order)
    loader = sb.SelectiveLoader(train_loader, model, torch.nn.CrossEntropyLoss(), method, num_epochs=epochs)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = []
    for _ in range(epochs):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            batches.append((loader.batch.ids.tolist(), loader.batch.weights.numpy()))
    return batches, loader


def check_same_as_torch(name, *, epochs=4):
    """By training losses, Keras selects the very examples that SelectiveLoader selects in a loop of torch."""
    model = small_model()
    expected, loader = run_of_torch(METHODS[name], model.get_weights(), epochs=epochs)
    _, dataset, watch = fit(name, model=model, epochs=epochs)
    assert watch.ids == [ids for ids, _ in expected]
    for weights, (_, others) in zip(watch.weights, expected, strict=True):
        np.testing.assert_allclose(weights, others, rtol=1e-6)
    stats = dataset.loader.stats
    assert stats.scored == 0 and stats.trained == loader.stats.trained < stats.offered == loader.stats.offered
    torch.testing.assert_close(dataset.loader.ledger.loss, loader.ledger.loss, atol=2e-6, rtol=0)
    return dataset


class Watch(keras.callbacks.Callback):
    """What was trained on in each step, and how far selection was then."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset, self.ids, self.weights, self.rates, self.ahead, self.queued = dataset, [], [], [], [], []
        self.sizes = []  # of each epoch's batches

    def on_epoch_begin(self, epoch, logs=None):
        self.sizes.append([])

    def on_train_batch_end(self, batch, logs=None):
        loader = self.dataset.loader
        self.ids.append(None if self.dataset.batch.ids is None else self.dataset.batch.ids.tolist())
        self.weights.append(self.dataset.batch.weights.numpy())
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.ahead.append(loader.stats.batches - len(self.ids))
        self.queued.append(loader.stats.queued)
        self.sizes[-1].append(len(self.dataset.batch))

    def gave_full_batches(self):
        """Whether all batches had 16 examples, except that an epoch's last two share what is left."""
        return all(set(sizes[:-2]) <= {16} and min(sizes) >= 8 for sizes in self.sizes)


def fit(method, *, epochs=3, callbacks=(), learning_rate=None, model=None, data=None, fit_options=None, **options):
    """Train; returns the model, the data set and what was seen."""
    model = model or make_model()
    settings = {"batch_size": 16, "num_epochs": epochs, **options}
    data = arrays() if data is None else data
    dataset = SelectiveDataset(model, *data, method=METHODS.get(method, method), **settings)
    watch = Watch(dataset)
    # Watch first, so that it sees a step before the selection for the next one could begin.
    callbacks = [watch, *callbacks, SelectionCallback(dataset, learning_rate)]
    model.fit(dataset, shuffle=False, epochs=epochs, callbacks=callbacks, verbose=0, **(fit_options or {}))
    return model, dataset, watch


class Replay(keras.utils.PyDataset):
    """Batches of these ids, as plain Keras takes them."""

    def __init__(self, batches, weights=None):
        super().__init__()
        self.batches, self.weights = batches, weights
        self.data = arrays()

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        batch = tuple(array[self.batches[index]] for array in self.data)
        return batch if self.weights is None else (*batch, self.weights[index])


def state_of(model):
    """Everything that a training step can change."""
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    return [to_numpy(variable.value).copy() for variable in variables]


def same_state(a, b):
    a, b = (model if isinstance(model, list) else state_of(model) for model in (a, b))
    # Two layers of the same kind in one process have different names, but the same order.
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
