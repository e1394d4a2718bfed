"""The ledger's history on disk, on real runs with digits."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from selective_backprop.ledger import Ledger
from selective_backprop_lab.data.datasets import load_images
from selective_backprop_lab.probes.files import write_arrays
from selective_backprop_lab.runs.ledger_log import LedgerLog, read_ledger_log
from selective_backprop_lab.runs.recipes import RECIPES
from selective_backprop_lab.runs.records import RunFolder
from selective_backprop_lab.runs.training import Settings, Training, advance
from tests.lab.runs import train

DIGITS = load_images("digits")
NUM_EXAMPLES = len(DIGITS.train_labels)
CPU = torch.device("cpu")


def settings_for(method="selective_backprop", *, epochs=3, **changes):
    recipe = RECIPES["digits"].with_(epochs=epochs, model="tests.torture.network:small")
    return Settings(**({"recipe": recipe, "method": method, "selectivity": 1 / 3} | changes))


def crash_at(epoch):
    """An observer that ends the run after the observers before it have written and before the run is saved."""

    def crash(training, record):
        if record["epoch"] == epoch:
            raise KeyboardInterrupt

    return crash


def train_with_crash(settings, path, make_observers, epoch):
    """Stopped within an epoch, as late as possible, and resumed with new observers."""
    with RunFolder(path, settings.as_json()) as folder:
        with pytest.raises(KeyboardInterrupt):
            train(settings, DIGITS, folder=folder, device=CPU, observers=[*make_observers(path), crash_at(epoch)])
        assert len(folder.records()) == epoch
        return train(settings, DIGITS, folder=folder, device=CPU, observers=make_observers(path))


def collect_ids(training):
    """The ids of every batch trained on, as they are given out."""
    ids, loss = [], training.loader.loss

    def collecting(outputs, targets):
        ids.append(training.loader.batch.ids.clone())
        return loss(outputs, targets)

    training.loader.loss = collecting
    return ids


def count(ids):
    return torch.bincount(torch.cat(ids), minlength=NUM_EXAMPLES).numpy()


def test_traditional_training_selects_every_example_once_an_epoch(tmp_path):
    train(settings_for("traditional", epochs=2), DIGITS, device=CPU, observers=[LedgerLog(tmp_path)])
    history = read_ledger_log(tmp_path)
    assert history.selected.shape == history.loss.shape == history.probability.shape == (2, NUM_EXAMPLES)
    assert history.selected.dtype == np.uint8
    assert history.loss.dtype == history.probability.dtype == np.float16
    assert (history.selected.sum(1) == NUM_EXAMPLES // 32 * 32).all() and history.selected.max() == 1
    assert np.isfinite(history.loss).mean() > 0.97 and np.nanmean(history.loss[1]) < np.nanmean(history.loss[0])
    assert sorted(file.name for file in (tmp_path / "ledger").iterdir()) == ["epoch-0000.pt", "epoch-0001.pt"]
    size = sum(file.stat().st_size for file in (tmp_path / "ledger").iterdir())
    assert size < 2 * (5 * NUM_EXAMPLES + 2500)


@pytest.mark.parametrize("method", ["selective_backprop", "stale_selective_backprop", "kath18"])
def test_selected_is_what_was_trained_on(method, tmp_path):
    training = Training(settings_for(method), DIGITS, CPU)
    ids, log, trained = collect_ids(training), LedgerLog(tmp_path), []
    for _ in range(3):
        before = len(ids)
        advance(training, observers=[log])
        trained.append(count(ids[before:]))
    assert np.array_equal(read_ledger_log(tmp_path).selected.astype(int), np.stack(trained))


def test_a_resumed_run_has_the_same_history(tmp_path):
    settings = settings_for()
    train(settings, DIGITS, device=CPU, observers=[LedgerLog(tmp_path / "undisturbed")])
    train_with_crash(settings, tmp_path / "resumed", lambda path: [LedgerLog(path)], epoch=1)
    expected, history = read_ledger_log(tmp_path / "undisturbed"), read_ledger_log(tmp_path / "resumed")
    for name in ("loss", "probability", "selected"):
        assert np.array_equal(getattr(history, name), getattr(expected, name), equal_nan=name != "selected")
    assert expected.selected.sum() > 0


def test_numbers_too_large_for_few_bits(tmp_path):
    ledger = Ledger(3)
    before = ledger.selected.clone()
    ledger.count_selected(torch.tensor([0] * 300 + [2]))
    ledger.record_losses(torch.tensor([0, 1]), torch.tensor([1e6, 0.5]), epoch=0)
    LedgerLog(tmp_path)(SimpleNamespace(ledger=ledger, selected_before=before), {"epoch": 0})
    history = read_ledger_log(tmp_path)
    assert history.selected.tolist() == [[300, 0, 1]]
    assert history.loss[0, :2].tolist() == [65504, 0.5] and np.isnan(history.loss[0, 2])
    assert np.isnan(history.probability).all()


def cut(file):
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), r"has the epochs \[1\], and not all from 0 on"),
        (cut, "epoch-0000.pt is damaged, "),
        (
            lambda file: write_arrays(file, loss=np.zeros(3), probability=np.zeros(3), selected=np.zeros(3)),
            "ledger are damaged or of different runs",
        ),
    ],
)
def test_damage_is_told_with_the_file(damage, message, tmp_path):
    training, log = SimpleNamespace(ledger=Ledger(2), selected_before=0), LedgerLog(tmp_path)
    for epoch in range(2):
        log(training, {"epoch": epoch})
    damage(tmp_path / "ledger" / "epoch-0000.pt")
    with pytest.raises(ValueError, match=message):
        read_ledger_log(tmp_path)


def test_a_run_without_a_log(tmp_path):
    with pytest.raises(ValueError, match=r"epoch-\*.pt"):
        read_ledger_log(tmp_path)
