"""Selective-Backprop in Keras 3: a data set for `model.fit` that gives out full batches of selected examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from selective_backprop.integrations import is_missing
from selective_backprop.integrations.keras.steps import SelectedSteps
from selective_backprop.loader.reporting import OnStats
from selective_backprop.loader.selective_loader import SelectiveLoader
from selective_backprop.method import Method
from selective_backprop.sampler.stats import Stats
from selective_backprop.types import Batch

try:
    import keras
except ImportError as error:
    if not is_missing(error, "keras"):
        raise
    raise ImportError(f"{error}: pip install 'selective-backprop[keras]', and set KERAS_BACKEND") from error

from selective_backprop.integrations.keras.data import candidates_of, example, to_numpy
from selective_backprop.integrations.keras.hooks import EpochLength, Saved, SelectionCallback, load_seeds, random_state
from selective_backprop.integrations.keras.methods import check_method
from selective_backprop.integrations.keras.scoring import PerExampleLosses, StandIn, check_takes_weights
from selective_backprop.integrations.keras.training_losses import WatchedLoss, give_back_compute_loss

__all__ = ["SelectionCallback", "SelectiveDataset"]

BACKENDS = ("torch", "jax")
ONE_AT_A_TIME = (
    "batches are given out one at a time, in fit(): selection goes by the weights after the step before. Keras asks "
    "for more at once with steps_per_execution or workers above 1"
)


class SelectiveDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """Scores candidates with the model as it is now, and gives `model.fit` full batches of those selected.

    An epoch of Keras is an epoch of candidates, with as many steps as batches were selected. All are full, except the
    last two, which share what does not fill a batch. An epoch in which nothing is selected is joined with the next one.

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
    >>> history = model.fit(dataset, epochs=2, callbacks=[SelectionCallback(dataset)], verbose=0)
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
        super().__init__(workers=1, use_multiprocessing=False)
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
        needs, schedule, weighted = method.scorer.needs, method.schedule, method.policy.weighting != "none"
        learns = needs.training_losses or schedule.observes_losses
        losses = PerExampleLosses(model, loss_fn) if needs.selection_pass or learns else None
        if weighted:
            check_takes_weights(model)
        self.loader = SelectiveLoader(
            source,
            model if isinstance(model, nn.Module) else StandIn(),
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
        self._most_batches = len(self.loader)  # in a planned epoch, the loader's own length is the number planned
        self._example = example(source)
        self._weighted = weighted
        self._watched: WatchedLoss | None = None
        give_back_compute_loss(model)
        learns = learns and isinstance(source, DataLoader)  # a PyDataset's batches may have any size
        if learns or weighted:
            self._watched = WatchedLoss(
                model,
                method.name,
                losses if learns else None,
                self.loader.batch_size or 0,  # known from the start with rows
                gives_weights=weighted,
                has_weights=len(self._example.data) == 3,
                example=self._example.data,
            )
        self._learned = True  # from the training step that is under way or was the last one
        # Keras on JAX fails after an epoch without a step, if it is the first of fit().
        self._steps = SelectedSteps(self.loader, may_be_empty=backend != "jax")
        self._random: Tensor | None = None  # to go on with
        self._loaded = self._loaded_in_mid_epoch = self._begins = False
        self._announced = False  # whether the next iteration that Keras begins is an epoch of training
        self._trains = False  # whether the current one is
        self._num_looks = 0  # batches given out in the current one, if it is not
        self._epoch_began_with = Stats()
        model._selective_backprop = Saved(self)

    # ---- what Keras asks for

    @property
    def num_batches(self) -> EpochLength:
        """The most batches that an epoch can have. It compares as reached as soon as the epoch has no more batches."""
        return EpochLength(self, self._most_batches)

    def __getitem__(self, index: int) -> Any:
        """Return the batch of the step that begins. The index does not matter, because there is only this batch."""
        if not self._trains:
            self._refuse_to_evaluate(self._num_looks - self._steps.ahead)
            self._num_looks += 1
            batch = self._example
        elif (taken := self._steps.take()) is not None:
            batch = taken
        else:
            raise RuntimeError(ONE_AT_A_TIME)
        data = batch.data
        if self._weighted:
            weights = self.loader.weights(batch)
            data = (*data[:2], _times(data[2], weights) if len(data) == 3 else weights)
        elif not bool((batch.weights == 1).all()):
            raise ValueError(
                f"{self.loader.policy!r} gave weights other than 1, which Keras is not told of: declare "
                '`weighting = "biased"` or "unbiased" in that class'
            )
        return keras.tree.map_structure(to_numpy, data)

    def on_epoch_begin(self) -> None:
        self._trains, self._announced, self._num_looks = self._announced, False, 0
        self._steps.ahead = batches_ahead()
        if not self._loaded_in_mid_epoch:
            self._restore_random()

    def on_epoch_end(self) -> None:
        self._trains = False
        self._learned = True
        self._steps.restart()

    # ---- what callbacks ask for

    def has_batch_for(self, step: int) -> bool:
        """Whether this step of Keras' epoch has a batch. It is selected now, with the weights after the step before."""
        if not self._trains:
            self._refuse_to_evaluate(step)
            return True
        if step > 0:
            self._random = None
        elif self._loaded_in_mid_epoch:
            self._restore_random()  # Keras begins an epoch by a draw of its own, which this one had long before
        begins = self._steps.begins(step)
        if begins and step > 0:
            self._learn()
        has_batch = self._steps.has_batch_for(step)
        if begins:
            self._learned = not has_batch
        if has_batch:
            return True
        self._random = None
        if self._steps.run_is_over:
            # After a resume, Keras may count an epoch more than there are left. Epochs without a step are joined.
            self.model.stop_training = True
        return False

    def _refuse_to_evaluate(self, step: int) -> None:
        """Raise if a second batch is asked for outside an epoch of training. Keras looks at one to build metrics."""
        if step > 0 and max(self.model.steps_per_execution, self.workers) > 1:
            raise RuntimeError(ONE_AT_A_TIME)
        if step > 0:
            raise RuntimeError(
                "a SelectiveDataset is for model.fit(dataset, callbacks=[SelectionCallback(dataset)]) alone: it gives "
                "out selected examples only, in a new order. Pass evaluate, predict and validation_data= your own data"
            )

    def begin_run(self) -> None:
        """Begin a call of fit."""
        if self.model._selective_backprop.dataset is not self:
            raise ValueError(
                "another SelectiveDataset was made for this model after this one, and files of the model save that "
                "one's state: pass the newest to fit()"
            )
        self._begins = True

    def announce_epoch(self, num_left: int) -> None:
        """Take note that an epoch of training begins, and no evaluation. num_left: epochs left in this call of fit."""
        self._announced = True
        if self._begins:
            self._steps.end_after(num_left, resumed=self._loaded)
            self._begins = self._loaded = False

    def end_step(self) -> None:
        """End the training step on the current batch."""
        self._learn()
        self._steps.end_step()

    def _learn(self) -> None:
        """Hand the losses of the last training step to the loader, for methods that select by them."""
        if self._watched is None or self._learned:
            return
        batch = self._steps.batch
        losses = self._watched.take(len(batch))
        if losses is None:
            return
        if self._weighted and len(batch.data) == 3:
            losses = losses / batch.weights  # Keras was given these times the user's own, which alone should count
        self.loader.weights(batch)  # which Keras applied
        self.loader.loss(losses, None, batch)
        self._learned = True

    @property
    def epoch(self) -> int:
        """Number of completed epochs. To resume from a loaded state, use `fit(initial_epoch=dataset.epoch)`."""
        return self.loader.epoch

    @property
    def batch(self) -> Batch:
        """The current batch, with its ids, weights and probabilities."""
        return self._steps.batch

    @property
    def progress(self) -> float:
        """Fraction of the run's candidates offered before the current step. A learning rate should follow it."""
        return self._steps.progress

    def epoch_values(self) -> dict[str, float]:
        """Return what selection did since the last call, which is one epoch if it is called after each."""
        values = self.loader.stats.since(self._epoch_began_with)
        self._epoch_began_with = self.loader.stats.copy()
        return {f"selection/{name}": value for name, value in values.items()}

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly, between two steps. Keras' own files of the model contain it."""
        if self._watched is not None and self._watched.is_new:
            self._learn()  # a callback may save before SelectionCallback ends the step
        return {
            "steps": self._steps.state_dict(),
            "epoch_began_with": self._epoch_began_with.state_dict(),
            "random": random_state(self.model),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved, also in the middle of an epoch."""
        self._steps.load_state_dict(state["steps"])
        self._loaded = self._learned = True
        self._loaded_in_mid_epoch = self.loader.stepper.in_epoch
        self._epoch_began_with.load_state_dict(state["epoch_began_with"])
        load_seeds(self.model, state["random"])
        self._random = state["random"]["torch"] if keras.backend.backend() == "torch" else None

    def _restore_random(self) -> None:
        # Again and again until the first step: to build metrics, Keras may look at a batch before it begins.
        if self._random is not None:
            torch.set_rng_state(self._random)


def _times(sample_weight: Tensor, weights: Tensor) -> Tensor:
    """Multiply the user's weights, of examples or of their tokens, by the weight of each example."""
    return sample_weight * weights.view(-1, *[1] * (sample_weight.dim() - 1))


def batches_ahead() -> int:
    """Return how many batches Keras takes before their step. With JAX it is one, if that may save time."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is not None:
        return 0
    import jax

    return 0 if jax.default_backend() == "cpu" else 1
