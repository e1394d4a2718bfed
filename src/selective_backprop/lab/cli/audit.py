"""The command selective-backprop audit."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop.lab.cli.command import command, stopping_says
from selective_backprop.lab.cli.options import DataDir, cached_loader
from selective_backprop.lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop.dynamics import Audit, Duplicates, Dynamics
    from selective_backprop.lab.data.datasets import ImageSet
    from selective_backprop.lab.runs.settings import Settings
    from selective_backprop.lab.study.redundancy import PartOfData, Redundancy

_KINDS = ("easy", "ambiguous", "hard")


@command
def audit(
    output: OutputOptions,
    run: Annotated[Path, typer.Argument(help="Folder of a run that was trained with `--record dynamics`.")],
    out: Annotated[Path | None, typer.Option(help="CSV file for all statistics, one row per example.")] = None,
    diet: Annotated[Path | None, typer.Option(help="File for scores, for `--method diet` and `diet prune`.")] = None,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many labels to list, the likeliest to be wrong first.")
    ] = 20,
    sources: Annotated[
        Path | None, typer.Option(help="CSV file with columns id and source, to summarise by source too.")
    ] = None,
    duplicates: Annotated[
        bool,
        typer.Option(
            "--duplicates",
            metavar="",
            help="Find near-duplicates, by one forward pass of the run's network over its data.",
        ),
    ] = False,
    redundancy: Annotated[
        str | None,
        typer.Option(help="Train again on these shares of the data, such as 0.25,0.5,0.75, and measure what it costs."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, metavar="N", help="For --redundancy: runs of each kind.")] = 3,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="For --redundancy: how much higher the error may be.")
    ] = 0.01,
    model: Annotated[
        str | None,
        typer.Option(help="For --redundancy: a cheaper model. Default: the run's."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Tell what a run learned about its data: labels that are probably wrong, duplicates, and what was not needed.

    Nothing is trained, except with --redundancy. A run without recorded dynamics is audited by the losses in its
    ledger. What --duplicates and --redundancy find is kept in the run's folder, with the sources, for the report.

    Examples:

    `selective-backprop audit runs/a`

    `selective-backprop audit runs/a --duplicates --out audit.csv --diet scores.pt --show 50`

    `selective-backprop audit runs/a --redundancy 0.3,0.5,0.7 --seeds 3 --diet scores.pt`
    """
    import selective_backprop as sb
    from selective_backprop.files.reading import read_bytes
    from selective_backprop.files.writing import write_whole
    from selective_backprop.lab.data.sources import FILE as SOURCES
    from selective_backprop.lab.data.sources import read_sources

    screen = Screen(output)
    for file in (out, diet):
        if file is not None and file.exists():
            raise ValueError(f"{file} is there already: choose another name, or delete it")
    shares = _shares(redundancy)
    recorded = _recorded(run)
    settings, data = _data_of(run, data_dir) if duplicates or shares else (None, None)
    copies = _duplicates(run, settings, data, find=duplicates)
    found = sb.audit(recorded, features=copies)
    named = read_sources(sources, len(found)) if sources is not None else None
    for note in found.notes:
        screen.note(note)
    result: dict[str, Any] = {"examples": len(found), "epochs": found.num_epochs, "notes": list(found.notes)}
    result |= _tell_labels(screen, found, show) if found.num_classes else _tell_losses(screen, found, show)
    if named is not None and sources is not None:
        write_whole({run / SOURCES: read_bytes(sources)})  # for the report
        result["sources"] = found.by(named)
        _tell_groups(screen, found, "source", result["sources"])
    if copies is not None:
        result |= _tell_duplicates(screen, found, data, show)
    if found.num_classes:
        result |= _tell_estimate(screen, found)
    curve = None
    if shares and settings is not None and data is not None:
        curve = _measured(screen, run, settings, data, found, shares, seeds=seeds, tolerance=tolerance, model=model)
        result["curve"] = curve.as_json() | {"verdict": curve.verdict()}
    if out is not None:
        found.save(out)
        screen.say(f"{out}: one row per example")
    if diet is not None:
        sb.pruning.save_scores(found.diet_scores(), diet)
        screen.say(f"{diet}: scores for --method diet")
    result["suggestion"] = _suggest(screen, run, found, curve, diet, data_dir)
    screen.result(result | {"out": out, "diet": diet})


# ---- reading


def _recorded(run: Path) -> Path | Dynamics:
    """Return the run's folder if it recorded dynamics, else a log of the losses in its ledger."""
    import torch

    from selective_backprop.dynamics import Dynamics
    from selective_backprop.dynamics.log import FILE
    from selective_backprop.lab.runs.ledger_log import read_ledger_log

    if not (run / "ledger").is_dir() or (run / FILE).exists():
        return run
    history = read_ledger_log(run)
    dynamics = Dynamics(history.loss.shape[1])
    for epoch, (losses, selected) in enumerate(zip(history.loss, history.selected, strict=True)):
        ids = torch.from_numpy(selected).bool().nonzero().flatten()
        dynamics.record(ids, torch.from_numpy(losses).float()[ids], epoch)
    return dynamics


