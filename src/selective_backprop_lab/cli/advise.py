"""The command selective-backprop advise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop_lab.cli.command import command
from selective_backprop_lab.cli.options import ModelOptions
from selective_backprop_lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop.advice.advise import Advice, Option


@command
def advise(
    options: ModelOptions,
    output: OutputOptions,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure for, about.")] = 30.0,
) -> None:
    """Measure the cost of loading, scoring and training on this machine, and predict epoch times of the methods.

    The methods are written as `train --method` takes them.

    Examples:

    `selective-backprop advise`

    `selective-backprop advise --recipe svhn --model resnet20 --data-dir data`
    """
    import torch

    from selective_backprop.advice.advise import predict
    from selective_backprop.advice.costs import measure_costs
    from selective_backprop_lab.runs.training import Training, load_data

    screen = Screen(output)
    settings = options.plain_settings()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training = Training(settings, load_data(settings, options.data_dir), device)
    costs = measure_costs(
        training.model,
        torch.nn.CrossEntropyLoss(),
        training.train_loader,
        transform=training.prepare,
        device=device,
        seconds=seconds,
        note=screen.note,
    )
    advice = predict(costs)
    screen.say(advice.text(spelled))
    screen.result(_as_json(advice))


def spelled(option: Option) -> str:
    """A method as `train --method` takes it.

    >>> from selective_backprop.advice.advise import Option
    >>> arguments = {"selectivity": 1 / 3, "every": 3}
    >>> made = Option(name="stale_selective_backprop", arguments=arguments, selectivity=1 / 3, seconds=1, speed_up=2)
    >>> spelled(made)
    'stale@0.33:every=3'
    """
    from selective_backprop_lab.runs.methods import short_name

    share = f"@{option.arguments['selectivity']:.2f}" if "selectivity" in option.arguments else ""
    others = ",".join(f"{name}={value}" for name, value in option.arguments.items() if name != "selectivity")
    return f"{short_name(option.name)}{share}{':' if others else ''}{others}"


def _as_json(advice: Advice) -> dict[str, Any]:
    costs, best = advice.costs, advice.best
    return {
        "seconds_per_example": {"loading": costs.loading, "forward": costs.forward, "training": costs.training},
        "methods": [
            {"method": spelled(option), "selectivity": option.selectivity}
            | {"seconds": option.seconds, "speed_up": option.speed_up}
            for option in advice.options
        ],
        "best": None if best is None else spelled(best),
        "break_even": advice.break_even,
    }
