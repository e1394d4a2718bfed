"""Tables on disk: CSV, JSON lines and parquet, with one row per example."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from selective_backprop.files.writing import write_whole

SUFFIXES = (".csv", ".jsonl", ".parquet")


def write_table(columns: Mapping[str, NDArray[Any]], file: Path) -> None:
    """Write columns of the same length to a file whose suffix says the format. It is never half-written.

    What is not known (NaN) is an empty field in CSV, and null in the other formats.
    """
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{file} must end with one of {', '.join(SUFFIXES)}, which say the format")
    write_whole({file: {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}[file.suffix](columns)})


def _csv(columns: Mapping[str, NDArray[Any]]) -> bytes:
    writer = csv.writer(lines := io.StringIO(), lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        writer.writerow("" if _unknown(value) else value for value in row)
    return lines.getvalue().encode()


def _jsonl(columns: Mapping[str, NDArray[Any]]) -> bytes:
    names, rows = list(columns), zip(*(column.tolist() for column in columns.values()), strict=True)
    known = (dict(zip(names, (None if _unknown(v) else v for v in row), strict=True)) for row in rows)
    return "".join(json.dumps(row) + "\n" for row in known).encode()


def _parquet(columns: Mapping[str, NDArray[Any]]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("parquet files need pyarrow: pip install pyarrow, or write a .csv or .jsonl file") from None
    table = pyarrow.table({name: pyarrow.array(column, from_pandas=True) for name, column in columns.items()})
    pyarrow.parquet.write_table(table, buffer := io.BytesIO())
    return buffer.getvalue()


def _unknown(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
