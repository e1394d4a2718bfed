"""The form of saved states: which keys they have, and what each value is. A state of another form is refused.

A checksum tells that nobody changed a state since it was signed. It does not tell who signed it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop_lab.files.reading import visible

Form = Any
"""What a value must be, written as plain data:

- `int`: a whole number >= 0. `float`: a finite number. `bool`, `str` or `dict`: one of these. `None`: None.
- a `torch.dtype`: a tensor of this type with one dimension.
- `{"name": form}`: a dict with these keys and no others.
- `[form]`: a list of any length. `(form, form)`: a list of this length.
- `Either(form, form)`: what fits one of them. `object`: anything.
"""

_LARGEST_INT, _LARGEST_FLOAT = 2**62, 1e308
_WORDS = {int: "a whole number >= 0", float: "a finite number", bool: "True or False", str: "a string", dict: "a dict"}


class Either:
    """A form that fits what one of these forms fits."""

    def __init__(self, *forms: Form) -> None:
        self.forms = forms


def require_form(value: Any, form: Form, name: str) -> None:
    """Raise ValueError if a part of a saved state does not have its form.

    name: the part's place in the state, for the error.

    >>> require_form({"epoch": 3, "sizes": [1, -1]}, {"epoch": int, "sizes": [int]}, "stats")
    Traceback (most recent call last):
    ...
    ValueError: the saved state's stats.sizes[1] is -1, not a whole number >= 0: it is damaged, or was edited
    """
    if isinstance(form, Either):
        if not any(fits(value, one) for one in form.forms):
            require_form(value, form.forms[-1], name)  # it names the place within
        return
    if isinstance(form, dict) and isinstance(value, dict):
        if missing := [str(key) for key in form if key not in value]:
            raise ValueError(f"the saved state's {name} lacks {', '.join(missing)}: {_DAMAGED}")
        if unknown := [str(key) for key in value if key not in form]:
            shown = visible(", ".join(unknown))
            raise ValueError(f"the saved state's {name} has {shown:.80}, which is not known: {_DAMAGED}")
        for key, one in form.items():
            require_form(value[key], one, f"{name}.{key}")
    elif isinstance(form, list) and isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            require_form(entry, form[0], f"{name}[{place}]")
    elif isinstance(form, tuple) and isinstance(value, list | tuple) and len(value) == len(form):
        for place, (entry, one) in enumerate(zip(value, form, strict=True)):
            require_form(entry, one, f"{name}[{place}]")
    elif isinstance(form, dict | list | tuple) or not _is_one(value, form):
        raise ValueError(f"the saved state's {name} is {value!r:.80}, not {_words(form)}: {_DAMAGED}")


_DAMAGED = "it is damaged, or was edited"


def fits(value: Any, form: Form) -> bool:
    """Whether a value has this form.

    >>> fits([1, 2], [int]), fits(True, int), fits(None, Either(None, int))
    (True, False, True)
    """
    try:
        require_form(value, form, "")
    except ValueError:
        return False
    return True


def require(condition: bool, what: str) -> None:
    """Raise ValueError if parts of a saved state do not fit together. what: what should hold."""
    if not condition:
        raise ValueError(f"in the saved state, it is not so that {what}: {_DAMAGED}")


def _is_one(value: Any, form: Form) -> bool:
    if form is object:
        return True
    if form is None:
        return value is None
    if isinstance(form, torch.dtype):
        is_plain = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        return is_plain and not value.requires_grad and value.dtype == form and value.dim() == 1
    if form is int:
        return type(value) is int and 0 <= value < _LARGEST_INT
    if form is float:
        return type(value) in (int, float) and -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT  # not NaN
    return type(value) is form


def _words(form: Form) -> str:
    if isinstance(form, torch.dtype):
        return f"a tensor of {str(form).removeprefix('torch.')} with one dimension"
    if isinstance(form, dict):
        return "a dict"
    if isinstance(form, list):
        return "a list"
    if isinstance(form, tuple):
        return f"a list of {len(form)}"
    return _WORDS.get(form, "None")
