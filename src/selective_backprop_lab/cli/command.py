"""What all commands share: their help, groups of options, plain error messages, and a quiet end by Ctrl-C."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer

from selective_backprop_lab.cli.screen import warn

_INTERRUPTED = 130  # exit code of a command that Ctrl-C ended, as in a shell


def make_app(about: str, **commands: Callable[..., None]) -> typer.Typer:
    """Make a group of commands from functions by name, which `command` has made ready."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,  # a fault of ours shows as Python shows it, without the values of all variables
        help=about,
    )
    for name, function in commands.items():
        app.command(name)(function)
    return app


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function.

    A parameter that is a dataclass of options is replaced by the options in it. Errors in what the user gave, and of
    files, are shown as a message without a traceback. Ctrl-C ends the command quietly.
    """
    parameters, hints = inspect.signature(function).parameters, get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    own = [parameter.replace(annotation=hints[name]) for name, parameter in parameters.items() if name not in groups]
    shared = [
        option for group in groups.values() for option in inspect.signature(group, eval_str=True).parameters.values()
    ]
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (*own, *shared)]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        made = {
            name: group(**{item.name: values.pop(item.name) for item in fields(group)})
            for name, group in groups.items()
        }
        try:
            import torch  # noqa: F401, here because it takes seconds

            function(**made, **values)
        except KeyboardInterrupt:
            warn("stopped")
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            raise  # the reader of the output has left, as in `list | head`: typer ends the program without a word
        except (ValueError, TypeError, OSError, ImportError) as error:
            message = str(error)
            if isinstance(error, OSError) and error.strerror and error.filename:
                message = f"{error.filename}: {error.strerror}"  # without the number that Python puts before it
            warn(f"Error: {message}")
            raise typer.Exit(2) from None

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


@contextmanager
def stopping_says(how_to_go_on: str) -> Iterator[None]:
    """On Ctrl-C, end the command and print how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        warn(f"stopped; {how_to_go_on}")
        raise typer.Exit(_INTERRUPTED) from None
