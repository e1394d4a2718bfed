"""The command selective-backprop advise."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console

import selective_backprop as sb
from selective_backprop.lab.cli.options import ModelOptions, told_plainly, with_option_groups
from selective_backprop.lab.runs.choices import Choice
from selective_backprop.lab.runs.training import Training, load_data
from selective_backprop.lab.study.comparison import settings_for


@with_option_groups
def advise(
    options: ModelOptions,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure for, about.")] = 30.0,
) -> None:
    """Measure the cost of loading, scoring and training on this machine, and predict epoch times of the methods.

    Examples:

    `selective-backprop advise`

    `selective-backprop advise --recipe svhn --model resnet20 --data-dir data`

    Cheap ways to score, and where they help. Use one as in `train --method sb --option scoring=int8`, and join several
    by +, as in `scoring=half+int8`:

    - `half`: images at half resolution; check its rank correlation

    - `int8`: CPUs with VNNI or AMX

    - `folded`: other CPUs

    - `bf16`, `fp16`: GPUs, and CPUs with AMX

    - `compiled`: long runs, where a minute of compilation does not matter

    - `pipelined`: a second GPU, or cores that training leaves idle

    - `reuse`, only alone: networks without BatchNorm, if memory holds the graph of all candidates
    """
    with told_plainly():
        settings = settings_for(Choice.parse("traditional"), options.chosen())
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        training = Training(settings, load_data(settings, options.data_dir), device)
        advice = sb.advise(
            training.model,
            torch.nn.CrossEntropyLoss(),
            training.train_loader,
            transform=training.prepare,
            device=device,
            seconds=seconds,
        )
    Console(soft_wrap=True).print(str(advice), markup=False, highlight=False)
