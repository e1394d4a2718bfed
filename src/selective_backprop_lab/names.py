"""Messages about names that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """Name the nearest known word, as the end of a message; "" if none is near.

    >>> suggestion("losshare", ["loss_share", "max_age"])
    ': did you mean loss_share?'
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that does not exist. It names the nearest one, or all of them.

    >>> unknown("recipe", "cifar", ["cifar10", "svhn"])
    ValueError("there is no recipe 'cifar': did you mean cifar10?")
    """
    known = list(known)
    hint = suggestion(name, known) or f": there are {', '.join(known)}"
    return ValueError(f"there is no {what} {name!r}{hint}")
