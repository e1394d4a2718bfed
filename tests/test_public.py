"""The public surface, the layers, and what importing the package does."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import selective_backprop as sb

SOURCE = Path(sb.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())

# Lower layers first. A module imports from its own layer's members listed before it, and from layers below.
LAYERS = [
    ["regular_files", "safe_writing"],
    ["no_trace", "batches", "padding", "row_gradients", "ranks", "agreeing", "description", "undoing"],
    ["functional"],
    ["losses", "history", "ledger", "sharded_ledger", "schedule", "guard", "stats", "forward", "recording"],
    ["types"],
    ["policies", "scorers"],
    [
        "tagging",
        "sampling",
        "topping_up",
        "planning",
        "source",
        "intake",
        "assembler",
        "ranked_assembler",
        "rounds",
        "checks",
    ],
    ["share_check", "selector", "feedback", "reuse", "offering"],
    ["forwarding", "loader"],
    ["redealing"],
    ["checkpoint_files", "checkpoint_owner", "checkpoint_ledger", "checkpoint_parts", "safe_reading", "checkpoint"],
    ["example_scores", "pruning"],
    ["timing", "candidate_batch", "costs", "advice"],
    ["methods", "progress", "testing"],
    ["integrations"],
    ["lab"],
]


def imported_layers(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("selective_backprop"):
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names]


def test_every_module_has_a_layer():
    modules = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules - {"__init__", "__pycache__", "py.typed"} == {name for layer in LAYERS for name in layer}


def test_layers_only_look_down():
    order = [name for layer in LAYERS for name in layer]
    for path in SOURCE.rglob("*.py"):
        if path.name == "__init__.py" and path.parent == SOURCE:
            continue
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imported_layers(path):
            assert order.index(other) <= order.index(own), f"{path.name} imports {other} from a higher layer"


def test_all_is_sorted_and_complete():
    assert sb.__all__ == sorted(sb.__all__)
    public = {name for name in vars(sb) if not name.startswith("_")}
    modules = {name for name, value in vars(sb).items() if type(value).__name__ == "module"}
    assert public - (modules - set(sb.__all__)) == set(sb.__all__)


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
