"""The benchmarks' own code runs and computes what it claims; their speed is not tested here."""

import importlib.util
import re
import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readings_of_the_algorithm_agree_with_each_other():
    benchmark = load("selection_step")
    readings = [kind(64) for kind in (benchmark.PlainReading, benchmark.WithScipy, benchmark.WithSorting)]
    for loss in torch.randn(200).exp().tolist():
        for reading in readings:
            reading.history.append(loss)
        first, *others = (reading.percentile(loss) for reading in readings)
        assert all(abs(other - first) < 1e-9 for other in others)


def test_every_step_runs():
    benchmark = load("selection_step")
    images, labels = torch.randn(benchmark.CANDIDATES, 4), torch.zeros(benchmark.CANDIDATES).long()
    for kind in (benchmark.OneCount, benchmark.Ours, benchmark.OursWithLedger):
        subject = kind(1024)
        for _ in range(4):
            subject.step(images, labels, torch.rand(benchmark.CANDIDATES))
    assert int(subject.ledger.offered.sum()) == 4 * benchmark.CANDIDATES


def test_every_method_is_planned():
    benchmark = load("ledger")
    batches = benchmark.IdBatches.of(torch.randperm(1000).split(benchmark.BATCH))
    for method in benchmark.METHODS.values():
        ledger = benchmark.filled_ledger(1000, method.scorer.needs)
        _, kept = benchmark.seconds(method, ledger, batches)
        assert 100 < kept < 1000


def test_the_lab_and_the_bare_loop_train_the_same_network():
    benchmark = load("lab_overhead")
    data = benchmark.first_part(benchmark.random_images(100), 70)
    recipe = benchmark.find_recipe("cifar10").with_(model="resnet20", batch_size=16, epochs=3)
    subjects, seconds = benchmark.compare(recipe, data, rounds=1)
    weights = [subject.model.state_dict() for subject in subjects.values()]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert all(len(spent) == 1 and spent[0] > 0 for spent in seconds.values())
    assert subjects["bare"].steps == 2 * 4
    assert all(speed > 0 for speed in benchmark.feeding(subjects["bare"], rounds=1))


def test_advice_is_set_against_measured_epochs(capsys):
    load("advice").main(["--model", "small_resnet", "--batches", "3", "--size", "8", "--seconds", "0.1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if " measured " in line]
    assert [line.split()[0] for line in lines] == [
        "traditional()",
        "selective_backprop(0.33)",
        "stale_selective_backprop(0.33,",
        "random_backprop(0.33)",
    ]


def test_calls_of_a_candidate_batch_are_counted():
    found = load("calls").count(load("calls").METHODS["selective_backprop"], num_examples=320)
    assert found["calls"] >= found["functions"] > found["files"] > 5


def test_overhead_is_measured_against_the_plain_loader(capsys, monkeypatch):
    benchmark = load("overhead")
    monkeypatch.setattr(benchmark, "BLOCK", 2)
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    benchmark.per_batch(40 * benchmark.BATCH)
    benchmark.plan(40 * benchmark.BATCH)
    printed = capsys.readouterr().out
    assert "plain DataLoader" in printed and "ledger_backprop(), first epoch" in printed
    assert "planned in" in printed


def test_the_scripts_that_make_runs_exist():
    named = re.findall(r"benchmarks/\w+\.py", (FOLDER.parent / "Makefile").read_text())
    assert len(named) > 5 and all((FOLDER.parent / name).exists() for name in named)


def test_the_study_of_rare_classes_trains_every_arm():
    benchmark = load("rare_classes")
    images, labels = torch.randn(400, 1, 28, 28), torch.arange(400) % 10
    train_set = benchmark.long_tailed(images, labels, common=16, rare=2)
    assert len(train_set[1]) == 8 * 16 + 2 * 2
    runs = [benchmark.train(arm, 0, 1, train_set, (images, labels)) for arm in benchmark.ARMS]
    assert all(run["trained"]["all"] == 1 for run in runs), "the first epoch trains on everything"
    table = list(benchmark.rows(runs + [run | {"seed": 1} for run in runs]))
    assert len(table) == 1 + len(benchmark.ARMS)


def test_every_script_can_be_imported_and_those_of_make_benchmark_exist():
    scripts = {path.name for path in FOLDER.glob("*.py")}
    assert set(re.findall(r"benchmarks/(\w+\.py)", (FOLDER.parent / "Makefile").read_text())) <= scripts
    for name in scripts:
        load(name.removesuffix(".py"))
