"""Which runs are compared with each other, what the first screen says of them, and what it says of bad ones."""

import json
import shutil
from pathlib import Path

import pytest

from selective_backprop_lab.report import build_report, find_runs
from selective_backprop_lab.report.charts import Palette
from selective_backprop_lab.report.comparisons import compare_runs
from selective_backprop_lab.report.errors import arm_rows, frontiers
from selective_backprop_lab.report.headline import alerts_of, all_arms, finding, multipliers_table
from selective_backprop_lab.report.material import Material
from tests.lab.report.made_up import made_up_run


def traditional(*errors, **more):
    return made_up_run("traditional", errors or (0.4, 0.2, 0.1), **more)


def only(runs):
    (comparison,) = compare_runs(runs)
    return comparison


def cells(comparisons):
    """By method: its cells in the first table, without its name."""
    return {row[0].text: row[1:] for row in multipliers_table(comparisons).cells}


def fingerprint(name, examples=100):
    part = {"examples": examples, "images": name, "labels": name}
    return {"train": part, "test": part}


def plain(epochs, error, seeds=(0, 1, 2), **more):
    """Plain training of so many epochs that ends at this error, give or take a thousandth."""
    return [
        made_up_run(f"traditional, {epochs} epochs", [0.9] * (epochs - 1) + [error + 0.001 * s], method="traditional",
                    seed=s, **more)
        for s in seeds
    ]  # fmt: skip


def method(label, error, *, name="ledger_backprop", trained=50, epochs=4, seeds=(0, 1, 2), **more):
    return [
        made_up_run(label, [0.9] * (epochs - 1) + [error + 0.001 * s], method=name, seed=s, trained=trained, **more)
        for s in seeds
    ]


PLAIN = [*plain(2, 0.4), *plain(4, 0.3), *plain(8, 0.2)]
RANDOM = [
    run
    for epochs, error in ((2, 0.41), (4, 0.31), (8, 0.21))
    for run in method(f"repeated_random, {epochs} epochs", error, name="repeated_random", trained=100, epochs=epochs)
]


# ---- groups


def test_runs_on_other_data_models_or_labels_do_not_compete():
    runs = [
        traditional(),
        made_up_run("sb", [0.1]),
        traditional(recipe={"dataset": "mnist"}),
        traditional(recipe={"model": "resnet20"}),
        traditional(label_noise=0.1),
    ]
    groups = [[run.label for run in comparison.runs] for comparison in compare_runs(runs)]
    assert groups == [["traditional", "sb"], ["traditional"], ["traditional"], ["traditional"]]
    assert [comparison.title for comparison in compare_runs(runs)] == [
        "digits, small_cnn, 0% wrong labels",
        "mnist, small_cnn",
        "digits, resnet20",
        "digits, small_cnn, 10% wrong labels",
    ]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"recipe": {"lr": 0.5}}, "lr 0.5"),
        ({"recipe": {"batch_size": 64}}, "batch size 64"),
        ({"recipe": {"decay": {"kind": "cosine"}}}, "cosine decay"),
        ({"recipe": {"momentum": 0.5}}, "momentum 0.5"),
        ({"recipe": {"image_size": 14}}, "14 pixels"),
        ({"validation": 0.2}, "validation split"),
    ],
)
def test_runs_of_another_recipe_are_apart_and_the_page_says_so(change, word):
    comparisons = compare_runs([traditional(), made_up_run("sb", [0.1], **change)])
    assert [[run.label for run in comparison.runs] for comparison in comparisons] == [["traditional"], ["sb"]]
    assert comparisons[1].title == f"digits, small_cnn, {word}"
    assert "not compared with each other" in multipliers_table(comparisons).note


def test_lengths_and_methods_are_compared():
    runs = [*PLAIN, made_up_run("sb", [0.1], recipe={"method": "other", "selectivity": 0.1, "source": "paper"})]
    assert [comparison.title for comparison in compare_runs(runs)] == ["digits, small_cnn"]


