"""The report of runs that are under way: how far they have come, and a page that loads itself again."""

import shutil

from selective_backprop_lab.report import live
from selective_backprop_lab.report.live import LiveReport, progress
from selective_backprop_lab.runs.experiment import Entry
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.time_left import TimeLeft
from selective_backprop_lab.study.comparison import settings_for
from tests.lab.report.conftest import small_digits
from tests.lab.report.made_up import made_up_run


def entry(label, epochs, seed=0):
    return Entry(label, settings_for(MethodSpec.parse("sb"), find_recipe("digits").with_(epochs=epochs), seed=seed))


def test_progress_counts_epochs():
    planned = [entry("traditional, 2 epochs", 2), entry("sb, 4 epochs", 4), entry("sb, 4 epochs", 4, seed=1)]
    planned.append(entry("ledger, 4 epochs", 4))
    done = made_up_run("traditional, 2 epochs", [0.2, 0.1])
    under_way = made_up_run("sb, 4 epochs", [0.3], epochs=4)
    (sentence,) = progress(TimeLeft(planned), [done, under_way]).parts
    ((_, _, words),) = sentence.items
    assert "Estimated time left: **unknown**" in words
    assert "**3 of 14 epochs** are done, and 1 of 4 runs are finished." in words


def test_the_page_is_written_after_epochs_but_not_all_the_time(experiment, tmp_path, monkeypatch):
    now, runs = [0.0], tmp_path / "runs"
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    shown = []
    report = LiveReport(runs, TimeLeft([entry("sb", 3), entry("sb", 3, seed=1)]), lambda run: small_digits())
    show = report.after(lambda *epoch: shown.append(epoch))
    show("entry", "record")  # there is no folder, hence no report, and training goes on
    assert shown == [("entry", "record")] and not report.file.exists()
    shutil.copytree(experiment / "sb" / "seed-0", runs / "sb" / "seed-0")
    written = []
    for now[0] in (1.0, 5.0, 6.0, 9.0, 10.0):
        show("entry", "record")
        written.append(report.file.exists())
        report.file.unlink(missing_ok=True)
    assert written == [False, True, False, False, True]
    report.finish()
    assert "data-written" not in report.file.read_text(), "a page of finished runs does not load itself again"


def test_an_open_page_loads_itself_again_and_looks_the_same(experiment, tmp_path, visit):
    runs = tmp_path / "runs"
    shutil.copytree(experiment / "traditional", runs / "traditional")
    shutil.copytree(experiment / "sb" / "seed-0", runs / "sb" / "seed-0")
    planned = [entry(label, 3, seed) for seed in (0, 1) for label in ("traditional", "sb", "ledger")]
    LiveReport(runs, TimeLeft(planned), lambda run: small_digits()).after(lambda *epoch: None)(None, None)
    opened = visit(url=(runs / "report.html").as_uri(), clock=True)
    page = opened.page
    page.evaluate("document.querySelectorAll('details.workload').forEach(details => { details.open = true; })")
    page.evaluate("Promise.all(figures.filter(f => !drawn.get(f.id)).map(draw)).then(() => 0)")
    assert "9 of 18 epochs are done" in page.inner_text("#progress")
    page.locator(".chip", has_text="traditional").click()
    table = page.locator("#selectivity-c0 details.data")
    table.locator("summary").click()
    table.locator("tbody tr").first.wait_for()
    page.evaluate("drawn.get('losses-c0').signal('chosen', 'traditional').runAsync().then(() => 0)")
    top = "document.querySelector('#losses-c0').getBoundingClientRect().top"
    before = page.evaluate(f"document.querySelector('#losses-c0').scrollIntoView(); {top}")

    shutil.copytree(experiment / "sb" / "seed-1", runs / "sb" / "seed-1")
    LiveReport(runs, TimeLeft(planned), lambda run: small_digits()).after(lambda *epoch: None)(None, None)
    page.clock.fast_forward(3000)
    page.keyboard.press("Shift")
    page.clock.fast_forward(3000)
    assert page.evaluate("1 + 1") == 2, "not loaded again, as the reader has just done something"
    page.clock.fast_forward(4000)
    page.wait_for_function("document.getElementById('progress')?.innerText.includes('12 of 18')")

    def looks_the_same():
        page.wait_for_function(f"Math.abs({top} - {before}) < 60")  # the reader looks at what they looked at
        assert page.locator("details.workload:not([open])").count() == 0
        assert page.locator(".chip", has_text="traditional").get_attribute("aria-pressed") == "false"
        table.locator("tbody tr").first.wait_for()
        assert table.locator("tbody tr").count() == 3, "still open, of the method that is not hidden"
        page.evaluate("Promise.all(figures.filter(f => !drawn.get(f.id)).map(draw)).then(() => 0)")
        assert page.evaluate("drawn.get('losses-c0').signal('chosen')") == "traditional"

    looks_the_same()
    LiveReport(runs, TimeLeft(planned), lambda run: small_digits()).finish()
    page.clock.fast_forward(65_000)
    page.wait_for_function("!document.body.dataset.written")
    looks_the_same()
    page.evaluate("window.loaded = 'at last'")
    page.clock.fast_forward(120_000)
    assert page.evaluate("window.loaded") == "at last", "finished: it is not loaded again"
    assert opened.said == []
    assert {url.partition("?")[0] for url in opened.asked if not url.startswith("data:")} == {
        (runs / "report.html").as_uri()
    }
