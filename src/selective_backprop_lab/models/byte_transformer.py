"""A small transformer that classifies text, byte by byte."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ByteTransformer(nn.Module):
    """Classifies a text of a fixed number of bytes, given as uint8 (B, 1, 1, T).

    Bytes are embedded, and the embeddings of `patch` bytes in a row make one token. Layers are normalised before
    attention and before the MLP; the classifier sees the mean of all tokens.

    Args:
        num_classes: classes to tell apart.
        width: size of a token.
        depth: number of layers.
        length: T, the bytes of a text.
        patch: bytes per token.
    """

    def __init__(self, num_classes: int, *, width: int = 64, depth: int = 2, length: int = 64, patch: int = 4) -> None:
        super().__init__()
        self.length, self.tokens = length, length // patch
        self.embedding = nn.Embedding(256, width // patch)
        self.position = nn.Parameter(0.02 * torch.randn(self.tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        flat = text.flatten(1)
        if flat.shape[1] != self.length:
            raise ValueError(f"the network is for texts of {self.length} bytes, got {flat.shape[1]} values per example")
        embedded = self.embedding(flat.int())
        tokens = embedded.view(len(text), self.tokens, -1) + self.position
        outputs: Tensor = self.classifier(self.layers(tokens).mean(1))
        return outputs


def byte_transformer(num_classes: int = 10, channels: int = 1, *, width: int = 64, depth: int = 2) -> nn.Module:
    """A transformer of two layers and 64 channels over texts of 64 bytes: 0.07 million parameters.

    >>> sum(p.numel() for p in byte_transformer(26).parameters())
    73882
    """
    if channels != 1:
        raise ValueError(f"a text has one channel of bytes, got {channels}")
    return ByteTransformer(num_classes, width=width, depth=depth)
