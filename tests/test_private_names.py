"""Integrations use public names of other packages only, and tests of the core its public modules only."""

import ast
import re
from pathlib import Path

import selective_backprop as sb

SOURCE = Path(sb.__file__).parent
TESTS = Path(__file__).parent

# Private names that there is no public way around, each with the reason.
ALLOWED = {
    "_selective_backprop": "our attribute of a Keras model, which saves it",
    "_keras_mask": "where Keras keeps the mask of an output",
    "_metrics": "the metrics of a Keras model, which take no more once built",
    "_process_dataloader": "Lightning's own preparation of a loader, with its samplers",
    "_pytree": "tree_map of torch, which torch 2.6 has under no public name",
    "_get_num_items_in_batch": "how Trainer counts what a loss is the mean of",
    "_save_rng_state": "a hook of Trainer, called whenever it saves its own state",
    "_load_rng_state": "a hook of Trainer, called when it resumes",
    "_init_training_state": "a hook of Trainer, which decides where to resume",
    "_generate_and_score_completions": "a hook of GRPOTrainer, to generate",
    "_prepare_dataset": "a hook of SFTTrainer, which tokenizes and packs",
}


def own_names(tree):
    """Private names that a module defines itself: its functions and classes, and what it assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names_of_others(tree):
    own = set(own_names(tree))
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
        if re.match(r"_[^_]", name) and not (is_self(getattr(node, "value", None)) and name in own):
            yield name


def test_integrations_use_public_names_of_others():
    for path in (SOURCE / "integrations").rglob("*.py"):
        assert set(private_names_of_others(ast.parse(path.read_text()))) <= ALLOWED.keys(), path
    assert list(private_names_of_others(ast.parse("loader._queue.pop(); self._own = 1; self._own"))) == ["_queue"]


PUBLIC = {
    *("", "dynamics", "forward_reuse", "functional", "inference", "integrations", "ledger", "losses", "method"),
    *("methods", "policies", "pruning", "rl", "schedules", "scorers", "testing", "types"),
}
FOLDERS = ("contracts", "distributed", "loader", "methods", "policies", "scorers")


def test_tests_of_the_core_use_its_public_modules():
    for path in (path for folder in FOLDERS for path in (TESTS / folder).rglob("*.py")):
        modules = re.findall(r"selective_backprop\.(\w+)", path.read_text())
        assert set(modules) <= PUBLIC | set(sb.__all__), path
