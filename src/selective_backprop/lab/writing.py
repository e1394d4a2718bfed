"""Files that are whole or not there: the library's own, under the name that the lab knows them by."""

from __future__ import annotations

from selective_backprop.files.writing import make_subfolder as make_subfolder
from selective_backprop.files.writing import write_whole as write_whole
