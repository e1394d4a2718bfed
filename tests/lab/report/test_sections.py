"""What sections compute, on runs whose answers can be told beforehand."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.report import find_runs
from selective_backprop_lab.report.build import build_report
from selective_backprop_lab.report.charts import Palette
from selective_backprop_lab.report.comparisons import compare_runs
from selective_backprop_lab.report.errors import curve_rows
from selective_backprop_lab.report.figures import Figure
from selective_backprop_lab.report.headline import speed_table
from selective_backprop_lab.report.images import Examples, data_of, thumbnail
from selective_backprop_lab.report.logs import Log, combined_rank, overlaps, times_used
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.pruning import Ranking, pruned_parts
from selective_backprop_lab.report.seconds import (
    epoch_rows,
    machine_rows,
    machines,
    measured_ratio,
    passes_to_target,
    phase_rows,
    projected_speed_up,
    projection_rows,
)
from selective_backprop_lab.report.selection import (
    chance_rows,
    formula_rows,
    loss_rows,
    with_would_be_chances,
)
from selective_backprop_lab.report.sensitivity import configurations_of, sensitivity, settings_rows, varied_rows
from selective_backprop_lab.runs.ledger_log import LedgerHistory
from tests.lab.report.conftest import small_digits
from tests.lab.report.made_up import SECONDS, made_up_run
from tests.lab.test_datasets import write_folders

MATERIAL = Material(Palette({"traditional": "traditional", "sb": "selective_backprop"}))


def traditional(*errors, **more):
    return made_up_run("traditional", errors or (0.4, 0.2, 0.1), **more)


def only(runs):
    (comparison,) = compare_runs(runs)
    return comparison


def test_the_reference_is_the_longest_traditional_and_of_several_the_best():
    runs = [
        made_up_run("traditional every=1", [0.3, 0.2], method="traditional"),
        made_up_run("traditional every=2", [0.3, 0.1], method="traditional"),
        made_up_run("traditional, 1 epochs", [0.05], method="traditional"),
        made_up_run("traditional, sb's compute", [0.01], method="traditional"),
    ]
    assert only(runs).reference == "traditional every=2"


def test_runs_under_way_are_shown_and_not_counted():
    comparison = only([traditional(), made_up_run("sb", [0.01, 0.01], epochs=3)])
    assert [row[0] for row in speed_table(comparison, "traditional").cells] == ["traditional"]
    assert [row["epoch"] for row in curve_rows(comparison) if row["run"] == "sb"] == [1, 2]


def test_arms_with_other_seeds_are_left_out_of_speed_ups():
    runs = [traditional(), *(made_up_run("sb", [0.4, 0.1, 0.1], seed=seed) for seed in (0, 1))]
    assert [row[0] for row in speed_table(only(runs), "traditional").cells] == ["traditional"]
    fast = only([traditional(), made_up_run("sb", [0.4, 0.1, 0.1])])
    assert speed_table(fast, "traditional").cells[1][3].startswith("1.50")


def test_phases_end_at_the_target():
    runs = [traditional(0.4, 0.11, 0.1), made_up_run("sb", [0.5, 0.5, 0.5])]
    rows = {(row["run"], row["phase"]): row for row in phase_rows(only(runs)) if row["target"] == 1.2}
    assert rows["traditional", "backward"]["seconds"] == 2 * 6.0  # 0.11 is within 1.2x of 0.1
    assert rows["traditional", "forward (selection)"]["seconds"] == 2 * 2.0
    assert (rows["sb", "backward"]["seconds"], rows["sb", "backward"]["reached"]) == (3 * 6.0, False)


def test_costs_of_epochs():
    runs = [traditional(), made_up_run("sb", [0.1, 0.1], trained=50, scored=100)]
    epochs = {row["run"]: row for row in epoch_rows(only(runs))}
    assert epochs["sb"]["seconds"] == pytest.approx(12.5)
    assert (epochs["sb"]["before loading"], epochs["sb"]["after scoring"]) == (0, 0.5)


def test_a_diet_is_dropped_before_training():
    run = made_up_run("diet", [0.1, 0.1], method="diet", trained=40)
    for record in run.records:  # of 100 examples, 75 are offered and 40 of them trained on
        record |= {"offered": 75, "skipped_before_loading": 35, "compute": 120 / 300}
    (row,) = epoch_rows(only([run]))
    kinds = ("before training", "before loading", "after scoring")
    assert [row[kind] for kind in kinds] == pytest.approx([0.25, 0.35, 0.0])


def test_the_projection_is_the_formula():
    runs = [traditional(), made_up_run("sb", [0.4, 0.2, 0.1], trained=30, scored=100)]
    comparison = only(runs)
    assert measured_ratio(comparison.runs) == pytest.approx(2)
    passes, reference = (passes_to_target(comparison, label, 1.2) for label in ("sb", "traditional"))
    assert (passes, reference) == ((300, 90), (0, 300))
    # 1 + 3 x 0.3 against 3.
    assert projected_speed_up(passes, reference, 2) == pytest.approx(3 / 1.9)


def test_a_setting_that_is_varied_gets_a_line_per_method_and_other_settings():
    runs = [
        made_up_run(f"sb selectivity={share} lr={rate}", [error], seed=seed, selectivity=share, recipe={"lr": rate})
        for share, rate, error in ((0.2, 0.1, 0.4), (0.5, 0.1, 0.3), (0.2, 0.2, 0.2), (0.5, 0.2, 0.1))
        for seed in (0, 1)
    ]
    found = varied_rows(configurations_of(runs))
    assert set(found) == {"selectivity", "lr"}
    assert {(row["value"], row["error"], row["budget"]) for row in found["selectivity"]} == {
        ("0.2", 0.4, "lr=0.1"),
        ("0.5", 0.3, "lr=0.1"),
        ("0.2", 0.2, "lr=0.2"),
        ("0.5", 0.1, "lr=0.2"),
    }
    assert all((row["method"], row["seeds"]) == ("sb", 2) for row in found["lr"])
    assert varied_rows(configurations_of([traditional(), made_up_run("sb lr=0.5", [0.1])])) == {}, "nothing to compare"


def made_up_log(loss, probability=None, selected=None):
    loss = np.array(loss, dtype=np.float16)
    history = LedgerHistory(
        loss,
        np.full_like(loss, np.nan) if probability is None else np.array(probability, dtype=np.float16),
        np.ones(loss.shape, dtype=np.uint8) if selected is None else np.array(selected, dtype=np.uint8),
    )
    return Log(traditional(), history)


def test_rows_of_a_ledger():
    log = made_up_log([[1, 2], [0.5, np.nan]], [[np.nan, 1], [0.25, 0.5]], [[1, 0], [2, 0]])
    assert [(row["example"], row["epoch"], row["chance"]) for row in chance_rows("sb", log)] == [
        (0, 2, 0.25),
        (1, 1, 1.0),
        (1, 2, 0.5),
    ]
    rows = [row for row in loss_rows("sb", log) if row["epoch"] == 1 and row["kind"].startswith("examples")]
    assert [(row["loss"], row["value"]) for row in rows] == [(1, 0.25), (2, 0.75)]


def test_rankings():
    log = made_up_log([[1, 5, 1, np.nan], [1, 1, 4, np.nan]], selected=[[1, 2, 0, 0], [1, 0, 1, 0]])
    assert times_used(log).astype(int).tolist() == [2, 2, 1, 0]
    assert times_used(log)[0] < times_used(log)[1], "of two used as often, the one with the lower loss comes first"
    values = np.arange(100.0)
    assert all(share == 1 for _, share in overlaps(values, values))
    assert dict(overlaps(values, -values))[0.5] == 0
    assert combined_rank(values, values)[0] == 0


def test_sections_are_drawn_only_of_what_there_is(experiment):
    sections = [section.id for section in build_report([traditional(), made_up_run("sb", [0.2])]).sections]
    assert sections == ["headline", "frontiers", "numbers", "errors", "seconds", "provenance"], "none selected"
    full = build_report(find_runs([experiment]), load=lambda run: small_digits()).sections
    assert [section.id for section in full] == [
        "headline", "frontiers", "numbers", "errors", "seconds", "selection", "gradients", "confidence", "data",
        "provenance",
    ]  # fmt: skip
    assert all(section.reading.count(". ") == 0 and section.reading.endswith(".") for section in full)
    ids = [part.id for section in full for part in section.parts if isinstance(part, Figure)]
    assert len(set(ids)) == len(ids)


def test_images_of_digits_alone_are_shown_unasked(experiment):
    data = small_digits()
    runs = find_runs([experiment])
    other = dataclasses.replace(data, name="other")

    def pictures(**more):
        section = next(s for s in build_report(runs, **more).sections if s.id == "data")
        return [cell for table in section.parts for row in table.cells for cell in row[1:]]

    assert all(picture.image for picture in pictures(load=lambda run: data))
    assert not any(picture.image for picture in pictures(load=lambda run: other))
    assert all(picture.image for picture in pictures(load=lambda run: other, images=True))
    assert not any(picture.image for picture in pictures(load=lambda run: data, images=False))
    assert thumbnail(data.train_images[0]).startswith("data:image/png;base64,")


def test_a_target_is_reached_when_the_error_stays_below_it():
    runs = [traditional(0.3, 0.11, 0.13, 0.1), made_up_run("sb", [0.3, 0.1, 0.1], trained=50)]
    seconds = {
        factor: {
            row["run"]: row["seconds"] if row["reached"] else None
            for row in phase_rows(only(runs))
            if row["phase"] == "backward" and row["target"] == factor
        }
        for factor in (1.1, 1.2, 1.4)
    }
    assert seconds == {
        1.1: {"traditional": 24, "sb": 12},
        1.2: {"traditional": 24, "sb": 12},  # 0.11 in the second epoch does not count: 0.13 came after it
        1.4: {"traditional": 12, "sb": 12},
    }
    speeds = {row["target"]: row["speed-up"] for row in projection_rows(only(runs)) if row["ratio"] == 2}
    assert speeds == {1.1: pytest.approx(4), 1.2: pytest.approx(4), 1.4: pytest.approx(2)}


def test_the_chance_is_the_percentile_to_the_power_of_beta():
    runs = [traditional(), made_up_run("sb", [0.1], method="selective_backprop", selectivity=0.25)]
    rows = formula_rows(only(runs))
    assert {row["beta"] for row in rows} == {"0.5", "1", "2", "3 sb", "5"}
    powers = [row["percentile"] ** float(row["beta"].split()[0]) for row in rows]
    assert [row["chance"] for row in rows] == pytest.approx(powers, abs=1e-6)
    assert formula_rows(only([traditional()])) == []


def test_plain_training_has_the_chances_that_sb_would_give():
    plain = made_up_log([[1, 2, 3, 4], [4, 3, np.nan, 1]])
    chosen = dataclasses.replace(plain, run=made_up_run("sb", [0.1], method="selective_backprop", selectivity=0.25))
    name, chances = with_would_be_chances("traditional", plain, {"traditional": plain, "sb": chosen})
    assert name == "traditional (would-be, beta 3)"
    assert chances[0] == pytest.approx(np.array([0.25, 0.5, 0.75, 1]) ** 3)
    assert chances[1, [0, 1, 3]] == pytest.approx(np.array([1, 2 / 3, 1 / 3]) ** 3)
    assert np.isnan(chances[1, 2])
    assert with_would_be_chances("sb", chosen, {})[0] == "sb"


def test_staleness_is_told_by_forward_passes():
    runs = [
        made_up_run(f"stale every={n}", [0.2, 0.1], method="stale", trained=50, scored=100 // n, options={"every": n})
        for n in (1, 2)
    ]
    assert {(row["budget"], row["epoch"]): row["passes"] for row in curve_rows(only(runs))} == {
        ("every=1", 1): 150, ("every=1", 2): 300, ("every=2", 1): 100, ("every=2", 2): 200
    }  # fmt: skip
    (report,) = (section for section in build_report(runs).sections if section.id == "errors")
    figure = next(part for part in report.parts if part.id == "error-by-passes-c0")
    dashes = figure.spec["layer"][1]["encoding"]["strokeDash"]["scale"]
    assert dashes["domain"] == ["every=1", "every=2"] and dashes["range"][0] != dashes["range"][1]


def test_settings_that_no_other_beats_are_named():
    errors = {(0.2, "linear"): [0.3, 0.2], (0.5, "linear"): [0.3, 0.1], (0.2, "cosine"): [0.3, 0.25]}
    runs = [
        made_up_run(
            f"sb selectivity={share} schedule={kind}",
            values,
            selectivity=share,
            trained=int(100 * share),
            recipe={"decay": {"kind": kind}},
        )
        for (share, kind), values in errors.items()
    ]
    runs = [dataclasses.replace(run, environment={"threads": i}) for i, run in enumerate(runs)]  # so by compute
    parts = {part.id: part for part in sensitivity(runs, MATERIAL).parts}
    assert [[row[0], row[-1]] for row in parts["best-settings-0"].cells[:2]] == [
        ["sb selectivity=0.5 schedule=linear", "10.00%"],
        ["sb selectivity=0.2 schedule=linear", "20.00%"],
    ]
    best = {(row["settings"], row["epoch"]) for row in parts["settings-0"].rows if row["best"]}
    assert best == {
        ("selectivity=0.2 schedule=linear", 1),
        ("selectivity=0.2 schedule=linear", 2),
        ("selectivity=0.5 schedule=linear", 2),
    }


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_best_settings_are_what_no_other_dominates(errors):
    runs = [made_up_run(f"sb selectivity={i}", one, trained=10 + i) for i, one in enumerate(errors)]
    rows = settings_rows(configurations_of(runs), "compute")
    for row in rows:
        others = [(other["compute"], other["error"]) for other in rows]
        cost, error = row["compute"], row["error"]
        assert row["best"] == (not any(c <= cost and e <= error and (c, e) != (cost, error) for c, e in others))


def test_several_machines_stand_side_by_side():
    here = dataclasses.replace(traditional(), environment={"cpu": "A", "threads": 2, "accelerator": None})
    there = dataclasses.replace(traditional(), environment={"cpu": "A", "accelerator": "T4"})
    for record in there.records:
        record["seconds"] = SECONDS | {"backward": 9.0}
    ratios = {row["machine"]: row["backward / forward"] for row in machine_rows([here, there])}
    assert ratios == {"A, 2 threads": pytest.approx(2), "T4": pytest.approx(3)}
    assert len(machines([here, there]).parts) == 1
    assert machines([here, here]).parts == []


def test_classes_that_lose_most_are_told():
    images, labels = small_digits().train_images[:200], torch.tensor([0] * 40 + [1] * 160)
    examples = Examples(ImageSet("other", images, labels, images, labels, ("cat", "dog")), labels.numpy())
    scores = np.concatenate([np.linspace(0, 0.4, 40), np.linspace(0.3, 1, 160)])
    warning, _, figure = pruned_parts(Ranking("el2n", scores), 0.25, examples)
    assert re.search(r"but \d\d% of cat\.", warning.items[0][2])
    shares = {row["run"]: row["left out"] for row in figure.rows}
    assert (40 * shares["cat"] + 160 * shares["dog"]) / 200 == pytest.approx(0.25)
    assert list(shares) == ["cat", "dog"]
    uniform = Ranking("el2n", np.random.default_rng(0).random(200))
    even = pruned_parts(uniform, 0.25, examples)
    assert [type(part).__name__ for part in even] == ["Table", "Figure"], "nothing to warn of"
    assert pruned_parts(Ranking("el2n", scores), 0.25, Examples()) == []


def test_odd_settings_and_records_are_drawn_all_the_same():
    names = ["../Odd=1", "odd=../name", "odd=<b>", "odd=", f"{'x' * 40}=1", f"{'x' * 40}=2", "a=1 b=", "a=2 b="]
    runs = [
        made_up_run(
            f"sb {name}",
            [0.2, 0.1],
            options={"nested": {"a": [1]}},
            selectivity="much",
            method="selective_backprop",
            recipe={"decay": {"kind": "step", "milestones": 3}},
        )
        for name in names
    ]
    report = build_report(runs)
    ids = [part.id for section in report.sections for part in section.parts if isinstance(part, Figure)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]+", id) for id in ids)
    assert {"sensitivity-odd-0", f"sensitivity-{'x' * 40}-0", "sensitivity-a-0"} <= set(ids)
    assert "sensitivity-b-0" not in ids


def test_classes_with_control_characters_are_escaped(tmp_path, monkeypatch):
    """They are names of folders, and a chart with such a name ended the process while it was exported."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for part in write_folders(tmp_path / "data").iterdir():
        (part / "ant").rename(part / "a\x01\x1b\ufffe")
    data = data_of()(made_up_run("sb", [0.5], recipe={"dataset": str(tmp_path / "data")}))
    assert data.classes == (r"a\x01\x1b\ufffe", "bee")


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
