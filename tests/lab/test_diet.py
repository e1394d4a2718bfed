"""Scores and pruning as a user makes them, on digits and a small network."""

import dataclasses
import re
import shutil

import pytest
import torch
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import selective_backprop as sb
from selective_backprop.functional import spearman
from selective_backprop_lab.cli.diet import diet_app
from selective_backprop_lab.data.datasets import ImageDataset, load_images
from selective_backprop_lab.runs.methods import make_method
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.training import Settings, Training, start

DIGITS = load_images("digits")
SMALL = "tests.torture.network:small"
RECIPE = find_recipe("digits").with_(model=SMALL)
SETTINGS = Settings(recipe=RECIPE, method="traditional", selectivity=1.0)
CPU = torch.device("cpu")


def run(*words, exit_code=0):
    """What was printed, without the frames and line breaks of error boxes."""
    if words[0] == "score" and "--model" not in words:
        words = (*words, "--model", SMALL)
    result = CliRunner().invoke(diet_app, [str(word) for word in words], env={"COLUMNS": "150", "NO_COLOR": "1"})
    printed = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == exit_code, printed
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return printed


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Two networks of two epochs, and what was printed."""
    out = tmp_path_factory.mktemp("diet") / "scores.pt"
    return out, run("score", "--epochs", 2, "--seeds", 2, "--out", out)


def by_hand(seed, epochs=2):
    """The first epochs of a run at the recipe's own length, and one pass with the library's function."""
    training = Training(dataclasses.replace(SETTINGS, seed=seed), DIGITS, CPU)
    rates = [training.epoch()["lr"] for _ in range(epochs)]
    assert rates == [pytest.approx(RECIPE.lr_at((epoch + 1) / RECIPE.epochs)) for epoch in range(epochs)]
    loader = DataLoader(ImageDataset(DIGITS.train_images, DIGITS.train_labels), 1437, collate_fn=ImageDataset.collate)
    return sb.pruning.score_examples(training.model, loader, forward=lambda m, b: (m(training.normalise(b[0])), b[1]))


def test_scores_are_the_mean_over_networks_cut_off_early(scored):
    out, printed = scored
    one, two = by_hand(0), by_hand(1)
    assert torch.allclose(sb.pruning.load_scores(out, 1437), (one + two) / 2, atol=1e-6)
    assert f"mean {spearman(one, two):.3f}, lowest {spearman(one, two):.3f}" in printed
    assert re.search(r"seed 1:? +epoch 2/2", printed)
    assert f"diet prune {out} --recipe digits" in printed
    assert f"train --recipe digits --method diet:scores={out},prune=0.25" in printed


def test_the_networks_serve_more_seeds_and_later_epochs(scored, tmp_path):
    shutil.copytree(scored[0].with_name("scores.pt.networks"), tmp_path / "scores.pt.networks")
    out = tmp_path / "scores.pt"
    again = run("score", "--epochs", 2, "--seeds", 2, "--out", out)
    assert "epoch 1/" not in again.split("scores by class")[0], "nothing was to be trained"
    assert torch.equal(sb.pruning.load_scores(out), sb.pruning.load_scores(scored[0]))
    out.unlink()
    longer = run("score", "--epochs", 3, "--seeds", 1, "--out", out)
    assert "epoch 3/3" in longer and "epoch 2/3" not in longer
    assert torch.allclose(sb.pruning.load_scores(out), by_hand(0, epochs=3), atol=1e-6)
    out.unlink()
    assert "has been trained for 3 epochs already, scores after 1 cannot be had" in run(
        "score", "--epochs", 1, "--out", out, exit_code=2
    )


def test_prune_says_how_many_stay(scored):
    printed = run("prune", scored[0], "--fraction", 0.4, "--highest", 0.05)
    keep = sb.pruning.keep_after_pruning(sb.pruning.load_scores(scored[0]), 0.4, highest=0.05)
    assert f"{int(keep.sum())} of 1,437 examples stay, {int((~keep).sum())} are left out" in printed


def test_the_method_prunes_and_then_selects(scored):
    scores = sb.pruning.load_scores(scored[0])
    plain = make_method("diet", 0.5, {"scores": str(scored[0])})
    assert plain.name == "diet(selective_backprop)" and plain.policy.selectivity == 0.5
    assert torch.equal(plain.keep, sb.pruning.keep_after_pruning(scores, 0.25))
    options = {"scores": str(scored[0]), "prune": 0.5, "highest": 0.1, "method": "stale", "every": 2}
    other = make_method("diet", 0.5, options)
    assert other.scorer.every == 2
    assert torch.equal(other.keep, sb.pruning.keep_after_pruning(scores, 0.5, highest=0.1))


def test_a_run_trains_on_what_is_left(scored):
    options = {"scores": str(scored[0]), "prune": 0.4}
    training = start(Settings(recipe=RECIPE, method="diet", selectivity=0.5, options=options), DIGITS)
    training.epoch()
    kept = sb.pruning.keep_after_pruning(sb.pruning.load_scores(scored[0]), 0.4)
    offered = training.loader.ledger.offered > 0
    assert not bool((offered & ~kept).any())
    assert int(offered.sum()) > int(kept.sum()) - 2 * 32  # an epoch has full batches only


# ---- bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recipe", "dgits"), "there is no recipe 'dgits': did you mean digits"),
        (("--epochs", 25), "epochs must be from 0 to the recipe's 24, got 25"),
        (("--seeds", 0), "Invalid value for '--seeds'"),
        (("--model", "resnet21"), "resnet20"),
        (("--model", "no.such.module:network"), "no.such"),
    ],
)
def test_what_cannot_be_scored(tmp_path, words, message):
    assert message in run("score", *words, "--out", tmp_path / "scores.pt", exit_code=2)
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (None, (), "No such file or directory"),
        (b"", (), "is damaged, or was not written by this package"),
        (b"no scores", (), "is damaged, or was not written by this package"),
        (torch.rand(10), (), "has scores of 10 examples, the data set has 1437"),
        (torch.rand(1437), ("--fraction", 1), "prune and highest must be >= 0 and together below 1, got 1.0 and 0.0"),
        (torch.rand(1437), ("--fraction", -0.1), "got -0.1 and 0.0"),
        (torch.rand(1437), ("--fraction", 0.6, "--highest", 0.5), "got 0.6 and 0.5"),
    ],
)
def test_what_cannot_be_pruned(tmp_path, content, words, message):
    file = tmp_path / "scores.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        sb.pruning.save_scores(content, file)
    assert message in run("prune", file, *words, exit_code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "diet needs scores=FILE, a file of scores as `diet score` writes it"),
        ({"prune": "much"}, "prune must be a number, got 'much'"),
        ({"prune": 1.0}, "together below 1, got 1.0 and 0.0"),
        ({"method": "sbb"}, "there is no method 'sbb'"),
        ({"every": 2}, "has no option 'every'"),
    ],
)
def test_what_is_no_method(scored, options, message):
    given = ({"scores": str(scored[0])} if options else {}) | options
    with pytest.raises((TypeError, ValueError), match=message):
        make_method("diet", 0.5, given)
