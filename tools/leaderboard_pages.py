"""Put the leaderboard into pages: its tables, what is saved, and charts. Without records nothing is changed.

    python tools/leaderboard_pages.py benchmarks/results/board --figures docs/images \
        --into docs/leaderboard.md README.md docs/index.md

What stands in a page between the comments `leaderboard` and `/leaderboard` is replaced by all tables, and between
`results` and `/results` by the table of what is saved. `selective-backprop leaderboard show` prints the tables.
"""

import argparse
import os
from pathlib import Path

from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.leaderboard.board import read_boards
from selective_backprop_lab.leaderboard.page import tables
from selective_backprop_lab.report.draw import Axis, Line, alone, chart
from selective_backprop_lab.study.frontier import Bound, Frontier, Verdict, says_anything
from selective_backprop_lab.study.standing import PLAIN, RANDOM
from selective_backprop_lab.study.tables import TextTable

COLORS = {PLAIN: "#3a4350", RANDOM: "#229988", "ledger": "#2266cc", "proxy": "#cc6600"}
OTHERS = "#c3cad3"
MOST_ROWS = 5


def main():
    """Change the pages, and write charts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder of the records")
    parser.add_argument("--into", type=Path, nargs="*", default=[], metavar="PAGE", help="pages to change")
    parser.add_argument("--figures", type=Path, help="folder for a chart of each workload, as SVG")
    given = parser.parse_args()
    boards = read_boards(given.records)
    for page in given.into if boards else ():
        images = os.path.relpath(given.figures, page.parent) if given.figures else None
        parts = {"leaderboard": f"\n{tables(boards, images)}", "results": savings(boards).markdown()}
        write_whole({page: put_into(page.read_text(), parts).encode()})
    for one in boards if given.figures is not None else ():
        given.figures.mkdir(parents=True, exist_ok=True)
        write_whole({given.figures / f"leaderboard-{one.name}.svg": frontier_chart(one).encode()})


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
    """What the ledger and the proxy save on the first workloads for an error within 2% of plain training's best."""
    rows = []
    for one in boards[:MOST_ROWS]:
        found = {each.name: each for each in one.compute.methods}
        own = [found.get(name) for name in ("ledger", "proxy")]
        if PLAIN in found:
            best = [f"{Frontier(each.budgets).best:.2%}" if each else "-" for each in (found[PLAIN], *own)]
            rows.append([one.workload.title, best[0], *(in_words(each) for each in own), f"{best[1]}, {best[2]}"])
    saved = ["saved by `ledger_backprop()`", "saved by `proxy_backprop()`"]
    return TextTable(["data and network", "error of plain training", *saved, "error of both"], rows)


def in_words(standing):
    """The share of compute that a method saves, against the baseline that it beats by least."""
    if standing is None:
        return "not run"
    interval = standing.multiplier("lossless")
    if interval is None or interval.multiple.bound is Bound.LESS:
        return "that error was not reached"
    if not says_anything(interval):
        return "cannot be told"
    if interval.multiple.value <= 1:
        return "nothing"
    unsure = interval.low is not None and standing.verdict("lossless") is not Verdict.BETTER
    return saved(interval) + (": not told apart from chance" if unsure else "")


def saved(interval):
    """A multiplier of 2 (1.25 to >4) as '50% (20% to more than 75%)'."""
    words = {Bound.EXACT: "", Bound.MORE: "more than ", Bound.LESS: "less than "}
    ends = [one for one in (interval.multiple, interval.low, interval.high) if one is not None]
    share, *span = (f"{words[one.bound]}{1 - 1 / one.value:.0%}" for one in ends)
    return f"{share} ({' to '.join(span) or 'one seed'})"


def frontier_chart(one):
    """SVG with plain training, random subsets, the ledger and the proxy in colour."""
    lines = []
    for standing in one.compute.methods:
        x, y = [each.cost for each in standing.budgets], [each.error for each in standing.budgets]
        if color := COLORS.get(standing.name):
            lines.append(Line(x, y, standing.name, color, marker="circle", width=2.5))
        else:
            lines.insert(0, Line(x, y, color=OTHERS, width=1.2))
    costs = Axis("compute", "compute, in epochs of plain training", log=True)
    return alone(chart(lines, costs, Axis("error", "test error", log=True, percent=True)))


if __name__ == "__main__":
    main()
