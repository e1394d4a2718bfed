"""The README: short, right on the package index too, and true."""

import re

import pytest
import torch

from tests.pages import ROOT, blocks, sides

README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) <= 110


def test_the_example_does_what_the_text_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    setup, changed = [block for block in blocks(README) if block.language in ("python", "diff")]
    names = {}
    exec(compile(f"{setup.code}\n{sides(changed.code)[1]}", "README.md", "exec"), names)
    printed = capsys.readouterr().out
    shown = next(block.code for block in blocks(README) if block.language == "text").partition("...")[0]
    assert re.match(r"offered 20,480, trained 1[345],\d\d\d in \d+ batches.*selectivity 0\.[67]", printed)
    assert re.match(re.sub(r"\d", r"\\d", re.escape(shown)), printed), "what the text shows is what is printed"
    assert isinstance(names["model"], torch.nn.Module)


def test_the_home_page_shows_the_same_numbers_and_lines():
    home = (ROOT / "docs" / "index.md").read_text()
    results = [re.search(r"<!-- results -->\n(.*)<!-- /results -->", text, re.DOTALL)[1] for text in (README, home)]
    assert results[0] == results[1]
    shown = [[block.code for block in blocks(text) if block.language in ("diff", "text")] for text in (README, home)]
    assert shown[0] == shown[1]


def test_links_and_pictures_are_absolute():
    """The package index shows the README without the files beside it."""
    targets = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(targets) >= 5
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_links_to_the_site_lead_to_pages_and_their_headings():
    site = "https://selective-backprop.github.io/selective-backprop/"
    checked = 0
    for path, heading in re.findall(rf"{site}([\w/-]+)\.html(?:#([\w-]+))?", README):
        page = ROOT / "docs" / f"{path}.md"
        assert page.is_file(), f"the site has no page {path}"
        titles = [title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)]
        assert not heading or heading in titles, f"{path} has no heading {heading}"
        checked += 1
    assert checked >= 4


def test_the_recommended_method_comes_first():
    assert README.index("ledger_backprop") < README.index("selective_backprop(")


def cell(page, heading, label, column):
    """The cell with these names of row and column in the first table below a heading of a page."""
    text = (ROOT / "docs" / page).read_text()
    lines = [line for line in text[text.index(heading) :].splitlines() if line.startswith("| ")]
    of_label = next(line for line in lines if line.startswith(f"| {label} "))
    names, found = ([one.strip(" *") for one in line.strip("|").split("|")] for line in (lines[0], of_label))
    return found[names.index(column)]


def saved(multiplier):
    """The share of compute that "M (low to high)" saves, as the README says it."""
    if multiplier.startswith("<") and float(multiplier[1:].split()[0]) > 1:
        return "not known"
    if float(multiplier.lstrip("<>").split()[0]) <= 1:
        return "nothing"
    if multiplier.endswith("(1 seed)"):
        return f"{1 - 1 / float(multiplier.split()[0]):.0%} (one seed)"
    value, low, high = re.fullmatch(r"([<>]?[\d.]+) \(([<>]?[\d.]+) to ([<>]?[\d.]+)\)", multiplier).groups()

    def share(text):
        bound = {">": "more than ", "<": "less than "}.get(text[0], "")
        return f"{bound}{1 - 1 / float(text.lstrip('<>')):.0%}"

    return f"{share(value)} ({share(low)} to {share(high)})"


ROWS = {
    "digits (MNIST), 14x14 pixels": "mnist-resnet8",
    "clothes (Fashion-MNIST), 14x14": "fashion-resnet8",
    "house numbers (SVHN), 16x16": "svhn-resnet8",
    "the same with 10% wrong labels": "svhn-resnet8-noisy",
    "definitions by topic (WordNet)": "text-transformer",
}
"""Each row of the README's table, and its workload on the leaderboard."""


def test_its_numbers_are_those_of_the_results():
    """The lossless multipliers of the recommended method: the lower of those against both baselines, with its ends."""
    table = re.search(r"<!-- results -->\n(.*)<!-- /results -->", README, re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == list(ROWS)
    for name, _, _, shown, _ in rows:
        words = saved(cell("leaderboard.md", "### Lossless", ROWS[name], "ledger, default")).removesuffix(" (one seed)")
        numbers = [[int(number) for number in re.findall(r"(\d+)%", text)] for text in (shown, words)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1), "the multiplier in the page is rounded"
        assert re.sub(r"\d+%", "", shown) == re.sub(r"\d+%", "", words)
