"""What a run's network says of training examples, where its checkpoint is still there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from selective_backprop.checkpoint.sealed import read_sealed
from selective_backprop.lab.data.augment import Normalise, measure_mean_std
from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.models import make_model
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.runs.records import CHECKPOINT


def predictions(run: Run, data: ImageSet, ids: Sequence[int]) -> dict[int, str]:
    """Name of the class that the network of the last epoch gives to each of these; {} where it cannot be asked."""
    file = run.path / CHECKPOINT
    if not ids or not file.exists():
        return {}
    try:
        weights = read_sealed(file)["model"]
        model = make_model(run.recipe["model"], num_classes=data.num_classes, channels=data.image_shape[0], seed=0)
        model.load_state_dict(weights)
        model.eval()
        normalise = Normalise(*measure_mean_std(data.train_images))
        with torch.no_grad():
            classes = model(normalise(data.train_images[list(ids)])).argmax(1).tolist()
    except (ValueError, OSError, KeyError, TypeError, AttributeError, RuntimeError):
        return {}  # a checkpoint of another version, or one that is being replaced
    return {id: data.classes[label] for id, label in zip(ids, classes, strict=True)}
