"""A report shown in a notebook: the whole page, in a frame that keeps to itself."""

import html
import re

import pytest

from selective_backprop_lab.report import build_report, find_runs


@pytest.fixture(scope="module")
def report(experiment):
    return build_report(find_runs([experiment]))


def test_the_page_is_in_the_frame(report):
    shown = report._repr_html_()
    assert shown.startswith("<iframe ") and shown.endswith("></iframe>")
    (inside,) = re.findall(r'srcdoc="([^"]*)"', shown)  # nothing in the page ends the attribute
    assert html.unescape(inside).replace('\n<base href="about:srcdoc">', "", 1) == report.html()


def test_it_works_in_a_browser(report, visit, tmp_path):
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>Notebook</title><h1>Cell</h1>{report._repr_html_()}")
    seen = visit(url=notebook.as_uri())
    frame = seen.page.frames[1]
    frame.wait_for_selector("svg, canvas")
    assert "What selection did" in frame.inner_text("h1")
    chip = frame.locator(".chip").first
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    frame.evaluate("document.querySelector('a.skip').click()")
    frame.wait_for_function("location.hash.length > 1")
    assert frame.url.startswith("about:srcdoc#") and seen.page.url == notebook.as_uri()
    assert seen.said == [] and set(seen.asked) == {notebook.as_uri()}
