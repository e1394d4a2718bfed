"""What the page says of runs whose answers can be told beforehand, and of files that are bad."""

import csv
import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import selective_backprop as sb
from selective_backprop_lab.report import build_report, data_of, find_runs, write_report
from tests.lab.command_line import run, text_of
from tests.lab.report.conftest import small_digits
from tests.lab.report.made_up import SECONDS, made_up_run
from tests.lab.report.reading import Page, page_of
from tests.lab.test_datasets import write_folders


def traditional(*errors, **more):
    return made_up_run("traditional", errors or (0.4, 0.2, 0.1), **more)


def arm(name, method, epochs, error, *, trained=100, seeds=(0, 1, 2), **more):
    """Runs of so many epochs that end at this error, give or take a thousandth."""
    label = f"{name}, {epochs} epochs"
    ends = {seed: [0.9] * (epochs - 1) + [error + 0.001 * seed] for seed in seeds}
    return [
        made_up_run(label, errors, method=method, seed=seed, trained=trained, **more) for seed, errors in ends.items()
    ]


def lengths(name, method, *, trained=100, worse=0.0, **more):
    ends = ((2, 0.4), (4, 0.3), (8, 0.2))
    return [one for epochs, end in ends for one in arm(name, method, epochs, end + worse, trained=trained, **more)]


PLAIN = lengths("traditional", "traditional")
RANDOM = lengths("repeated_random", "repeated_random", worse=0.01)


def titles(runs):
    return [row[0] for row in page_of(runs).tables["runs"][1:]]


def fingerprint(name, examples=100):
    part = {"examples": examples, "images": name, "labels": name}
    return {"train": part, "test": part}


# ---- which runs are compared


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"recipe": {"model": "resnet20"}}, "resnet20"),
        ({"recipe": {"lr": 0.5}}, "lr 0.5"),
        ({"recipe": {"decay": {"kind": "cosine"}}}, "cosine decay"),
        ({"recipe": {"image_size": 14}}, "14 pixels"),
        ({"label_noise": 0.1}, "10% wrong labels"),
        ({"validation": 0.2}, "validation split"),
    ],
)
def test_runs_of_another_recipe_are_apart_and_the_page_says_so(change, word):
    found = titles([traditional(), made_up_run("sb", [0.1], **change)])
    assert len(found) == 2 and found[1].endswith(word)


def test_other_data_are_apart_unless_the_seed_splits_them():
    def count(*hashes):
        return len(titles([made_up_run(name, [0.1], seed=seed, data=fingerprint(x)) for seed, name, x in hashes]))

    assert count((0, "traditional", "a"), (0, "sb", "a"), (1, "traditional", "a")) == 1
    assert count((0, "traditional", "a"), (0, "sb", "a"), (1, "traditional", "b"), (1, "sb", "b")) == 1
    assert count((0, "traditional", "a"), (0, "sb", "b")) == 2
    assert count((0, "traditional", "a"), (1, "sb", "b")) == 2


def test_two_experiments_under_the_same_conditions_stay_apart():
    runs = [traditional(path=Path(name) / "traditional" / "seed-0") for name in ("a", "b")]
    assert titles(runs) == ["digits, small_cnn  | (a)", "digits, small_cnn  | (b)"]
    flat = [traditional(path=Path("runs") / name) for name in ("a", "b")]
    assert titles(flat) == ["digits, small_cnn  | (a)", "digits, small_cnn  | (b)"]


def test_runs_of_one_label_and_several_lengths_are_several_arms():
    page = page_of([traditional(0.4, 0.2), traditional(0.4, 0.3, 0.1, seed=1)])
    assert [row[0] for row in page.tables["arms-c0"][1:]] == ["traditional, 2 epochs", "traditional, 3 epochs"]


# ---- the first screen


@pytest.mark.parametrize(
    ("trained", "kind", "value"), [(50, "better", "2.00x"), (100, "same", "1.00x"), (200, "worse", "0.50x")]
)
def test_cells_have_the_multiplier_and_its_colour(trained, kind, value):
    page = page_of([*PLAIN, *RANDOM, *lengths("ledger", "ledger_backprop", trained=trained)])
    cell = page.row("multipliers", "ledger")[0]
    assert cell.startswith(value) and cell.endswith(f"[{kind}]")
    assert "at 20.50% error" in page.tables["multipliers"][0][1]
    (words,) = page.notes["findings"]
    assert words.startswith("ledger wins: ") == (kind == "better")
    assert "2.00x" in words if kind == "better" else "Plain training is not beaten" in words


