"""The README: short, right on the package index too, and true."""

import re

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
