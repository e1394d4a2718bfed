"""A LightningModule on digits that the tests train, in their own process or in forked ones."""

import os
import signal
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.integrations.lightning import SelectiveBackprop
from tests.helpers import Noisy, digits, make_model

METHODS = {
    "sb": sb.selective_backprop(0.4, history_size=64),
    "everything": sb.selective_backprop(1.0),
    "stale": sb.stale_selective_backprop(0.4, every=2),
    "ledger": sb.methods.ledger_percentile(selectivity=0.4),
    "unbiased": sb.selective_backprop(0.4, unbiased=True),
}


class Digits(L.LightningModule):
    """BatchNorm, dropout, a learning rate that moves at every step; knows nothing of selection unless asked to."""

    def __init__(self, *, selected_loss: bool = False, manual: bool = False) -> None:
        super().__init__()
        self.network = make_model()
        self.selected_loss = selected_loss
        self.automatic_optimization = not manual
        self.ids, self.slots, self.learning_rates, self.validations = [], [], [], 0

    def forward(self, inputs):
        return self.network(inputs)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        self.slots.append((self.current_epoch, batch_idx))
        loader = self.trainer.train_dataloader
        if hasattr(loader, "selection"):
            given = loader.selection.batch
            assert given.data[1] is targets or torch.equal(given.data[1], targets), "fetched ahead of the step"
            self.ids.append(given.ids.tolist())
        self.learning_rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        outputs = self(inputs)
        loss = loader.loss(outputs, targets) if self.selected_loss else F.cross_entropy(outputs, targets)
        self.log("loss", loss)
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.validations += 1
        self.log("validation_loss", F.cross_entropy(self(inputs), targets))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Killer(L.Callback):
    """Ends the process for good in a training step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(
    method=None,
    *,
    callbacks=(),
    ckpt_path=None,
    dataset=None,
    epochs=3,
    validate=True,
    module=None,
    make_loader=DataLoader,
    **options,
):
    """Train; returns the module, the trainer and the callback, None for Lightning's own run."""
    torch.manual_seed(1)
    module = module or Digits(selected_loss=method in ("ledger", "unbiased"))
    loader = make_loader(dataset or Noisy(), 16, shuffle=True)
    selection = None
    if method is not None:
        selection = SelectiveBackprop(METHODS[method], nn.CrossEntropyLoss())
        loader = selection.wrap(loader)
        callbacks = [selection, *callbacks]
    settings = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "enable_checkpointing": any_checkpoint(callbacks)}
    trainer = L.Trainer(max_epochs=epochs, callbacks=list(callbacks), **(settings | options))
    trainer.fit(module, loader, DataLoader(digits(), 64) if validate else None, ckpt_path=ckpt_path)
    return module, trainer, selection


def any_checkpoint(callbacks):
    return any(isinstance(callback, ModelCheckpoint) for callback in callbacks)


class Result(L.Callback):
    """Writes what each rank has at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def on_train_end(self, trainer, pl_module):
        result = {"model": pl_module.state_dict(), "step": trainer.global_step, "ids": pl_module.ids}
        torch.save(result, self.folder / f"{self.name}{trainer.global_rank}.pt")


def on_two_ranks(folder: Path) -> None:
    warnings.simplefilter("ignore")
    # Forked, because two more processes that import everything would take most of the time.
    options = {"devices": 2, "strategy": "ddp_fork", "epochs": 4}
    for name, method in {"plain": None, "everything": "everything", "stale": "stale"}.items():
        fit(method, callbacks=[Result(folder, name)], **options)
    checkpoints = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=3)
    fit("sb", callbacks=[Result(folder, "sb"), checkpoints], **options)
    fit("sb", callbacks=[Result(folder, "resumed")], ckpt_path=folder / "step=3.ckpt", **options)


def killed_in_step_7(folder: Path) -> None:
    warnings.simplefilter("ignore")
    checkpoint = ModelCheckpoint(folder, save_last=True, save_top_k=0, every_n_train_steps=2)
    fit("sb", callbacks=[checkpoint, Killer(7)], epochs=4)
