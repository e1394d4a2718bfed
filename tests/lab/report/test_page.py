"""The page as a reader has it: in a browser, from real runs."""

import io
import json
from statistics import fmean

import pytest
from PIL import Image

from tests.lab.command_line import records
from tests.lab.report.conftest import HOSTILE, HOSTILE_DATA


def pixels(element):
    image = Image.open(io.BytesIO(element.screenshot())).convert("RGB")
    return len(image.getcolors(maxcolors=image.width * image.height))


def brightness(color):
    return sum(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")[:3]) / 3


def test_it_draws_every_chart_asks_for_nothing_and_complains_of_nothing(seen, page_file):
    for figure in seen.page.query_selector_all("main figure[data-drawn]"):
        assert pixels(figure.query_selector(".chart")) > 20, figure.get_attribute("id")
    drawn = len(seen.page.query_selector_all("main figure[data-drawn]"))
    assert drawn == seen.page.evaluate("Object.keys(page.figures).length") > 20
    assert seen.said == []
    assert [url for url in seen.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert seen.asked.count(page_file.as_uri()) == 1
    assert page_file.stat().st_size < 2_000_000


def test_charts_are_drawn_as_the_reader_comes_near(visit, page_file):
    page = visit(url=page_file.as_uri() + "#near").page
    last = page.locator("main figure:has(> .chart)").last
    assert last.get_attribute("data-drawn") is None
    last.scroll_into_view_if_needed()
    page.wait_for_selector(f"#{last.get_attribute('id')}[data-drawn]")


def test_names_are_shown_and_never_run(seen):
    # The browser tells of an opened table later than it opens it: wait for the last one to be filled, and emptied.
    turn = "all => all.forEach(details => { details.open = !details.open })"
    filled = "n => document.querySelectorAll('main figure > details table').length === n"
    tables = seen.page.locator("main figure > details")
    tables.evaluate_all(turn)
    seen.page.wait_for_function(filled, arg=tables.count())
    text = seen.page.inner_text("main")
    tables.evaluate_all(turn)
    seen.page.wait_for_function(filled, arg=0)
    assert seen.said == []
    assert HOSTILE in text
    assert HOSTILE_DATA in text
    assert HOSTILE_DATA in seen.page.inner_text("h1")
    assert seen.page.locator("main img[src=x]").count() == 0
    assert HOSTILE in seen.page.locator(".chip").all_inner_texts()


def test_the_legend_switches_methods_off_in_every_chart(seen):
    shown = "[...drawn].map(([id, view]) => view.data('rows').length && view.getState().signals.hidden).filter(Boolean)"
    lines = "#error-by-compute-c0 .mark-line path, #error-by-compute-c0 .mark-symbol path"
    before = seen.page.locator(lines).count()
    chip = seen.page.locator(".chip", has_text="sb").first
    chip.focus()
    seen.page.keyboard.press("Enter")  # a button: the keyboard works too
    assert chip.get_attribute("aria-pressed") == "false"
    seen.page.wait_for_function("document.querySelectorAll('#error-by-compute-c0 .mark-line path').length === 1")
    seen.page.wait_for_function(f"document.querySelectorAll('{lines}').length === {before // 2}")
    assert all(hidden == ["sb"] for hidden in seen.page.evaluate(shown))
    chip.click()
    seen.page.wait_for_function("document.querySelectorAll('#error-by-compute-c0 .mark-line path').length === 2")


def test_the_reader_chooses_examples(seen):
    figure = seen.page.locator("#examples-c0")
    ids = "[...new Set(drawn.get('examples-c0').data('rows').map(row => row.example))]"
    assert seen.page.evaluate(ids) == [0, 124, 249, 374, 499]
    known = seen.page.evaluate("[...new Set(rowsOf(page.figures['examples-c0'].choices).map(row => row.example))]")
    assert len(known) > 100
    figure.locator("input").fill(f"{known[3]}, {known[7]}")
    figure.locator("input").press("Enter")
    assert seen.page.evaluate(ids) == [known[3], known[7]]
    figure.locator("input").fill("999999")
    figure.locator("input").press("Enter")
    assert "Not in this page: 999999" in figure.locator("[role=status]").inner_text()
    figure.locator(".others").click()
    assert 1 <= len(seen.page.evaluate(ids)) <= 5
    assert seen.said == []


def test_one_comparison_alone(seen):
    seen.page.select_option("#only", "c1")
    assert not seen.page.locator("#error-by-compute-c0").is_visible()
    assert seen.page.locator("#error-by-compute-c1").is_visible()
    seen.page.select_option("#only", "")
    assert seen.page.locator("#error-by-compute-c0").is_visible()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark")])
def test_it_fits_the_screen_and_has_contrast(visit, width, scheme):
    seen = visit(width, scheme)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "figures.filter(f => f.querySelector('svg').getBoundingClientRect().right > innerWidth).map(f => f.id)"
    assert seen.page.evaluate(wide) == []
    background, ink = seen.page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (brightness(background) < 60) == (scheme == "dark")
    assert abs(brightness(background) - brightness(ink)) > 150
    label = seen.page.locator("#error-by-compute-c0 .role-axis-label text").first.get_attribute("fill")
    gray = sum(int(label[i : i + 2], 16) for i in (1, 3, 5)) / 3
    assert abs(gray - brightness(background)) > 80


def test_charts_have_text_alternatives_and_tables(seen):
    charts = seen.page.locator(".chart")
    names = charts.evaluate_all(
        "all => all.map(chart => [chart.getAttribute('role'), chart.getAttribute('aria-label')])"
    )
    assert all(role == "group" and len(name) > 30 for role, name in names)
    assert seen.page.locator(".chart [role=graphics-document]").first.get_attribute("aria-label") == names[0][1]
    assert [int(h) for h in seen.page.locator("h1, h2").evaluate_all("all => all.map(h => h.tagName[1])")][:2] == [
        1,
        2,
    ]
    figure = seen.page.locator("#selectivity-c0")
    figure.locator("summary", has_text="Data").click()
    figure.locator("tbody tr").first.wait_for()
    assert figure.locator("tbody tr").count() == 2 * 3
    assert figure.locator("details a[download$=csv]").get_attribute("download") == "selectivity-c0.csv"
    figure.locator("summary", has_text="Data").click()
    figure.locator("tbody").wait_for(state="detached")


def test_numbers_are_those_of_the_records(seen, experiment):
    runs = {label: [records(experiment / label / f"seed-{seed}") for seed in (0, 1)] for label in ("traditional", "sb")}
    rows = seen.page.evaluate("rowsOf(page.figures['error-by-compute-c0'].table)")
    for label, seeds in runs.items():
        mine = [row for row in rows if row["run"] == label]
        for epoch in range(3):
            upto = [seed[: epoch + 1] for seed in seeds]
            assert mine[epoch]["error"] == pytest.approx(fmean(seed[epoch]["test_error"] for seed in seeds), rel=1e-5)
            assert mine[epoch]["steps"] == fmean(sum(r["batches"] for r in part) for part in upto)
            assert mine[epoch]["compute"] == pytest.approx(
                fmean(sum(r["compute"] for r in part) for part in upto), rel=1e-5
            )
            seconds = [sum(sum(r["seconds"].values()) - r["seconds"]["evaluation"] for r in part) for part in upto]
            assert mine[epoch]["seconds"] == pytest.approx(fmean(seconds), rel=1e-5)
    final = 100 * fmean(seed[-1]["test_error"] for seed in runs["sb"])
    table = seen.page.locator("#speed-up-compute-c0 tbody tr").all_inner_texts()
    assert any(line.startswith("sb") and f"{final:.2f}% ±" in line for line in table)
    shares = seen.page.evaluate("rowsOf(page.figures['selectivity-c0'].table)")
    expected = fmean(seed[2]["trained"] / seed[2]["offered"] for seed in runs["sb"])
    assert [row["selectivity"] for row in shares if row["run"] == "sb"][2] == pytest.approx(expected, rel=1e-5)


def test_the_data_in_the_page_cannot_end_its_script(page_file):
    text = page_file.read_text()
    data = text.split('id="page-data">')[1].split("</script>")[0]
    assert any(HOSTILE in table.get("run", {}).get("words", []) for table in json.loads(data)["tables"])
    assert "<script>alert" not in text
