"""Selective-Backprop in the Hugging Face Trainer, which keeps its own loss, checkpoints and schedule."""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import IterableDataset

from selective_backprop.advice.advise import Advice, advise
from selective_backprop.chain.padding import Pad, pad_to_longest
from selective_backprop.checks import check_on_stats
from selective_backprop.integrations import is_missing
from selective_backprop.integrations.steps import OptimizerSteps
from selective_backprop.loader import SelectiveLoader
from selective_backprop.losses import PerExampleLoss, Reducer, token_cross_entropy
from selective_backprop.method import Method, require_method
from selective_backprop.progress import step_by_progress
from selective_backprop.saved import read_state, write_state
from selective_backprop.stats import OnStats
from selective_backprop.types import Batch

try:
    import accelerate  # noqa: F401, because transformers misses it only when a run is set up
    from transformers import (
        DataCollatorWithFlattening,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as error:
    if not is_missing(error, "accelerate", "transformers"):
        raise
    raise ImportError("SelectiveTrainer needs: pip install 'selective-backprop[transformers]'") from error

_logger = logging.getLogger(__name__)

Pass = tuple[Batch, Any]
"""The examples of one forward and backward pass, and the model's inputs."""


class SelectiveTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that trains on full batches of the examples that the method selects.

    To use it with another subclass of Trainer, write `class Mine(SelectiveTrainer, Seq2SeqTrainer): pass`.

    Args:
        args, options: as for Trainer.
        method: how to select, for example `selective_backprop(selectivity=1/3)`.
        loss_fn: the loss to score examples with; methods with weights also train on it. It is a function from the
            model's outputs and the batch to one loss per example, or several per example. The default is the
            cross-entropy of `logits` and `labels`, of classes or of tokens.
        reducer: how the losses of an example's tokens become its score: "mean" of those that are not ignored, "sum",
            "max" or a function, such as `mean_of_largest(8)`.
        pad: how sequences of different lengths are padded to share a batch. By default the tokenizer passed as
            processing_class decides; without one, they are padded on the right.
        on_stats: as for `SelectiveLoader`. What `report_to` names gets the selectivity anyway.
    """

    def __init__(
        self,
        *args: Any,
        method: Method,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        reducer: str | Reducer = "mean",
        pad: Pad | None = None,
        on_stats: OnStats | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        check_on_stats(on_stats)
        _check(self, method, loss_fn)
        self.method, self.reducer, self.on_stats = method, reducer, on_stats
        self._by_labels = loss_fn is None
        # The same loss as Trainer's own, with its label smoothing.
        own = functools.partial(token_cross_entropy, label_smoothing=self.args.label_smoothing_factor)
        self._loss_fn = loss_fn or own
        self._is_causal = _is_causal(self.model)
        limit = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        self._most_positions = limit if isinstance(limit, int) and limit > 0 else None
        self.pad = pad or self.default_pad()
        self._frame: Any = None  # Trainer's own loader of the current training
        self._saved_steps: dict[str, Any] | None = None  # the state to resume from
        self._steps: OptimizerSteps | None = None
        self._taken: deque[list[Pass]] = deque()  # batches that were taken and are not trained on yet
        self._batch: Batch | None = None
        self._resumed_from: str | None = None
        self._compared = False
        self.add_callback(_ByProgress(self))

    @property
    def selective_loader(self) -> SelectiveLoader:
        """The loader of the current training, or of the last one, with `stats`, `ledger` and `progress`."""
        return self.steps.loader

    @property
    def steps(self) -> OptimizerSteps:
        """The batches by optimizer steps. Made when the first one is asked for: FSDP shards the model before that."""
        if self._steps is None:
            self._steps = self._make_steps()
        return self._steps

    @property
    def batch(self) -> Batch | None:
        """The examples that the current forward pass trains on, with their ids and weights; None in evaluation."""
        return self._batch

    def advise(self, *, seconds: float = 30.0) -> Advice:
        """Measure on this machine whether selection would pay, with this trainer's model, loss and data.

        seconds: the time to spend on measuring. Nothing is changed.
        """
        with self._checkpointing():  # Trainer switches it on only in train()
            return advise(
                self.model.to(self.args.device),
                PerExampleLoss(self._loss_fn, self.reducer),
                self.candidate_loader(self.get_train_dataloader()),
                forward=self.score,
                device=self.candidate_device,
                seconds=seconds,
            )

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Switch gradient checkpointing on within the block, if the arguments ask for it."""
        if not self.args.gradient_checkpointing or self.model.is_gradient_checkpointing:
            yield
            return
        self.model.gradient_checkpointing_enable(self.args.gradient_checkpointing_kwargs)
        try:
            yield
        finally:
            self.model.gradient_checkpointing_disable()

    # ---- batches

    def candidate_loader(self, frame: Any) -> Any:
        """Return the DataLoader to select from: the one inside Trainer's, because accelerate's reads a batch ahead."""
        return getattr(frame, "base_dataloader", frame)  # a get_train_dataloader of the user's own may not prepare it

    def passes(self, batch: Batch) -> list[Pass]:
        """Divide a training batch into forward passes. Returns the examples and the model's inputs of each pass."""
        return [(batch, batch.data)]

    def default_pad(self) -> Pad:
        """Make the padding that is used if the user passes none."""
        return default_padding(self.processing_class)

    @property
    def candidate_device(self) -> torch.device:
        """Where candidates wait until they are trained on."""
        device: torch.device = self.args.device
        return device

    def _make_steps(self) -> OptimizerSteps:
        if self._frame is None:
            raise RuntimeError("there is no loader before train(): read selective_loader during or after training")
        loader = SelectiveLoader(
            self.candidate_loader(self._frame),
            self.model,
            PerExampleLoss(self._loss_fn, self.reducer),
            self.method,
            forward=self.score,
            pad=self.pad,
            device=self.candidate_device,
            num_epochs=None if self.args.max_steps > 0 else math.ceil(self.args.num_train_epochs),
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            on_stats=self.on_stats,
        )
        loader.steps.told.call_in_errors(
            loss="Trainer's own compute_loss, which takes your loss as compute_loss_func= and that of each example as "
            "loss_fn=. A compute_loss of your own needs loss_fn= too, and must call "
            "self.selective_loader.loss(outputs, inputs, self.batch) if self.batch is not None",
            weights="self.selective_loader.weights(self.batch)",
        )
        steps = OptimizerSteps(loader, getattr(self._frame, "set_epoch", lambda epoch: None))
        if self._saved_steps is not None:
            steps.load_state_dict(self._saved_steps)
            self._saved_steps = None
        return steps

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> tuple[Any, ...]:
        """Begin a training. Trainer only counts with its own loader. The batches come from get_batch_samples."""
        self._frame, self._steps, self._saved_steps = dataloader, None, None
        self._taken.clear()
        values = super().set_initial_training_values(args, dataloader)
        num_epochs, self.steps_per_epoch, *_, self.max_optimizer_steps = values
        # max_steps is a number of optimizer steps; how many epochs they take is up to the selection.
        return (sys.maxsize if args.max_steps > 0 else num_epochs, *values[1:])

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """Return the batches of the next optimizer step, and the number of labels of the selected examples in them.

        At the end of an epoch there may be fewer batches than Trainer counts. Then the first ones are empty.
        """
        self._load_rng_state(self._resumed_from)  # before loading, which may draw from it; Trainer does it after
        self.model.train()  # as training_step does, but after an evaluation the next batches are selected before it
        slots = self.steps.take(num_batches)
        for batch in slots:
            if batch is not None:
                self.check_length(batch.data)
        self._taken = deque([] if batch is None else self.passes(batch) for batch in slots)
        inputs = [inputs for passes in self._taken for _, inputs in passes]
        samples = [self._sample(passes) for passes in self._taken]
        return samples, self._get_num_items_in_batch(inputs, device)

    def _sample(self, passes: list[Pass]) -> Any:
        """Return what Trainer sees of a training batch, to count tokens and operations."""
        if not passes:
            return {getattr(self.model, "main_input_name", "input_ids"): torch.empty(0)}
        return passes[0][1] if len(passes) == 1 else passes[0][0].data

    # ---- losses

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        passes = self._taken.popleft()
        if not passes:
            self.current_gradient_accumulation_steps -= 1  # Trainer divides the loss by the number of batches
            return torch.zeros((), device=self.args.device)
        losses = []
        try:
            for batch, part in passes:
                self._batch = batch
                losses.append(super().training_step(model, part, num_items_in_batch))
                steps = self.selective_loader.steps
                steps.told.check(
                    steps.step_of(batch), batch.is_weighted
                )  # a compute_loss of the user's own may report no losses
        finally:
            self._batch = None
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute Trainer's own loss, bit for bit, unless the method gives weights."""
        batch = self._batch
        if batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        # A copy, because Trainer takes the labels out.
        loss, outputs = super().compute_loss(model, dict(inputs), True, num_items_in_batch)
        weighted = batch.is_weighted
        if self._by_labels and isinstance(outputs, Mapping) and outputs.get("logits") is None:
            # A fused loss, such as Liger's, which tells neither logits nor the loss of each example.
            if not (weighted or self.method.scorer.needs.training_losses or self.method.schedule.observes_losses):
                return (loss, outputs) if return_outputs else loss
            raise ValueError(
                f"{self.method.name} needs the loss of each example, and the model computes its loss without logits (a "
                "fused loss, as Liger's): switch that off by use_liger_kernel=False, or liger_kernel_config="
                "{'fused_linear_cross_entropy': False}"
            )
        pair = self._outputs_and_targets(outputs, inputs)
        with torch.set_grad_enabled(weighted):
            own = self.selective_loader.loss(*pair, batch=batch)  # tells the ledger, too
        if not self._compared and (self._by_labels or self.method.policy.weighting != "none"):
            self._compare(loss.detach(), *pair, num_items_in_batch)
        if weighted:
            # Scaled like Trainer's loss, which is usually divided by the labels of all accumulated batches.
            with torch.no_grad():
                plain = self._loss_fn(*pair).mean()
                scale = torch.where(plain == 0, 1.0, loss / plain)
            loss = own * scale
        return (loss, outputs) if return_outputs else loss

    def _compare(self, loss: Tensor, outputs: Any, targets: Any, num_items: Any) -> None:
        """Find out, in the first step, whether Trainer's own loss is the one that examples are scored by."""
        self._compared = True
        loss = loss.float()  # the cross-entropy is computed in float32, also for a model in bfloat16
        with torch.no_grad():
            mean = self._loss_fn(outputs, targets).mean()
        if not self._by_labels:
            is_whole = self.args.gradient_accumulation_steps == 1  # else Trainer may divide by all passes' tokens
            if is_whole and not torch.isclose(loss, mean.to(loss), rtol=0.02, equal_nan=True):
                _logger.warning(
                    "the loss of the first training batch is %.6g by Trainer, but %.6g by the mean of loss_fn. In "
                    "batches in which %s gives weights, loss_fn is trained on, brought to the same size: other terms "
                    "have no gradient there",
                    *(float(loss), float(mean), self.method.name),
                )
            return
        logits, labels = outputs, targets
        # Divided by the labels of this batch, or by those of all accumulated batches and ranks.
        share = 1.0 if num_items is None else (labels != -100).sum() * self.accelerator.num_processes / num_items
        rtol = 1e-3 if logits.dtype == torch.float32 else 0.02  # a random head's loss differs little between classes
        # Both are nan if no example of the batch has a label.
        if any(torch.isclose(loss, mean * share, rtol=rtol, equal_nan=True) for share in (1.0, share)):
            return
        message = (
            f"the loss of the first training batch is {loss:.6g} by your model, but {mean:.6g} by the cross-entropy of "
            "its logits and labels, which examples are scored by. If your model shifts labels, weights classes or adds "
            "other terms, pass loss_fn=, a function from (outputs, batch) to one loss per example"
        )
        if self.method.policy.weighting != "none":
            raise ValueError(f"{message}. {self.method.name} gives examples weights, and would train on it, too")
        _logger.warning(message)

    def check_length(self, examples: Any) -> None:
        """Raise if sequences of these examples are longer than the model can take."""
        tokens = examples.get("input_ids") if isinstance(examples, Mapping) else None
        limit = self._most_positions
        if limit is not None and isinstance(tokens, Tensor) and tokens.dim() > 1 and tokens.shape[1] > limit:
            raise ValueError(
                f"a batch has sequences of {tokens.shape[1]} tokens, but the model takes {limit} "
                f"(max_position_embeddings): truncate them, with max_length={limit} in TRL's configuration or in your "
                "call of the tokenizer, or use a model for longer texts"
            )

    def score(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Run the model to score a candidate batch. Returns the two arguments of the loss."""
        self.check_length(batch)
        if self._by_labels and not _is_encoder_decoder(model):
            # Without labels the model does not compute a loss that nobody needs. A decoder needs labels as its inputs.
            inputs = {key: value for key, value in batch.items() if key != "labels"}
        else:
            inputs = batch
        return self._outputs_and_targets(model(**inputs), batch)

    def _outputs_and_targets(self, outputs: Any, batch: Any) -> tuple[Any, Any]:
        if not self._by_labels:
            return outputs, batch
        labels = batch.get("labels")
        logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
        if labels is None:
            raise ValueError(
                f"the batches have no labels, only {', '.join(batch)}, and examples are scored by the cross-entropy of "
                "logits and labels: add labels in your data set or data_collator, or pass loss_fn=, a function from "
                "(outputs, batch) to one loss per example"
            )
        if logits is None or not _are_classes(labels, logits):
            raise ValueError(
                "examples are scored by the cross-entropy of the outputs' logits and the batch's labels, which do not "
                "fit here: pass loss_fn=, a function from (outputs, batch) to one loss per example"
            )
        if self._is_causal and labels.dim() > 1:  # a classifier has one label per example
            labels = F.pad(labels, (0, 1), value=-100)[..., 1:]  # logits of a token are about the next one
        return logits, labels

    # ---- checkpoints

    def _save_rng_state(self, output_dir: str) -> None:
        steps = self.steps.state_dict()  # first, because a sampler may draw the rest of its epoch here
        super()._save_rng_state(output_dir)
        write_state(state_path(self, output_dir), STATE_KIND, steps)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None and checkpoint == self._resumed_from:
            super()._load_rng_state(checkpoint)
            self._resumed_from = None

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        """Resume where the loader says. Trainer would count more steps per epoch than selection takes."""
        super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, checkpoint, trial)
        self._resumed_from = checkpoint
        if checkpoint is None:
            return 0, 0
        state = read_state(state_path(self, checkpoint, must_exist=True), STATE_KIND)
        self._saved_steps = state
        return state["epoch"], state["taken"]

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        if "loss" in logs and self._steps is not None:
            logs["selectivity"] = self.selective_loader.stats.selectivity
        super().log(logs, *args, **options)


class _ByProgress(TrainerCallback):  # type: ignore[misc]
    """Makes epochs, the learning rate and the end of the run follow the candidates offered."""

    def __init__(self, trainer: SelectiveTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        trainer, loader = self._trainer, self._trainer.selective_loader
        state.epoch = loader.epochs_done
        if loader.num_epochs is None:
            return
        total_steps = loader.num_epochs * trainer.steps_per_epoch
        scheduler = trainer.lr_scheduler
        if isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau):
            step_by_progress(scheduler, loader, total_steps)
        done = min(1.0, (loader.progress * total_steps + 1e-6) / trainer.max_optimizer_steps)
        if args.num_train_epochs % 1 and done == 1:  # a whole number of epochs ends by itself
            control.should_training_stop = True
        for callback in trainer.callback_handler.callbacks:
            # Trainer's progress bar, in a terminal or in a notebook. It shows the steps to expect at this pace.
            bar = getattr(callback, "training_bar", None) or getattr(callback, "training_tracker", None)
            if bar is not None:
                bar.total = math.ceil(state.global_step / done)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        trainer, steps = self._trainer, self._trainer.steps
        optimizer_steps = math.ceil(steps.taken / args.gradient_accumulation_steps)
        in_epoch = steps.loader.steps.in_epoch and optimizer_steps < trainer.steps_per_epoch
        if control.should_training_stop and in_epoch:
            return  # stopped in mid-epoch: a checkpoint that is saved now resumes there
        steps.end_epoch(left=control.should_epoch_stop)
        if steps.run_over:
            control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        self._trainer.selective_loader.steps.report_stats()  # the last epoch is not iterated to its end


STATE_KIND = "trainer 1"
"""What the states of trainers are called in their files."""


def state_path(trainer: Trainer, folder: str, *, must_exist: bool = False) -> Path:
    """Return the file that a trainer adds to a checkpoint folder: one, or one for each rank if there are several."""
    rank = f"_{trainer.args.process_index}" if trainer.args.world_size > 1 else ""
    path = Path(folder) / f"selective_backprop{rank}.pt"
    if must_exist and not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {path.name}: a trainer that selects did not save it, or model only, or on another number "
            "of ranks"
        )
    return path


def default_padding(tokenizer: Any) -> Pad:
    """As the tokenizer pads; without one, to the right with zeros, and labels with -100."""
    values = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "position_ids": 0, "labels": -100}
    values["decoder_input_ids"] = values["input_ids"] = getattr(tokenizer, "pad_token_id", None) or 0
    values["token_type_ids"] = getattr(tokenizer, "pad_token_type_id", None) or 0
    return pad_to_longest(values, side=getattr(tokenizer, "padding_side", None) or "right")


def _are_classes(labels: Any, logits: Tensor) -> bool:
    """Whether these are numbers of classes. A single logit is a prediction, for regression, even of whole numbers."""
    fit = isinstance(labels, Tensor) and not labels.is_floating_point() and labels.shape == logits.shape[:-1]
    return fit and logits.shape[-1] > 1


def _is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _is_causal(model: nn.Module) -> bool:
    """Whether the model's loss compares the logits of a token with the label of the next one."""
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())

    def shifts(module: nn.Module) -> bool:
        # A class of the user's own may inherit from one of the list. Vision models that answer in text are not in it.
        names = {kind.__name__ for kind in type(module).__mro__}
        return bool(names & causal) or getattr(module, "loss_type", None) == "ForConditionalGeneration"

    # Any module: what PEFT and others wrap is inside.
    return not _is_encoder_decoder(model) and any(shifts(module) for module in model.modules())


def _check(trainer: Any, method: Any, loss_fn: Any) -> None:
    """Raise for what cannot work, before anything is trained."""
    require_method(method)
    if any(kind.__module__.startswith("sentence_transformers.") for kind in type(trainer.model).__mro__):
        raise TypeError(
            "a model of sentence-transformers takes several texts for each example, which SelectiveTrainer cannot "
            "score: use its own trainer with a SelectiveSampler and a loss per pair, as the guide to the sampler shows"
        )
    if trainer.args.n_gpu > 1:
        raise ValueError(
            f"SelectiveTrainer works on one device per process, and this one has {trainer.args.n_gpu}: start it by "
            "torchrun, with a process for each GPU, or with one GPU in CUDA_VISIBLE_DEVICES"
        )
    if trainer.is_deepspeed_enabled:
        raise ValueError(
            "DeepSpeed runs its own engine, which scores no candidates: leave out deepspeed= and shard the model by "
            "FSDP2 instead, with fsdp=True and fsdp_config={'version': 2}"
        )
    if trainer.is_fsdp_enabled and getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1) != 2:
        raise ValueError(
            "selection works with FSDP2, but your arguments ask for FSDP1: set fsdp_config={'version': 2}, or "
            "fsdp_version: 2 in Accelerate's configuration"
        )
    if isinstance(trainer.data_collator, DataCollatorWithFlattening):
        raise ValueError(
            "DataCollatorWithFlattening joins the examples of a batch into one row, and a loss is needed for each of "
            "them: use a collator that pads, or SelectiveSFTTrainer with packing=True or padding_free=True, which "
            "keeps documents apart"
        )
    if isinstance(trainer.train_dataset, IterableDataset) and method.scorer.needs.ids:
        raise ValueError(
            f"{method.name} must know the id of each example, and your train_dataset is a stream, which has none: use "
            "a data set with a length, or a method that needs no ids, such as selective_backprop"
        )
    if trainer.compute_loss_func is not None and loss_fn is None:
        raise ValueError("compute_loss_func gives one loss for the batch: pass loss_fn= too, with one per example")
    if trainer.args.max_steps > 0 and method.needs_num_epochs:
        raise ValueError(
            f"{method.name} selects in a window of the run, and how long {trainer.args.max_steps=} will last is not "
            "known: use num_train_epochs"
        )
