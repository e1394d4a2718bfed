"""The JavaScript that draws the charts, in one cached file."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from selective_backprop.files.locks import locked_folder
from selective_backprop.files.writing import write_whole
from selective_backprop.lab.data.decoding import import_extra

_PATIENCE = 600.0  # seconds, on a machine with much else to do


def javascript(cache_dir: Path | None = None) -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, from vl-convert. The first call takes some 20 seconds.

    Args:
        cache_dir: default: selective_backprop in $XDG_CACHE_HOME or ~/.cache.
    """
    converter = import_extra("vl_convert")
    version = importlib.metadata.version("vl-convert-python")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    file = (cache_dir or caches / "selective_backprop") / f"vega-{version}.js"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # A second process waits for the first one, and then finds the file.
        with locked_folder(file.parent, patience=_PATIENCE, name=file.with_suffix(".lock").name):
            if not file.exists():
                code: str = converter.javascript_bundle()
                # Nothing in a script may look like its end.
                write_whole({file: code.replace("</script", "<\\/script").encode()})
    return file.read_text()
