import dataclasses
import json
import re
from pathlib import Path

import pytest
from torch import nn

import selective_backprop as sb
from selective_backprop_lab.leaderboard import running
from selective_backprop_lab.leaderboard.arms import ARMS, RATES, TRIALS, own_arm, tuned, untuned
from selective_backprop_lab.leaderboard.checking import faults
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop_lab.leaderboard.running import (
    run_cell,
    run_missing,
    settings_of,
    shuffled_by_seed,
)
from selective_backprop_lab.leaderboard.tuning import lengths_of, tune
from selective_backprop_lab.leaderboard.tuning import test_cells as all_cells
from selective_backprop_lab.leaderboard.workloads import DIGITS, LARGER, PAPER, WORKLOADS
from selective_backprop_lab.runs.methods import make_method
from tests.lab.command_line import run, text_of
from tests.lab.leaderboard.small import SMALL_DIGITS, shrink

PLAIN = Cell("plain", "traditional:rate=1", 1, 0, False)


@pytest.fixture(scope="module")
def digits():
    return SMALL_DIGITS.load(None, held_out=True)


def test_every_arm_tries_equally_many_settings_that_all_can_be_made():
    for workload in WORKLOADS.values():
        for arm in tuned(workload):
            assert len(arm.trials) == len(set(arm.trials)) == (len(RATES) if workload.tune_rates_only else TRIALS)
            for text in arm.trials:
                settings = settings_of(workload, Cell(arm.name, text, workload.middle, 0, True))
                make_method(settings.method, settings.selectivity, settings.options, lambda name: nn.Linear(2, 2))


def test_held_out_examples_are_never_trained_on():
    held_out, tested = DIGITS.load(None, held_out=True), DIGITS.load(None, held_out=False)
    assert held_out.fingerprint["train"] == tested.fingerprint["train"]
    seen = {image.numpy().tobytes() for image in held_out.train_images}
    assert len(held_out.test_labels) == 400
    assert not seen & {image.numpy().tobytes() for image in held_out.test_images}


def test_a_cell_can_be_made_again_with_the_same_numbers(digits):
    first, second = (run_cell(DIGITS, PLAIN, digits) for _ in range(2))
    assert (first.error, first.compute) == (second.error, second.compute)
    assert first.compute == 1.0
    assert 0 < first.error < 0.5


def test_a_proxy_counts_at_its_share():
    digits = DIGITS.load(None, held_out=True)
    own = run_cell(DIGITS, Cell("own", "top_k@0.5", 2, 0, False), digits)
    proxied = run_cell(DIGITS, Cell("proxy", "top_k@0.5:proxy=strided_cnn_tiny", 2, 0, False), digits)
    assert own.compute == pytest.approx(2 * (1 / 3 + 1 / 2), rel=0.03)
    # A network of half the width costs about a quarter per pass, and learns from every fourth batch: 1/4 + 3/16.
    assert 1 < proxied.compute < own.compute


def test_what_is_recorded_is_not_run_again(digits, tmp_path):
    cells = [PLAIN, Cell("SB", "sb@0.5", 1, 0, False)]
    shown = []
    store = Store(tmp_path / "digits.jsonl")
    first = run_missing(SMALL_DIGITS, cells, digits, store, lambda outcome, left: shown.append(left))
    assert sorted(shown) == [0, 1]
    again = run_missing(
        SMALL_DIGITS, cells, digits, Store(tmp_path / "digits.jsonl"), lambda *_: pytest.fail("ran again")
    )
    assert [run.cell for run in again] == cells
    assert [run.error for run in again] == pytest.approx([run.error for run in first], abs=1e-6)
    line = json.loads((tmp_path / "digits.jsonl").read_text().splitlines()[0])
    assert {"commit", "torch", "cpu", "threads", "date"} <= line["made"].keys()


def test_a_damaged_line_is_named(tmp_path):
    file = tmp_path / "digits.jsonl"
    Store(file).add(Outcome(PLAIN, 0.1, 1.0, 2.0, 2.0))
    with file.open("a") as records:
        records.write('{"cell": {"arm": "plain"}}\n')
    with pytest.raises(ValueError, match=r"line 2 of .*digits.jsonl is no record of a run"):
        Store(file)


def test_seeds_come_one_after_the_other_in_a_drawn_order():
    cells = [Cell(arm, arm, 1, seed, False) for seed in (1, 0) for arm in "abcdefgh"]
    ordered = shuffled_by_seed(cells)
    assert [cell.seed for cell in ordered] == [0] * 8 + [1] * 8
    assert ordered == shuffled_by_seed(reversed(cells))
    assert [cell.arm for cell in ordered[:8]] != [cell.arm for cell in ordered[8:]]


