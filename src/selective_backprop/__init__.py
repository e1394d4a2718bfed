"""Train neural networks faster by choosing which examples to learn from.

Here is what a training script names. All methods are in `methods`, those that are used most also here. Parts to build
methods of your own from are in the modules `functional`, `losses`, `policies`, `pruning`, `schedules`, `scorers` and
`testing`, those for reinforcement learning in `rl`. The types that they exchange are in `selective_backprop.types`, and
the parts of audits in `selective_backprop.dynamics`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; when a program runs, __getattr__ imports each name on first use
    from selective_backprop import (
        functional,
        losses,
        methods,
        policies,
        pruning,
        schedules,
        scorers,
        testing,
    )
    from selective_backprop.advice.advise import advise
    from selective_backprop.chain.padding import pad_to_longest
    from selective_backprop.chain.with_length import BatchFunction, WithLength
    from selective_backprop.checkpoint import load_checkpoint, save_checkpoint
    from selective_backprop.dynamics.auditing import audit
    from selective_backprop.loader import SelectiveLoader
    from selective_backprop.losses import token_cross_entropy
    from selective_backprop.method import Method
    from selective_backprop.methods import (
        diet,
        infobatch,
        kath18,
        ledger_backprop,
        proxy_backprop,
        random_backprop,
        repeated_random,
        selective_backprop,
        stale_selective_backprop,
        top_k,
        traditional,
    )
    from selective_backprop.progress import step_by_progress
    from selective_backprop.sampler import SelectiveSampler
    from selective_backprop.stats import Every

__version__ = "0.1.0"

__all__ = [
    "BatchFunction",
    "Every",
    "Method",
    "SelectiveLoader",
    "SelectiveSampler",
    "WithLength",
    "advise",
    "audit",
    "diet",
    "functional",
    "infobatch",
    "kath18",
    "ledger_backprop",
    "load_checkpoint",
    "losses",
    "methods",
    "pad_to_longest",
    "policies",
    "proxy_backprop",
    "pruning",
    "random_backprop",
    "repeated_random",
    "save_checkpoint",
    "schedules",
    "scorers",
    "selective_backprop",
    "stale_selective_backprop",
    "step_by_progress",
    "testing",
    "token_cross_entropy",
    "top_k",
    "traditional",
]

_HOMES = {
    "BatchFunction": "chain.with_length",
    "Every": "stats",
    "Method": "method",
    "SelectiveLoader": "loader",
    "SelectiveSampler": "sampler",
    "WithLength": "chain.with_length",
    "advise": "advice.advise",
    "audit": "dynamics.auditing",
    "pad_to_longest": "chain.padding",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "step_by_progress": "progress",
    "token_cross_entropy": "losses",
}
"""The module of each public name. Names that are not here are modules themselves, or methods."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use. `import selective_backprop` alone stays quick, and so does --help."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif (module := _submodule(name)) is not None:
        value = module
    elif name in __all__:
        value = getattr(importlib.import_module(f"{__name__}.methods"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _submodule(name: str) -> Any:
    """Import the module of this name inside the package. None if there is none."""
    path = f"{__name__}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
