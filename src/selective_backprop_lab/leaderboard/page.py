"""The leaderboard as Markdown: multipliers, costs of a goal, and the runs behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from selective_backprop_lab.leaderboard.board import Board, labelled
from selective_backprop_lab.leaderboard.records import CHANGED
from selective_backprop_lab.leaderboard.workloads import BOARD, find_workload
from selective_backprop_lab.study.frontier import Bound, Frontier, Verdict
from selective_backprop_lab.study.standing import RANDOM, Standings, error_of
from selective_backprop_lab.study.tables import TextTable, multiplier_cell


def tables(boards: Sequence[Board], images: str | None = None) -> str:
    """All tables of the leaderboard.

    Args:
        boards: one for each workload.
        images: folder of the charts, relative to the page; None for a page without charts.
    """
    lossless, middle = (matrix(boards, target, lambda board: board.compute) for target in ("lossless", "middle"))
    parts = [told(boards), "### Lossless: within 2% of plain training's best error", lossless.markdown()]
    parts.append(_folded("At the error of plain training's middle length", middle.markdown()))
    for one in (one for one in boards if one.workload.goal is not None):
        parts.append(_folded(f"{one.workload.title}: cost of {one.workload.goal:.0%} error", to_goal(one).markdown()))
    in_seconds = matrix(boards, "lossless", lambda board: board.seconds).markdown()
    parts.append(_folded("Lossless, in seconds", f"{left_out(boards)}\n\n{in_seconds}"))
    for one in boards:
        chart = f"![Error against compute of all arms]({images}/leaderboard-{one.name}.svg)\n\n" if images else ""
        rates = {run.cell.arm: run.cell.rate for run in one.runs}
        told_rates = ", ".join(f"{arm} {rate:g}" for arm, rate in rates.items() if arm in one.workload.arms)
        shown = [chart + runs(one).markdown(), against_each(one).markdown(), f"Factors on the rate: {told_rates}."]
        parts.append(_folded(f"{one.name}: {one.workload.title}", "\n\n".join(shown)))
    return "\n\n".join(parts) + "\n"


def _folded(title: str, content: str) -> str:
    """Show the title only, until it is clicked. Browsers know how, on the site and on GitHub."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{content}\n\n</details>'


def told(boards: Sequence[Board]) -> str:
    """What is missing, and which commits made the runs."""
    done = {one.name: one.seeds for one in boards}
    unrun = [name for name in BOARD if name not in done] if BOARD.keys() & done.keys() else []
    fewer = [f"{name} ({seeds})" for name, seeds in done.items() if seeds < find_workload(name).seeds]
    commits = sorted({str(run.made.get("commit")) for one in boards for run in one.runs})
    parts = [f"Fewer seeds than planned: {', '.join(fewer)}."] if fewer else []
    parts += [f"Not run yet: {', '.join(unrun)}."] if unrun else []
    if parts:
        parts.insert(0, "**The runs are not complete.**")
    parts.append(f"Made at {', '.join(commits)}.")
    if any(commit.endswith(CHANGED) for commit in commits):
        parts.append(f"“{CHANGED}”: the code had changes that are not committed.")
    return " ".join(parts)


def matrix(boards: Sequence[Board], target: str, of: Callable[[Board], Standings]) -> TextTable:
    """M by workload and method: the lowest against plain training and both kinds of random subsets.

    Bold: the whole interval is above 1. Repeated random subsets are against plain training alone.
    """
    arms = list(dict.fromkeys(arm for one in boards for arm in one.workload.arms))[1:]
    rows = []
    for one in boards:
        found, cells = of(one), dict.fromkeys(arms, "")
        for standing in found.methods if target in found.targets else ():
            if not standing.is_plain:
                text = multiplier_cell(standing, target, found.targets[target]).replace("x", "")
                cells[standing.name] = f"**{text}**" if standing.verdict(target) is Verdict.BETTER else text
        error = f"{found.targets[target]:.2%}" if target in found.targets else "not run"
        rows.append([one.name, error, *cells.values(), f"{one.seeds} of {one.workload.seeds}"])
    return TextTable(["M", "at error", *arms, "seeds"], rows)


def against_each(one: Board) -> TextTable:
    """Lossless M of every method against each baseline."""
    rows = []
    for standing in one.compute.others:
        found = [each.get("lossless") for each in (standing.plain, standing.random, standing.matched)]
        rows.append([standing.name, *("not run" if each is None else each.short() for each in found)])
    return TextTable(["lossless M against", "plain training", RANDOM, "random subsets of its own sizes"], rows)


def left_out(boards: Sequence[Board]) -> str:
    """A sentence on the runs whose seconds are not compared."""
    counts = [f"{len(one.runs) - len(one.comparable)} of {len(one.runs)} on {one.name}" for one in boards]
    return (
        "Seconds are compared between runs of one machine whose reference, a fixed step timed before and after each "
        f"run, agrees within 5%. Left out: {', '.join(counts)}."
    )


def to_goal(one: Board) -> TextTable:
    """What each arm needs for the workload's goal, in PFLOPs and in seconds."""
    goal, timed = one.workload.goal or 0.0, {each.name: each for each in one.seconds.methods}
    pflops, rows = one.runs[0].pflops / one.runs[0].compute, []
    for standing in one.compute.methods:
        rows.append([standing.name])
        for found, unit in ((standing, pflops), (timed.get(standing.name), 1.0)):
            cost, bound = Frontier(found.budgets).cost_of(goal) if found else (0.0, Bound.MORE)
            text = f"{'at most ' if bound is Bound.LESS else ''}{unit * cost:,.4g}"
            rows[-1].append("not reached" if bound is Bound.MORE else text)
    return TextTable([f"to {goal:.0%} error", "PFLOPs", "seconds"], rows)


def runs(one: Board) -> TextTable:
    """Mean error, its standard deviation over seeds, and compute of every arm at every length."""
    rows: dict[str, list[str]] = {}
    for found in labelled(one.runs):
        text = f"{error_of(found.compute)} at {found.compute.cost:.2f}"
        rows.setdefault(found.name, [found.name]).append(text)
    heading = ["error at compute", *(f"about {length} epochs" for length in one.workload.lengths)]
    return TextTable(heading, list(rows.values()))
