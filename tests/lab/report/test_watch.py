"""What watch shows of runs under way, and how it answers a browser."""

import http.client
import json
import shutil
import signal
import socket
import threading
import time

import pytest

from selective_backprop.lab.report.progress import progress_of
from selective_backprop.lab.report.serving import Server, waiting
from selective_backprop.lab.runs.choices import Choice
from selective_backprop.lab.runs.experiment import Entry
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.study.comparison import Design, settings_for
from selective_backprop.lab.study.plan import PlannedRun, read_plan, write_plan
from tests.lab.command_line import run, start, text_of
from tests.lab.report.made_up import made_up_run


def entry(label, epochs, seed=0):
    return Entry(label, settings_for(Choice.parse("sb"), find_recipe("digits").with_(epochs=epochs), seed=seed))


def test_a_plan_is_read_as_it_was_written(tmp_path):
    write_plan(tmp_path / "new", [entry("sb, 2 epochs", 2), entry("sb, 4 epochs", 4, seed=1)])
    assert read_plan(tmp_path / "new") == [PlannedRun("sb, 2 epochs", 0, 2), PlannedRun("sb, 4 epochs", 1, 4)]
    assert read_plan(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "plan.json is damaged"),
        ("[]", "it must hold a list of runs"),
        ('{"runs": [{"seed": 0, "epochs": 1}]}', "a run needs a label"),
        ('{"runs": [{"label": "sb", "seed": true, "epochs": 1}]}', "seed of 'sb' must be a whole number"),
        ('{"runs": [{"label": "sb", "seed": 0, "epochs": 0}]}', "epochs of 'sb' must be a whole number of at least 1"),
        ('{"runs": [{"label": "sb", "seed": 0, "epochs": 1e300}]}', "epochs of 'sb' must be a whole number"),
        ('{"runs": [{"label": "sb", "seed": 0, "epochs": 9999999999}]}', "must be at most 1,000,000"),
    ],
)
def test_a_damaged_plan_is_told_and_the_runs_are_still_shown(tmp_path, text, message):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_plan(tmp_path)
    found = progress_of([tmp_path], [made_up_run("sb", [0.1], epochs=2)])
    assert [(state.done, state.epochs) for state in found.runs] == [(1, 2)]
    assert message in "".join(found.problems)


def test_progress_counts_epochs_and_estimates_the_time_left(tmp_path):
    planned = [entry("traditional, 2 epochs", 2), entry("sb, 4 epochs", 4), entry("sb, 4 epochs", 4, seed=1)]
    write_plan(tmp_path, [*planned, entry("ledger, 4 epochs", 4)])
    done = made_up_run("traditional, 2 epochs", [0.2, 0.1], path=tmp_path / "traditional" / "seed-0")
    under_way = made_up_run("sb, 4 epochs", [0.3], epochs=4, path=tmp_path / "sb" / "seed-0")
    for record in under_way.records:
        record["seconds"] = record["seconds"] | {"evaluation": 7.5}  # 20 seconds an epoch; traditional has 112.5
    progress = progress_of([tmp_path], [done, under_way])
    # sb goes on for 3 epochs and begins once more for 4; ledger has not begun: as long as all others on average.
    assert progress.seconds_left == pytest.approx((3 + 4) * 20 + 4 * (112.5 + 20) / 2)
    words = progress.sentence()
    assert "**3 of 14 epochs** are done, and 1 of 4 runs are finished." in words
    assert "Estimated time left: **about 7 minutes**" in words
    assert words.endswith("Arms to come: ledger, 4 epochs.")
    table = progress.section().parts[-1]
    assert table.cells == [
        ["sb, 4 epochs", "under way", "1 of 8", "0 of 2"],
        ["ledger, 4 epochs", "to come", "0 of 4", "0 of 1"],
    ]
    assert progress_of([tmp_path], []).seconds_left is None, "before the first epoch nothing is known"
    assert progress_of([], [done]).sentence() == "All runs are finished: 1 run, 2 epochs."
    assert len(progress_of([], [done]).section().parts) == 1, "no table of what is left"


def test_compare_writes_its_plan_first(tmp_path):
    result = run("compare", "--method", "sb", "--epochs", "1", "--seeds", "1", "--out", tmp_path)
    assert result.returncode == 0, text_of(result)
    design = Design([Choice.parse("sb")], find_recipe("digits").with_(epochs=1), [1])
    expected = [(planned.label, 0, 1) for planned in design.entries(0)]
    assert [(planned.label, planned.seed, planned.epochs) for planned in read_plan(tmp_path)] == expected
    for label, seed, _ in expected:  # the names in the plan are those in the runs' folders
        configs = [json.loads(file.read_text()) for file in tmp_path.glob("*/*/config.json")]
        assert any((config["label"], config["seed"]) == (label, seed) for config in configs)


