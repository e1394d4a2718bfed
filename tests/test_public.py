"""The public surface, the layers, and what importing the package does."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import selective_backprop as sb

SOURCE = Path(sb.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())

CONTRIBUTING = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
ROWS = [row.split() for row in CONTRIBUTING.partition("```imports\n")[2].partition("```")[0].splitlines()]
HEIGHT = {name: -number for number, row in enumerate(ROWS) for name in row}
"""The row of the picture in which each package or module of the top level stands, from 0 downwards."""


def imported_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("selective_backprop"):
            assert not node.module.startswith("selective_backprop_lab"), f"{path.name} imports the lab"
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names]


def test_every_package_has_a_place():
    modules = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules - {"__init__", "__pycache__", "py.typed"} == set(HEIGHT)


def test_packages_only_look_down():
    for path in SOURCE.rglob("*.py"):
        if path.name == "__init__.py" and path.parent == SOURCE:
            continue
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imported_names(path):
            assert other == own or HEIGHT[other] < HEIGHT[own], f"{path.name} imports {other}, which is not below it"


def test_all_is_sorted_and_complete():
    assert sb.__all__ == sorted(sb.__all__)
    (for_editors,) = (node for node in ast.parse((SOURCE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    imported = [alias.name for node in for_editors.body for alias in node.names]
    assert sorted(imported) == sb.__all__, "what type checkers see is what there is"
    for node in for_editors.body:
        for alias in node.names:
            home = importlib.import_module(node.module)
            assert getattr(sb, alias.name) is getattr(home, alias.name)
    assert set(sb.__all__) <= set(dir(sb))
    assert len(sb.__all__) <= 32


def test_names_that_do_not_exist_are_refused():
    for name in ("leger_backprop", "_HOME", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(sb, name)


@pytest.mark.parametrize("module", [sb.methods, sb.policies, sb.pruning, sb.scorers, sb.types])
def test_modules_say_what_is_public(module):
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


def test_importing_needs_torch_and_numpy_alone_warns_of_nothing_and_touches_nothing():
    """Without numpy torch warns, so it is a dependency."""
    code = (
        "import sys, random, torch; state = torch.get_rng_state(); r = random.getstate(); before = set(sys.modules);"
        "import selective_backprop; selective_backprop.SelectiveLoader; selective_backprop.advise;"
        "assert torch.equal(state, torch.get_rng_state()) and r == random.getstate();"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)));"
        "from selective_backprop import *"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("['selective_backprop']", "['numpy', 'selective_backprop']")
    assert any(name.startswith("numpy") for name in PROJECT["project"]["dependencies"])


def test_a_source_distribution_has_what_its_tests_read():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    needed = {"src", "tests", "examples", "docs", "benchmarks/*.py", "README.md", "pyproject.toml"}
    assert needed <= set(included)
