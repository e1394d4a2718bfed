"""Every method there is, by selectivity. The promises are tested for all of them, without special cases."""

import inspect

from selective_backprop import methods
from selective_backprop.types import Method

METHODS = {
    "traditional": lambda selectivity: methods.traditional(),
    "selective_backprop": lambda selectivity: methods.selective_backprop(selectivity),
    "selective_backprop, scoring in train mode": lambda selectivity: methods.selective_backprop(
        selectivity, scoring="train"
    ),
    "selective_backprop, warm-up and interrupt": lambda selectivity: methods.selective_backprop(
        selectivity, warmup_epochs=1, interrupt=3
    ),
    "selective_backprop, window": lambda selectivity: methods.selective_backprop(selectivity, start=0.3, end=0.8),
    "stale_selective_backprop": lambda selectivity: methods.stale_selective_backprop(selectivity, every=2),
    "stale_selective_backprop, warm-up": lambda selectivity: methods.stale_selective_backprop(
        selectivity, every=3, warmup_epochs=0.5
    ),
    "random_backprop": lambda selectivity: methods.random_backprop(selectivity),
    "random_backprop, window and interrupt": lambda selectivity: methods.random_backprop(
        selectivity, start=0.2, end=0.7, interrupt=4
    ),
    "top_k": lambda selectivity: methods.top_k(selectivity),
}


def public_methods():
    """Names of the functions in `methods` that return a Method."""
    functions = inspect.getmembers(methods, inspect.isfunction)
    return [
        name
        for name, function in functions
        if function.__module__ == methods.__name__ and inspect.signature(function).return_annotation == "Method"
    ]


def test_every_method_is_in_the_table():
    assert {name.split(",")[0] for name in METHODS} == set(public_methods())
    assert all(isinstance(make(0.5), Method) for make in METHODS.values())
