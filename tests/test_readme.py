"""The README: short, right on the package index too, and true."""

import re

import torch

from tests.pages import ROOT, blocks

README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_the_example_does_what_the_text_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = [block.code for block in blocks(README) if block.language == "python"]
    assert len(code) == 1
    names = {}
    exec(compile(code[0], "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"offered 10,240, scored 0, trained 8,\d\d\d in \d+ batches.*selectivity 0\.8", printed)
    assert isinstance(names["model"], torch.nn.Module)


def test_links_and_pictures_are_absolute():
    """The package index shows the README without the files beside it."""
    targets = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(targets) > 30
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
    assert checked > 25


def test_the_recommended_method_comes_first():
    assert README.index("ledger_backprop") < README.index("selective_backprop(")
    assert README.index("<!-- results -->") < README.index("<!-- /results -->")


def cells(text, label):
    """The cells of the first table row with this label."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_its_numbers_are_those_of_the_leaderboard():
    own = README[README.index("<!-- results -->") : README.index("<!-- /results -->")]
    board = (ROOT / "docs" / "leaderboard.md").read_text()
    middle, lossless = (board[board.index(heading) :] for heading in ("### At the error of plain", "### Lossless"))
    assert cells(own, "M of") == cells(middle, "M ")
    assert cells(own, "at the error") == cells(middle, "ledger, default")
    assert cells(own, "lossless") == cells(lossless, "ledger, default")
    assert cells(own, "seeds") == [cell.partition(" ")[0] for cell in cells(middle, "seeds")]
