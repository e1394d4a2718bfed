"""The commands selective-backprop diet score and diet prune."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import shlex
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import selective_backprop as sb
from selective_backprop.files.writing import make_subfolder, write_whole
from selective_backprop.lab.cli.bars import Bars, stopping_says
from selective_backprop.lab.cli.options import (
    DataOptions,
    ModelOptions,
    Validation,
    cached_loader,
    told_plainly,
    with_option_groups,
)
from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.models import make_model
from selective_backprop.lab.runs.experiment import Entry
from selective_backprop.lab.runs.recipes import Recipe
from selective_backprop.lab.runs.training import Record, Settings, Training
from selective_backprop.lab.study.diet import score_by_network, summarise, warning_about
from selective_backprop.pruning.scores import Measure

_FRACTION = 0.25  # Diet-SB prunes this much
_COMPARED = (0.05, 0.1, 0.25, 0.5, 0.75)
_MOST_ROWS = 20

diet_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Leave out the easiest examples before training, by scores of briefly trained networks.",
)


class Score(StrEnum):
    """Names of the scores on the command line."""

    EL2N = "el2n"
    GRAND = "grand"


@diet_app.command()
@with_option_groups
def score(
    options: ModelOptions,
    out: Annotated[Path, typer.Option(help="File for the scores.")],
    epochs: Annotated[int, typer.Option(min=0, help="Score after this many epochs of the recipe's schedule.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Number of networks whose scores are averaged.")] = 3,
    score: Annotated[Score, typer.Option(help="Which score to compute.")] = Score.EL2N,
    validation: Validation = 0.0,
    networks: Annotated[
        Path | None, typer.Option(help="Folder for the networks. Default: the name of --out plus .networks.")
    ] = None,
) -> None:
    """Score every training example by networks that are trained for a few epochs.

    After a stop, run the same command again: it continues. The networks stay in their folder, so another score, more
    seeds or more epochs only cost what is new.

    Examples:

    `selective-backprop diet score --out scores.pt`

    `selective-backprop diet score --recipe diet --seeds 10 --data-dir data --out el2n.pt`

    `selective-backprop diet score --score grand --networks scores.pt.networks --out grand.pt`
    """
    with told_plainly():
        _require_new(out)
        chosen = options.chosen()
        settings = _settings(chosen, validation)
        data = cached_loader(options.data_dir)(settings)
        # Fail before the folder is made: a folder made with a wrong name would be refused when the name is right.
        make_model(chosen.model, num_classes=data.num_classes, channels=data.image_shape[0])
        folder = networks or out.with_name(f"{out.name}.networks")
        out.parent.mkdir(parents=True, exist_ok=True)
        found = _score_with_bars(settings, data, folder, epochs=epochs, seeds=seeds, measure=score.value)
        scores = torch.stack(found).mean(0)
        sb.pruning.save_scores(scores, out)
    console = Console()
    _show_classes(
        console, scores, sb.pruning.keep_after_pruning(scores, _FRACTION), data, f"left out at {_FRACTION:.0%}"
    )
    if seeds > 1:
        pairs = [sb.pruning.rank_correlation(a, b) for a, b in itertools.combinations(found, 2)]
        console.print(f"rank correlation between networks: mean {fmean(pairs):.3f}, lowest {min(pairs):.3f}")
    typer.echo(
        f"{out}: {score} of {len(scores):,} examples after {epochs} epochs, mean of {seeds} networks. The networks are "
        f"in {folder}, which can be deleted."
    )
    data_options = {
        "--recipe": options.recipe,
        "--dataset": options.dataset,
        "--data-dir": options.data_dir,
        "--validation": validation or None,
    }
    which = [str(word) for pair in data_options.items() if pair[1] is not None for word in pair]
    typer.echo("next, look at the pruning, or train on the examples that it keeps:")
    typer.echo("  " + shlex.join(["selective-backprop", "diet", "prune", str(out), *which]))
    method = ["--method", "diet", "--option", f"scores={out}", "--option", f"prune={_FRACTION}"]
    typer.echo("  " + shlex.join(["selective-backprop", "train", *which, *method]))


@diet_app.command()
@with_option_groups
def prune(
    options: DataOptions,
    scores: Annotated[Path, typer.Argument(help="File of scores, made by `diet score`.")],
    fraction: Annotated[
        float, typer.Option(help="Leave out this fraction of the examples, those with the lowest scores.")
    ] = _FRACTION,
    highest: Annotated[float, typer.Option(help="Also leave out this fraction, those with the highest scores.")] = 0.0,
    compare: Annotated[Path | None, typer.Option(help="Another file of scores to compare with.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write: one line per id with class, score, and whether it is kept.")
    ] = None,
    validation: Validation = 0.0,
) -> None:
    """Show which examples a pruning leaves out, class by class, and how well two scores agree.

    Examples:

    `selective-backprop diet prune scores.pt --fraction 0.25 --out ids.csv`

    `selective-backprop diet prune el2n.pt --recipe diet --data-dir data --compare grand.pt`
    """
    console = Console()
    with told_plainly():
        if out is not None:
            _require_new(out)
        chosen = options.chosen()
        data = cached_loader(options.data_dir)(_settings(chosen, validation))
        values, other = (
            sb.pruning.load_scores(path, len(data.train_labels)) if path is not None else None
            for path in (scores, compare)
        )
        assert values is not None
        keep = sb.pruning.keep_after_pruning(values, fraction, highest=highest)
        _show_classes(console, values, keep, data, "left out")
        typer.echo(f"{int(keep.sum()):,} of {len(keep):,} examples stay, {int((~keep).sum()):,} are left out")
        if warning := warning_about(
            summarise(values, keep, data.train_labels, data.classes), float((~keep).float().mean())
        ):
            typer.echo(f"warning: some classes lose far more than others. {warning}", err=True)
        if other is not None:
            _show_agreement(console, values, other)
        if out is not None:
            write_whole({out: _as_csv(values, keep, data).encode()})
            typer.echo(f"{out}: one line per id")


def _settings(recipe: Recipe, validation: float) -> Settings:
    return Settings(recipe=recipe, method="traditional", selectivity=1.0, validation=validation)


def _require_new(file: Path) -> None:
    if file.exists():
        raise ValueError(f"{file} is there already: choose another name, or delete it")


def _score_with_bars(
    settings: Settings, data: ImageSet, folder: Path, *, epochs: int, seeds: int, measure: Measure
) -> list[Tensor]:
    console, found = Console(), []
    going_on = f"run the same command to go on after the last epoch that was finished: {folder}"
    with Bars(console, seeds) as bars, stopping_says(console, going_on):

        def show(training: Training, record: Record) -> None:
            shown = dataclasses.replace(training.settings, length=epochs)  # the bar ends where the training is cut off
            bars.show(Entry(measure, shown), record)

        for seed in range(seeds):
            mine, place = dataclasses.replace(settings, seed=seed), make_subfolder(folder, f"seed-{seed}")
            found.append(score_by_network(mine, data, place, epochs=epochs, measure=measure, observers=[show]))
    return found


def _show_classes(console: Console, scores: Tensor, keep: Tensor, data: ImageSet, last_heading: str) -> None:
    rows = summarise(scores, keep, data.train_labels, data.classes)
    table = Table("class", title="scores by class, the lowest median first", title_justify="left")
    for heading in ("examples", "lowest", "median", "highest", last_heading):
        table.add_column(heading, justify="right")
    for place, row in enumerate(rows):
        hidden = len(rows) - _MOST_ROWS
        if hidden > 0 and _MOST_ROWS // 2 <= place < _MOST_ROWS // 2 + hidden:
            if place == _MOST_ROWS // 2:
                table.add_row(f"... {hidden} more")
            continue
        spread = (f"{value:.4f}" for value in (row.lowest, row.median, row.highest))
        table.add_row(row.name, f"{row.examples:,}", *spread, f"{row.pruned / row.examples:.1%}")
    console.print(table)


def _show_agreement(console: Console, scores: Tensor, other: Tensor) -> None:
    console.print(f"rank correlation {sb.pruning.rank_correlation(scores, other):.3f}")
    table = Table("lowest", "also lowest by the other", "by chance")
    for fraction in _COMPARED:
        table.add_row(f"{fraction:.0%}", f"{sb.pruning.overlap(scores, other, fraction):.1%}", f"{fraction:.0%}")
    console.print(table)


def _as_csv(scores: Tensor, keep: Tensor, data: ImageSet) -> str:
    writer = csv.writer(lines := io.StringIO(), lineterminator="\n")
    writer.writerow(("id", "class", "score", "kept"))
    names = (data.classes[label] for label in data.train_labels.tolist())
    for number, (name, value, kept) in enumerate(zip(names, scores.tolist(), keep.tolist(), strict=True)):
        writer.writerow((number, name, value, int(kept)))
    return lines.getvalue()
