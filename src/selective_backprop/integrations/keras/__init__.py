"""Selective-Backprop in Keras 3: a data set for `model.fit` that gives out full batches of selected examples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from selective_backprop.integrations import is_missing
from selective_backprop.loader import SelectiveLoader
from selective_backprop.method import Method
from selective_backprop.stats import OnStats, Stats
from selective_backprop.types import Batch

try:
    import keras
except ImportError as error:
    if not is_missing(error, "keras"):
        raise
    raise ImportError(f"{error}: pip install 'selective-backprop[keras]', and set KERAS_BACKEND") from error

from selective_backprop.integrations.keras.data import candidates_of, example
from selective_backprop.integrations.keras.fitting import SelectionCallback, load_seeds, random_state
from selective_backprop.integrations.keras.scoring import PerExampleLosses, check_method, check_takes_weights
from selective_backprop.integrations.keras.watching import Watched
from selective_backprop.integrations.steps import pull

__all__ = ["SelectionCallback", "SelectiveDataset"]

BACKENDS = ("torch", "jax")
FOR_FIT_ALONE = (
    "a SelectiveDataset is for model.fit(dataset, shuffle=False, callbacks=[SelectionCallback(dataset)]) alone: it "
    "gives out selected examples only, in a new order. Pass evaluate, predict and validation_data= your own data"
)
ONE_AT_A_TIME = (
    "batches are given out one at a time, in fit(): selection goes by the weights after the step before. Keras asks "
    "for more at once with steps_per_execution above 1"
)


class SelectiveDataset(DataLoader[Any]):
    """Scores candidates with the model as it is now, and gives `model.fit` full batches of those selected.

    An epoch of Keras is an epoch of candidates, with as many steps as batches were selected. All are full, except the
    last two, which share what does not fill a batch. An epoch in which nothing is selected is joined with the next one.
    `fit` ends when `num_epochs` epochs are over. To Keras this is a DataLoader, which wants `fit(shuffle=False)`.

    The state of the selection is saved with the model: it is in every file of weights that Keras writes
    (`BackupAndRestore`, `ModelCheckpoint`, `save_weights`, `save`), and `load_weights` restores it.

    Args:
        model: the model that is fitted. It must be built and compiled.
        x: arrays (a single one, or several in a tuple, list or dict), whose row numbers are ids; or a PyDataset.
        y, sample_weight: arrays, with arrays for x.
        method: how to select, for example `sb.ledger_backprop()`.
        num_epochs: length of the run, the same as in `fit(epochs=)`.
        batch_size: examples in a training batch; by default 32, or as many as the PyDataset's batches have.
        candidate_batch_size: examples that are scored together, with arrays; by default batch_size.
        loss_fn: the loss to score examples with: a Keras loss (its reduction does not matter), its name, or a function
            from (y_true, y_pred) to losses. By default the compiled loss.
        shuffle: offer candidates in a new order in each epoch.
        seed: seed of that order and of selection.
        drop_last: leave out what does not fill a batch at the end of an epoch. Then all batches have the same shape,
            which JAX compiles only once.
        on_stats: as for `SelectiveLoader`.

    >>> import numpy as np, selective_backprop as sb
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64) % 2
    >>> dataset = SelectiveDataset(model, x, y, method=sb.selective_backprop(0.5), batch_size=8, num_epochs=2)
    >>> history = model.fit(dataset, shuffle=False, epochs=2, callbacks=[SelectionCallback(dataset)], verbose=0)
    >>> dataset.loader.stats.offered, sorted(history.history)[:3]
    (128, ['loss', 'selection/seconds_loading', 'selection/seconds_scoring'])
    """

    def __init__(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        method: Method,
        num_epochs: int,
        batch_size: int | None = None,
        candidate_batch_size: int | None = None,
        loss_fn: Any = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        on_stats: OnStats | None = None,
    ) -> None:
        if (backend := keras.backend.backend()) not in BACKENDS:
            raise ValueError(
                f"selection works with Keras on {' or '.join(BACKENDS)}, this is {backend}: see docs/guides/keras.md"
            )
        if not isinstance(model, keras.Model):
            raise TypeError(f"model must be a keras.Model, got {type(model).__name__}")
        check_method(method)
        if isinstance(x, keras.utils.PyDataset) and method.needs_ids:
            raise ValueError(
                f"{method.name} knows examples by id, and a PyDataset gives none: pass arrays, whose rows are ids"
            )
        source, batch_size = candidates_of(
            (x, y, sample_weight),
            batch_size=batch_size,
            candidate_batch_size=candidate_batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
        needs, weighted = method.scorer.needs, method.policy.weighting != "none"
        learns = needs.training_losses or method.schedule.observes_losses
        losses = PerExampleLosses(model, loss_fn) if needs.selection_pass or learns else None
        if weighted:
            check_takes_weights(model)
        self.loader = SelectiveLoader(
            source,
            model if isinstance(model, nn.Module) else nn.Module(),  # a stand-in, for parts that expect a module
            lambda scores, _: scores,
            method,
            batch_size=batch_size,
            forward=None if losses is None else lambda _, batch: (losses(batch), None),
            device="cpu",
            num_epochs=num_epochs,
            seed=seed,
            on_stats=on_stats,
        )
        """The SelectiveLoader inside, with its stats, ledger and progress."""
        self.model = model
        # In a planned epoch, the loader's own length is the number planned. This is the most that an epoch can have.
        super().__init__(_Batches(self, len(self.loader)), batch_size=None, collate_fn=lambda batch: batch)
        self._example = example(source)
        self._weighted = weighted
        learns = learns and isinstance(source, DataLoader)  # a PyDataset's batches may have any size
        if (earlier := vars(model).pop("_selective_backprop", None)) is not None:
            earlier.give_back()
        self._watched = Watched(
            self,
            losses if learns else None,
            gives_weights=weighted,
            example=self._example.data,
            size=self.loader.batch_size or 0,
        )
        self._ahead = batches_ahead()
        self._waiting: deque[tuple[Batch, float]] = deque()  # selected for the next steps, with the progress before
        self._taken = 0  # how many of these Keras has
        self._current: tuple[Batch, float] | None = None  # of the step that is under way, or was the last one
        self._in_step = False
        self._announced = False  # whether the next iteration that Keras begins is an epoch of training
        self._random: Tensor | None = None  # torch's random state to go on with
        self._epoch_began_with = Stats()

    # ---- what Keras asks for

    def iterate(self) -> Iterator[Any]:
        """Give out an epoch of training if one was announced, else one batch, at which Keras looks to build metrics."""
        trains, self._announced, self._taken = self._announced, False, 0
        if not trains:
            yield from [self._arrays(self._example)] * (1 + self._ahead)
            raise RuntimeError(FOR_FIT_ALONE if self.model.steps_per_execution == 1 else ONE_AT_A_TIME)
        for _ in range(len(self)):
            if self._taken < len(self._waiting):
                batch = self._waiting[self._taken][0]
                self._taken += 1
            elif self._waiting and self._ahead:
                batch = self._waiting[-1][0]  # taken ahead beyond the end of the epoch, and never trained on
            else:
                raise RuntimeError(ONE_AT_A_TIME)
            yield self._arrays(batch)

    def _arrays(self, batch: Batch) -> Any:
        data = batch.data
        if self._weighted:
            weights = self.loader.weights(batch)
            data = (*data[:2], _times(data[2], weights) if len(data) == 3 else weights)
        elif not bool((batch.weights == 1).all()):
            raise ValueError(
                f"{self.loader.policy!r} gave weights other than 1, which Keras is not told of: declare "
                '`weighting = "biased"` or "unbiased" in that class'
            )
        return data

    # ---- what SelectionCallback tells

    def begin_run(self) -> None:
        """Begin a call of fit."""
        if self._watched is not vars(self.model)["_selective_backprop"]:
            raise ValueError(
                "another SelectiveDataset was made for this model after this one, and files of the model save that "
                "one's state: pass the newest to fit()"
            )
        self._in_step = False

    def begin_epoch(self) -> None:
        """Select the first batch of an epoch of training."""
        self._announced = True
        if not self._waiting:
            self._restore_random()
        while not self._waiting:
            if self.run_is_over:
                raise RuntimeError(
                    f"all {self.loader.num_epochs} epochs of the run are over, so there is no step left: the model is "
                    "trained. To train for longer, make the data set with a larger num_epochs"
                    if self.loader.stats.batches
                    else "nothing was selected in the whole run: there is too little data, or selectivity"
                )
            self._select()

    def begin_step(self) -> None:
        """Begin the training step on the first batch that waits."""
        self._restore_random()  # in mid-epoch: Keras begins an epoch by a draw of its own, which this one had before
        self._current, self._in_step = self._waiting[0], True

    def end_step(self) -> None:
        """Learn the losses of the step, and select the next batch. Has no effect between steps."""
        if not self._in_step:
            return
        self._in_step = False
        batch = self.batch
        losses = self._watched.take(len(batch))
        if losses is not None:
            if self._weighted and len(batch.data) == 3:
                losses = losses / batch.weights  # Keras was given these times the user's own, which alone should count
            self.loader.loss(losses, None, batch)
        self._waiting.popleft()
        self._taken -= 1
        if self.loader.steps.in_epoch:
            self._select()

    @property
    def epoch_is_over(self) -> bool:
        """Whether the epoch of candidates is over, and all its batches were trained on."""
        return not self._waiting

    @property
    def run_is_over(self) -> bool:
        """Whether all epochs of the run are over."""
        return self.loader.epoch >= (self.loader.num_epochs or 0)

    def _select(self) -> None:
        """Select batches of the epoch until as many wait as Keras takes, or it has no more."""
        while len(self._waiting) <= self._ahead:
            progress = self.loader.progress
            if (batch := pull(self.loader)) is None:
                return
            self._waiting.append((batch, progress))

    # ---- for callbacks

    @property
    def epoch(self) -> int:
        """Number of completed epochs. To resume from a loaded state, use `fit(initial_epoch=dataset.epoch)`."""
        return self.loader.epoch

    @property
    def batch(self) -> Batch:
        """The batch of the current step, or of the last one, with its ids, weights and probabilities."""
        if self._current is None:
            raise RuntimeError("no step has begun")
        return self._current[0]

    @property
    def progress(self) -> float:
        """Fraction of the run's candidates offered before the current step. A learning rate should follow it."""
        return self.loader.progress if self._current is None else self._current[1]

    def epoch_values(self) -> dict[str, float]:
        """Return what selection did since the last call, which is one epoch if it is called after each."""
        values = self.loader.stats.since(self._epoch_began_with)
        self._epoch_began_with = self.loader.stats.copy()
        return {f"selection/{name}": value for name, value in values.items()}

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly, between two steps. Keras' own files of the model contain it."""
        self.end_step()  # a callback may save before SelectionCallback ends the step
        return {
            "loader": self.loader.state_dict(),
            "waiting": [_saved(batch) | {"progress": progress} for batch, progress in self._waiting],
            "epoch_began_with": self._epoch_began_with.state_dict(),
            "random": random_state(self.model),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved, also in the middle of an epoch."""
        self.loader.load_state_dict(state["loader"])
        self._waiting = deque((self._loaded(one), one["progress"]) for one in state["waiting"])
        self._taken, self._in_step, self._current = 0, False, None
        self._epoch_began_with.load_state_dict(state["epoch_began_with"])
        load_seeds(self.model, state["random"])
        self._random = state["random"]["torch"] if keras.backend.backend() == "torch" else None

    def _loaded(self, state: dict[str, Any]) -> Batch:
        data = keras.tree.pack_sequence_as(self._example.data, state["columns"])
        return Batch(data, state["ids"], state["weights"], state["probabilities"])

    def _restore_random(self) -> None:
        if self._random is not None:
            torch.set_rng_state(self._random)
            self._random = None


class _Batches(IterableDataset[Any]):
    """What the data set gives out, in the form that torch's DataLoader takes."""

    def __init__(self, owner: SelectiveDataset, length: int) -> None:
        self._owner, self._length = owner, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self._owner.iterate()


def _saved(batch: Batch) -> dict[str, Any]:
    parts = {"ids": batch.ids, "weights": batch.weights, "probabilities": batch.probabilities}
    return {"columns": keras.tree.flatten(batch.data), **parts}


def _times(sample_weight: Tensor, weights: Tensor) -> Tensor:
    """Multiply the user's weights, of examples or of their tokens, by the weight of each example."""
    return sample_weight * weights.view(-1, *[1] * (sample_weight.dim() - 1))


def batches_ahead() -> int:
    """Return how many batches Keras takes before their step. With JAX it is one, if that may save time."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is not None:
        return 0
    import jax

    return 0 if jax.default_backend() == "cpu" else 1
