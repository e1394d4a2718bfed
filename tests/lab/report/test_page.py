"""The page as a reader has it: in a browser, from real runs."""

import shutil

import pytest

from selective_backprop_lab.report import build_report, find_runs
from selective_backprop_lab.report.live import LiveReport
from selective_backprop_lab.runs.experiment import Entry
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.time_left import TimeLeft
from selective_backprop_lab.study.comparison import settings_for
from tests.lab.report.conftest import HOSTILE, HOSTILE_DATA, small_digits

OPEN_ALL = "document.querySelectorAll('details').forEach(one => { one.open = true; })"
CUT = """all => all.filter(text => {
    const box = text.getBoundingClientRect(), paper = text.ownerSVGElement.getBoundingClientRect();
    return box.width && (box.right > paper.right + 2 || box.left < paper.left - 2);
}).map(text => text.textContent)"""
ON_EACH_OTHER = """all => all.flatMap(svg => {
    const boxes = [...svg.querySelectorAll("text")].map(text => [text.getBoundingClientRect(), text.textContent]);
    return boxes.flatMap(([a, one], i) => boxes.slice(i + 1).filter(([b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4).map(([, other]) => `${one} / ${other}`));
})"""


def brightness(color):
    return sum(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")[:3]) / 3


def opened(visit, file, *args):
    page = visit(file.as_uri(), *args)
    page.evaluate(OPEN_ALL)
    return page


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_is_legible_and_asks_for_nothing(visit, page_file, width, scheme):
    page = opened(visit, page_file, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    texts = page.locator("svg text")
    assert texts.count() > 100
    assert texts.evaluate_all(CUT) == []
    assert page.locator("figure svg").evaluate_all(ON_EACH_OTHER) == []
    sizes = texts.evaluate_all("all => all.map(text => text.getBoundingClientRect().height).filter(Boolean)")
    assert min(sizes) > 10
    style = "getComputedStyle(document.body)"
    ground, ink = (brightness(page.evaluate(f"{style}.{name}")) for name in ("backgroundColor", "color"))
    assert (ground < 60) == (scheme == "dark") and abs(ground - ink) > 150
    colors = texts.evaluate_all("all => all.map(text => getComputedStyle(text).fill)")
    assert all(abs(brightness(color) - ground) > 80 for color in set(colors))
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("data:")] == [page_file.as_uri()]


def test_names_are_shown_and_never_run(visit, page_file):
    page = opened(visit, page_file)
    assert page.said == []
    text = page.inner_text("main")
    assert HOSTILE in text and HOSTILE_DATA in text and HOSTILE_DATA in page.inner_text("h1")
    assert page.locator("main img[src=x]").count() == 0
    assert HOSTILE in page.locator(".legend button").all_inner_texts()


def test_the_verdict_comes_first_then_the_doubts_then_the_rest(visit, page_file):
    page = visit(page_file.as_uri())
    tops = [page.locator(f"#{id}").bounding_box()["y"] for id in ("findings", "multipliers", "alerts", "frontiers")]
    assert tops == sorted(tops) and tops[0] < 250
    figure = page.locator("#error-by-compute-c1")
    assert not figure.is_visible()
    page.click("#multipliers a[href='#c1']")
    assert figure.is_visible() and not page.locator("#error-by-compute-c0").is_visible()


def test_methods_are_hidden_and_choices_made(visit, page_file):
    page = opened(visit, page_file)
    lines, row = page.locator("#error-by-compute-c0 g[data-method=sb]"), page.locator("#arms-c0 tr[data-method=sb]")
    chip = page.locator(".legend button", has_text="sb").first
    assert lines.is_visible() and row.is_visible()
    chip.focus()
    page.keyboard.press("Enter")  # a button: the keyboard works too
    assert not lines.is_visible() and not row.is_visible()
    assert page.locator("#arms-c0 tr[data-method=traditional]").is_visible()
    chip.click()
    assert lines.is_visible()
    pictures, choice = page.locator("#losses-c0 [role=img]"), page.locator("#losses-c0 select")
    shown = [choice.locator("option").all_inner_texts().index("traditional"), pictures]
    assert not shown[1].nth(shown[0]).is_visible()
    choice.select_option("traditional")
    assert shown[1].nth(shown[0]).is_visible()
    assert page.locator("#losses-c0 [role=img]:visible").count() == 1


def test_a_notebook_has_the_page_in_a_frame_of_its_own(experiment, visit, tmp_path):
    notebook = tmp_path / "notebook.html"
    report = build_report(find_runs([experiment]))
    notebook.write_text(f"<!doctype html><title>Notebook</title>{report._repr_html_()}")
    page = visit(notebook.as_uri())
    frame = page.frames[1]
    assert "What selection did" in frame.inner_text("h1")
    frame.locator("#multipliers a").first.click()
    frame.wait_for_function("document.querySelector('details.workload').open")
    assert page.url == notebook.as_uri() and page.said == []


def planned(*labels):
    recipe = find_recipe("digits").with_(epochs=3)
    specs = [(label, seed) for seed in (0, 1) for label in labels]
    return [Entry(label, settings_for(MethodSpec.parse(label), recipe, seed=seed)) for label, seed in specs]


def test_an_open_page_of_runs_under_way_loads_itself_again_and_looks_the_same(experiment, tmp_path, visit):
    runs, left = tmp_path / "runs", TimeLeft(planned("traditional", "sb", "ledger"))
    shutil.copytree(experiment / "traditional", runs / "traditional")
    shutil.copytree(experiment / "sb" / "seed-0", runs / "sb" / "seed-0")

    def write():
        LiveReport(runs, left, lambda run: small_digits()).after(lambda *epoch: None)(None, None)

    write()
    page = visit((runs / "report.html").as_uri(), clock=True)
    assert "9 of 18 epochs are done, and 3 of 6 runs are finished" in page.inner_text("#progress")
    page.evaluate("document.querySelectorAll('details.workload').forEach(one => { one.open = true; })")
    chip = page.locator(".legend button", has_text="traditional")
    chip.click()
    page.locator("#losses-c0 select").select_option("traditional")
    shutil.copytree(experiment / "sb" / "seed-1", runs / "sb" / "seed-1")
    write()
    page.clock.fast_forward(20_000)
    page.wait_for_function("document.getElementById('progress')?.innerText.includes('12 of 18')")
    assert page.locator("details.workload:not([open])").count() == 0
    assert chip.get_attribute("aria-pressed") == "false"
    assert page.locator("#losses-c0 select").input_value() == "traditional"
    LiveReport(runs, left, lambda run: small_digits()).finish()
    page.clock.fast_forward(65_000)
    page.wait_for_function("!document.body.dataset.written")
    assert page.said == [] and {url for url in page.asked if url.startswith("file")} == {page.url}
