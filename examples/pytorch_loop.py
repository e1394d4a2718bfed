"""Selection in an ordinary PyTorch training loop. New lines are marked with NEW.

    python examples/pytorch_loop.py                                    # scikit-learn's digits, a few seconds
    python examples/pytorch_loop.py --amp --accumulate 2 --clip 1 --ema 0.9 --method sb --mix mixup
    python examples/pytorch_loop.py --data cifar10 --data-dir DATA     # DATA/cifar10/train.parquet and test.parquet

It needs the extra [lab], which brings the data.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

try:
    import sklearn  # noqa: F401, because the data come from it
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'selective-backprop[lab]'") from None

import selective_backprop as sb  # NEW
from selective_backprop_lab.data.datasets import load_images

METHODS = {  # NEW
    "ledger": lambda selectivity: sb.ledger_backprop(),
    "sb": sb.selective_backprop,
    "unbiased": lambda selectivity: sb.selective_backprop(selectivity, unbiased=True),
}


def mix(kind: str, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mixup or CutMix of each image with another one of the batch; targets are (B, classes)."""
    other = torch.randperm(len(images), device=images.device)
    share = float(torch.distributions.Beta(1.0, 1.0).sample())
    if kind == "mixup":
        images = share * images + (1 - share) * images[other]
    else:
        height, width = images.shape[2:]
        rows, columns = round(height * (1 - share) ** 0.5), round(width * (1 - share) ** 0.5)
        top, left = (int(torch.randint(room + 1, ())) for room in (height - rows, width - columns))
        images = images.clone()
        images[:, :, top : top + rows, left : left + columns] = images[
            other, :, top : top + rows, left : left + columns
        ]
        share = 1 - rows * columns / (height * width)
    return images, share * targets + (1 - share) * targets[other]


def main() -> None:
    """Train, and print the test error after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits", help="digits, cifar10, or another data set of the lab")
    parser.add_argument("--data-dir", help="folder of the parquet files")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--method", choices=METHODS, default="ledger", help="mixtures need sb or unbiased")
    parser.add_argument("--selectivity", type=float, help="share to train on, for sb and unbiased; default: 1/3")
    parser.add_argument("--amp", action="store_true", help="float16 with a gradient scaler on a GPU, bfloat16 on a CPU")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--clip", type=float, default=float("inf"), help="largest norm of the gradient")
    parser.add_argument("--ema", type=float, default=0.0, help="test a moving average of the weights, with this decay")
    parser.add_argument("--mix", choices=["mixup", "cutmix"])
    args = parser.parse_args()
    if args.method == "ledger" and args.selectivity is not None:
        parser.error("the ledger decides itself how many examples to train on: leave out --selectivity")

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_images(args.data, data_dir=args.data_dir)
    scale = float(data.train_images.max())
    train_set = TensorDataset(data.train_images / scale, data.train_labels)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(data.test_images / scale, data.test_labels), 500)

    width, classes = 32, data.num_classes
    model = nn.Sequential(
        *(nn.Conv2d(data.image_shape[0], width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(8 * width, classes)),
    ).to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    total_steps = args.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.ema), use_buffers=True)
    autocast = torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16, enabled=args.amp)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp and device.type == "cuda")

    def forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        with autocast:
            return model(batch[0]).float(), batch[1]

    loader = sb.SelectiveLoader(  # NEW
        train_loader,
        model,
        loss_fn,
        METHODS[args.method](args.selectivity),
        forward=forward,  # needed only to score in mixed precision too
        num_epochs=args.epochs,
    )
    for epoch in range(args.epochs):
        model.train()
        for images, labels in loader:  # NEW: was train_loader; batches come on the model's device
            if args.mix:
                # Calls loss_fn, not loader.loss, because the loss of a mixture is not the loss of one example. The loss
                # is linear in the targets, so each example's weight is multiplied into its target.
                targets = F.one_hot(labels, classes) * loader.weights()[:, None]
                images, targets = mix(args.mix, images, targets)
                loss = loss_fn(forward(model, (images, labels))[0], targets)
            else:
                loss = loader.loss(*forward(model, (images, labels)))  # NEW: was loss_fn
            scaler.scale(loss / args.accumulate).backward()
            if (
                loader.stats.batches % args.accumulate == 0
            ):  # counted across epochs, because an epoch can end at any batch
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                average.update_parameters(model)
                sb.step_by_progress(scheduler, loader, total_steps)  # NEW: was scheduler.step()

        tested = (average.module if args.ema else model).eval()
        with torch.no_grad():
            right = sum(int((tested(x.to(device)).argmax(1) == y.to(device)).sum()) for x, y in test_loader)
        error, lr = 1 - right / len(data.test_labels), scheduler.get_last_lr()[0]
        print(f"epoch {epoch + 1}: test error {error:.2%}, learning rate {lr:.4f}")
    print(loader.stats)  # NEW


if __name__ == "__main__":
    main()
