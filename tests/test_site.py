"""The built site: what it documents, and in a real browser what its search finds, and that nothing is cut off."""

import importlib
import os
import re
import subprocess
import sys
import zlib

import pytest

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("playwright", reason="needs playwright")

import yaml

from tests.pages import DOCS
from tests.processes import ROOT

SOURCE = "https://github.com/selective-backprop/selective-backprop"

# What people type, and the page that answers it.
ASKED = {
    "turn it off for the last epochs": "questions.html",
    "what did it skip": "questions.html",
    "how much memory": "explanations/scaling.html",
    "AMP": "questions.html",
    "W&B": "questions.html",
    "contrastive": "guides/own-loss.html",
    "detection": "guides/own-loss.html",
    "custom loss": "questions.html",
    "gradient accumulation": "questions.html",
    "ledger_backprop": "methods/ledger_backprop.html",
    "timm": "guides/sampler.html",
    "imbalanced": "questions.html",
    "rare classes": "questions.html",
    "GAN": "questions.html",
    "tabular": "questions.html",
    "MPS": "questions.html",
    "StopIteration": "questions.html",
    "DDP": "guides/several-ranks.html",
}
CUT_OFF = """() => {
  const boxes = document.querySelectorAll(".md-typeset table, .md-typeset pre > code")
  const cut = [...boxes].filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.innerText.slice(0, 60))
  return document.documentElement.scrollWidth > window.innerWidth ? ["the page itself", ...cut] : cut
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it: broken links and missing references are errors."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "tools/cli_page.py"], cwd=ROOT, check=True)
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


# The modules of the library that users import from. The first is the package itself.
MODULES = ("", "dynamics", "functional", "losses", "policies", "pruning", "schedules", "scorers", "testing", "types")


def public_names():
    """All names that a user may import, with the module that they are imported from."""
    for module in MODULES:
        path = f"selective_backprop.{module}".rstrip(".")
        values = vars(importlib.import_module(path))
        own = [name for name, value in values.items() if getattr(value, "__module__", None) == path and name[0] != "_"]
        yield from (f"{path}.{name}" for name in values.get("__all__", own) if name not in (*MODULES, "methods"))


def test_every_public_name_is_documented(site):
    """By the inventory that mkdocstrings has written."""
    entries = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode().splitlines()
    assert set(public_names()) - {entry.split(" ")[0] for entry in entries} == set()


def test_every_page_has_a_place(site):
    """In the nav of mkdocs.yml, by which readers find it."""
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert written == set(_leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])) - {SOURCE}


def test_the_links_for_agents_lead_to_pages(site):
    address = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["site_url"]
    pages = re.findall(rf"\({address}([^)]+)\)", (site / "llms.txt").read_text())
    assert len(pages) > 5 and all((site / page).is_file() for page in pages)


def _leaves(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else _leaves(value)


@pytest.fixture(scope="module")
def search(browser, site):
    """Types into the search box of the site, and returns the pages found, best first."""
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    box, meta = page.locator("input.md-search__input"), page.locator(".md-search-result__meta")

    def ask(text):
        box.click()
        box.fill("")
        box.press("Backspace")  # the site listens to keys
        page.wait_for_function("!/matching/.test(document.querySelector('.md-search-result__meta').innerText)")
        box.fill(text)  # at once: it would search after every key
        box.press("Shift")
        page.wait_for_function("/matching/.test(document.querySelector('.md-search-result__meta').innerText)")
        assert "No matching" not in meta.inner_text(), text
        page.wait_for_selector(".md-search-result__item")
        found = page.eval_on_selector_all(
            ".md-search-result__item", "items => items.slice(0, 3).map(item => item.querySelector('a').href)"
        )
        return [url.split("?")[0].removeprefix(site.as_uri() + "/") for url in found]

    yield ask
    page.close()


@pytest.mark.parametrize(("text", "answer"), ASKED.items(), ids=ASKED)
def test_the_search_finds_the_answer_among_the_first_three(search, text, answer):
    assert answer in [url.split("#")[0] for url in search(text)]


def test_nothing_is_cut_off(browser, site):
    """On a phone, code and tables scroll in boxes of their own, but the page does not.

    Without the scripts of the site, which take half of the time and change no width.
    """
    wide, phone = (
        browser.new_page(viewport={"width": width, "height": 900}, java_script_enabled=False) for width in (1280, 390)
    )
    for path in sorted(site.rglob("*.html")):
        wide.goto(path.as_uri(), wait_until="load")
        assert wide.evaluate(CUT_OFF) == [], path.relative_to(site)
        if path.name in (
            "index.html",
            "leaderboard.html",
            "results.html",
            "quickstart.html",
            "selective_backprop.html",
        ):
            phone.goto(path.as_uri(), wait_until="load")
            assert "the page itself" not in phone.evaluate(CUT_OFF), path.relative_to(site)
    for path in ("leaderboard.html", "leaderboard-small.html"):
        wide.goto((site / path).as_uri())
        assert wide.evaluate("document.documentElement.scrollHeight") <= 4 * 900, "the rest is folded"
    wide.close()
    phone.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)], ids=["laptop", "phone"])
def test_home_shows_the_code_and_where_to_go_on_the_first_screen(browser, site, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto((site / "index.html").as_uri())
    for seen in (page.locator("article pre").first, page.locator("article .md-button").first):
        box = seen.bounding_box()
        assert box["y"] + box["height"] <= height
    page.close()
