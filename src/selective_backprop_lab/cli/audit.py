"""The command selective-backprop audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop_lab.cli.command import command
from selective_backprop_lab.cli.options import require_new
from selective_backprop_lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop.dynamics import Audit

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
) -> None:
    """Tell what a run learned about its data: kinds of examples, and labels that are probably wrong.

    Nothing is trained.

    Examples:

    `selective-backprop audit runs/a`

    `selective-backprop audit runs/a --out audit.csv --diet scores.pt --show 50`
    """
    import selective_backprop as sb

    screen = Screen(output)
    for file in (out, diet):
        require_new(file)
    if out is not None and diet is not None and out.resolve() == diet.resolve():
        raise ValueError(f"--out and --diet are both {out}: name another file for one of them")
    found = sb.audit(run)
    for note in found.notes:
        screen.note(note)
    result: dict[str, Any] = {"examples": len(found), "epochs": found.num_epochs, "notes": list(found.notes)}
    if found.num_classes:
        result |= _tell_labels(screen, found, show, _classes(run, found.num_classes))
    else:
        rows = [[str(id), f"{found.mean_loss[id]:.3g}", f"{found.last_loss[id]:.3g}"] for id in found.ranked()[:show]]
        screen.table("highest losses", ["id", "mean loss", "last loss"], rows)
    if out is not None:
        found.save(out)
        screen.say(f"{out}: one row per example")
    if diet is not None:
        sb.pruning.save_scores(found.diet_scores(), diet)
        screen.say(f"{diet}: scores for --method diet")
    result["suggestion"] = _suggest(screen, found, diet)
    screen.result(result | {"out": out, "diet": diet})


def _classes(run: Path, count: int) -> list[str]:
    """Names of the classes, where the run knows them."""
    from selective_backprop_lab.files.reading import read_json

    file = run / "data.json"
    return (read_json(file).get("classes") if file.exists() else None) or [str(number) for number in range(count)]


def _tell_labels(screen: Screen, found: Audit, show: int, names: list[str]) -> dict[str, Any]:
    import numpy as np

    shares = ", ".join(f"{(found.kind == kind).mean():.0%} {kind}" for kind in _KINDS)
    screen.say(f"{len(found):,} examples in {found.num_epochs} epochs: {shares}")
    classes = [row | {"group": names[row["group"]]} for row in found.by_class()]
    rows = [
        [row["group"], f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
        + [f"{row[kind]:.0%}" for kind in _KINDS]
        for row in classes
    ]
    screen.table("by class", ["class", "examples", "wrong", "confidence", *_KINDS], rows)
    expected, suspects = found.expected_wrong(), found.suspects()
    if not np.isnan(expected):
        screen.say(
            f"{len(suspects):,} labels are more likely wrong than right. By the probabilities of all labels, about "
            f"{expected:,.0f} are wrong"
        )
    cells = [
        [str(id), names[found.label[id]], names[found.suggested[id]], f"{found.wrong[id]:.2f}", f"{found.aum[id]:.2f}"]
        for id in suspects[:show]
    ]
    if cells:
        screen.table("labels that are probably wrong", ["id", "label", "suggested", "probability", "AUM"], cells)
    return {"expected_wrong": expected, "suspects": suspects.tolist(), "classes": classes}


def _suggest(screen: Screen, found: Audit, diet: Path | None) -> str | None:
    """Print the options that train without labels that are probably wrong, and return them."""
    if not found.num_classes:
        return None
    scored = int((~found.diet_scores().isnan()).sum())
    highest = len(found.suspects()) / scored if scored else 0.0
    if not highest:
        screen.note("nothing to leave out is suggested: no label is probably wrong")
        return None
    if diet is None:
        screen.note("add --diet FILE to write the scores that a run without them needs")
        return None
    options = f"--method diet:scores={diet},prune=0,highest={highest:.4f},method=traditional"
    screen.note(f"next, train without the {len(found.suspects()):,} labels that are probably wrong: add {options}")
    return options
