"""selective-backprop report and watch as a user runs them, and what they write."""

import contextlib
import csv
import http.client
import json
import re
import shlex
import shutil
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from selective_backprop.lab.report import build_report, find_runs, write_report
from selective_backprop.lab.report.export import export
from selective_backprop.lab.report.figures import Figure
from selective_backprop.lab.report.provenance import command_of
from selective_backprop.lab.report.serving import Server
from tests.lab.command_line import run, start, text_of
from tests.lab.report.made_up import made_up_run


def test_report_writes_a_page(experiment, tmp_path):
    result = run("report", experiment, "-o", tmp_path / "new" / "report.html")
    assert result.returncode == 0, text_of(result)
    assert f"report: {tmp_path / 'new' / 'report.html'}" in result.stdout
    page = (tmp_path / "new" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Which method won" in page


def test_figures_and_tables_are_exported(tmp_path):
    errors = {"traditional": [0.4, 0.2, 0.1], "<b>sb</b>": [0.3, 0.1, 0.1]}
    report = build_report([made_up_run(label, values) for label, values in errors.items()])
    files = export(report, tmp_path)
    figures = [part.id for section in report.sections for part in section.parts if isinstance(part, Figure)]
    for name in figures:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
    rows = list(csv.DictReader((tmp_path / "error-by-compute-c0.csv").read_text().splitlines()))
    assert [(row["run"], float(row["error"])) for row in rows] == [
        (label, error) for label, values in errors.items() for error in values
    ]
    table = list(csv.reader((tmp_path / "speed-up-compute-c0.csv").read_text().splitlines()))
    assert [row[:2] for row in table[1:]] == [["traditional", "10.00%"], ["<b>sb</b>", "10.00%"]]
    matrix = list(csv.reader((tmp_path / "multipliers.csv").read_text().splitlines()))
    assert [row[0] for row in matrix] == ["method", "traditional", "<b>sb</b>"]
    assert "&lt;b&gt;sb" in (tmp_path / "phases-c0.svg").read_text()
    assert len(files) == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "is no folder of runs"),
        (lambda folder: None, "there is no run with a finished epoch"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
        (lambda folder: (folder / "config.json").write_text("{}"), "does not hold a run"),
        (lambda folder: (folder / "config.json").write_text("[]"), "does not hold a run"),
    ],
)
def test_bad_folders_are_told(tmp_path, make, message):
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "records.jsonl").write_text("{}\n")
    make(folder)
    with pytest.raises((ValueError, OSError), match=message):
        write_report([folder], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_bad_input_is_answered_plainly(tmp_path):
    result = run("report", tmp_path / "nowhere", "-o", tmp_path / "report.html")
    assert result.returncode == 2
    assert "is no folder of runs" in text_of(result)
    assert "Traceback" not in text_of(result)


def test_reading_runs_disturbs_nobody(experiment):
    before = {file: file.stat().st_mtime_ns for file in experiment.rglob("*")}
    assert len(find_runs([experiment, experiment / "sb"])) == 4, "a run that is found twice counts once"
    assert before == {file: file.stat().st_mtime_ns for file in experiment.rglob("*")}


@pytest.fixture
def server(tmp_path):
    served = []
    with Server(0, [tmp_path], lambda state: served.append(state) or f"page {len(served)}") as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def test_the_server_makes_a_page_once_for_each_state_of_the_runs(server, tmp_path):
    assert ask(server.url) == ask(server.url + "?hide=sb&open=c0") == "page 1"
    version = ask(server.url + "version")
    (tmp_path / "records.jsonl").write_text("{}\n")
    assert ask(server.url + "version") != version
    assert ask(server.url) == "page 2"


def test_the_server_answers_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    for headers, path, status in (
        ({"Host": "evil.example"}, "", 403),
        ({"Host": f"evil.example:{server.server_port}"}, "version", 403),
        ({}, "../etc/passwd", 404),
        ({}, "config.json", 404),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server.url + path, **headers)
        caught.value.close()
        assert caught.value.code == status


def test_the_server_sends_its_policy_with_everything(server):
    for path in ("", "version", "nowhere"):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        answer.read()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        connection.close()


def connect(server):
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
    connection.sendall(b"GET / HTTP/1.0\r\nX: ")  # and no end of it
    return connection


def test_the_server_takes_16_connections_at_a_time(server):
    server.seconds_to_ask = 600.0
    idle = [connect(server) for _ in range(16)]  # taken in this order
    with contextlib.suppress(ConnectionResetError), connect(server) as one_too_many:
        assert one_too_many.recv(100) == b"", "closed at once"
    for connection in idle:
        connection.close()
    while True:  # a place is free again, as soon as a thread has ended
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            assert ask(server.url) == "page 1"
            break


def test_the_server_lets_go_of_who_asks_too_slowly(server):
    server.seconds_to_ask = 0.5
    with contextlib.suppress(ConnectionError), connect(server) as connection:
        connection.settimeout(0.05)
        while True:
            connection.sendall(b"a")  # a byte now and then does not keep it
            with contextlib.suppress(TimeoutError):
                assert connection.recv(100) == b""
                break


def test_watch_shows_damage(experiment, tmp_path):
    run_folder = shutil.copytree(experiment / "sb" / "seed-0", tmp_path / "runs" / "sb")
    (run_folder / "config.json").write_text("[" * 200_000)
    with start("watch", tmp_path / "runs") as process:
        try:
            while "\n" not in process.output():
                assert process.poll() is None
                time.sleep(0.01)
            url = re.match(r"(http://127\.0\.0\.1:\d+/) ", process.output())[1]
            assert "nested more than 100 levels deep" in ask(url)
        finally:
            process.send_signal(signal.SIGTERM)
        assert "Traceback" not in process.communicate()[1]


def test_watch_follows_runs(experiment, tmp_path, visit):
    runs = tmp_path / "runs"
    runs.mkdir()
    with start("watch", runs) as process:
        try:
            while "\n" not in process.output():
                assert process.poll() is None
                time.sleep(0.01)
            url = re.match(r"(http://127\.0\.0\.1:\d+/) ", process.output())[1]
            assert "No run has finished an epoch yet" in ask(url)
            shutil.copytree(experiment / "traditional", runs / "traditional")
            opened = visit(url=url)
            assert opened.page.locator(".chip").all_inner_texts() == ["traditional"]
            shutil.copytree(experiment / "sb", runs / "sb")
            opened.page.wait_for_selector(".chip[data-name=sb]", timeout=20_000)
            assert {asked.rpartition("/")[0] + "/" for asked in opened.asked if asked.startswith("http")} == {url}
        finally:
            process.send_signal(signal.SIGTERM)
    opened.page.wait_for_function("document.getElementById('live').textContent.includes('stopped')", timeout=20_000)


def test_a_page_says_which_runs_it_is_of(experiment):
    report = build_report(find_runs([experiment]))
    tables = {part.id: part for section in report.sections for part in section.parts if hasattr(part, "cells")}
    assert tables["runs"].cells[0][:4] == ["digits, small_cnn", "4", "0, 1", "3"]
    commit = json.loads((experiment / "sb/seed-0/environment.json").read_text())["commit"]
    made = dict(zip(tables["environment"].heading, tables["environment"].cells[0], strict=True))
    assert made["commit"] == str(commit)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"]) and made["cpu"] not in ("", "unknown")
    assert re.fullmatch(r"[0-9a-f]{12}", tables["runs"].cells[0][4])


def test_a_command_that_is_shown_can_be_run(experiment, tmp_path):
    shown = command_of({"command": ["__main__.py", "report", str(experiment), "-o", str(tmp_path / "a b.html")]})
    program, *arguments = shlex.split(shown)
    assert program == "selective-backprop"
    result = run(*arguments)
    assert result.returncode == 0, text_of(result)
    assert (tmp_path / "a b.html").exists()
    assert command_of({}) == "unknown" and command_of({"command": "by hand"}) == "by hand"