def test_tuning_takes_the_setting_with_the_most_for_its_compute(digits, tmp_path):
    store = Store(tmp_path / "tuning.jsonl")
    arms = [ARMS["plain"], own_arm(["mine=random@0.5:rate=1", "random@0.01:rate=0.001"])]
    chosen = tune(SMALL_DIGITS, arms, digits, store)
    assert chosen["mine"] == "random@0.5:rate=1"  # the other one learns nothing
    assert chosen["plain"] in ARMS["plain"].trials
    rate = chosen["plain"].partition(":")[2]
    assert chosen["ledger, default"] == f"ledger:cap=20,keep_at_least=0.1,skip_at_least=0.2,most_rise=0.4,{rate}"
    defaults = make_method(
        "ledger_backprop", 1 / 3, {"cap": 20, "keep_at_least": 0.1, "skip_at_least": 0.2, "most_rise": 0.4}
    )
    assert repr(defaults) == repr(sb.ledger_backprop()), "the arm states the defaults of the library"
    seeds = {arm: {cell.seed for cell in store.outcomes if cell.arm == arm} for arm in ("plain", "mine")}
    assert seeds == {"plain": set(range(1000, 1005)), "mine": {1000}}, "a baseline is tuned on more seeds"
    assert lengths_of(SMALL_DIGITS, "plain", chosen["plain"], store) == (1, 2, 3)
    assert lengths_of(SMALL_DIGITS, "mine", chosen["mine"], store) == (
        1,
        2,
        3,
        6,
    )  # twice as long for half of the examples


def test_where_only_rates_are_tuned_the_lowest_error_of_three_short_runs_is_taken(digits, tmp_path):
    baselines = ("plain", "repeated random")
    workload = dataclasses.replace(SMALL_DIGITS, arms=baselines, tune_rates_only=True, baseline_seeds=1)
    chosen = tune(workload, tuned(workload), digits, store := Store(tmp_path / "tuning.jsonl"))
    for arm in baselines:
        errors = {cell.setting: outcome.error for cell, outcome in store.outcomes.items() if cell.arm == arm}
        assert len(errors) == 3
        assert errors[chosen[arm]] == min(errors.values())
    lengths = {cell.arm: cell.length for cell in store.outcomes}
    assert lengths == {"plain": 1, "repeated random": 1, "ledger, default": 2}, "the ledger skips after its first epoch"
    assert lengths_of(workload, "repeated random", chosen["repeated random"], store)[-1] == 4
    assert lengths_of(workload, "plain", chosen["plain"], store) == (1, 2, 3)


def on_small_digits(*words):
    return run("leaderboard", *words, prepare=shrink)


