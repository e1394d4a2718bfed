"""Your own loop with Accelerate and selection, with gradient accumulation and a checkpoint.

pip install 'selective-backprop[transformers]'
python examples/accelerate_loop.py
"""

import argparse
import tempfile

import torch

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'selective-backprop[transformers]'") from None

import selective_backprop as sb

ACCUMULATION = 2


def main() -> None:
    """Train on points whose class is the sign of a sum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs

    torch.manual_seed(0)
    inputs = torch.randn(4096, 20)
    targets = (inputs[:, :3].sum(1) > 0).long()
    data = torch.utils.data.TensorDataset(inputs, targets)
    train_loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator())
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
    model, optimizer = accelerator.prepare(model, optimizer)  # not the DataLoader, which the next line wraps
    method = sb.ledger_backprop()
    loader = sb.SelectiveLoader(train_loader, model, torch.nn.CrossEntropyLoss(), method, num_epochs=epochs)
    total_steps = epochs * len(train_loader) // ACCUMULATION
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.optimizer, total_steps)
    accelerator.register_for_checkpointing(loader, scheduler)

    for epoch in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = loader.loss(model(batch[0]), batch[1])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                sb.step_by_progress(scheduler, loader, total_steps)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, learning rate {scheduler.get_last_lr()[0]:.5f}")
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)  # includes the loader's state, so load_state continues exactly
        accelerator.load_state(folder)
    print(loader.stats)


if __name__ == "__main__":
    main()
