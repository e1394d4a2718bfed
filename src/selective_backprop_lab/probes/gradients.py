"""How well the gradient of part of a batch agrees with that of the whole batch (figure 5 of Jiang et al. 2019).

# N = candidate batch, P = parameters
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selective_backprop.inference import NoTrace
from selective_backprop_lab.probes.files import Array, epoch_file, read_epochs, write_arrays

if TYPE_CHECKING:
    from selective_backprop_lab.runs.training import Record, Training

FRACTIONS = (0.05, 0.1, 0.2, 1 / 3, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class Gradients:
    """How well gradients of parts of batches agree with those of the whole batches: (epochs, parts) each."""

    epochs: list[int]
    highest: Array
    """Whether the part holds the examples with the highest losses, or random ones."""
    fraction: Array
    """Fraction of the batch that is in the part."""
    cosine: Array
    equal_signs: Array
    """Fraction of the gradient's components that have equal signs."""


class GradientProbe:
    """Records how well gradients of parts of batches agree with those of whole batches, by cosine and equal signs.

    Batches come from the training data with the labels that are trained on, normalised but not augmented. Batches and
    random parts are the same in every epoch, so that epochs can be compared.

    The model is in eval mode: BatchNorm uses its running statistics and dropout is off. So a batch's gradient is the
    mean of its examples' gradients, and only the choice of examples makes a difference. With batch statistics, a part
    of two examples would be normalised by those two, which never happens in training, where batches are full.

    Args:
        folder: folder of the run; arrays go to probes/gradients-0003.pt.
        num_batches: number of batches, each of the run's batch size; fewer if the data set is smaller.
        fractions: sizes of the parts; a part has at least one example.
    """

    def __init__(self, folder: Path, *, num_batches: int = 8, fractions: Sequence[float] = FRACTIONS) -> None:
        self.folder, self.num_batches, self.fractions = folder, num_batches, fractions

    def __call__(self, training: Training, record: Record) -> None:
        highest, *numbers = zip(*self._look(training), strict=True)
        fraction, cosine, equal_signs = np.array(numbers, dtype=np.float32)
        write_arrays(
            epoch_file(self.folder / "probes", "gradients", record["epoch"]),
            highest=np.array(highest),
            fraction=fraction,
            cosine=cosine,
            equal_signs=equal_signs,
        )

    def _look(self, training: Training) -> Iterator[tuple[bool, float, float, float]]:
        """Whether a part has the highest losses, its fraction of the batch, cosine and equal signs."""
        # Bypasses the loader, because its random numbers belong to the run.
        dataset = training.dataset
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(dataset), generator=generator)
        batches = torch.split(order, training.settings.recipe.batch_size)[: self.num_batches]
        with NoTrace(training.model, "eval")():
            for ids in batches:
                images, labels = (column.to(training.device) for column in dataset.__getitems__(ids.tolist()))
                images = training.normalise(images)
                losses = F.cross_entropy(training.model(images), labels, reduction="none")
                orders = {
                    True: losses.argsort(descending=True, stable=True),
                    False: torch.randperm(len(ids), generator=generator).to(training.device),
                }
                whole = gradient(training.model, images, labels)
                for highest, positions in orders.items():
                    for fraction in self.fractions:
                        chosen = positions[: max(1, round(fraction * len(ids)))]
                        part = gradient(training.model, images[chosen], labels[chosen])
                        yield highest, fraction, *agreement(whole, part)


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean loss, (P,). The parameters' .grad is left alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        loss = F.cross_entropy(model(images), labels)
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def agreement(whole: Tensor, part: Tensor) -> tuple[float, float]:
    """Cosine similarity, and the fraction of components with equal signs. Zero equals only zero.

    >>> agreement(torch.tensor([1.0, 0.0, 2.0, 0.0]), torch.tensor([4.0, 0.0, -2.0, 1.0]))
    (0.0, 0.5)
    """
    cosine = F.cosine_similarity(whole, part, dim=0).clamp(-1, 1)
    return float(cosine), float((whole.sign() == part.sign()).double().mean())


def read_gradients(folder: Path) -> Gradients:
    """Read what `GradientProbe` wrote for the run in this folder."""
    names = {"highest": "b", "fraction": "f", "cosine": "f", "equal_signs": "f"}
    epochs, arrays = read_epochs(folder / "probes", "gradients", **names)
    return Gradients(epochs, *arrays)
