"""Selective-Backprop in Lightning: a callback that wraps the training loader."""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from selective_backprop.checks import check_on_stats
from selective_backprop.integrations import is_missing
from selective_backprop.integrations.steps import pull_step
from selective_backprop.loader import SelectiveLoader
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.method import Method, require_method
from selective_backprop.stats import OnStats, Stats
from selective_backprop.types import Batch, Forward

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.connectors.data_connector import _process_dataloader
    from lightning.pytorch.trainer.states import RunningStage, TrainerFn
    from lightning.pytorch.utilities import CombinedLoader
except ImportError as error:
    if not is_missing(error, "lightning"):
        raise
    raise ImportError(f"{error}: pip install 'selective-backprop[lightning]'") from error

# Lightning's warnings about slots without a batch, which are on purpose here.
_EXPECTED_WARNINGS = ("train_dataloader yielded None", r"Detected call of `lr_scheduler.step\(\)` before")


class SelectiveBackprop(Callback):
    """Selects what a LightningModule is trained on.

    Pass it to the Trainer as a callback, and `wrap` the training loader. Your module needs no change. What Lightning
    counts as batches are then slots, as many per epoch as without selection. In each slot the module trains on a full
    batch of selected examples, or on nothing if no batch is full yet. So progress bars, learning rates that are stepped
    every batch, `val_check_interval` and `limit_train_batches` follow the candidates offered.

    Args:
        method: how to select, for example `sb.selective_backprop(selectivity=1/3)`.
        loss_fn: the loss of the training step: an nn loss module, a function that takes `reduction=`, a callable that
            returns one loss per example, or a `PerExampleLoss` of one of these.
        batch_size, forward, transform, seed, on_stats: as for `SelectiveLoader`; the model is the LightningModule. What
            an epoch did also goes to the trainer's own logger, as selection/...
        num_epochs: length of the run; by default the trainer's max_epochs.
        random_state: also save torch's random state in checkpoints. Lightning does not save it, but shuffling and
            dropout depend on it, so no run could be resumed exactly.

    >>> import torch, selective_backprop as sb
    >>> selection = SelectiveBackprop(sb.selective_backprop(1 / 3), torch.nn.CrossEntropyLoss())
    >>> loader = selection.wrap(torch.utils.data.DataLoader(range(64), batch_size=8))  # for Trainer.fit
    """

    def __init__(
        self,
        method: Method,
        loss_fn: Callable[..., Tensor] | PerExampleLoss,
        *,
        batch_size: int | None = None,
        forward: Forward | None = None,
        transform: Callable[..., Any] | None = None,
        num_epochs: int | None = None,
        seed: int = 0,
        random_state: bool = True,
        on_stats: OnStats | None = None,
    ) -> None:
        require_method(method)
        check_on_stats(on_stats)
        self._during_fit = ExitStack()  # lets the process warn again as before when a fit is over
        self.method = method
        self.loss_fn = loss_fn
        self.forward = forward or default_forward
        self.num_epochs = num_epochs
        self.seed = seed
        self.random_state = random_state
        self._options: dict[str, Any] = {"batch_size": batch_size, "transform": transform, "on_stats": on_stats}
        self.trainer: Trainer | None = None
        self._loader: SelectiveLoader | None = None
        self.num_slots = 0
        """Slots of an epoch: as many as plain training has batches."""
        self._given = 0  # slots of this epoch that were given out
        self._window: deque[Batch | None] = deque()  # the next slots, up to the next optimizer step
        self._is_over = self._is_under_way = (
            False  # whether this epoch has no more batches; whether slots are given out
        )
        self._batch: Batch | None = None
        self._follows_empty_slot = False
        self._saved: dict[str, Any] | None = None
        self._epoch_began_with = Stats()

    @property
    def loader(self) -> SelectiveLoader:
        """The loader, with its stats, ledger and progress. It exists once `Trainer.fit` has begun."""
        if self._loader is None:
            raise RuntimeError("selection begins in Trainer.fit, with callbacks=[selection] and selection.wrap(loader)")
        return self._loader

    @property
    def batch(self) -> Batch:
        """The batch of the current training step, with its ids, weights and probabilities."""
        if self._batch is None:
            raise RuntimeError("no batch is trained on now")
        return self._batch

    def wrap(self, loader: Iterable[Any]) -> SelectedBatches:
        """Wrap the training loader. Pass the result to `Trainer.fit`, or return it from `train_dataloader`."""
        inside = [one for one in tree_leaves(loader) if isinstance(one, DataLoader) and one is not loader]
        if isinstance(loader, CombinedLoader) or inside:
            raise ValueError("selection works on one training loader, got several: join their data sets in one")
        try:
            len(loader)  # type: ignore[arg-type]
        except TypeError:
            raise ValueError(
                "this loader has no length: Lightning would fetch a batch ahead to find its end, before the training "
                "step that selection has to wait for. Give the data set or the loader a __len__"
            ) from None
        return SelectedBatches(self, loader)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Compute the weighted loss in `training_step`, and record it in the ledger. See `SelectiveLoader.loss`."""
        return self.loader.loss(outputs, targets, self.batch)

    def weights(self) -> Tensor:
        """Return the weights of the current batch, to apply them yourself. See `SelectiveLoader.weights`."""
        return self.loader.weights(self.batch)

    # ---- Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if trainer.world_size > 1 and type(trainer.strategy) is not DDPStrategy:
            raise ValueError(
                f"selection on several devices is for strategy='ddp', got {type(trainer.strategy).__name__}: a "
                "LightningModule is scored as a whole, on each rank"
            )
        if "dataloader_iter" in inspect.signature(pl_module.training_step).parameters:
            raise ValueError("selection waits for each step: training_step has to take a batch, not a dataloader_iter")
        for name in ("reload_dataloaders_every_n_epochs", "overfit_batches"):
            if getattr(trainer, name):
                raise ValueError(f"selection does not go with {name}={getattr(trainer, name)}")
        if trainer is not self.trainer or (self._loader is not None and self._loader.model is not pl_module):
            self._loader = None  # another run
        self.trainer = trainer
        self._during_fit.enter_context(warnings.catch_warnings())
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message, UserWarning)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._during_fit.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._during_fit.close()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = trainer.train_dataloader
        if not isinstance(loader, SelectedBatches) or loader.selection is not self:
            raise ValueError("the training loader is not selected from: pass selection.wrap(loader) to Trainer.fit")
        if self._saved is not None:
            # Restored only now: setting up a model and its data may draw random numbers, as it did in the first run.
            _restore(self._saved, pl_module)
        self._saved = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Lightning clears gradients only in the first slot of those that it accumulates over, which may be empty.
        if self._follows_empty_slot and pl_module.automatic_optimization:
            pl_module.optimizer_zero_grad(trainer.current_epoch, batch_idx, trainer.optimizers[0])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._batch is not None:
            steps = self.loader.steps
            steps.told.check(steps.step_of(self._batch), self._batch.is_weighted)
        self._follows_empty_slot = batch is None
        if trainer.is_last_batch:
            self._end_epoch()  # also of an epoch cut short by limit_train_batches; checkpoints come after this
        if batch is None:
            # Lightning leaves this out, and could not tell from a checkpoint saved now where to go on.
            trainer.fit_loop.epoch_loop.batch_progress.increment_started()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, value in self.loader.stats.since(self._epoch_began_with).items():
            in_bar, on_ranks = name == "selectivity", trainer.world_size > 1
            # batch_size: the last slot may have no batch to tell it
            pl_module.log(f"selection/{name}", value, prog_bar=in_bar, sync_dist=on_ranks, batch_size=1)
        self._epoch_began_with = self.loader.stats.copy()
        self.loader.steps.report_stats()

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return all ranks' states. It goes into every checkpoint. Lightning loads no loader's state between epochs."""
        if self._loader is None or self.trainer is None:
            return {"ranks": None}  # saved before training began, as by LearningRateFinder, which tries steps then
        state: dict[str, Any] = {
            "loader": self._loader.state_dict(),
            "given": self._given,
            "is_over": self._is_over,
            "epoch_began_with": self._epoch_began_with.state_dict(),
        }
        if self.random_state:
            state["random"] = _random_state(self.trainer.strategy.root_device)
        if self.trainer.world_size == 1:
            return {"ranks": [state]}
        # This rank scores with its own BatchNorm statistics, and Lightning saves only those of rank 0.
        state["buffers"] = {name: value.cpu() for name, value in self.trainer.lightning_module.named_buffers()}
        ranks: list[Any] | None = [None] * self.trainer.world_size if self.trainer.is_global_zero else None
        torch.distributed.gather_object(state, ranks)  # to rank 0, which writes the checkpoint
        return {"ranks": ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not state_dict or self.trainer is None:
            return
        ranks, world_size = state_dict["ranks"], self.trainer.world_size
        self._loader = None  # made anew, with the state, when batches are asked for
        if ranks is None:
            return
        if len(ranks) != world_size:
            raise ValueError(
                f"this checkpoint was saved by {len(ranks)} ranks, each with selected examples of its own, and "
                f"cannot go on with {world_size}"
            )
        self._saved = ranks[self.trainer.global_rank]

    # ---- slots

    def slots(self) -> Iterator[Any]:
        """Give out the slots of one epoch, or the rest of the one that was under way when the state was saved."""
        if self._is_under_way:
            self._end_epoch()  # the iteration before this one was left early
        self._is_under_way = True
        for _ in range(self._given, self.num_slots):
            if not self._window:
                self._window.extend(self._next_window())
            self._given += 1
            self._batch = self._window.popleft()
            yield None if self._batch is None else self._batch.data

    def _next_window(self) -> list[Batch | None]:
        """Fill the slots up to the next optimizer step, or leave all of them empty."""
        assert self.trainer is not None
        size = min(self.trainer.accumulate_grad_batches, self.num_slots - self._given)
        # Empty only if the slots after them suffice, even if all further candidates are selected, besides those that
        # wait. The small number corrects the rounding of the fraction.
        offered = self.loader.steps.fraction * self.num_slots + 1e-6
        if self._is_over or offered >= self._given + size + self._most_waiting:
            return [None] * size
        window, self._is_over = pull_step(self.loader, size)
        return window

    def _end_epoch(self) -> None:
        """End the epoch. Slots that have not been given out are dropped."""
        self.loader.steps.end_epoch()
        self._window.clear()
        self._given, self._is_over, self._is_under_way = 0, False, False

    # ---- the loader inside

    def select_from(self, loader: Iterable[Any]) -> SelectiveLoader:
        """Return the loader that selects. Made anew for each run, around the one that Lightning prepares.

        The trainer must know its ranks and devices.
        """
        if self._loader is not None:
            return self._loader
        if (trainer := self.trainer) is None:
            raise RuntimeError("selection begins in Trainer.fit, and the trainer needs callbacks=[selection]")
        inner: Any = _process_dataloader(trainer, TrainerFn.FITTING, RunningStage.TRAINING, loader)
        max_epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        selective = SelectiveLoader(
            inner,
            trainer.lightning_module,
            self.loss_fn,
            self.method,
            **self._options,
            forward=self._forward,
            device=trainer.strategy.root_device,
            num_epochs=self.num_epochs or max_epochs,
            seed=self.seed,
        )
        selective.steps.told.call_in_errors(
            loss="self.trainer.train_dataloader.loss(outputs, targets) in training_step",
            weights="weights() of your SelectiveBackprop",
        )
        self._loader, self.num_slots, self._epoch_began_with = selective, len(selective), Stats()
        self._given, self._is_over, self._is_under_way, self._batch = 0, False, False, None
        self._window.clear()
        size = selective.batch_size or 1
        self._most_waiting = 2 + -(-(getattr(inner, "batch_size", None) or size) // size)  # batches
        if self._saved is not None:
            selective.load_state_dict(self._saved["loader"])
            self._given, self._is_over = self._saved["given"], self._saved["is_over"]
            self._epoch_began_with.load_state_dict(self._saved["epoch_began_with"])
        return selective

    def _forward(self, model: torch.nn.Module, batch: Any) -> tuple[Any, Any]:
        """Run the model in the precision of the training step, and return outputs in float32 for the loss."""
        assert self.trainer is not None
        plugin = self.trainer.precision_plugin
        with plugin.forward_context():
            outputs, targets = self.forward(model, plugin.convert_input(batch))
        return tree_map(lambda value: value.float() if _is_low_precision(value) else value, outputs), targets


def _is_low_precision(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)


class SelectedBatches:
    """The training loader that Lightning iterates over. It yields slots: each is a full batch or None."""

    def __init__(self, selection: SelectiveBackprop, loader: Iterable[Any]) -> None:
        self.selection = selection
        self._user_loader = loader

    def __len__(self) -> int:
        self.selection.select_from(self._user_loader)
        return self.selection.num_slots  # the selecting loader's own length becomes what an epoch has planned

    def __iter__(self) -> Iterator[Any]:
        trainer = self.selection.trainer
        if trainer is not None and not trainer.training:
            raise ValueError(
                "selection.wrap(loader) gives out selected examples, for training: pass your own DataLoader to "
                "validation"
            )
        self.selection.select_from(self._user_loader)
        return self.selection.slots()

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Do the same as the callback's `loss`, for modules without it: `self.trainer.train_dataloader.loss(...)`."""
        return self.selection.loss(outputs, targets)

    @property
    def sampler(self) -> Any:
        """The user's sampler, so that Lightning can tell it the epoch."""
        return getattr(self.selection.select_from(self._user_loader), "sampler", None)

    batch_sampler = None  # Lightning asks for it where there is a sampler

    def state_dict(self) -> dict[str, Any]:
        """Return nothing, because the callback saves everything. It tells Lightning that this loader can be resumed."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def _restore(state: dict[str, Any], module: LightningModule) -> None:
    """Restore what a rank saved besides its loader."""
    random, buffers = state.get("random", {}), state.get("buffers", {})
    if "cpu" in random:
        torch.set_rng_state(random["cpu"])
    if "cuda" in random and module.device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"], module.device)
    for name, value in module.named_buffers():
        if name in buffers:
            value.copy_(buffers[name])