def test_a_missing_baseline_is_no_win():
    page = page_of([*PLAIN, *lengths("ledger", "ledger_backprop", trained=50)])
    assert page.row("multipliers", "ledger")[0].endswith("random subsets were not run [not_checked]")
    assert "nobody knows" in page.notes["findings"][0] and "Random subsets were not run" in page.notes["alerts"][0]
    alone = page_of(lengths("ledger", "ledger_backprop"))
    assert "plain training was not run" in alone.row("multipliers", "ledger")[0]


def test_what_was_not_reached_is_said_with_the_best_error():
    page = page_of([*PLAIN, *RANDOM, *arm("ledger", "ledger_backprop", 4, 0.6, trained=10)])
    assert page.row("multipliers", "ledger")[0].startswith("not reached | at best 60.10%")


def test_doubts_tell_of_idle_methods_runs_under_way_and_other_hardware():
    idle = arm("kath18", "kath18", 4, 0.3)
    under_way = made_up_run("sb", [0.01, 0.01], epochs=3, trained=100)
    (words,) = page_of([*PLAIN, *idle, under_way]).notes["alerts"]
    assert "kath18, 4 epochs never switched on" in words
    assert "1 of 13 runs are not finished and not counted" in words
    other = [dataclasses.replace(one, environment={"threads": 2}) for one in arm("sb", "sb", 4, 0.3, trained=50)]
    page = page_of([*PLAIN, *other])
    assert "different hardware" in page.notes["alerts"][0] and "seconds" not in page.tables["arms-c0"][0]
    assert "error-by-seconds-c0" not in page.data and "error-by-compute-c0" in page.data
    assert page_of([made_up_run("sb", [0.01], epochs=3)]).notes["findings"] == [
        "Nothing can be said: no run is finished."
    ]


# ---- workloads


def test_numbers_are_those_of_the_records(page_file, experiment):
    page = Page(page_file.read_text())
    seeds = [
        [json.loads(line) for line in (experiment / "sb" / f"seed-{seed}" / "records.jsonl").read_text().splitlines()]
        for seed in (0, 1)
    ]
    rows = [row for row in page.data["error-by-compute-c0"] if row["run"] == "sb"]
    for epoch, row in enumerate(rows):
        assert float(row["error"]) == pytest.approx(np.mean([one[epoch]["test_error"] for one in seeds]), abs=1e-5)
        spent = [sum(record["compute"] for record in one[: epoch + 1]) for one in seeds]
        assert float(row["compute"]) == pytest.approx(np.mean(spent), abs=1e-5)
    assert len(rows) == 3 and page.tables["arms-c0"][0][1] == "error on 200 test examples"
    assert {"gradients-cosine-c0", "confidence-accuracy-c0", "losses-c0", "examples-c0"} <= set(page.data)
    assert len(page.tables["easiest-c0"]) == 10 and page.tables["arms-c1"]


def test_phases_and_the_projection_stop_at_the_target():
    runs = [traditional(0.4, 0.2, 0.1), made_up_run("sb", [0.1, 0.1, 0.1], trained=50, scored=100)]
    page = page_of(runs)
    ends = {row["run"]: row for row in page.data["phases-c0"] if row["target"] == "1.2"}
    assert (float(ends["traditional"]["backward"]), float(ends["sb"]["backward"])) == (18, 6)
    gains = {
        float(row["ratio"]): float(row["speed-up"]) for row in page.data["projection-c0"] if row["target"] == "1.2"
    }
    assert gains[2] == pytest.approx(3 * 300 / (100 + 3 * 50)) and gains[5] > gains[2]
    slow = page_of([traditional(), made_up_run("sb", [0.3], trained=50)])
    assert [row["reached"] for row in slow.data["phases-c0"] if row["run"] == "sb"] == ["False"] * 3
    assert "projection-c0" not in slow.data


def test_shares_of_the_data_that_were_dropped():
    diet = made_up_run("diet", [0.2, 0.1], trained=75)
    for record in diet.records:
        record |= {"offered": 75, "skipped_before_loading": 0, "compute": 0.75}
    rows = page_of([traditional(), made_up_run("sb", [0.1], trained=30, scored=100), diet]).tables["epochs-c0"]
    assert {row[0]: row[2:] for row in rows[1:]} == {
        "traditional": ["0.0%", "0.0%", "0.0%"],
        "sb": ["0.0%", "0.0%", "70.0%"],
        "diet": ["25.0%", "0.0%", "0.0%"],
    }