def _shares(text: str | None) -> list[float]:
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise ValueError(f"--redundancy takes shares of the data, such as 0.25,0.5,0.75, got {text!r}") from None


def _data_of(run: Path, data_dir: Path | None) -> tuple[Settings, ImageSet]:
    """Settings and data of a run. Data that have changed since are refused."""
    from selective_backprop.files.reading import read_json
    from selective_backprop.lab.runs.records import describe_change
    from selective_backprop.lab.runs.settings import settings_of

    if not (run / "config.json").exists():
        raise ValueError(f"{run} has no config.json: --duplicates and --redundancy need a run of `train` or `compare`")
    settings = dataclasses.replace(settings_of(read_json(run / "config.json")), ranks=1)
    data = cached_loader(data_dir)(settings)
    saved = read_json(run / "data.json") if (run / "data.json").exists() else None
    if saved is not None and saved != data.fingerprint:
        raise ValueError(
            f"{run} was trained on other data ({describe_change(saved, data.fingerprint)}): give --data-dir with the "
            "data of the run"
        )
    return settings, data


def _duplicates(run: Path, settings: Settings | None, data: ImageSet | None, *, find: bool) -> Duplicates | None:
    """Find near-duplicates, or read those that were found before."""
    from selective_backprop.dynamics import Duplicates
    from selective_backprop.dynamics.neighbours import FILE

    if not find or settings is None or data is None:
        return Duplicates.load(run / FILE) if (run / FILE).exists() else None
    from selective_backprop.lab.study.copies import duplicates_of_run

    found = duplicates_of_run(run, settings, data)
    found.save(run / FILE)
    return found


# ---- telling


def _tell_labels(screen: Screen, found: Audit, show: int) -> dict[str, Any]:
    import numpy as np

    shares = ", ".join(f"{(found.kind == kind).mean():.0%} {kind}" for kind in _KINDS)
    screen.say(f"{len(found):,} examples in {found.num_epochs} epochs: {shares}")
    classes = found.by_class()
    _tell_groups(screen, found, "class", classes)
    expected, suspects = found.expected_wrong(), found.suspects()
    if not np.isnan(expected):
        screen.say(f"{len(suspects):,} labels are probably wrong; about {expected:,.0f} are wrong in total")
    cells = [
        [str(id), str(found.label[id]), str(found.suggested[id]), f"{found.wrong[id]:.2f}", f"{found.aum[id]:.2f}"]
        for id in suspects[:show]
    ]
    if cells:
        screen.table("labels that are probably wrong", ["id", "label", "suggested", "probability", "AUM"], cells)
    return {"expected_wrong": expected, "suspects": suspects.tolist(), "classes": classes}


def _tell_losses(screen: Screen, found: Audit, show: int) -> dict[str, Any]:
    cells = [[str(id), f"{found.mean_loss[id]:.3g}", f"{found.last_loss[id]:.3g}"] for id in found.ranked()[:show]]
    screen.table("highest losses", ["id", "mean loss", "last loss"], cells)
    return {}


