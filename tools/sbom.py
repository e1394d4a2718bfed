"""Print a software bill of materials (CycloneDX, JSON): this package, and every package that is installed beside it.

    fresh-environment/bin/python tools/sbom.py

Run it in an environment that has the package and what it needs, and nothing else.
"""

from __future__ import annotations

import json
import re
from importlib import metadata
from urllib.parse import quote

PACKAGE = "selective-backprop"


def bill() -> dict[str, object]:
    """Name, version, licence and requirements of each package."""
    found = {_name(package.name): package for package in metadata.distributions() if _name(package.name) != "pip"}
    components = {name: _component(name, package) for name, package in sorted(found.items())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": components[PACKAGE]},
        "components": [component for name, component in components.items() if name != PACKAGE],
        "dependencies": [
            {
                "ref": components[name]["bom-ref"],
                "dependsOn": [components[one]["bom-ref"] for one in _needs(package, found)],
            }
            for name, package in sorted(found.items())
        ],
    }


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _component(name: str, package: metadata.Distribution) -> dict[str, object]:
    place = f"pkg:pypi/{name}@{quote(package.version)}"
    component = {"type": "library", "bom-ref": place, "name": name, "version": package.version, "purl": place}
    licence = package.metadata.get("License-Expression")
    return component | ({"licenses": [{"expression": licence}]} if licence else {})


def _needs(package: metadata.Distribution, found: dict[str, metadata.Distribution]) -> list[str]:
    """The packages that this one needs, as far as they are there: others belong to extras or to other systems."""
    names = {_name(re.match(r"[\w.-]+", line)[0]) for line in package.requires or () if "extra ==" not in line}
    return sorted(names & set(found))


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
