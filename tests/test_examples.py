"""The examples, run as a user would."""

import functools
import re
import sys

import pytest
import torch

from tests.integrations import forked
from tests.lab.command_line import run_script
from tests.processes import ROOT

STATS = re.compile(r"offered ([\d,]+), trained ([\d,]+) in (\d+) batches")


def run(script, *options):
    done = run_script(ROOT / "examples" / script, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_here(folder, script, *options):
    """In a process that has the framework already, if the tests of integrations are run too."""
    return forked.run_script(ROOT / "examples" / script, folder, *options)


def hide(package):
    """Make this process one without the package."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.modules[package] = None


def counts(printed):
    return [int(number.replace(",", "")) for number in STATS.search(printed).groups()]


@pytest.mark.parametrize(
    ("script", "missing", "extras"),
    [
        ("pytorch_loop.py", "sklearn", "lab"),
        ("keras_digits.py", "keras", "keras,lab"),
    ],
)
def test_a_missing_package_is_one_sentence_with_its_pip_line(script, missing, extras):
    done = run_script(ROOT / "examples" / script, prepare=functools.partial(hide, missing))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().endswith(f": pip install 'selective-backprop[{extras}]'") and missing in done.stderr


def test_pytorch_loop():
    printed = run("pytorch_loop.py", "--epochs", 5)
    offered, trained, _ = counts(printed)
    assert offered == 5 * 1437 and 0.3 < trained / offered < 0.8
    assert float(re.search(r"epoch 5: test error ([\d.]+)%", printed)[1]) < 10
    assert "epoch 5: test error" in printed and "learning rate 0.0000" in printed


def test_pytorch_loop_with_everything_else_that_loops_have():
    options = ["--epochs", 1, "--amp", "--accumulate", 2, "--clip", 1, "--ema", 0.9, "--mix", "mixup", "--method", "sb"]
    printed = run("pytorch_loop.py", *options, "--selectivity", 0.5)
    offered, trained, _ = counts(printed)
    assert 0.2 < trained / offered < 0.7


def test_lightning_digits(tmp_path):
    pytest.importorskip("lightning", reason="needs the extra lightning")
    printed = run_here(tmp_path, "lightning_digits.py", "--epochs", 3, "--out", tmp_path)
    offered, trained, batches = counts(printed)
    assert offered == 3 * 1437 and 0.4 < trained / offered < 0.9
    last = next(tmp_path.rglob("last.ckpt"))
    assert 0 < torch.load(last, weights_only=False)["global_step"] < batches
    resumed = run_here(tmp_path, "lightning_digits.py", "--epochs", 3, "--out", tmp_path, "--checkpoint", last)
    assert counts(resumed) == [offered, trained, batches]
    assert re.search(r"test error .* steps", resumed)[0] == re.search(r"test error .* steps", printed)[0]


def test_keras_digits(tmp_path):
    pytest.importorskip("keras", reason="needs the extra keras")
    printed = run_here(tmp_path, "keras_digits.py", "--epochs", 4)
    offered, trained, batches = counts(printed)
    assert offered == 4 * 1437 and 0.25 < trained / offered < 0.9  # the first epoch trains on everything
    assert "Epoch 4/4" in printed and "selection/selectivity" in printed
    assert float(re.search(r"test error ([\d.]+)%", printed)[1]) < 15
    assert f"after {batches} steps" in printed


def test_trl_sft(tmp_path):
    pytest.importorskip("trl", reason="needs the extra [trl]")
    printed = run_here(tmp_path, "trl_sft.py", "--epochs", 2, "--examples", 120)
    offered, trained, _ = counts(printed)
    assert offered == 2 * 108 and 0.5 < trained / offered < 0.8
    before, after = map(float, re.search(r"held-out loss ([\d.]+) before, ([\d.]+) after", printed).groups())
    assert after < before


def test_trl_grpo(tmp_path):
    pytest.importorskip("trl", reason="needs the extra [trl]")
    printed = run_here(tmp_path, "trl_grpo.py", "--steps", 36, "--pretraining", 60)
    equal, trained = (int(re.search(rf"{words}: (\d+)%", printed)[1]) for words in ("nothing is learned", "propagated"))
    assert 0 < equal < 100
    assert 0 < trained <= 101 - equal