def test_a_busy_port_is_told_with_a_way_out(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("watch", tmp_path, "--port", port)
    assert result.returncode == 2
    assert f"port {port} is in use by another program" in text_of(result)
    assert "--port 0" in text_of(result)


@pytest.fixture
def server(tmp_path):
    with Server(0, [tmp_path], lambda state: waiting("not yet")) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_head_is_answered_as_get_without_content(server):
    for path, status in (("/", 200), ("/version", 200), ("/nowhere", 404)):
        (got, content), (head, nothing) = ask(server, "GET", path), ask(server, "HEAD", path)
        assert (got.status, head.status) == (status, status)
        assert nothing == b"" and int(head.headers["Content-Length"]) == len(content) > 0


def test_there_is_no_icon_and_no_error_about_it(server, visit):
    assert ask(server, "GET", "/favicon.ico")[0].status == 204
    opened = visit(url=server.url)
    assert "not yet" in opened.page.inner_text("body")
    assert opened.said == []


def test_a_plan_that_changes_changes_the_state(server, tmp_path):
    before = ask(server, "GET", "/version")[1]
    write_plan(tmp_path, [entry("sb", 2)])
    assert ask(server, "GET", "/version")[1] != before


def test_the_page_updates_in_place(experiment, tmp_path, visit):
    runs = tmp_path / "runs"
    write_plan(runs, [entry(label, 3, seed) for seed in (0, 1) for label in ("traditional", "sb", "ledger")])
    shutil.copytree(experiment / "traditional", runs / "traditional")
    shutil.copytree(experiment / "sb" / "seed-0", runs / "sb" / "seed-0")
    with start("watch", runs) as process:
        while "\n" not in process.output():
            assert process.poll() is None
            time.sleep(0.01)
        opened = visit(url=process.output().split()[0])
        page = opened.page
        page.evaluate("document.querySelectorAll('details.workload').forEach(details => { details.open = true; })")
        page.evaluate("window.opened = 'once'; Promise.all(figures.filter(f => !drawn.get(f.id)).map(draw))")
        assert "9 of 18 epochs are done" in page.inner_text("#progress")
        assert "Arms to come: ledger" in page.inner_text("#progress")
        page.locator(".chip", has_text="traditional").click()
        table = page.locator("#selectivity-c0 details.data")
        table.locator("summary").click()
        table.locator("tbody tr").first.wait_for()
        page.evaluate("drawn.get('losses-c0').signal('chosen', 'traditional').runAsync().then(() => 0)")
        page.locator("#examples-c0 input").fill("1, 2")
        sb = page.locator(".chip[data-name=sb]")
        sb.click()
        assert page.locator("#progress-of-arms tbody tr:visible").all_inner_texts() == [
            "ledger\tto come\t0 of 6\t0 of 2"
        ]
        top = "document.querySelector('#times-c0').getBoundingClientRect().top"
        before = page.evaluate(f"document.querySelector('#times-c0').scrollIntoView(); {top}")
        shutil.copytree(experiment / "sb" / "seed-1", runs / "sb" / "seed-1")
        page.wait_for_function("document.getElementById('progress').innerText.includes('12 of 18')", timeout=20_000)
        assert page.evaluate("window.opened") == "once", "it was not loaded again"
        page.wait_for_function(f"Math.abs({top} - {before}) < 60")  # the reader looks at what they looked at
        assert page.locator("details.workload:not([open])").count() == 0
        assert page.locator("#progress-of-arms tbody tr:visible").all_inner_texts() == [
            "ledger\tto come\t0 of 6\t0 of 2"
        ]
        sb.click()
        assert page.locator(".chip", has_text="traditional").get_attribute("aria-pressed") == "false"
        assert page.evaluate("drawn.get('selectivity-c0').signal('hidden')") == ["traditional"]
        assert table.locator("tbody tr").count() == 3, "still open, of the method that is not hidden"
        assert page.evaluate("drawn.get('losses-c0').signal('chosen')") == "traditional"
        assert page.locator("#examples-c0 input").input_value() == "1, 2"
        rows = page.evaluate("drawn.get('error-by-compute-c0').data('rows')")
        assert {row["seeds"] for row in rows} == {2}, "the charts show the new run"
        shutil.copytree(experiment / "sb" / "seed-0", runs / "ledger" / "seed-0")
        config = runs / "ledger" / "seed-0" / "config.json"
        settings = json.loads(config.read_text()) | {"label": "ledger", "method": "ledger_backprop"}
        config.write_text(json.dumps(settings))
        chip = page.locator(".chip[data-name=ledger]")
        chip.wait_for(timeout=20_000)
        chip.click()  # new parts work like old ones
        assert chip.get_attribute("aria-pressed") == "false"
        config.write_text("{")
        page.wait_for_function("document.getElementById('live').textContent.includes('damaged')", timeout=20_000)
        assert page.locator("#error-by-compute-c0 svg").count() == 1, "what was shown stays"
        assert opened.said == []
        process.send_signal(signal.SIGTERM)
