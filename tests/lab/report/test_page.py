"""The page as a reader has it: in a browser, from real runs."""

import io
import json
from pathlib import Path
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


def last_error(records):
    return records[-1]["test_error"]


def test_it_draws_every_chart_asks_for_nothing_and_complains_of_nothing(seen, page_file):
    for figure in seen.page.query_selector_all("main figure[data-drawn]"):
        assert pixels(figure.query_selector(".chart")) > 20, figure.get_attribute("id")
    drawn = len(seen.page.query_selector_all("main figure[data-drawn]"))
    assert drawn == seen.page.evaluate("Object.keys(page.figures).length") > 20
    assert seen.said == []
    assert [url for url in seen.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert seen.asked.count(page_file.as_uri()) == 1
    assert page_file.stat().st_size < 2_000_000


def test_a_workload_is_opened_by_its_reader_and_drawn_then(visit, page_file):
    page = visit(url=page_file.as_uri() + "?near").page
    assert page.locator("details.workload[open]").count() == 0
    figure = page.locator("#error-by-compute-c1")
    assert not figure.is_visible() and figure.get_attribute("data-drawn") is None
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    page.click("#multipliers a[href='#c1']")
    page.wait_for_selector("details#c1[open]")
    assert not page.locator("details#c0[open]").count()
    figure.scroll_into_view_if_needed()
    page.wait_for_selector("#error-by-compute-c1[data-drawn]")
    page.reload()
    assert page.locator("details#c1[open]").count() == 1, "what was opened is in the address"


def test_names_are_shown_and_never_run(seen):
    # The browser tells of an opened table later than it opens it: wait for the last one to be filled, and emptied.
    turn = "all => all.forEach(details => { details.open = !details.open })"
    filled = "n => document.querySelectorAll('details.data table').length === n"
    tables = seen.page.locator("details.data")
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


def test_the_legend_switches_methods_off_in_charts_and_tables(visit, seen):
    shown = "[...drawn].map(([id, view]) => view.data('rows').length && view.getState().signals.hidden).filter(Boolean)"
    lines = "#error-by-compute-c0 .mark-line.role-mark path"
    assert seen.page.locator(lines).count() == 2
    chip = seen.page.locator(".chip", has_text="sb").first
    chip.focus()
    seen.page.keyboard.press("Enter")  # a button: the keyboard works too
    assert chip.get_attribute("aria-pressed") == "false"
    seen.page.wait_for_function(f"document.querySelectorAll('{lines}').length === 1")
    assert all(hidden == ["sb"] for hidden in seen.page.evaluate(shown))
    for table in ("#multipliers", "#arms-c0", "#speed-up-seconds-c0"):
        rows = seen.page.locator(f"{table} tbody tr:visible th").all_inner_texts()
        assert rows and not any(row.startswith("sb") for row in rows)
        assert any(row.startswith("traditional") for row in rows)
    seen.page.evaluate("document.querySelector('#error-by-compute-c0 details.data').open = true")
    seen.page.wait_for_selector("#error-by-compute-c0 details.data tbody")
    methods = {text.split("\t")[0] for text in seen.page.locator("#error-by-compute-c0 tbody tr").all_inner_texts()}
    assert methods == {"traditional"}
    assert "hide=sb" in seen.page.url
    again = visit(url=seen.page.url).page
    assert again.locator(".chip[data-name=sb]").get_attribute("aria-pressed") == "false"
    assert not again.locator("#multipliers tr[data-method=sb]").is_visible()
    chip.click()
    seen.page.wait_for_function(f"document.querySelectorAll('{lines}').length === 2")
    assert "hide" not in seen.page.url
    seen.page.evaluate("document.querySelector('#error-by-compute-c0 details.data').open = false")
    seen.page.wait_for_selector("#error-by-compute-c0 details.data tbody", state="detached")
    assert seen.said == []


def test_saved_pictures_have_title_and_legend(seen):
    figure = seen.page.locator("#error-by-steps-c0")
    with seen.page.expect_download() as saved:
        figure.locator("button[data-kind=svg]").click()
    text = Path(saved.value.path()).read_text()
    title = "Test error by training step"
    assert title in text and text.count(">sb<") == 1, "in the legend"
    assert seen.page.locator("#error-by-steps-c0 svg", has_text=title).count() == 0, "in the page it is above the chart"
    with seen.page.expect_download() as saved:
        figure.locator("button[data-kind=png]").click()
    with Image.open(saved.value.path()) as image:
        assert image.format == "PNG" and image.width > 2 * 480
    assert seen.said == []


def test_the_first_screen_says_who_won_and_whether_it_is_fair(seen):
    assert seen.page.locator("#multipliers tbody tr").count() == 3  # traditional, sb, and one that must not be run
    assert seen.page.locator("#findings li").count() == 2
    assert "2 seeds only" in seen.page.locator("#alerts").inner_text()
    assert "1 seed only" in seen.page.locator("#alerts").inner_text()
    assert seen.page.locator("#multipliers").bounding_box()["y"] < 300


OUTSIDE = """all => all.filter(text => {
    const box = text.getBoundingClientRect(), paper = text.ownerSVGElement.getBoundingClientRect();
    return box.right > paper.right + 1 || box.left < paper.left - 1;
}).map(text => text.textContent)"""


def test_no_label_is_cut(seen):
    texts = seen.page.locator(".chart svg text").all_text_contents()
    assert len(texts) > 100 and not [text for text in texts if "…" in text]
    assert seen.page.locator(".chart svg text").evaluate_all(OUTSIDE) == []
    assert (
        seen.page.locator(".chip").evaluate_all("all => all.filter(c => c.scrollWidth > c.clientWidth + 1).length") == 0
    )


def test_confidence_opens_at_the_middle_snapshot(seen):
    after = seen.page.locator("#confidence-confidence-c0 select").input_value()
    options = seen.page.locator("#confidence-confidence-c0 option").all_inner_texts()
    assert after == options[(len(options) - 1) // 2]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_it_fits_the_screen_and_has_contrast(visit, seen, width, scheme):
    seen = seen if scheme == "light" else visit(width, scheme)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "figures.filter(f => f.querySelector('svg').getBoundingClientRect().right > innerWidth).map(f => f.id)"
    assert seen.page.evaluate(wide) == []
    assert seen.page.locator(".chart svg text").evaluate_all(OUTSIDE) == []
    assert seen.said == []
    background, ink = seen.page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (brightness(background) < 60) == (scheme == "dark")
    assert abs(brightness(background) - brightness(ink)) > 150
    cells = seen.page.locator("#multipliers td").evaluate_all("all => all.map(c => getComputedStyle(c).color)")
    assert all(abs(brightness(background) - brightness(color)) > 150 for color in cells)
    label = seen.page.locator("#error-by-compute-c0 .role-axis-label text").first.get_attribute("fill")
    gray = sum(int(label[i : i + 2], 16) for i in (1, 3, 5)) / 3
    assert abs(gray - brightness(background)) > 80


def test_charts_have_text_alternatives_and_tables(seen):
    charts = seen.page.locator(".chart")
    names = charts.evaluate_all(
        "all => all.map(chart => [chart.getAttribute('role'), chart.getAttribute('aria-label')])"
    )
    assert [name for role, name in names if role != "group" or len(name) <= 30] == []
    assert seen.page.locator(".chart [role=graphics-document]").first.get_attribute("aria-label") == names[0][1]
    assert [int(h) for h in seen.page.locator("h1, h2").evaluate_all("all => all.map(h => h.tagName[1])")][:2] == [
        1,
        2,
    ]
    figure = seen.page.locator("#selectivity-c0")
    figure.locator("summary", has_text="Data").click()
    figure.locator("tbody tr").first.wait_for()
    assert figure.locator("tbody tr").count() == 2 * 3
    assert figure.locator("thead th").all_inner_texts() == ["method", "epoch", "selectivity"]
    assert figure.locator("tbody tr").first.inner_text() == "traditional\t1\t100%"
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
    for table in ("#arms-c0", "#speed-up-seconds-c0"):
        rows = seen.page.locator(f"{table} tbody tr").all_inner_texts()
        assert any(line.startswith("sb") and f"{final:.2f}% ±" in line for line in rows)
    assert "error on 200 test examples" in seen.page.locator("#arms-c0 thead").inner_text()
    best = fmean(map(last_error, runs["traditional"]))
    heading = seen.page.locator("#multipliers thead th").nth(1).inner_text()
    assert f"at {1.02 * best:.2%} error" in heading
    cell = seen.page.locator("#multipliers tr[data-method=sb] td").first.inner_text()
    reached = final / 100 <= 1.02 * best
    assert ("not reached" in cell) is not reached and (reached or f"at best {final:.2f}%" in cell)
    shares = seen.page.evaluate("rowsOf(page.figures['selectivity-c0'].table)")
    expected = fmean(seed[2]["trained"] / seed[2]["offered"] for seed in runs["sb"])
    assert [row["selectivity"] for row in shares if row["run"] == "sb"][2] == pytest.approx(expected, rel=1e-5)


def test_the_page_has_the_licences_of_the_scripts_in_it(page_file):
    script = page_file.read_text().partition("<script>\n/*!")[2]
    notice = script.partition("*/")[0]
    for words in (
        "University of Washington Interactive Data Lab",
        "Neither the name of the copyright holder",
        "Bostock",
    ):
        assert words in notice


def test_the_data_in_the_page_cannot_end_its_script(page_file):
    text = page_file.read_text()
    data = text.split('id="page-data">')[1].split("</script>")[0]
    assert any(HOSTILE in table.get("run", {}).get("words", []) for table in json.loads(data)["tables"])
    assert "<script>alert" not in text
