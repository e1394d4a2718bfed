"""Put the leaderboard into pages: its tables, what is saved, charts, and what `advise` knows of each method.

    python tools/leaderboard_pages.py benchmarks/results/larger --figures docs/images \
        --into docs/leaderboard.md README.md docs/index.md
    python tools/leaderboard_pages.py benchmarks/results/leaderboard --into docs/leaderboard-small.md \
        --evidence src/selective_backprop/advice/leaderboard.json

What stands in a page between the comments `leaderboard` and `/leaderboard` is replaced by all tables, and between
`results` and `/results` by the table of what is saved. `selective-backprop leaderboard show` prints the tables.
"""

import argparse
import json
import os
from pathlib import Path

import vl_convert

from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.leaderboard.arms import ARMS, DEFAULT, PLAIN, RANDOM
from selective_backprop_lab.leaderboard.board import read_boards, read_trials
from selective_backprop_lab.leaderboard.page import tables
from selective_backprop_lab.leaderboard.workloads import find_workload
from selective_backprop_lab.report.charts import PERCENT, axis, log_ticks
from selective_backprop_lab.report.theme import FONT, INK, LINES, QUIET
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.study.frontier import Bound, Frontier, Verdict, says_anything, verdict
from selective_backprop_lab.study.tables import TextTable

COLORS = {PLAIN: "#3a4350", RANDOM: "#229988", DEFAULT.name: "#2266cc"}
BEST, OTHERS = "#cc6600", "#c3cad3"


def main():
    """Change the pages, and write charts and evidence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder of the records")
    parser.add_argument("--into", type=Path, nargs="*", default=[], metavar="PAGE", help="pages to change")
    parser.add_argument("--figures", type=Path, help="folder for a chart of each workload, as SVG")
    parser.add_argument("--evidence", type=Path, help="file for the multiplier of each method on each workload")
    given = parser.parse_args()
    boards, in_seconds = (read_boards(given.records, cost) for cost in ("compute", "cpu_seconds"))
    trials = read_trials(boards, given.records)
    for page in given.into:
        images = os.path.relpath(given.figures, page.parent) if given.figures else None
        parts = {
            "leaderboard": f"\n{tables(boards, in_seconds, trials, images)}",
            "results": savings(boards).markdown(),
        }
        write_whole({page: put_into(page.read_text(), parts).encode()})
    if given.figures is not None:
        given.figures.mkdir(parents=True, exist_ok=True)
        write_whole({given.figures / f"leaderboard-{one.workload}.svg": frontier_chart(one) for one in boards})
    if given.evidence is not None:
        write_whole({given.evidence: (json.dumps(evidence_by_method(boards), indent=1) + "\n").encode()})


def put_into(text, contents):
    """Replace what stands between marks of a page."""
    is_marked = False
    for name, content in contents.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if start and end:
            text, is_marked = f"{before}{start}{content}\n{end}{after}", True
    if not is_marked:
        pairs = " or ".join(f"<!-- {name} --> and <!-- /{name} -->" for name in contents)
        raise ValueError(f"the page needs the lines {pairs}, between which the tables go")
    return text


def savings(boards):
    """What `ledger_backprop()` saves on each workload for an error within 2% of plain training's best, in percent."""
    rows = []
    for one in boards:
        place, plain = one.place(DEFAULT.name), one.place(PLAIN)
        if place is None or plain is None:
            continue
        interval, shown = place.against_both("lossless"), (place, plain, one.place(RANDOM))
        best = (Frontier(each.points).best for each in shown if each is not None)
        found = verdict([place.plain["lossless"], place.random["lossless"]])
        if interval is None or not says_anything(interval):
            words = "not known: it was not reached"
        elif interval.multiple.value <= 1:
            words = "nothing"
        elif found is Verdict.BETTER or interval.low is None:
            words = saved(interval)
        else:
            words = f"{saved(interval)}: not told apart from chance"
        title = find_workload(one.workload).task or one.workload
        rows.append([title, words, ", ".join(f"{error:.2%}" for error in best)])
    return TextTable(
        ["`ledger_backprop()`, at its defaults", "compute saved", "best error: its own, plain, random subsets"], rows
    )


def saved(interval):
    """A multiplier of 2 (1.25 to >4) as '50% (20% to more than 75%)'."""

    def share(multiple):
        words = {Bound.EXACT: "", Bound.MORE: "more than ", Bound.LESS: "less than "}[multiple.bound]
        return f"{words}{1 - 1 / multiple.value:.0%}"

    if interval.low is None or interval.high is None:
        return f"{share(interval.multiple)} (one seed)"
    return f"{share(interval.multiple)} ({share(interval.low)} to {share(interval.high)})"


def evidence_by_method(boards):
    """Each method's multiplier at the middle error by workload; of several arms of a method the first counts.

    The ledger is the one at its defaults.
    """
    found = {}
    for one in boards:
        for arm in (DEFAULT, *ARMS.values()):
            place = one.place(arm.name)
            interval = None if place is None else place.against_both("middle")
            if interval is not None:
                method = MethodSpec.parse(arm.trials[0].replace("{proxy}", "strided_cnn_tiny")).method
                found.setdefault(method, {}).setdefault(one.workload, round(interval.multiple.value, 3))
    return found


def frontier_chart(one):
    """SVG with plain training, random subsets, the recommended method and the best of the others in colour."""
    names = [place.arm for place in one.places]
    best = next((name for name in names if name not in COLORS), None)
    shown = [name for name in (*COLORS, best) if name in names]
    rows = [
        {"arm": place.arm, "error": point.error, "compute": point.cost, "others": place.arm not in shown}
        for place in one.places
        for point in place.points
    ]
    points = [point for place in one.places for point in place.points]
    values = [point.cost for point in points], [point.error for point in points]
    spec = error_by_compute(rows, shown, [COLORS.get(name, BEST) for name in shown], values) | {
        "title": {"text": find_workload(one.workload).title, "anchor": "start", "color": INK["light"], "fontSize": 13}
    }
    return vl_convert.vegalite_to_svg(spec).encode()


def error_by_compute(rows, shown, colors, values):
    """The chart for Vega-Lite, on logarithmic scales."""
    channels = []
    titles = ("compute, in epochs of plain training", "test error")
    for name, title, found, form in zip(("compute", "error"), titles, values, (",.3~f", PERCENT), strict=True):
        domain = [0.95 * min(found), 1.05 * max(found)]
        channels.append(
            axis(name, title, scale_type="log", domain=domain, nice=False, values=log_ticks(*domain), format=form)
        )
    x, y = channels
    color = {"field": "arm", "scale": {"domain": shown, "range": colors}, "legend": {"title": None, "orient": "bottom"}}
    line = {"type": "line", "point": {"size": 45, "filled": True}}
    return {
        "width": 460,
        "height": 300,
        "background": "white",
        "padding": 12,
        "data": {"values": rows},
        "config": {
            "font": FONT,
            "view": {"stroke": None},
            "axis": {"labelColor": QUIET["light"], "titleColor": QUIET["light"], "gridColor": LINES["light"]},
        },
        "layer": [
            {
                "transform": [{"filter": "datum.others"}],
                "mark": {"type": "line", "color": OTHERS, "strokeWidth": 1.2},
                "encoding": {"x": x, "y": y, "detail": {"field": "arm"}},
            },
            {
                "transform": [{"filter": "!datum.others"}],
                "mark": line | {"strokeWidth": 2.5},
                "encoding": {"x": x, "y": y, "color": color},
            },
        ],
    }


if __name__ == "__main__":
    main()
