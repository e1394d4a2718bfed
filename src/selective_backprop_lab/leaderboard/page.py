"""The leaderboard as Markdown: matrices of multipliers, profiles, settings and the runs behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selective_backprop_lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop_lab.leaderboard.board import Board, Place, performance_profile
from selective_backprop_lab.leaderboard.records import Outcome
from selective_backprop_lab.leaderboard.workloads import LARGER, SMALL, find_workload
from selective_backprop_lab.study.frontier import (
    Bound,
    Budget,
)
from selective_backprop_lab.study.standing import error_of, sortable
from selective_backprop_lab.study.tables import TextTable

_HEADINGS = {
    "middle": "At the error of plain training's middle length",
    "lossless": "Lossless: within 2% of plain training's best error",
    "cheap": "At the error of plain training's second length",
}
_FACTORS = (1.05, 1.1, 1.25, 1.5, 2.0)


def tables(
    boards: Sequence[Board],
    in_seconds: Sequence[Board],
    trials: Mapping[str, Sequence[Outcome]],
    images: str | None = None,
) -> str:
    """All tables of the leaderboard.

    Args:
        boards: one for each workload.
        in_seconds: the same by processor time.
        trials: the runs on held-out examples, by workload.
        images: folder of the charts, relative to the page; None for a page without charts.
    """
    parts = [told(boards)]
    for target in ("middle", "lossless"):
        parts += [f"### {_HEADINGS[target]}", matrix(boards, target).markdown()]
    parts.append("### All the rest")
    parts.append(_folded(_HEADINGS["cheap"], matrix(boards, "cheap").markdown()))
    in_time = matrix(in_seconds, "lossless").markdown()
    parts.append(_folded("Lossless, in seconds of processor time", in_time))
    parts.append(_folded("How often an arm is near the best", profile(boards).markdown()))
    parts.append(_folded("What tuning chose and cost", tuning(boards, trials).markdown()))
    for one in boards:
        title = find_workload(one.workload).title
        chart = f"![Error against compute of all arms: {title}]({images}/leaderboard-{one.workload}.svg)\n\n"
        parts.append(_folded(f"Runs: {one.workload} ({title})", (chart if images else "") + runs(one).markdown()))
    return "\n\n".join(parts) + "\n"


def _folded(title: str, content: str) -> str:
    """Show the title only, until it is clicked. Browsers know how, on the site and on GitHub."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{content}\n\n</details>'


def told(boards: Sequence[Board]) -> str:
    """A sentence on the state of the runs, and one on the recommended method."""
    done = {one.workload: min(place.seeds for place in one.places) for one in boards}
    missing = [name for name, seeds in done.items() if seeds < find_workload(name).seeds]
    board = next((names for names in (LARGER, SMALL) if names.keys() & done.keys()), {})
    unrun = [name for name in board if name not in done]
    parts = []
    if missing or (unrun and len(done) > 1):
        fewer = f" Fewer seeds than planned: {', '.join(missing)}." if missing else ""
        none = f" Not run yet: {', '.join(unrun)}." if unrun else ""
        parts.append(
            f"**The runs are not complete.**{fewer}{none} Take differences below a fifth for chance until then."
        )
    found = {one.workload: place.against_both("middle") for one in boards if (place := one.place(DEFAULT.name))}
    values = {name: interval.short() for name, interval in found.items() if interval is not None}
    if values:
        listed = ", ".join(f"{value} on {name}" for name, value in values.items())
        parts.append(f"`ledger_backprop()` at its defaults, at the middle error: {listed}.")
    return "\n\n".join(parts)


def _seeds(board: Board) -> str:
    counts = {place.seeds for place in board.places}
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def matrix(boards: Sequence[Board], target: str) -> TextTable:
    """The lower of the multipliers against plain training and random subsets, by arm and workload.

    Arms are in the order of their mean rank. Bold: the whole interval is above 1. Where there are fewer arms than
    workloads, each workload has a row.
    """
    rows = []
    for arm in in_order(boards, target):
        places = [one.place(arm) for one in boards]
        rows.append([arm, *("" if place is None else _cell(place, target) for place in places)])
    seeds = ["seeds", *(f"{_seeds(one)} of {find_workload(one.workload).seeds}" for one in boards)]
    table = [["M", *(one.workload for one in boards)], *rows, seeds]
    if len(rows) < len(boards):
        table = [list(column) for column in zip(*table, strict=True)]
    return TextTable(table[0], table[1:])


def in_order(boards: Sequence[Board], target: str) -> list[str]:
    """Names of all arms but the baselines, best mean rank first; random subsets last, which have M against plain."""
    found = list(dict.fromkeys(place.arm for one in boards for place in one.places))
    methods = [arm for arm in found if arm not in (PLAIN, RANDOM)]

    def mean_rank(arm: str) -> float:
        ranks = []
        for one in boards:
            values = [sortable(place.against_both(target)) for place in one.places if place.arm in methods]
            if (place := one.place(arm)) is not None:
                own = sortable(place.against_both(target))
                ranks.append(sum(value > own for value in values))
        return sum(ranks) / len(ranks)

    return [*sorted(methods, key=mean_rank), *(arm for arm in found if arm == RANDOM)]


def _cell(place: Place, target: str) -> str:
    interval = place.plain[target] if place.arm == RANDOM else place.against_both(target)
    if interval is None:
        return ""
    low = interval.low
    is_above = low is not None and low.bound is not Bound.LESS and low.value > 1
    text = interval.short().replace("x", "").replace("inf", "∞")
    return f"**{text}**" if is_above else text


def profile(boards: Sequence[Board]) -> TextTable:
    """Share of workloads on which an arm's compute for the middle error is within a factor of the best arm's."""
    found = performance_profile(boards, "middle", _FACTORS)
    rows = [[arm, *(f"{share:.0%}" for share in shares)] for arm, shares in found.items()]
    rows.sort(key=lambda row: [-float(cell.rstrip("%")) for cell in reversed(row[1:])])
    return TextTable(["arm", *(f"within {factor:g}x" for factor in _FACTORS)], rows)


def tuning(boards: Sequence[Board], trials: Mapping[str, Sequence[Outcome]]) -> TextTable:
    """The chosen setting of each arm on each workload, and the processor time of all trials on it."""
    rows = []
    for one in boards:
        rows += [[one.workload, place.arm, f"`{place.setting}`"] for place in one.places]
        spent = sum(trial.cpu_seconds for trial in trials.get(one.workload, ()))
        rows.append([one.workload, "all trials", f"{spent:.0f} seconds of one core"])
    return TextTable(["workload", "arm", "setting"], rows)


def runs(one: Board) -> TextTable:
    """Mean error, its standard deviation over seeds, and compute of every arm at every length.

    Unless all runs are compared at equal compute, the last column has the one that costs as much as plain training's
    longest.
    """
    workload = find_workload(one.workload)
    if workload.at_equal_compute:
        heading = ["error at compute", *(f"about {length} epochs of compute" for length in workload.lengths)]
    else:
        heading = ["error at compute", *(f"{length} epochs" for length in workload.lengths), "as much compute"]
    rows = [[place.arm, *(_error(point) for point in place.points)] for place in one.places]
    return TextTable(heading, [row + [""] * (len(heading) - len(row)) for row in rows])


def _error(arm: Budget) -> str:
    return f"{error_of(arm)} at {arm.cost:.2f}"