def test_other_data_are_apart_unless_the_seed_splits_them():
    def runs(*hashes):
        return [made_up_run(label, [0.1], seed=seed, data=fingerprint(data)) for seed, label, data in hashes]

    same = [(0, "traditional", "a"), (0, "sb", "a"), (1, "traditional", "a")]
    assert len(compare_runs(runs(*same))) == 1
    by_seed = [(0, "traditional", "a"), (0, "sb", "a"), (1, "traditional", "b"), (1, "sb", "b")]
    assert len(compare_runs(runs(*by_seed))) == 1
    other = compare_runs(runs((0, "traditional", "a"), (0, "sb", "b")))
    assert [one.title for one in other] == [f"digits, small_cnn (data {one.runs[0].data_hash})" for one in other]
    assert len(other) == 2
    disjoint = compare_runs(runs((0, "traditional", "a"), (1, "sb", "b")))
    assert len(disjoint) == 2
    sizes = [traditional(data=fingerprint("a", 100)), traditional(seed=1, data=fingerprint("b", 200))]
    assert len(compare_runs(sizes)) == 2, "mixed test sets"


def test_two_experiments_under_the_same_conditions_stay_apart():
    runs = [traditional(path=Path(name) / "traditional" / "seed-0") for name in ("a", "b")]
    comparisons = compare_runs(runs)
    assert [comparison.title for comparison in comparisons] == ["digits, small_cnn (a)", "digits, small_cnn (b)"]
    flat = [traditional(path=Path("runs") / name) for name in ("a", "b")]
    assert [comparison.title for comparison in compare_runs(flat)] == ["digits, small_cnn (a)", "digits, small_cnn (b)"]


def test_runs_of_one_label_and_several_lengths_are_several_arms():
    runs = [traditional(0.4, 0.2), traditional(0.4, 0.3, 0.1, seed=1)]
    assert list(only(runs).finished) == ["traditional, 2 epochs", "traditional, 3 epochs"]


def test_seconds_are_compared_on_the_same_hardware_alone():
    def runs(threads):
        return [*PLAIN, *(r for r in method("sb", 0.3) if r.environment.update(threads=threads) is None)]

    for run in PLAIN:
        run.environment["threads"] = 1
    same, other = only(runs(1)), only(runs(2))
    assert same.arms[-1].seconds is not None
    assert other.arms[-1].seconds is None and other.standings.others[0].plain
    assert any("hardware" in sentence for sentence in alerts_of(other))
    assert [multipliers_table([one]).heading[-1].more for one in (same, other)] == [
        "in seconds, at 20.50% error",
        "at 30.10% error",
    ]
    assert cells([same])["traditional"][-1].text.endswith(" seconds")
    assert ["seconds" in all_arms(one).heading for one in (same, other)] == [True, False]


# ---- the first screen


def test_the_matrix_has_multipliers_at_stated_errors():
    runs = [*PLAIN, *RANDOM, *method("ledger, 4 epochs", 0.3), *method("ledger, 8 epochs", 0.2, epochs=8)]
    comparison = only(runs)
    heading = multipliers_table([comparison]).heading
    assert [cell.more for cell in heading[1:3]] == ["at 20.50% error", "at 30.10% error"]
    rows = cells([comparison])
    assert list(rows) == ["traditional", "repeated_random", "ledger"]
    cell = rows["ledger"][1]
    assert cell.kind == "better" and cell.text == "2.00x"  # 0.3 takes plain training 4 epochs, and ledger 4 halves
    assert cell.hint == "lowest error 20.10% ± 0.10 with 4.00 epochs of compute"
    cell = rows["traditional"][1]
    assert (cell.text, cell.more, cell.kind) == ("4.00 epochs", "that of plain training at its middle length", "")
    assert {cell.kind for cell in rows["repeated_random"]} == {""}, "a baseline gets no verdict"


def lengths(name, trained, full_name="ledger_backprop"):
    """A method with the errors of plain training at the same lengths, for this percentage of its compute."""
    return [
        run
        for epochs, error in ((2, 0.4), (4, 0.3), (8, 0.2))
        for run in method(f"{name}, {epochs} epochs", error, name=full_name, trained=trained, epochs=epochs)
    ]


