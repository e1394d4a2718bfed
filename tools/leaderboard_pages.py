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

from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.leaderboard.arms import ARMS, DEFAULT, PLAIN, RANDOM
from selective_backprop_lab.leaderboard.board import read_boards, read_trials
from selective_backprop_lab.leaderboard.page import tables
from selective_backprop_lab.leaderboard.workloads import find_workload
from selective_backprop_lab.report.draw import Axis, Line, alone, chart
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
    for page in given.into:
        images = os.path.relpath(given.figures, page.parent) if given.figures else None
        found = tables(boards, in_seconds, read_trials(boards, given.records), images)
        parts = {"leaderboard": f"\n{found}", "results": savings(boards).markdown()}
        write_whole({page: put_into(page.read_text(), parts).encode()})
    for one in boards if given.figures is not None else ():
        given.figures.mkdir(parents=True, exist_ok=True)
        write_whole({given.figures / f"leaderboard-{one.workload}.svg": frontier_chart(one).encode()})
    if given.evidence is not None:
        write_whole({given.evidence: (json.dumps(evidence_by_method(boards), indent=1) + "\n").encode()})


def put_into(text, contents):
    """Replace what stands between marks of a page."""
    marked = [name for name in contents if f"<!-- {name} -->\n" in text and f"<!-- /{name} -->" in text]
    if not marked:
        pairs = " or ".join(f"<!-- {name} --> and <!-- /{name} -->" for name in contents)
        raise ValueError(f"the page needs the lines {pairs}, between which the tables go")
    for name in marked:
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}{start}{contents[name]}\n<!-- /{name} -->{rest.partition(f'<!-- /{name} -->')[2]}"
    return text


def savings(boards):
    """What `ledger_backprop()` saves on each workload for an error within 2% of plain training's best, in percent."""
    rows = []
    for one in boards:
        place, plain, random = (one.place(name) for name in (DEFAULT.name, PLAIN, RANDOM))
        if place is None or plain is None:
            continue
        interval, words = place.against_both("lossless"), "nothing"
        if interval is None or not says_anything(interval):
            words = f"none at that error: it got to {Frontier(place.points).best:.2%}"
        elif interval.multiple.value > 1:
            sure = verdict([place.plain["lossless"], place.random["lossless"]]) is Verdict.BETTER
            words = saved(interval) + ("" if sure or interval.low is None else ": not told apart from chance")
        best = ", ".join(f"{Frontier(each.points).best:.2%}" for each in (place, plain, random) if each is not None)
        rows.append([find_workload(one.workload).task or one.workload, words, best])
    columns = ["compute saved", "best error: its own, plain, random subsets"]
    return TextTable(["`ledger_backprop()`, at its defaults", *columns], rows)


def saved(interval):
    """A multiplier of 2 (1.25 to >4) as '50% (20% to more than 75%)'."""
    words = {Bound.EXACT: "", Bound.MORE: "more than ", Bound.LESS: "less than "}
    ends = [one for one in (interval.multiple, interval.low, interval.high) if one is not None]
    share, *span = (f"{words[one.bound]}{1 - 1 / one.value:.0%}" for one in ends)
    return f"{share} ({' to '.join(span) or 'one seed'})"


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
    best = next((place.arm for place in one.places if place.arm not in COLORS), None)
    lines = []
    for place in one.places:
        x, y = [point.cost for point in place.points], [point.error for point in place.points]
        if color := BEST if place.arm == best else COLORS.get(place.arm):
            lines.append(Line(x, y, place.arm, color, marker="circle", width=2.5))
        else:
            lines.insert(0, Line(x, y, color=OTHERS, width=1.2))
    costs = Axis("compute", "compute, in epochs of plain training", log=True)
    return alone(chart(lines, costs, Axis("error", "test error", log=True, percent=True)))


if __name__ == "__main__":
    main()
