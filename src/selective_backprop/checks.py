"""Checks of what users pass, made when a loader or a sampler is constructed or loads a state."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from selective_backprop.chain.padding import PadToLongest
from selective_backprop.chain.user_loader import length_of, longest_epoch, num_candidates
from selective_backprop.description import describe, differing
from selective_backprop.inference import is_sharded
from selective_backprop.method import Method, require_method
from selective_backprop.ranks import Ranks
from selective_backprop.scorers import ForwardScorer
from selective_backprop.scorers.base import require_one_each
from selective_backprop.scorers.stored import fresh_of


def check_loader(loader: Any) -> None:
    """Raise if this is no iterable of batches."""
    if inspect.isfunction(loader) or inspect.ismethod(loader):
        raise TypeError(
            f"loader must be a DataLoader or another iterable of batches, got the function {loader.__name__}: if it "
            f"yields batches, call it, {loader.__name__}(); if each call returns one batch, pass "
            f"sb.BatchFunction({loader.__name__}, num_batches)"
        )
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be a DataLoader or another iterable of batches, got {type(loader).__name__}")
    if getattr(loader, "_is_accelerate_prepared", False):
        raise TypeError(
            "your loader went through accelerator.prepare, which reads ahead and hides the sampler: pass the "
            "DataLoader itself, and prepare only the model and the optimizer"
        )


def check_model(model: Any, method: Method, ranks: Ranks) -> None:
    """Raise if this is no model that the method can score with."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"your model has lazy modules whose parameters have no shape before the first batch "
            f"({', '.join(lazy[:3])}): call the model on one batch before you make the optimizer and the loader"
        )
    scores_itself = isinstance(fresh_of(method.scorer), ForwardScorer)
    if ranks.size > 1 and is_sharded(model) and method.scorer.needs.selection_pass and not scores_itself:
        raise ValueError(
            f"your model is sharded by FSDP, which runs it on all ranks together, so {method.name} can score only with "
            "the model itself, not with a copy of it: use scoring='eval', scoring='train' or a scale factor"
        )


def check_options(*, seed: Any, audit: Any, functions: dict[str, Any], **numbers: Any) -> None:
    """Raise if an option is of the wrong kind. numbers: whole numbers from 1 on, or None."""
    for name, value in numbers.items():
        check_whole(name, value)
    check_seed(seed)
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, got {function!r:.100}")
    check_whole("on_stats.every", getattr(functions.get("on_stats"), "every", None))
    if not isinstance(audit, bool):
        raise TypeError(f"audit must be True or False, got {audit!r}")


def check_on_stats(on_stats: Any) -> None:
    """Raise if the function for statistics cannot work."""
    check_options(seed=0, audit=False, functions={"on_stats": on_stats})


def check_whole(name: str, value: Any) -> None:
    """Raise if a number of something is not a whole number from 1 on. None: it was not given."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def check_seed(seed: Any) -> None:
    """Raise if a torch.Generator could not take this seed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number, got {seed!r}")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must be from -2**63 to 2**64 - 1, as of any torch.Generator, got {seed}")


def check_batch_tokens(
    batch_tokens: int | None, *, batch_size: int | None, pad: Any, method: Method, ranks: Ranks
) -> None:
    """Raise if training batches cannot be made by tokens."""
    if batch_tokens is None:
        return
    if batch_size is not None:
        raise ValueError(
            f"a training batch has {batch_size} examples by batch_size= or {batch_tokens} tokens by batch_tokens=: "
            "leave out one of them"
        )
    if not isinstance(pad, PadToLongest):
        raise ValueError(
            "batch_tokens= must know where padding is: pass pad=sb.pad_to_longest(...) with the fill value of each "
            'sequence of a batch, such as {"input_ids": 0, "attention_mask": 0, "labels": -100}'
        )
    if method.batch_scale != 1:
        raise ValueError(f"{method.name} decides the size of training batches itself: leave out batch_tokens=")
    if ranks.size > 1:
        raise ValueError(
            f"batch_tokens= works in a single process, but this run has {ranks.size} ranks, which must take equally "
            "many batches: pass batch_size= instead"
        )


def check_ids(loader: Any, method: Method, transform: Any, *, has_ids: bool, audit: bool) -> None:
    """Raise if something needs the ids of examples, and the loader has none; or if it has nothing to offer."""
    known = "only a DataLoader over a map-style data set, with automatic batching, has them"
    if not has_ids and getattr(transform, "takes_ids", False):
        raise ValueError(
            f"your transform takes the ids of examples, and your loader has no ids: {known}. Use a transform of the "
            "batch alone"
        )
    if not has_ids and method.needs_ids:
        raise ValueError(
            f"{method.name} must know the id of each example, and your loader has no ids: {known}. If a framework "
            "wrapped yours, as Fabric's setup_dataloaders does, pass the DataLoader itself. Methods that need no ids, "
            "such as selective_backprop, work with your loader"
        )
    if not has_ids and audit:
        raise ValueError(
            "audit=True writes down what training says about each example, so it must know their ids, and your loader "
            f"has none: {known}"
        )
    if has_ids and (count := num_candidates(loader) or 0) > longest_epoch(len(loader.dataset)):
        raise ValueError(
            f"your sampler has {count:,} indices per epoch, for a data set of {len(loader.dataset):,} examples, and "
            "the ids of an epoch are drawn when it starts: make an epoch one pass over the data set, with shuffle=True "
            "or RandomSampler(data, replacement=True, num_samples=len(data)), and train for several epochs"
        )
    if length_of(loader) == 0:
        raise ValueError("the loader is empty: it has no batch to offer")


