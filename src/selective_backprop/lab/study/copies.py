"""Near-duplicates in the data of a run, by the features of its own network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.dynamics import Duplicates, near_duplicates
from selective_backprop.lab.data.augment import Normalise, measure_mean_std
from selective_backprop.lab.data.datasets import ImageDataset, ImageSet
from selective_backprop.lab.models import make_model
from selective_backprop.lab.runs.records import CHECKPOINT
from selective_backprop.lab.runs.sealed import read_sealed
from selective_backprop.lab.runs.settings import Settings

_BATCH = 500


def duplicates_of_run(run: Path, settings: Settings, data: ImageSet) -> Duplicates:
    """Find near-duplicates among the training examples of a run, by one forward pass of its network.

    Raises:
        FileNotFoundError: if the run's checkpoint is gone.
        ValueError: if it does not fit.
    """
    file = run / CHECKPOINT
    if not file.exists():
        raise FileNotFoundError(f"{file} is gone, and the features come from the run's network: train again")
    model = make_model(settings.recipe.model, num_classes=data.num_classes, channels=data.image_shape[0], seed=0)
    try:
        model.load_state_dict(read_sealed(file)["model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} does not fit the model {settings.recipe.model} ({error!r:.200})") from None
    normalise = nn.Identity() if data.is_text else Normalise(*measure_mean_std(data.train_images))
    dataset = ImageDataset(data.train_images, data.train_labels)
    batches: DataLoader[Any] = DataLoader(dataset, _BATCH, collate_fn=dataset.collate)

    def forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return model(normalise(batch[0])), batch[1]

    return near_duplicates(sb.pruning.last_features(model, batches, forward=forward))
