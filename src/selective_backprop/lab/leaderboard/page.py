"""The leaderboard as Markdown: matrices of multipliers, profiles, settings and the runs behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import stdev

from selective_backprop.lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop.lab.leaderboard.board import Board, Place, performance_profile
from selective_backprop.lab.leaderboard.records import Outcome
from selective_backprop.lab.leaderboard.workloads import LARGER, SMALL, find_workload
from selective_backprop.lab.study.frontier import Bound, Budget, Interval
from selective_backprop.lab.study.tables import TextTable

START, END = "<!-- leaderboard -->", "<!-- /leaderboard -->"
"""What stands between these lines of a page is replaced by the tables."""

_HEADINGS = {
    "middle": "At the error of plain training's middle length",
    "lossless": "Lossless: within 2% of plain training's best error",
    "cheap": "At the error of plain training's second length",
}
_FACTORS = (1.05, 1.1, 1.25, 1.5, 2.0)


def tables(boards: Sequence[Board], trials: Mapping[str, Sequence[Outcome]], images: str | None = None) -> str:
    """All tables of the leaderboard.

    Args:
        boards: one for each workload.
        trials: the runs on held-out examples, by workload.
        images: folder of the charts, relative to the page; None for a page without charts.
    """
    parts = [told(boards)]
    for target, heading in _HEADINGS.items():
        parts += [f"### {heading}", matrix(boards, target).markdown()]
    parts += ["### How often an arm is near the best", profile(boards).markdown()]
    parts += ["### What tuning chose and cost", tuning(boards, trials).markdown()]
    for one in boards:
        title = find_workload(one.workload).title
        parts += [f"### Runs: {one.workload}", f"{title}."]
        if images is not None:
            parts.append(f"![Error against compute of all arms: {title}]({images}/leaderboard-{one.workload}.svg)")
        parts.append(runs(one).markdown())
    return "\n\n".join(parts) + "\n"


def told(boards: Sequence[Board]) -> str:
    """A sentence on the state of the runs, and one on the recommended method."""
    done = {one.workload: min(place.seeds for place in one.places) for one in boards}
    missing = [name for name, seeds in done.items() if seeds < find_workload(name).seeds]
    board = next((names for names in (LARGER, SMALL) if names.keys() & done.keys()), {})
    unrun = [name for name in board if name not in done]
    parts = []
    if missing or (unrun and len(done) > 1):
        rest = f", and {', '.join(unrun)} has not been run" if unrun else ""
        parts.append(
            f"**The runs are not complete**: {', '.join(missing)} have fewer seeds than planned (last row){rest}. Take "
            "differences below a fifth for chance until then."
        )
    found = {one.workload: place.against_both("middle") for one in boards if (place := one.place(DEFAULT.name))}
    values = {name: interval.short() for name, interval in found.items() if interval is not None}
    if values:
        listed = ", ".join(f"{value} on {name}" for name, value in values.items())
        parts.append(f"`ledger_backprop()` at its defaults, at the middle error: {listed}.")
    return "\n\n".join(parts)


def put_into(text: str, content: str) -> str:
    """Replace what stands between the two marks of a page.

    >>> put_into(f"a\\n{START}\\nold\\n{END}\\nb", "new\\n").splitlines()
    ['a', '<!-- leaderboard -->', '', 'new', '', '<!-- /leaderboard -->', 'b']
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page needs a line {START} and a line {END}, between which the tables go")
    return f"{before}{START}\n\n{content}\n{END}{after}"


def matrix(boards: Sequence[Board], target: str) -> TextTable:
    """The lower of the multipliers against plain training and random subsets, by arm and workload.

    Arms are in the order of their mean rank. Bold: the whole interval is above 1.
    """
    rows = []
    for arm in in_order(boards, target):
        places = [one.place(arm) for one in boards]
        rows.append([arm, *("" if place is None else _cell(place, target) for place in places)])
    planned = (find_workload(one.workload).seeds for one in boards)
    done = (min(place.seeds for place in one.places) for one in boards)
    seeds = ["seeds", *(f"{have} of {all_}" for have, all_ in zip(done, planned, strict=True))]
    return TextTable(["M", *(one.workload for one in boards)], [*rows, seeds])


def in_order(boards: Sequence[Board], target: str) -> list[str]:
    """Names of all arms but the baselines, best mean rank first; random subsets last, which have M against plain."""
    found = list(dict.fromkeys(place.arm for one in boards for place in one.places))
    methods = [arm for arm in found if arm not in (PLAIN, RANDOM)]

    def mean_rank(arm: str) -> float:
        ranks = []
        for one in boards:
            values = [_sortable(place.against_both(target)) for place in one.places if place.arm in methods]
            if (place := one.place(arm)) is not None:
                own = _sortable(place.against_both(target))
                ranks.append(sum(value > own for value in values))
        return sum(ranks) / len(ranks)

    return [*sorted(methods, key=mean_rank), *(arm for arm in found if arm == RANDOM)]


def _sortable(interval: Interval | None) -> tuple[bool, float]:
    if interval is None:
        return False, 0.0
    return interval.multiple.bound is not Bound.LESS, interval.multiple.value


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
    """The chosen setting of each arm on each workload. The last row has the processor time of all trials."""
    arms = list(dict.fromkeys(place.arm for one in boards for place in one.places))
    rows = []
    for arm in arms:
        places = [one.place(arm) for one in boards]
        rows.append([arm, *("" if place is None else f"`{place.setting}`" for place in places)])
    spent = [sum(trial.cpu_seconds for trial in trials.get(one.workload, ())) for one in boards]
    cost = ["trials, seconds of one core", *(f"{seconds:.0f}" for seconds in spent)]
    return TextTable(["arm", *(one.workload for one in boards)], [*rows, cost])


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
    spread = f" ± {100 * stdev(arm.errors):.2f}" if len(arm.errors) > 1 else ""
    return f"{100 * arm.error:.2f}%{spread} at {arm.cost:.2f}"
