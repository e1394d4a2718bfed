"""Integrations, the lab and tests use public names only: what the library keeps to itself can change without them."""

import ast
from pathlib import Path

import pytest

import selective_backprop as sb

SOURCE = Path(sb.__file__).parent
TESTS = Path(__file__).parent
FOLDERS = (SOURCE / "integrations", SOURCE.parent / "selective_backprop_lab", TESTS)
BY_NAME = ("getattr", "setattr", "hasattr", "delattr")

# Private names of others that there is no public way around, each with the reason.
ALLOWED = {
    ("integrations/keras/__init__.py", "_selective_backprop"): "our attribute of a Keras model, which saves it",
    ("integrations/keras/scoring.py", "_keras_mask"): "where Keras keeps the mask of an output",
    (
        "integrations/keras/training_losses.py",
        "_metrics",
    ): "the metrics of a Keras model, which take no more once built",
    ("integrations/lightning.py", "_process_dataloader"): "Lightning's own preparation of a loader, with its samplers",
    ("integrations/lightning.py", "_pytree"): "tree_map of torch, which torch 2.6 has under no public name",
    ("integrations/transformers.py", "_get_num_items_in_batch"): "how Trainer counts what a loss is the mean of",
    ("integrations/transformers.py", "_save_rng_state"): "a hook of Trainer, called whenever it saves its own state",
    ("integrations/transformers.py", "_load_rng_state"): "a hook of Trainer, called when it resumes",
    ("integrations/transformers.py", "_init_training_state"): "a hook of Trainer, which decides where to resume",
    ("integrations/trl/online.py", "_calculate_rewards"): "a hook of GRPOTrainer, which gathers rewards",
    (
        "integrations/trl/online.py",
        "_generate_and_score_completions",
    ): "a hook of GRPOTrainer, to generate",
    ("integrations/trl/online.py", "_get_train_sampler"): "a hook of Trainer, which decides the order of prompts",
    ("integrations/trl/online.py", "_init_training_state"): "a hook of Trainer, which decides where to resume",
    ("integrations/trl/online.py", "_save_rng_state"): "a hook of Trainer, called whenever it saves its own state",
    (
        "integrations/trl/online.py",
        "_set_signature_columns_if_needed",
    ): "a hook of Trainer: which columns stay",
    ("integrations/trl/sft.py", "_prepare_dataset"): "a hook of SFTTrainer, which tokenizes and packs",
    ("tests/checkpoint/test_folders.py", "_exit"): "documented by Python: ends a process at once",
    ("tests/conftest.py", "_fixtureinfo"): "pytest has no public list of the fixtures of a test",
    (
        "tests/contracts/test_devices.py",
        "_setup_privateuseone_for_python_backend",
    ): "whether torch takes devices written in Python",
    ("tests/integrations/forked.py", "_reset_state"): "lets Accelerate forget what a forked process had made before",
    ("tests/integrations/test_grpo.py", "_calculate_rewards"): "a hook of GRPOTrainer, which gathers rewards",
    ("tests/integrations/test_transformers.py", "_get_train_sampler"): "a hook of Trainer, which decides the order",
    (
        "tests/integrations/test_trl.py",
        "_shared_state",
    ): "what Accelerate shares in a process, and cannot be told to forget",
    ("tests/lab/report/test_in_notebooks.py", "_repr_html_"): "what Jupyter calls to show an object",
    ("tests/loader/test_iteration.py", "_Skipped"): "what a plan must not hold for all of its blocks at once",
    ("tests/loader/test_iteration.py", "_decide"): "where each block of a plan is decided about",
    ("tests/loader/test_selective_loader.py", "_python_dispatch"): "where torch has TorchDispatchMode",
    ("tests/loader/test_selective_loader.py", "_pytree"): "where torch has tree_leaves",
    ("tests/pruning/test_pruning.py", "_forward_hooks"): "torch has no public list of a module's hooks",
    ("tests/processes.py", "_exit"): "documented by Python: ends a process at once",
    ("tests/processes.py", "_run_exitfuncs"): "what Python calls at its end, which os._exit leaves out",
    ("tests/toy_device.py", "_DummyBackendModule"): "what torch offers for devices written in Python",
    ("tests/toy_device.py", "_schema"): "torch has no public list of an operation's arguments",
    ("tests/toy_device.py", "_setup_privateuseone_for_python_backend"): "what makes a device written in Python",
    ("tests/torture/loaders.py", "_exit"): "documented by Python: ends a process at once",
    ("tests/torture/mortal.py", "_exit"): "documented by Python: ends a process at once",
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(tree):
    """Private names that a module defines itself: its functions, and what it assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names_of_others(tree):
    """Private names that a module reads, writes or imports, and that belong to another object."""
    own = set(own_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not is_self(node.value) or node.attr not in own:  # one of self that is not defined here is inherited
                yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if is_private(alias.name))
            yield from (part for part in (node.module or "").split(".") if is_private(part))
        elif isinstance(node, ast.Call) and called(node.func) in BY_NAME and len(node.args) > 1:
            holder, name = node.args[:2]
            if not is_self(holder) and isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield name.value


def called(function):
    """The last part of a function's name: setattr, also of monkeypatch."""
    return getattr(function, "attr", getattr(function, "id", None))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("loader._queue.pop()", ["_queue"]),
        ("self._queue = []; self._queue.pop()", []),
        ("self._inherited.pop()", ["_inherited"]),
        ("super()._give(batch)", ["_give"]),
        ("from selective_backprop.loader.queue import _first", ["_first"]),
        ("getattr(loader, '_queue')", ["_queue"]),
        ("monkeypatch.setattr(loader, '_queue', [])", ["_queue"]),
        ("loader.__class__, loader.queue, getattr(loader, name)", []),
    ],
)
def test_what_counts_as_private(code, found):
    assert list(private_names_of_others(ast.parse(code))) == found


def test_integrations_the_lab_and_tests_use_public_names_only():
    found = {
        (path.relative_to(SOURCE if folder.parent == SOURCE else folder.parent).as_posix(), name)
        for folder in FOLDERS
        for path in folder.rglob("*.py")
        for name in private_names_of_others(ast.parse(path.read_text()))
    }
    assert found - ALLOWED.keys() == set(), "private names of others"
    assert ALLOWED.keys() - found == set(), "listed here, and used no more: take them off the list"
