"""Draw docs/images/methods/NAME.svg for every method: which examples it trains on in each epoch, and what that costs.

    python tools/method_pictures.py

Every picture comes from a run of the method itself on 192 examples whose losses are fixed, from easy to hard. So the
pictures show the rule alone, not what learning does to the losses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import torch
from torch import Tensor, nn

import selective_backprop as sb
from selective_backprop import methods

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "methods"
EXAMPLES, EPOCHS, BATCH = 192, 12, 16
SMALL = 4  # training batches: few selected examples wait for the next epoch, where they would leave gaps in the picture

# Losses of an exponential distribution, sorted. Logits (z, 0) with target 0 have exactly these as cross-entropy.
LOSSES = -torch.log1p(-(torch.arange(EXAMPLES) + 0.5) / EXAMPLES)
LOGITS = torch.stack([-torch.log(torch.expm1(LOSSES)), torch.zeros(EXAMPLES)], dim=1)


def ledger() -> sb.Method:
    """The ledger without the rules that train on everything: these losses are spread too evenly to skip 30%."""
    return methods.ledger_backprop(skip_at_least=0, most_rise=None)


# Methods that cannot be made without arguments, or that show more with other ones.
MADE: dict[str, Callable[[], sb.Method]] = {
    "diet": lambda: methods.diet(method=ledger(), scores=LOSSES, prune=0.25),
    "kath18": lambda: methods.kath18(variable_start=False),
    "ledger_backprop": lambda: ledger(),
    "predicted_selective_backprop": lambda: methods.predicted_selective_backprop(every=3),
    "proxy_backprop": lambda: methods.proxy_backprop(proxy=nn.Identity(), train_every=0),
}
POOLS = {"kath18": 3 * BATCH, "proxy_backprop": 3 * BATCH, "top_k": 3 * BATCH}
"""Methods that choose within a candidate batch want large ones."""


def run(name: str) -> tuple[Tensor, sb.SelectiveLoader]:
    """Train. Returns the total weight with which each example was trained on, by epoch, and the loader."""
    method = MADE.get(name, getattr(methods, name))()
    data = torch.utils.data.TensorDataset(LOGITS, torch.zeros(EXAMPLES, dtype=torch.int64))
    generator = torch.Generator().manual_seed(0)
    batches = torch.utils.data.DataLoader(data, POOLS.get(name, BATCH), shuffle=True, generator=generator)
    model = nn.Identity()  # losses stay as they are
    loader = sb.SelectiveLoader(
        batches, model, nn.CrossEntropyLoss(), method, batch_size=SMALL, num_epochs=EPOCHS, seed=0
    )
    weights = torch.zeros(EPOCHS, EXAMPLES)
    for epoch in range(EPOCHS):
        for logits, targets in loader:
            loader.loss(model(logits), targets)
            weights[epoch].index_add_(0, loader.batch.ids, loader.batch.weights)
    return weights, loader


def picture(name: str) -> str:
    """An SVG with a row per epoch and a column per example, and a bar of the cost below."""
    weights, loader = run(name)
    column, row, left, top = 3, 12, 58, 24
    width, height = left + EXAMPLES * column + 12, top + EPOCHS * row + 88
    shapes = [f'<rect x="{left}" y="{top}" width="{EXAMPLES * column}" height="{EPOCHS * row}" fill="#eceff4"/>']
    for colour, low, high in (("#a9c1e8", 0.02, 0.75), ("#3f6fc4", 0.75, 1.25), ("#16336b", 1.25, float("inf"))):
        runs = "".join(
            f"M{left + start * column} {top + epoch * row}h{length * column}v{row - 1}h-{length * column}z"
            for epoch in range(EPOCHS)
            for start, length in spans((weights[epoch] > low) & (weights[epoch] <= high))
        )
        if runs:
            shapes.append(f'<path d="{runs}" fill="{colour}"/>')
    texts = [
        (left, 15, "start", "easiest example"),
        (left + EXAMPLES * column, 15, "end", "hardest example"),
        (left - 6, top + 9, "end", "epoch 1"),
        (left - 6, top + EPOCHS * row - 2, "end", str(EPOCHS)),
    ]
    bars, words = cost(loader, left, top + EPOCHS * row + 34, EXAMPLES * column)
    shapes += bars
    texts += words
    written = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>' for x, y, anchor, text in texts
    )
    title = f"{name}: the examples that it trains on, from easiest to hardest, in {EPOCHS} epochs"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title>"
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>'
        f"{''.join(shapes)}"
        f'<g font-family="sans-serif" font-size="12" fill="#333c4d">{written}</g></svg>\n'
    )


def spans(chosen: Tensor) -> list[tuple[int, int]]:
    """Start and length of each run of true values."""
    padded = torch.cat([torch.zeros(1, dtype=torch.bool), chosen, torch.zeros(1, dtype=torch.bool)]).int()
    edges = padded.diff()
    starts, ends = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
    return [(int(start), int(end - start)) for start, end in zip(starts, ends, strict=True)]


def cost(loader: sb.SelectiveLoader, left: int, top: int, width: int) -> tuple[list[str], list[tuple]]:
    """A bar of passes per candidate, in units of a forward pass. Plain training takes the width of 3 of 4 units."""
    stats, unit = loader.stats, width / 4
    offered = EPOCHS * EXAMPLES
    parts = [("selection passes", stats.scored / offered, "#e0a33e")]
    parts += [("forward", stats.trained / offered, "#3f6fc4"), ("backward", 2 * stats.trained / offered, "#16336b")]
    shapes, x = [], float(left)
    for _, size, colour in parts:
        if size:
            shapes.append(f'<rect x="{x:.1f}" y="{top}" width="{size * unit:.1f}" height="14" fill="{colour}"/>')
        x += size * unit
    plain = left + 3 * unit
    shapes.append(f'<path d="M{plain:.1f} {top - 5}v24" stroke="#333c4d" stroke-dasharray="3 2"/>')
    total = sum(size for _, size, _ in parts)
    named = " + ".join(f"{size:.2f} {name}" for name, size, _ in parts if size)
    words = [
        (left, top - 9, "start", "cost per candidate, in forward passes"),
        (round(plain), top - 9, "middle", "plain training"),
        (left, top + 31, "start", f"{named} = {total:.2f}, plain training 3.00"),
    ]
    return shapes, words


def main(names: list[str]) -> None:
    """Draw these methods, or all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or methods.__all__:
        (FOLDER / f"{name}.svg").write_text(picture(name))
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