def test_errors_of_zero_and_single_points_are_drawn():
    page = page_of([traditional(0.0), made_up_run("sb", [0.0], trained=50)])
    assert "frontier-c0" in page.data and "nan" not in page.html.split("<main>")[1].split("<pre")[0]


def test_sweeps_say_what_settings_do_and_which_none_beats():
    errors = {(0.2, "linear"): [0.3, 0.2], (0.5, "linear"): [0.3, 0.1], (0.2, "cosine"): [0.3, 0.25]}
    runs = []
    for (share, kind), values in errors.items():
        more = {"trained": int(100 * share), "recipe": {"decay": {"kind": kind}}}
        runs.append(made_up_run(f"sb selectivity={share} schedule={kind}", values, **more))
    page = page_of([dataclasses.replace(one, environment={"threads": i}) for i, one in enumerate(runs)])  # by compute
    assert [(row[0], row[-1]) for row in page.tables["best-settings-0"][1:3]] == [
        ("sb selectivity=0.5 schedule=linear", "10.00%"),
        ("sb selectivity=0.2 schedule=linear", "20.00%"),
    ]
    found = {(row["value"], row["error"]) for row in page.data["sensitivity-selectivity-0"]}
    assert found == {("0.2", "0.2"), ("0.5", "0.1")}
    assert {row["value"] for row in page.data["sensitivity-schedule-0"]} == {"linear", "cosine"}


def test_odd_settings_are_drawn_all_the_same():
    names = ["../Odd=1", "odd=../name", "odd=<b>", "odd=", f"{'x' * 40}=1", f"{'x' * 40}=2", "a=1 b=", "a=2 b="]
    more = {"selectivity": "much", "method": "selective_backprop", "options": {"a": {"b": [1]}}}
    page = page_of([made_up_run(f"sb {name}", [0.2, 0.1], **more) for name in names])
    ids = re.findall(r'<figure id="(.*?)"', page.html)
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[\w-]+", id) for id in ids)
    assert {"sensitivity-odd-0", f"sensitivity-{'x' * 40}-0", "sensitivity-a-0"} <= set(ids)


def test_several_machines_stand_side_by_side():
    here = dataclasses.replace(traditional(), environment={"cpu": "A", "threads": 2, "accelerator": None})
    there = traditional(path=Path("elsewhere/seed-0"))
    there = dataclasses.replace(there, environment={"cpu": "A", "accelerator": "T4"})
    for record in there.records:
        record["seconds"] = SECONDS | {"backward": 9.0}
    rows = page_of([here, there]).data["cost-by-machine"]
    assert {row["machine"]: float(row["ratio"]) for row in rows} == {"A, 2 threads": 2, "T4": 3}
    assert "cost-by-machine" not in page_of([here, dataclasses.replace(here, label="x")]).data


def test_classes_that_lose_most_are_told(experiment, tmp_path):
    data = small_digits()
    scores = torch.rand(300, generator=torch.Generator().manual_seed(0)) + (data.train_labels != 3)
    sb.pruning.save_scores(scores, tmp_path / "el2n.pt")
    sb.pruning.save_scores(scores.flip(0), tmp_path / "other.pt")
    files = [tmp_path / "el2n.pt", tmp_path / "other.pt"]
    page = page_of(find_runs([experiment]), load=lambda run: data, scores=files)
    assert re.search(r"but 100% of 3\b", page.notes["class-warning-c0"][0])
    assert page.data["pruned-classes-c0"][0] == {"class": "3", "left out": "1.0"}
    assert {"overlap-c0", "overlap-scores-0-c0"} <= set(page.data) and "combined-c0" in page.tables
    private = page_of(find_runs([experiment]), load=lambda run: data, images=False)
    assert "data:image" in page.html and "data:image" not in private.html


# ---- files


def write_run(folder, made):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made.config | {"label": made.label}))
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in made.records))


