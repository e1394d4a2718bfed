"""The commands selective-backprop diet score and diet prune."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop.lab.cli.command import command, stopping_says
from selective_backprop.lab.cli.options import DataOptions, ModelOptions, Validation, cached_loader
from selective_backprop.lab.cli.screen import OutputOptions, Screen, warn

if TYPE_CHECKING:
    from torch import Tensor

    from selective_backprop.lab.data.datasets import ImageSet
    from selective_backprop.lab.runs.recipes import Recipe
    from selective_backprop.lab.runs.training import Record, Settings, Training
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
@command
def score(
    options: ModelOptions,
    output: OutputOptions,
    out: Annotated[Path, typer.Option(help="File for the scores.")],
    epochs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Score after this many epochs of the recipe's schedule.")
    ] = 10,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of networks whose scores are averaged.")] = 3,
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
    import torch

    import selective_backprop as sb
    from selective_backprop.files.writing import make_subfolder
    from selective_backprop.lab.models import make_model
    from selective_backprop.lab.study.agreement import rank_correlation

    screen = Screen(output)
    _require_new(out)
    chosen = options.chosen()
    settings = _settings(chosen, validation)
    data = cached_loader(options.data_dir)(settings)
    # Fail before the folder is made: a folder made with a wrong name would be refused when the name is right.
    make_model(chosen.model, num_classes=data.num_classes, channels=data.image_shape[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = networks or make_subfolder(out.parent, f"{out.name}.networks")
    found = _score_with_bars(screen, settings, data, folder, epochs=epochs, seeds=seeds, measure=score.value)
    scores = torch.stack(found).mean(0)
    sb.pruning.save_scores(scores, out)
    classes = _show_classes(
        screen, scores, sb.pruning.keep_after_pruning(scores, _FRACTION), data, f"left out at {_FRACTION:.0%}"
    )
    pairs = [rank_correlation(a, b) for a, b in itertools.combinations(found, 2)]
    if pairs:
        screen.say(f"rank correlation between networks: mean {fmean(pairs):.3f}, lowest {min(pairs):.3f}")
    screen.say(
        f"{out}: {score} of {len(scores):,} examples after {epochs} epochs, "
        + (f"mean of {seeds} networks. The networks are" if seeds > 1 else "by one network. The network is")
        + f" in {folder}, which can be deleted."
    )
    data_options = {
        "--recipe": options.recipe,
        "--dataset": options.dataset,
        "--data-dir": options.data_dir,
        "--validation": validation or None,
    }
    which = [str(word) for pair in data_options.items() if pair[1] is not None for word in pair]
    screen.note("next, look at the pruning, or train on the examples that it keeps:")
    screen.note("  " + shlex.join(["selective-backprop", "diet", "prune", str(out), *which]))
    method = ["--method", f"diet:scores={out},prune={_FRACTION}"]
    screen.note("  " + shlex.join(["selective-backprop", "train", *which, *method]))
    screen.result(
        {"out": out, "networks": folder, "score": score.value, "examples": len(scores), "epochs": epochs}
        | {"seeds": seeds, "rank_correlations": pairs, "classes": classes}
    )


@diet_app.command()
@command
def prune(
    options: DataOptions,
    output: OutputOptions,
    scores: Annotated[Path, typer.Argument(help="File of scores, made by `diet score`.")],
    fraction: Annotated[
        float, typer.Option(help="Leave out this fraction of the examples, those with the lowest scores.")
    ] = _FRACTION,
    highest: Annotated[float, typer.Option(help="Also leave out this fraction, those with the highest scores.")] = 0.0,
    compare: Annotated[Path | None, typer.Option(help="Another file of scores to compare with.")] = None,
    validation: Validation = 0.0,
) -> None:
    """Show which examples a pruning leaves out, class by class, and how well two scores agree.

    Examples:

    `selective-backprop diet prune scores.pt --fraction 0.25`

    `selective-backprop diet prune el2n.pt --recipe diet --data-dir data --compare grand.pt`
    """
    import selective_backprop as sb
    from selective_backprop.lab.study.diet import summarise, warning_about

    screen = Screen(output)
    chosen = options.chosen()
    data = cached_loader(options.data_dir)(_settings(chosen, validation))
    values = sb.pruning.load_scores(scores, len(data.train_labels))
    other = None if compare is None else sb.pruning.load_scores(compare, len(data.train_labels))
    keep = sb.pruning.keep_after_pruning(values, fraction, highest=highest)
    classes = _show_classes(screen, values, keep, data, "left out")
    kept, left_out = int(keep.sum()), int((~keep).sum())
    screen.say(f"{kept:,} of {len(keep):,} examples stay, {left_out:,} are left out")
    warning = warning_about(summarise(values, keep, data.train_labels, data.classes), left_out / len(keep))
    if warning:
        warn(f"warning: some classes lose far more than others. {warning}")
    agreement = None if other is None else _show_agreement(screen, values, other)
    screen.result(
        {"kept": kept, "left_out": left_out, "classes": classes, "warning": warning or None} | {"agreement": agreement}
    )


def _settings(recipe: Recipe, validation: float) -> Settings:
    from selective_backprop.lab.runs.training import Settings

    return Settings(recipe=recipe, method="traditional", selectivity=1.0, validation=validation)


def _require_new(file: Path) -> None:
    if file.exists():
        raise ValueError(f"{file} is there already: choose another name, or delete it")


def _score_with_bars(
    screen: Screen, settings: Settings, data: ImageSet, folder: Path, *, epochs: int, seeds: int, measure: Measure
) -> list[Tensor]:
    from selective_backprop.files.writing import make_subfolder
    from selective_backprop.lab.cli.bars import Bars
    from selective_backprop.lab.runs.experiment import Entry
    from selective_backprop.lab.runs.time_left import TimeLeft
    from selective_backprop.lab.study.diet import score_by_network

    found = []
    going_on = f"run the same command to go on after the last epoch that was finished: {folder}"
    by_seed = [dataclasses.replace(settings, seed=seed) for seed in range(seeds)]
    # The bars end where the training is cut off.
    shown = [Entry(measure, dataclasses.replace(mine, length=epochs)) for mine in by_seed] if epochs else []
    with Bars(screen, TimeLeft(shown)) as bars, stopping_says(going_on):

        def show(training: Training, record: Record) -> None:
            bars.show(shown[training.settings.seed], record)

        for seed, mine in enumerate(by_seed):
            place = make_subfolder(folder, f"seed-{seed}")
            found.append(score_by_network(mine, data, place, epochs=epochs, measure=measure, observers=[show]))
    return found


def _show_classes(
    screen: Screen, scores: Tensor, keep: Tensor, data: ImageSet, last_heading: str
) -> list[dict[str, Any]]:
    """Print a table of the classes, and return it as plain data."""
    from selective_backprop.lab.study.diet import summarise

    rows = summarise(scores, keep, data.train_labels, data.classes)
    cells = [
        [
            row.name,
            f"{row.examples:,}",
            *(f"{value:.4f}" for value in (row.lowest, row.median, row.highest)),
            f"{row.pruned / row.examples:.1%}",
        ]
        for row in rows
    ]
    if (hidden := len(rows) - _MOST_ROWS) > 0:
        half = _MOST_ROWS // 2
        cells[half : half + hidden] = [[f"... {hidden} more", "", "", "", "", ""]]
    heading = ["class", "examples", "lowest", "median", "highest", last_heading]
    screen.table("scores by class, the lowest median first", heading, cells)
    return [
        {"class": row.name, "examples": row.examples, "left_out": row.pruned}
        | {"lowest": row.lowest, "median": row.median, "highest": row.highest}
        for row in rows
    ]


def _show_agreement(screen: Screen, scores: Tensor, other: Tensor) -> dict[str, Any]:
    """Print how well two scores agree, and return it as plain data."""
    from selective_backprop.lab.study.agreement import overlap, rank_correlation

    correlation = rank_correlation(scores, other)
    shared = {fraction: overlap(scores, other, fraction) for fraction in _COMPARED}
    screen.say(f"rank correlation {correlation:.3f}")
    rows = [[f"{fraction:.0%}", f"{share:.1%}", f"{fraction:.0%}"] for fraction, share in shared.items()]
    screen.table("examples with the lowest scores", ["lowest", "also lowest by the other", "by chance"], rows)
    return {"rank_correlation": correlation, "overlap": shared}
