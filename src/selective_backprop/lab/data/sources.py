"""A grouping of examples that the user brings along: where each of them comes from."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from selective_backprop.files.reading import read_bytes

FILE = "sources.csv"
"""Name of the file in the folder of a run."""


def read_sources(file: Path, num_examples: int) -> list[str]:
    """Read a CSV file with a header, a column `id` and one more column, the source of each example.

    Args:
        file: the file. Its rows can be in any order, and every example needs one.
        num_examples: number of training examples.
    """
    try:
        lines = csv.DictReader(io.StringIO(read_bytes(file).decode()))
        rows, names = list(lines), list(lines.fieldnames or [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is no CSV file ({error})") from None
    if "id" not in names or len(names) != 2:
        raise ValueError(
            f"{file} must have a header with two columns, id and the source of each example, got "
            f"{', '.join(names) or 'none'}"
        )
    (column,) = (name for name in names if name != "id")
    sources: dict[int, str] = {}
    for number, row in enumerate(rows, start=2):
        text = row["id"] or ""
        if not text.isdecimal() or int(text) >= num_examples or row[column] is None:
            raise ValueError(
                f"{file}, line {number}: id must be from 0 to {num_examples - 1} with a source, got {text!r}"
            )
        if int(text) in sources:
            raise ValueError(f"{file}, line {number}: id {text} is there twice")
        sources[int(text)] = row[column]
    if len(sources) < num_examples:
        missing = next(id for id in range(num_examples) if id not in sources)
        raise ValueError(
            f"{file} has sources of {len(sources):,} examples, the run has {num_examples:,}: id {missing} is missing"
        )
    return [sources[id] for id in range(num_examples)]
