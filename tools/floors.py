"""Print constraints that install the lowest versions that pyproject.toml allows, for `make floors`.

    python tools/floors.py 2.6.0 > floors.txt
    python tools/floors.py 2.6.0 --core > core.txt

The first argument is the version of torch, so that others than its floor can be tried. With --core the extras are left
out. Tools that only the tests need are left to pip, except those that a floor decides.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
NOT_FOR_USERS = ("dev", "docs")


def floors(torch: str, *, core: bool) -> dict[str, str]:
    """Lowest version of each package that users install, by name."""
    extras = {} if core else PROJECT["optional-dependencies"]
    needed = PROJECT["dependencies"] + [
        item for name, items in extras.items() if name not in NOT_FOR_USERS for item in items
    ]
    found: dict[str, str] = {}
    for requirement in needed:
        name, version = re.fullmatch(r"([\w.-]+)(?:\[[\w,]*\])?>=([\d.]+)", requirement).groups()
        # Two extras may have different floors for one package: both together need the higher one.
        if name not in found or numbers(version) > numbers(found[name]):
            found[name] = version
    return found | {"torch": torch}


def numbers(version: str) -> list[int]:
    """The parts of a version, to compare it by."""
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    for package, version in sorted(floors(sys.argv[1], core="--core" in sys.argv).items()):
        print(f"{package}=={version}")