def _tell_groups(screen: Screen, found: Audit, name: str, rows: list[dict[str, Any]]) -> None:
    if not found.num_classes:
        cells = [[str(row["group"]), f"{row['examples']:,}", f"{row['mean_loss']:.3g}"] for row in rows]
        screen.table(f"by {name}", [name, "examples", "mean loss"], cells)
        return
    copied = (found.duplicate >= 0).any()
    cells = [
        [str(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
        + [f"{row[kind]:.0%}" for kind in _KINDS]
        + [f"{row['redundant']:.0%}", *([f"{row['duplicates']:,}"] if copied else [])]
        for row in rows
    ]
    heading = [name, "examples", "wrong", "confidence", *_KINDS, "redundant", *(["duplicates"] if copied else [])]
    screen.table(f"by {name}", heading, cells)


def _tell_duplicates(screen: Screen, found: Audit, data: ImageSet | None, show: int) -> dict[str, Any]:
    import numpy as np

    from selective_backprop.dynamics.neighbours import exact_copies

    groups, mine = int(found.duplicate.max()) + 1, found.duplicate >= 0
    words = f"{groups:,} groups of near-duplicates, with {int(mine.sum()):,} examples"
    if data is not None:
        first = exact_copies(data.train_images)
        words += f"; {int((first != np.arange(len(first))).sum()):,} examples are exact copies of others"
    screen.say(
        f"{words}. Near-duplicates have a cosine of {found.duplicate_threshold:.4f} or more: their distance is at most "
        "0.13 times the median distance to the nearest neighbour"
    )
    clashes = sorted({int(group) for group in found.duplicate[found.conflict == 1]})
    members = {group: np.flatnonzero(found.duplicate == group) for group in clashes[:show]}
    cells = [
        [", ".join(map(str, ids[:6])) + (" ..." if len(ids) > 6 else ""), ", ".join(map(str, found.label[ids][:6]))]
        for ids in members.values()
    ]
    if cells:
        screen.table("near-duplicates with different labels: one is wrong", ["ids", "labels"], cells)
    return {
        "duplicate_groups": groups,
        "duplicates": int(mine.sum()),
        "conflicts": [ids.tolist() for ids in members.values()],
    }


def _tell_estimate(screen: Screen, found: Audit) -> dict[str, Any]:
    if not (found.redundant >= 0).any():
        screen.note("No estimate of what was not needed: it takes at least 2 epochs.")
        return {"redundant": None}
    share, rests = float((found.redundant == 1).mean()), []
    for words, (right, total) in (
        ("examples were right at the end of the first epoch, before the run had trained on them", found.first_looks),
        ("looks at examples that had been right and were then skipped found them still right", found.gaps),
    ):
        if total:
            rests.append(f"{right / total:.0%} of {total:,} {words}")
    screen.say(
        f"estimate from this run alone: {share:.0%} of the examples were never wrong after the first epoch. "
        + "".join(f"{rest}. " for rest in rests)
        + "Each of them alone was not needed; --redundancy measures what leaving them out together costs"
    )
    return {"redundant": share, "first_looks": found.first_looks, "gaps": found.gaps}


def _measured(
    screen: Screen,
    run: Path,
    settings: Settings,
    data: ImageSet,
    found: Audit,
    shares: list[float],
    *,
    seeds: int,
    tolerance: float,
    model: str | None,
) -> Redundancy:
    """Measure the curve, print it, and keep it in the run's folder."""
    from selective_backprop.files.writing import make_subfolder
    from selective_backprop.lab.cli.bars import Bars
    from selective_backprop.lab.runs.experiment import Entry
    from selective_backprop.lab.runs.training import Observer, Record, Training
    from selective_backprop.lab.study.redundancy import AUDIT, FOLDER, RANDOM, measure_redundancy

    if model is not None:
        settings = dataclasses.replace(settings, recipe=settings.recipe.with_(model=model))
    folder = make_subfolder(run, f"{FOLDER}/{settings.recipe.model}".replace(":", "_"))
    with Bars(screen, seeds) as bars, stopping_says(f"run the same command to go on: {folder}"):

        def observers(name: str, seed: int) -> list[Observer]:
            def tell(training: Training, record: Record) -> None:
                bars.show(Entry(name, training.settings), record)

            return [tell]

        curve = measure_redundancy(
            settings,
            data,
            found.diet_scores(),
            folder,
            shares=shares,
            highest=_wrong_share(found),
            seeds=seeds,
            tolerance=tolerance,
            observers=observers,
        )
    curve.save(run)
    by_share: dict[float, dict[str, PartOfData]] = {}
    for point in curve.points:
        by_share.setdefault(point.share, {})[point.ranking] = point
    cells = []
    for share, points in sorted(by_share.items(), reverse=True):
        both = [points.get(ranking) or points[AUDIT] for ranking in (AUDIT, RANDOM)]
        cells.append([f"{share:.0%}", f"{both[0].examples:,}", *(_words(point) for point in both)])
    title = f"measured with {curve.model}, {curve.seeds} seeds: held-out error, and its 90% interval"
    screen.table(title, ["kept", "examples", "by the audit", "at random"], cells)
    screen.say(f"{curve.verdict()} Measured on the {curve.split}, {curve.held_out:,} examples")
    return curve


def _words(point: PartOfData) -> str:
    return f"{point.error.value:.2%} ({max(0.0, point.error.low):.2%} to {point.error.high:.2%})"


def _wrong_share(found: Audit) -> float:
    """Share of the examples whose label is probably wrong, as `highest=` of diet takes it."""
    scored = int((~found.diet_scores().isnan()).sum())
    return len(found.suspects()) / scored if scored else 0.0


def _suggest(
    screen: Screen, run: Path, found: Audit, curve: Redundancy | None, diet: Path | None, data_dir: Path | None
) -> str | None:
    """Print a command that trains on what is worth keeping, and return it."""
    from selective_backprop.files.reading import read_json
    from selective_backprop.lab.runs.settings import command_options, settings_of
    from selective_backprop.lab.study.redundancy import AUDIT

    if not found.num_classes or not (run / "config.json").exists():
        return None
    highest, prune = _wrong_share(found), float(found.spare().mean())
    why = f"it leaves out {len(found.suspects()):,} labels that are probably wrong"
    why += f" and {int(found.spare().sum()):,} near-duplicates" if prune else ""
    if curve is not None and (point := curve.smallest(AUDIT)) is not None:
        prune, why = max(0.0, 1 - point.share - highest), f"it keeps {point.share:.0%} of the examples, as measured"
    if prune + highest == 0:
        screen.note("nothing to leave out is suggested: no label is probably wrong, and no near-duplicates are known")
        return None
    if diet is None:
        screen.note("add --diet FILE to write the scores that a run without them needs, and see its command")
        return None
    options = f"diet:scores={diet},prune={prune:.4f},highest={highest:.4f},method=traditional"
    words = ["selective-backprop", "train", *command_options(settings_of(read_json(run / "config.json")))]
    words += ["--data-dir", str(data_dir)] if data_dir is not None else []
    line = shlex.join([*words, "--method", options])
    screen.note(f"next, train on what is worth keeping; {why}:")
    screen.note(f"  {line}")
    return line
