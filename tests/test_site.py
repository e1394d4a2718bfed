"""The built site in a real browser: what its search finds, and that nothing on it is cut off."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("playwright", reason="needs playwright")

from tests.processes import ROOT

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
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


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
