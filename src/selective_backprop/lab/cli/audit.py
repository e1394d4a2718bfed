"""The command selective-backprop audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop.lab.cli.command import command
from selective_backprop.lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop.dynamics import Dynamics


@command
def audit(
    output: OutputOptions,
    run: Annotated[Path, typer.Argument(help="Folder of a run that was trained with `--record dynamics`.")],
    out: Annotated[
        Path | None, typer.Option(help="File for all statistics: .csv, .jsonl or .parquet, one row per example.")
    ] = None,
    diet: Annotated[Path | None, typer.Option(help="File for scores, for `--method diet` and `diet prune`.")] = None,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many labels to list, the likeliest to be wrong first.")
    ] = 20,
) -> None:
    """Tell what a run learned about its data: labels that are probably wrong, and easy, ambiguous and hard examples.

    Nothing is trained. A run without recorded dynamics is audited by the losses in its ledger.

    Examples:

    `selective-backprop audit runs/a`

    `selective-backprop audit runs/a --out audit.csv --diet scores.pt --show 50`
    """
    import numpy as np

    import selective_backprop as sb

    screen = Screen(output)
    for file in (out, diet):
        if file is not None and file.exists():
            raise ValueError(f"{file} is there already: choose another name, or delete it")
    found = sb.audit(_recorded(run))
    for note in found.notes:
        screen.note(note)
    listed = (found.suspects() if found.num_classes else found.ranked())[:show]
    result: dict[str, Any] = {"examples": len(found), "epochs": found.num_epochs, "notes": list(found.notes)}
    if found.num_classes:
        names = ("easy", "ambiguous", "hard")
        shares = ", ".join(f"{(found.kind == kind).mean():.0%} {kind}" for kind in names)
        screen.say(f"{len(found):,} examples in {found.num_epochs} epochs: {shares}")
        rows = [
            [str(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
            + [f"{row[kind]:.0%}" for kind in names]
            for row in found.by_class()
        ]
        screen.table("by class", ["class", "examples", "wrong", "confidence", *names], rows)
        expected = found.expected_wrong()
        if not np.isnan(expected):
            screen.say(f"{len(found.suspects()):,} labels are probably wrong; about {expected:,.0f} are wrong in total")
        cells = [
            [str(id), str(found.label[id]), str(found.suggested[id]), f"{found.wrong[id]:.2f}", f"{found.aum[id]:.2f}"]
            for id in listed
        ]
        if cells:
            screen.table("labels that are probably wrong", ["id", "label", "suggested", "probability", "AUM"], cells)
        result |= {"expected_wrong": expected, "suspects": found.suspects().tolist(), "classes": found.by_class()}
    else:
        cells = [[str(id), f"{found.mean_loss[id]:.3g}", f"{found.last_loss[id]:.3g}"] for id in listed]
        screen.table("highest losses", ["id", "mean loss", "last loss"], cells)
    if out is not None:
        found.save(out)
        screen.say(f"{out}: one row per example")
    if diet is not None:
        sb.pruning.save_scores(found.diet_scores(), diet)
        screen.say(f"{diet}: scores for --method diet")
    screen.result(result | {"out": out, "diet": diet})


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
