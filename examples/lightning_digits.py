"""Selection in Lightning, on scikit-learn's digits. New lines are marked with NEW.

    python examples/lightning_digits.py
    python examples/lightning_digits.py --devices 2                              # two processes, also without a GPU
    python examples/lightning_digits.py --checkpoint lightning_logs/.../last.ckpt   # continues exactly, even mid-epoch

It needs the extras [lightning] and [lab]; [lab] brings the data.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning as L
    import sklearn  # noqa: F401, because the data come from it
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'selective-backprop[lightning,lab]'") from None

import selective_backprop as sb  # NEW
from selective_backprop.integrations.lightning import SelectiveBackprop  # NEW
from selective_backprop_lab.data.datasets import load_images


class Digits(L.LightningModule):
    """A small network, the same as without selection."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(256, 10)),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = self.trainer.train_dataloader.loss(self(images), labels)  # NEW: was F.cross_entropy(...)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        error = (self(images).argmax(1) != labels).float().mean()
        self.log("test_error", error, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    """Train, and print the test error and what selection did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--loss-share", type=float, default=0.95, help="share of the loss to train on")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--checkpoint", help="checkpoint of an earlier run, to continue it")
    parser.add_argument("--out", default=".", help="folder for lightning_logs")
    args = parser.parse_args()

    L.seed_everything(0)
    data = load_images("digits")
    train_set = TensorDataset(data.train_images / 16, data.train_labels)
    test_set = TensorDataset(data.test_images / 16, data.test_labels)
    train_loader, test_loader = DataLoader(train_set, 32, shuffle=True), DataLoader(test_set, 500)

    selection = SelectiveBackprop(sb.ledger_backprop(loss_share=args.loss_share), nn.CrossEntropyLoss())  # NEW
    trainer = L.Trainer(
        max_epochs=args.epochs,
        devices=args.devices,
        accelerator="auto" if torch.cuda.device_count() >= args.devices else "cpu",
        callbacks=[selection, ModelCheckpoint(save_last=True, every_n_train_steps=10)],  # NEW: selection
        logger=CSVLogger(args.out),
        log_every_n_steps=10,
    )
    trainer.fit(Digits(), selection.wrap(train_loader), test_loader, ckpt_path=args.checkpoint)  # NEW: selection.wrap
    if trainer.is_global_zero:
        print(f"test error {float(trainer.callback_metrics['test_error']):.2%} after {trainer.global_step} steps")
        print(selection.loader.stats)  # NEW


if __name__ == "__main__":
    main()