@pytest.mark.parametrize(
    ("trained", "kind", "value"), [(50, "better", "2.00x"), (100, "same", "1.00x"), (200, "worse", "0.50x")]
)
def test_cells_are_coloured_by_the_number_in_them(trained, kind, value):
    cell = cells([only([*PLAIN, *RANDOM, *lengths("ledger", trained)])])["ledger"][1]
    assert (cell.kind, cell.text) == (kind, value)
    unchecked = cells([only([*PLAIN, *lengths("ledger", trained)])])["ledger"][1]
    assert unchecked.kind == ("worse" if kind == "worse" else "not_checked"), "nobody ran random subsets"
    assert unchecked.more == "random subsets were not run"


def test_the_sentence_names_plain_training_where_it_wins():
    words = finding(only([*PLAIN, *RANDOM, *lengths("infobatch", 125, "infobatch")]))
    assert "**Plain training is not beaten.**" in words
    assert "The closest is infobatch: for an error of 20.50% (within 2% of plain training's best) plain" in words


def test_what_cannot_be_compared_is_a_sentence_and_no_number():
    short = [*PLAIN, *RANDOM, *method("ledger", 0.6, trained=10)]
    cell, *_ = cells([only(short)])["ledger"]
    assert (cell.text, cell.more, cell.kind) == ("not reached", "at best 60.10%", "not_checked")
    without = cells([only(method("ledger", 0.3))])["ledger"][0]
    assert (without.text, without.more) == ("not checked", "plain training was not run")
    assert finding(only(method("ledger", 0.3))) == "Nothing can be said: plain training was not run."
    two = compare_runs([*PLAIN, *method("ledger", 0.3), *plain(4, 0.2, recipe={"dataset": "mnist"})])
    assert [cell.text for cell in cells(two)["ledger"][:2]] == ["not reached", "2.00x"]
    assert cells(two)["ledger"][-1].text == "not run"
    one_length = only([*plain(4, 0.3), *method("ledger", 0.2)])
    assert any("one length only" in sentence for sentence in alerts_of(one_length))


def test_alerts_tell_of_idle_methods_and_of_runs_under_way():
    idle = method("kath18", 0.3, name="kath18", trained=100)
    assert "kath18 never switched on: trained on every candidate, as plain training does." in alerts_of(
        only([*PLAIN, *idle])
    )
    assert not any("switched on" in sentence for sentence in alerts_of(only([*PLAIN, *RANDOM, *method("sb", 0.3)])))
    under_way = alerts_of(only([*PLAIN, made_up_run("sb", [0.01, 0.01], epochs=3, trained=100)]))
    assert "1 of 10 runs are not finished and not counted." in under_way
    assert not any("switched on" in sentence for sentence in under_way), "it may yet"
    nothing = only([made_up_run("sb", [0.01], epochs=3)])
    assert finding(nothing) == "Nothing can be said: no run is finished."


def test_the_frontier_has_one_point_for_every_arm():
    comparison = only([*PLAIN, *RANDOM, *method("ledger", 0.3)])
    rows = arm_rows(comparison)
    assert [row["compute"] for row in rows if row["plain"]] == [2, 4, 8]
    assert len(rows) == 7
    names = ["traditional", "repeated_random", "ledger", "sb"]
    (figure,) = frontiers([comparison], Material(Palette({name: name for name in names}))).parts
    legends = [layer["encoding"]["color"]["legend"]["values"] for layer in figure.spec["layer"]]
    assert legends == [["traditional", "repeated_random", "ledger"]] * 4, "of what is there"


# ---- what is stored, what is missing, what is damaged


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "environment.json").unlink(),
        lambda folder: (folder / "data.json").unlink(),
        lambda folder: (folder / "data.json").write_text("[1]"),
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
    report = build_report(find_runs([copy]))
    assert sum(len(comparison.runs) for comparison in report.comparisons) == 4


def _without(folder, *names):
    config = json.loads((folder / "config.json").read_text())
    for name in names:
        del config["recipe"][name]
    (folder / "config.json").write_text(json.dumps(config))


def test_labels_of_a_comparison_by_epochs_are_read():
    runs = [*PLAIN, *method("repeated_random, 4 epochs of compute", 0.3, name="repeated_random", trained=100)]
    runs += [*method("EL2N + SB, 4 epochs", 0.3, name="diet")]
    comparison = only(runs)
    assert list(cells([comparison])) == ["traditional", "repeated_random", "EL2N + SB"]
    assert comparison.reference == "traditional, 8 epochs"
    assert comparison.standings.random.name == "repeated_random"
