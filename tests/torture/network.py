"""A network that trains fast and has all kinds of state that a resume can lose: BatchNorm's, dropout's random draws."""

import os

import torch
from torch import nn

NAN_AT = "TORTURE_NAN_AT"


class Small(nn.Module):
    """Its outputs become NaN at the training batch whose number is in the environment variable NAN_AT, if it is set."""

    def __init__(self, num_classes, channels):
        super().__init__()
        layers = [nn.Flatten(), nn.Linear(64 * channels, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)]
        self.layers = nn.Sequential(*layers, nn.Linear(32, num_classes))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        outputs = self.layers(images)
        if self.training and torch.is_grad_enabled():
            self.batches += 1
            if int(self.batches) == int(os.environ.get(NAN_AT, 0)):
                return outputs * float("nan")
        return outputs


def small(num_classes, channels=1):
    return Small(num_classes, channels)
