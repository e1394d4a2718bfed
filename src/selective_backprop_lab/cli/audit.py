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
    result |= _tell_labels(screen, found, show) if found.num_classes else _tell_losses(screen, found, show)
    if out is not None:
        found.save(out)
        screen.say(f"{out}: one row per example")
    if diet is not None:
        sb.pruning.save_scores(found.diet_scores(), diet)
        screen.say(f"{diet}: scores for --method diet")
    result["suggestion"] = _suggest(screen, found, diet)
    screen.result(result | {"out": out, "diet": diet})


def _tell_labels(screen: Screen, found: Audit, show: int) -> dict[str, Any]:
    import numpy as np

    shares = ", ".join(f"{(found.kind == kind).mean():.0%} {kind}" for kind in _KINDS)
    screen.say(f"{len(found):,} examples in {found.num_epochs} epochs: {shares}")
    classes = found.by_class()
    rows = [
        [str(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
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


def _wrong_share(found: Audit) -> float:
    """Share of the examples whose label is probably wrong, as `highest=` of diet takes it."""
    scored = int((~found.diet_scores().isnan()).sum())
    return len(found.suspects()) / scored if scored else 0.0


def _suggest(screen: Screen, found: Audit, diet: Path | None) -> str | None:
    """Print the options that train without labels that are probably wrong, and return them."""
    if not found.num_classes:
        return None
    highest = _wrong_share(found)
    if not highest:
        screen.note("nothing to leave out is suggested: no label is probably wrong")
        return None
    if diet is None:
        screen.note("add --diet FILE to write the scores that a run without them needs")
        return None
    options = f"--method diet:scores={diet},prune=0,highest={highest:.4f},method=traditional"
    screen.note(f"next, train without the {len(found.suspects()):,} labels that are probably wrong: add {options}")
    return options