def test_the_commands_tune_run_and_show(tmp_path):
    records = tmp_path / "board"
    arm = ("--arm", "mine=random@0.5")
    baseline = ("--arm", "repeated random=repeated_random@0.5")
    common = ("--records", records)
    for chosen in (arm, baseline):
        assert on_small_digits("tune", "digits", *common, *chosen).returncode == 0
    result = on_small_digits("run", "digits", *common)
    assert result.returncode == 0, text_of(result)
    again = on_small_digits("run", "digits", *common)
    assert "runs left" not in text_of(again)
    shown = on_small_digits("show", records)
    assert shown.returncode == 0, text_of(shown)
    assert "has no runs" not in text_of(shown)
    assert "### Lossless" in shown.stdout
    assert "| mine |" in shown.stdout
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for file in records.glob("digits.*"):
        (hostile / file.name).write_text(file.read_text().replace("mine", r"\u001b[31mmine"))
    assert r"| \x1b[31mmine |" in on_small_digits("show", hostile).stdout
    assert on_small_digits("tune", "digits", *common, "--arm", "other=random@0.4").returncode == 0
    assert "digits has no runs of other at the chosen setting" in text_of(on_small_digits("show", records))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "mnst"), "did you mean mnist?"),
        (("run", "digits"), "leaderboard tune digits"),
        (("tune", "digits", "--arm", "sb@0.5"), "mine=sb@0.5"),
    ],
)
def test_mistakes_are_told_plainly(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("leaderboard", *arguments)
    assert result.returncode == 2
    assert message in text_of(result)
    assert not list(tmp_path.rglob("*.jsonl")), "before any run"


def test_without_a_size_runs_train_on_everything_and_trials_on_all_but_the_held_out():
    whole = dataclasses.replace(DIGITS, train_size=None)
    tested, trial = whole.load(None, held_out=False), whole.load(None, held_out=True)
    assert len(tested.train_labels) == 1437
    assert len(trial.train_labels) == 1037
    seen = {image.numpy().tobytes() for image in trial.train_images}
    assert not seen & {image.numpy().tobytes() for image in trial.test_images}


def test_the_larger_workloads_have_both_baselines_and_the_ledger_and_are_all_in_the_script():
    script = (Path(__file__).parents[3] / "benchmarks" / "larger.sh").read_text()
    named = re.search(r'workloads="(.*?)"', script, re.DOTALL)[1].split()
    assert sorted(named) == sorted(LARGER)
    for workload in LARGER.values():
        names = [arm.name for arm in tuned(workload) + untuned(workload)]
        assert {"plain", "repeated random", "ledger, default"} <= set(names)


@pytest.fixture(scope="module")
def tiny_paper():
    """A paper's workload as it runs on a GPU, in bfloat16 and resumable, on digits."""
    recipe = DIGITS.recipe.with_(bf16=True, decay=PAPER["cifar10-resnet18"].recipe.decay)
    return dataclasses.replace(PAPER["cifar10-resnet18"], recipe=recipe, lengths=(1, 2), train_size=128, held_out=400)


def test_settings_of_a_paper_can_be_made_and_cost_about_as_much(tiny_paper):
    for workload in PAPER.values():
        for arm, (setting, longer) in workload.settled.items():
            cell = Cell(arm, setting, workload.middle, 0, False)
            settings = settings_of(workload, cell)
            assert settings.recipe.bf16
            make_method(settings.method, settings.selectivity, settings.options)
            assert lengths_of(workload, arm, setting, Store(Path("none"))) == tuple(
                round(length * longer) for length in workload.lengths
            )


def test_a_run_of_a_paper_goes_on_after_a_stop_with_the_same_numbers(tiny_paper, tmp_path, monkeypatch):
    data = tiny_paper.load(None, held_out=False)
    cell = Cell("SB", tiny_paper.settled["SB"][0], 3, 0, False)
    whole = run_cell(tiny_paper, cell, data)
    stopped = running.Training.epoch

    def stop_in_the_third(training):
        if len(training.records) == 2:
            raise KeyboardInterrupt
        return stopped(training)

    store = Store(tmp_path / "tiny.jsonl")
    monkeypatch.setattr(running.Training, "epoch", stop_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        run_missing(tiny_paper, [cell], data, store)
    monkeypatch.setattr(running.Training, "epoch", stopped)
    epochs = []
    monkeypatch.setattr(running.Training, "epoch", lambda training: epochs.append(1) or stopped(training))
    (again,) = run_missing(tiny_paper, [cell], data, store)
    assert len(epochs) == 1
    assert (again.error, again.compute) == (whole.error, whole.compute)
    assert not list((tmp_path / "tiny.under-way").iterdir())
    assert json.loads((tmp_path / "tiny.jsonl").read_text())["device"] == "cpu"


def test_records_are_checked(tmp_path):
    name, workload = "cifar10-resnet18", PAPER["cifar10-resnet18"]
    chosen = {arm: setting for arm, (setting, _) in workload.settled.items()}
    store, none = Store(tmp_path / f"{name}.jsonl"), Store(tmp_path / "none")
    for cell in all_cells(workload, chosen, 1, none):
        store.add(Outcome(cell, 0.05, cell.length if cell.arm == "plain" else 100.0, 1.0, 1.0))
    assert faults(name, store, none, chosen) == []
    assert "are in order" in text_of(run("leaderboard", "check", tmp_path))
    del store.outcomes[Cell("SB", chosen["SB"], 150, 0, False)]
    wrong = Cell("plain", chosen["plain"], 50, 0, False)
    store.outcomes[wrong] = Outcome(wrong, 1.2, 30.0, 1.0, 1.0)
    other = Cell("ledger, default", "ledger:loss_share=0.5,rate=1", 75, 0, False)
    store.outcomes[other] = Outcome(other, 0.05, 40.0, 1.0, 1.0)
    text = "\n".join(faults(name, store, none, chosen))
    assert "an error of 1.2 is no share" in text
    assert "plain training for 50 epochs cannot cost 30.00" in text
    assert "its setting is not that of the protocol, ledger:rate=1" in text
    assert "seed 0 lacks SB at 150 epochs" in text
    (tmp_path / f"{name}.jsonl").write_text("")
    assert "holds no runs" in text_of(run("leaderboard", "check", tmp_path))


def test_a_leaderboard_without_records_says_so():
    result = run("leaderboard", "show", "nowhere")
    assert result.returncode == 0 and "nowhere" in result.stdout