def check_method_of_run(method: Method, num_examples: int | None, num_epochs: int | None) -> None:
    """Raise if a method does not fit a data set of this size, or a run of this length. None: not known."""
    require_method(method)
    if method.needs_num_epochs and num_epochs is None:
        raise ValueError(f"{method.name} selects in a window of training: pass num_epochs=, the length of the run")
    method.scorer.check_run(num_examples, num_epochs)
    for name, values in {"keep": method.keep, "classes": method.groups}.items():
        if values is not None:
            require_one_each(f"{method.name} has {name}", len(values), num_examples)


def check_same_on_all_ranks(ranks: Ranks, method: Method, **options: Any) -> None:
    """Raise if the ranks differ in settings that must be equal. All ranks must call this.

    Ranks with different settings would wait for each other forever, or train on other examples than the method says.

    options: numbers and strings are compared. Others, such as a transform, must be given on all ranks or on none.
    """
    if ranks.size == 1:
        return
    described = describe(method)
    plain = {name: value if isinstance(value, int | float | str | None) else "one" for name, value in options.items()}
    answers = ranks.gather_plain({"method": described.pop("name"), **described, **plain})
    for rank, other in enumerate(answers):
        if found := differing(answers[0], other):
            (name, first, second), *more = [_by_own_name(*difference) for difference in found]
            text = f"all ranks need the same {name}; rank 0 has {first}, rank {rank} has {second}"
            if name != "method" and more:  # if methods differ, their options do too, and need not be listed
                text += f". They also differ in {', '.join(f'{n} ({one} and {two})' for n, one, two in more[:4])}"
            raise ValueError(text)


def _by_own_name(path: str, one: str, two: str) -> tuple[str, str, str]:
    """Shorten the name of an option: max_age, not scorer.max_age."""
    part, _, name = path.rpartition(".")
    if name in ("true", "shape", "checksum"):  # the parts of a tensor's description
        return part.rpartition(".")[2], f"{name} {one}", f"{name} {two}"
    return name, one, two


def check_saved(state: Any, method: Method, keys: set[str], *, version: int, what: str) -> None:
    """Raise if a saved state does not fit, before anything is loaded from it. Damage is not looked for.

    Args:
        state: the saved state.
        method: the method that is to go on.
        keys: what the state must have.
        version: version of the state's format.
        what: "loader", "sampler" or "loss".
    """
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError(
            f"this is not the state of a Selective{what.title()}, which is a dict with a version: got {state!r:.200}"
        )
    if state["version"] != version:
        raise ValueError(
            f"this state has version {state['version']}, expected {version}: it was saved by another version of "
            "selective_backprop. Finish the run with that one, or start it again"
        )
    if missing := keys - state.keys():
        raise ValueError(
            f"this state lacks {', '.join(sorted(missing))}: it is damaged, or not of a Selective{what.title()}"
        )
    if state["method"]["name"] != method.name:
        raise ValueError(
            f"the state was saved by the method {state['method']['name']}, but this {what} has {method.name}"
        )
    if found := differing(state["method"], describe(method)):
        raise ValueError(
            f"the state was saved by {method.name} with other options than this {what}'s. Saved, and here: "
            f"{'; '.join(f'{name}: {saved} and {own}' for name, saved, own in found)}"
        )


def check_options_of_state(
    state: Any, batch_size: int | None, batch_tokens: int | None, transform: Any, num_generators: int
) -> None:
    """Raise if a loader with these options cannot go on from a state."""
    if None not in (batch_size, state["batch_size"]) and batch_size != state["batch_size"]:
        raise ValueError(
            f"the state was saved with training batches of {state['batch_size']}, but this loader's have {batch_size} "
            "examples: pass the same batch_size="
        )
    if (batch_tokens is None) != (state["batch_tokens"] is None):
        raise ValueError("the state was saved with another batch_tokens=: pass the same, or start a new run")
    if state["transform"] is not None and not hasattr(transform, "load_state_dict"):
        raise ValueError(
            "the state was saved with a transform that has a state, but this loader's transform has no "
            "load_state_dict: pass the same transform="
        )
    if num_generators != len(state["generators"]):
        raise ValueError(
            f"the state was saved with {len(state['generators'])} random generators in the DataLoader and its "
            f"samplers, but your DataLoader has {num_generators}: make it the same way as in the saved run"
        )


def check_ranks(state: Any, ranks: Ranks) -> None:
    """Raise if a state in the middle of a scored epoch is of another rank, whose queue has other examples."""
    saved, here = state["ranks"], {"rank": ranks.rank, "size": ranks.size}
    under_way = state["under_way"]
    if under_way is not None and not under_way["any_ranks"] and saved != here:
        raise ValueError(
            f"the state was saved by rank {saved['rank']} of {saved['size']} in the middle of a scored epoch, but this "
            f"is rank {here['rank']} of {here['size']}, and each rank has other examples in its queue: let every rank "
            "load its own state, and change the number of ranks between epochs"
        )