def test_figures_and_tables_are_exported_and_no_cell_is_a_formula(tmp_path):
    labels = ["<b>sb</b>", "a\x00b\x1b[31m\u202e", "=HYPERLINK(1)", "@SUM(1)", "+1+cmd", "x" * 100_000]
    for number, label in enumerate(labels):
        write_run(tmp_path / "runs" / str(number), made_up_run(label, [0.3, 0.1], method="sb"))
    files = build_report(find_runs([tmp_path / "runs"])).export(tmp_path / "exported")
    svg = (tmp_path / "exported" / "error-by-compute-c0.svg").read_text()
    assert svg.startswith("<svg") and "&lt;b&gt;sb" in svg and "var(" not in svg
    tables = [list(csv.reader(file.read_text().splitlines())) for file in files if file.suffix == ".csv"]
    cells = {cell for table in tables for row in table for cell in row}
    assert {"'=HYPERLINK(1)", "'@SUM(1)", "'+1+cmd", r"a\x00b\x1b[31m\u202e", "<b>sb</b>"} <= cells
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+") or len(cell) > 310]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "is no folder of runs"),
        (lambda folder: None, "there is no run with a finished epoch"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
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


def _without(folder, *names):
    config = json.loads((folder / "config.json").read_text())
    config["recipe"] = {name: value for name, value in config["recipe"].items() if name not in names}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "environment.json").unlink(),
        lambda folder: (folder / "data.json").unlink(),
        lambda folder: (folder / "data.json").write_text('{"test": 3, "train": {"images": 1}}'),
        lambda folder: (folder / "data.json").write_text("{"),
        lambda folder: (folder / "environment.json").write_text('{"command": 3, "cores": [1]}'),
        lambda folder: _without(folder, "lr", "image_size", "decay", "momentum"),
    ],
)
def test_records_with_little_beside_them_are_shown(experiment, tmp_path, damage):
    copy = tmp_path / "runs"
    shutil.copytree(experiment, copy, ignore=shutil.ignore_patterns("probes", "checkpoint*", "ledger"))
    damage(copy / "sb" / "seed-0")
    rows = page_of(find_runs([copy])).tables["runs"][1:]
    assert sum(int(row[1]) for row in rows) == 4


def test_reading_runs_disturbs_nobody_and_passes_over_other_programs(experiment, tmp_path):
    before = {file: file.stat().st_mtime_ns for file in experiment.rglob("*")}
    assert len(find_runs([experiment, experiment / "sb"])) == 4, "a run that is found twice counts once"
    assert before == {file: file.stat().st_mtime_ns for file in experiment.rglob("*")}
    write_run(tmp_path, made_up_run("sb", [0.3, 0.1]))
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    assert [found.path for found in find_runs([tmp_path])] == [tmp_path]


def test_the_command_on_the_page_makes_the_page_again(experiment, tmp_path):
    environment = {"command": ["__main__.py", "report", str(experiment), "-o", str(tmp_path / "a b.html")]}
    page = page_of([dataclasses.replace(traditional(), environment=environment)])
    program, *arguments = shlex.split(page.tables["commands"][1][0])
    assert program == "selective-backprop"
    result = run(*arguments)
    assert result.returncode == 0 and f"report: {tmp_path / 'a b.html'}" in result.stdout, text_of(result)
    assert "Which method won" in (tmp_path / "a b.html").read_text()


def test_images_of_a_strangers_size_are_decoded_only_if_asked_for(tmp_path, monkeypatch):
    """The size is from the file of a run: pictures of 6000 x 6000 pixels could fill the disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_folders(tmp_path / "data" / "mnist")
    of_stranger = made_up_run("sb", [0.5], recipe={"dataset": "mnist", "image_size": 30})
    with pytest.raises(FileNotFoundError, match="mnist is not decoded to this size on this machine"):
        data_of(tmp_path / "data", paths=False)(of_stranger)
    assert not (tmp_path / "cache").exists()
    for paths in (True, False):  # once it is decoded, it may be used
        assert data_of(tmp_path / "data", paths=paths)(of_stranger).image_shape == (3, 30, 30)


def test_random_subsets_of_the_methods_own_sizes_count_as_a_baseline():
    ledger = lengths("ledger", "ledger_backprop", trained=50)
    matched = lengths("random as ledger", "repeated_random", trained=50)
    page = page_of([*PLAIN, *RANDOM, *ledger, *matched])
    cell = page.row("multipliers", "ledger")[0]
    assert cell.startswith("1.00x") and cell.endswith("[same]")
    assert "wins" not in page.notes["findings"][0]
    assert "Random subsets do as well as ledger" in page.notes["alerts"][0]
    assert any(row["method"] == "random as ledger" for row in page.data["frontier-c0"])
