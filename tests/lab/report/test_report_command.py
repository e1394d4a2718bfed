"""selective-backprop report as a user runs it, and what it writes."""

import csv
import dataclasses
import json
import re
import shlex
import shutil

import pytest

from selective_backprop_lab.report import build_report, find_runs, write_report
from selective_backprop_lab.report.export import export
from selective_backprop_lab.report.figures import Figure
from selective_backprop_lab.report.provenance import command_of
from tests.lab.command_line import run, text_of
from tests.lab.report.made_up import made_up_run


def write_run(folder, made):
    (folder / "config.json").write_text(json.dumps(made.config | {"label": made.label}))
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in made.records))


def test_figures_and_tables_are_exported(tmp_path):
    errors = {"traditional": [0.4, 0.2, 0.1], "<b>sb</b>": [0.3, 0.1, 0.1]}
    report = build_report([made_up_run(label, values) for label, values in errors.items()])
    some = [section for section in report.sections if section.id in ("headline", "numbers", "errors")]
    report = dataclasses.replace(report, sections=some)
    files = export(report, tmp_path)
    figures = [part.id for section in report.sections for part in section.parts if isinstance(part, Figure)]
    for name in figures:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
    rows = list(csv.DictReader((tmp_path / "error-by-compute-c0.csv").read_text().splitlines()))
    assert [(row["run"], float(row["error"])) for row in rows] == [
        (label, error) for label, values in errors.items() for error in values
    ]
    table = list(csv.reader((tmp_path / "speed-up-seconds-c0.csv").read_text().splitlines()))
    assert [row[:2] for row in table[1:]] == [["traditional", "10.00%"], ["<b>sb</b>", "10.00%"]]
    matrix = list(csv.reader((tmp_path / "multipliers.csv").read_text().splitlines()))
    assert [row[0] for row in matrix] == ["method", "traditional plain training", "<b>sb</b>"]
    assert "&lt;b&gt;sb" in (tmp_path / "error-by-compute-c0.svg").read_text()
    assert len(files) == len(list(tmp_path.iterdir()))


def test_hostile_labels_are_exported_as_plain_words(tmp_path):
    """Control characters would abort the process that draws charts, and a spreadsheet would compute formulas."""
    labels = ["a\x00b\x0bc\x1b[31m\ud800\u202e", "=HYPERLINK(1)", "@SUM(1)", "+1+cmd", "x" * 100_000]
    for number, label in enumerate(labels):
        path = tmp_path / "runs" / str(number)
        path.mkdir(parents=True)
        write_run(path, made_up_run(label, [0.3, 0.1], method="sb"))
    report = build_report(find_runs([tmp_path / "runs"]))
    some = [section for section in report.sections if section.id in ("numbers", "errors")]
    export(dataclasses.replace(report, sections=some), tmp_path / "exported")
    tables = [list(csv.reader(file.read_text().splitlines())) for file in (tmp_path / "exported").glob("*.csv")]
    cells = {cell for table in tables for row in table for cell in row}
    assert {"'=HYPERLINK(1)", "'@SUM(1)", "'+1+cmd"} <= cells
    assert r"a\x00b\x0bc\x1b[31m\ud800\u202e" in cells
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+") or len(cell) > 300]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "is no folder of runs"),
        (lambda folder: None, "there is no run with a finished epoch"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
        (lambda folder: (folder / "config.json").write_text("{}"), "does not hold a run"),
        (lambda folder: (folder / "config.json").write_text("[]"), "does not hold a run"),
        (lambda folder: write_run(folder, made_up_run("sb", [0.1], trained=0)), "it cost no compute"),
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


def test_a_config_of_another_program_is_passed_over(tmp_path):
    """A run in the folder of a project may be beside the networks of other packages."""
    write_run(tmp_path, made_up_run("sb", [0.3, 0.1]))
    for name, content in (("bert", '{"model_type": "bert"}'), ("other", "# no JSON")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    assert [found.path for found in find_runs([tmp_path])] == [tmp_path]


def test_bad_input_is_answered_plainly(tmp_path):
    result = run("report", tmp_path / "nowhere", "-o", tmp_path / "report.html")
    assert result.returncode == 2
    assert "is no folder of runs" in text_of(result)
    assert "Traceback" not in text_of(result)


def test_reading_runs_disturbs_nobody(experiment):
    before = {file: file.stat().st_mtime_ns for file in experiment.rglob("*")}
    assert len(find_runs([experiment, experiment / "sb"])) == 4, "a run that is found twice counts once"
    assert before == {file: file.stat().st_mtime_ns for file in experiment.rglob("*")}


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
    assert f"report: {tmp_path / 'a b.html'}" in result.stdout
    page = (tmp_path / "a b.html").read_text()
    assert page.startswith("<!doctype html>") and "Which method won" in page
    assert command_of({}) == "unknown" and command_of({"command": "by hand"}) == "by hand"
