"""The commands selective-backprop diet score and diet prune."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from selective_backprop_lab.cli.command import command, make_app, stopping_says
from selective_backprop_lab.cli.options import DataOptions, ModelOptions, require_new
from selective_backprop_lab.cli.screen import OutputOptions, Screen, warn

if TYPE_CHECKING:
    from torch import Tensor

    from selective_backprop_lab.data.datasets import ImageSet
    from selective_backprop_lab.study.diet import ClassScores

_FRACTION = 0.25  # Diet-SB prunes this much


@command
def score(
    options: ModelOptions,
    output: OutputOptions,
    out: Annotated[Path, typer.Option(help="File for the scores.")],
    epochs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Score after this many epochs of the recipe's schedule.")
    ] = 10,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of networks whose scores are averaged.")] = 3,
) -> None:
    """Score every training example (EL2N) by networks that are trained for a few epochs.

    After a stop, run the same command again: it continues. The networks stay in a folder beside the scores.

    Examples:

    `selective-backprop diet score --out scores.pt`

    `selective-backprop diet score --recipe diet --seeds 10 --data-dir data --out el2n.pt`
    """
    import torch

    import selective_backprop as sb
    from selective_backprop.functional import spearman
    from selective_backprop_lab.cli.bars import Bars
    from selective_backprop_lab.runs.experiment import Entry
    from selective_backprop_lab.runs.time_left import TimeLeft
    from selective_backprop_lab.runs.training import check, load_data
    from selective_backprop_lab.study.diet import score_by_network

    screen = Screen(output)
    require_new(out)
    settings = options.plain_settings()
    data = load_data(settings, options.data_dir)
    check(settings, data)
    folder = out.with_name(f"{out.name}.networks")
    # The bars end where the training is cut off.
    short = dataclasses.replace(settings, recipe=settings.recipe.with_(epochs=max(1, epochs)))
    entries, found = [Entry("el2n", dataclasses.replace(short, seed=seed)) for seed in range(seeds)], []
    going_on = f"run the same command to go on after the last epoch that was finished: {folder}"
    with Bars(screen, TimeLeft(entries)) as bars, stopping_says(going_on):
        for seed, entry in enumerate(entries):
            mine = dataclasses.replace(settings, seed=seed)
            show = lambda training, record, entry=entry: bars.show(entry, record)  # noqa: E731
            found.append(score_by_network(mine, data, folder / f"seed-{seed}", epochs=epochs, observers=[show]))
    scores = torch.stack(found).mean(0)
    sb.pruning.save_scores(scores, out)
    keep = sb.pruning.keep_after_pruning(scores, _FRACTION)
    classes = _show_classes(screen, scores, keep, data, f"left out at {_FRACTION:.0%}")
    pairs = [spearman(a, b) for a, b in itertools.combinations(found, 2)]
    if pairs:
        screen.say(f"rank correlation between networks: mean {fmean(pairs):.3f}, lowest {min(pairs):.3f}")
    screen.say(
        f"{out}: el2n of {len(scores):,} examples after {epochs} epoch{'' if epochs == 1 else 's'}, "
        + (f"mean of {seeds} networks. The networks are" if seeds > 1 else "by one network. The network is")
        + f" in {folder}, which can be deleted."
    )
    given = {"--recipe": options.recipe, "--dataset": options.dataset, "--data-dir": options.data_dir}
    which = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    screen.note("next, look at the pruning, or train on the examples that it keeps:")
    screen.note("  " + shlex.join(["selective-backprop", "diet", "prune", str(out), *which]))
    method = ["--method", f"diet:scores={out},prune={_FRACTION}"]
    screen.note("  " + shlex.join(["selective-backprop", "train", *which, *method]))
    screen.result(
        {"out": out, "networks": folder, "examples": len(scores), "epochs": epochs}
        | {"seeds": seeds, "rank_correlations": pairs, "classes": classes}
    )


@command
def prune(
    options: DataOptions,
    output: OutputOptions,
    scores: Annotated[Path, typer.Argument(help="File of scores, made by `diet score`.")],
    fraction: Annotated[
        float, typer.Option(help="Leave out this fraction of the examples, those with the lowest scores.")
    ] = _FRACTION,
    highest: Annotated[float, typer.Option(help="Also leave out this fraction, those with the highest scores.")] = 0.0,
) -> None:
    """Show which examples a pruning leaves out, class by class.

    Examples:

    `selective-backprop diet prune scores.pt --fraction 0.25`

    `selective-backprop diet prune el2n.pt --recipe diet --data-dir data`
    """
    import selective_backprop as sb
    from selective_backprop_lab.runs.training import load_data
    from selective_backprop_lab.study.diet import warning_about

    screen = Screen(output)
    data = load_data(options.plain_settings(), options.data_dir)
    values = sb.pruning.load_scores(scores, len(data.train_labels))
    keep = sb.pruning.keep_after_pruning(values, fraction, highest=highest)
    classes = _show_classes(screen, values, keep, data, "left out")
    kept, left_out = int(keep.sum()), int((~keep).sum())
    screen.say(f"{kept:,} of {len(keep):,} examples stay, {left_out:,} are left out")
    warning = warning_about(classes, left_out / len(keep))
    if warning:
        warn(f"warning: some classes lose far more than others. {warning}")
    screen.result({"kept": kept, "left_out": left_out, "classes": classes, "warning": warning or None})


diet_app = make_app(
    "Leave out the easiest examples before training, by scores of briefly trained networks.", score=score, prune=prune
)


def _show_classes(screen: Screen, scores: Tensor, keep: Tensor, data: ImageSet, last_heading: str) -> list[ClassScores]:
    """Print a table of the classes, and return its rows."""
    from selective_backprop_lab.study.diet import summarise

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
    heading = ["class", "examples", "lowest", "median", "highest", last_heading]
    screen.table("scores by class, the lowest median first", heading, cells)
    return rows
