"""The public surface, the layers, and what importing the package does."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import selective_backprop as sb

SOURCE = Path(sb.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())

# Packages and modules at the top, lower ones first: each imports only from those before it.
ORDER = [
    *("files", "inference", "description", "batches", "ledger", "functional"),
    *("losses", "schedules", "types", "method", "distributed", "policies", "model_copies"),
    *("pruning", "scorers", "forward_reuse", "loader", "methods"),
    *("progress", "testing", "checkpoint", "advice", "integrations", "lab"),
]
STILL_BOTH_WAYS = {("distributed", "loader"), ("forward_reuse", "loader"), ("pruning", "loader")}


def imported_layers(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("selective_backprop"):
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names]


def test_every_package_has_a_place():
    modules = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules - {"__init__", "__pycache__", "py.typed"} == set(ORDER)


def test_packages_only_look_down():
    for path in SOURCE.rglob("*.py"):
        if path.name == "__init__.py" and path.parent == SOURCE:
            continue
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imported_layers(path):
            if (own, other) not in STILL_BOTH_WAYS:
                assert ORDER.index(other) <= ORDER.index(own), f"{path.name} imports {other}, which is above it"


def test_all_is_sorted_and_complete():
    assert sb.__all__ == sorted(sb.__all__)
    public = {name for name in vars(sb) if not name.startswith("_")}
    modules = {name for name, value in vars(sb).items() if type(value).__name__ == "module"}
    assert public - (modules - set(sb.__all__)) == set(sb.__all__)


@pytest.mark.parametrize("module", [sb.policies, sb.pruning, sb.scorers, sb.types])
def test_modules_say_what_is_public(module):
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


def test_importing_needs_torch_alone_and_touches_nothing():
    code = (
        "import sys, random, torch; state = torch.get_rng_state(); r = random.getstate(); before = set(sys.modules);"
        "import selective_backprop;"
        "assert torch.equal(state, torch.get_rng_state()) and r == random.getstate();"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "['selective_backprop']"


def test_importing_warns_of_nothing():
    """Without numpy torch does, so it is a dependency."""
    command = [sys.executable, "-W", "error", "-c", "import selective_backprop"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert any(name.startswith("numpy") for name in PROJECT["project"]["dependencies"])


def test_a_source_distribution_has_what_its_tests_read():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    needed = {"src", "tests", "examples", "docs", "benchmarks/*.py", "README.md", "pyproject.toml"}
    assert needed <= set(included)
