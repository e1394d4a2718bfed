"""Lightning's own Trainer on real digits: equal to it without selection, exact after a kill, two ranks in step."""

import importlib
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset

pytest.importorskip("lightning", reason="needs the extra lightning")

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb
from selective_backprop.integrations.lightning import SelectiveBackprop
from selective_backprop.testing import same
from tests.helpers import Noisy, digits
from tests.integrations.forked import ranks
from tests.integrations.lightning_run import Digits, fit, on_two_ranks

# Lightning's own: what it says of torch 2.13, of few workers, and of the frozen BatchNorm of the tests' model.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*in eval mode at the start"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint"),
    pytest.mark.filterwarnings("ignore:.*`dataloader_iter` step flavor"),
]


def with_generator(*args, **options):
    return DataLoader(*args, generator=torch.Generator().manual_seed(5), **options)


def stateful(*args, **options):
    return StatefulDataLoader(*args, generator=torch.Generator().manual_seed(5), **options)


@pytest.mark.parametrize(
    ("manual", "make_loader", "count"),
    [(False, DataLoader, 203), (True, with_generator, 203), (False, stateful, 203)],
)
def test_selectivity_1_is_lightnings_own_run_to_the_bit(manual, make_loader, count):
    options = {"make_loader": make_loader, "dataset": Subset(Noisy(), range(count))}
    plain, plain_trainer, _ = fit(module=Digits(manual=manual), **options)
    module, trainer, selection = fit("everything", module=Digits(manual=manual), **options)
    assert same(module.state_dict(), plain.state_dict())
    assert module.learning_rates == plain.learning_rates
    assert trainer.global_step == plain_trainer.global_step == 3 * -(-count // 16)
    assert trainer.callback_metrics["loss"] == plain_trainer.callback_metrics["loss"]
    assert selection.loader.stats.trained == 3 * count


def test_selectivity_1_with_accumulation_is_lightnings_own_run_to_the_bit():
    # Without noise at loading, which would be drawn for a whole window before its first step.
    options = {"dataset": digits(), "accumulate_grad_batches": 3}
    plain, plain_trainer, _ = fit(**options)
    module, trainer, _ = fit("everything", **options)
    assert same(module.state_dict(), plain.state_dict())
    assert trainer.global_step == plain_trainer.global_step == 15


def test_sb_trains_on_full_batches_while_time_goes_by_candidates():
    module, trainer, selection = fit("sb", epochs=6)
    stats = selection.loader.stats
    for epoch in range(6):  # only the last two batches of an epoch may be smaller
        sizes = [len(ids) for ids, (number, _) in zip(module.ids, module.slots, strict=True) if number == epoch]
        assert sizes[:-2] == [16] * (len(sizes) - 2) and min(sizes) >= 8
    assert trainer.global_step == len(module.ids) == stats.batches
    assert stats.offered == stats.scored == 6 * 203 and stats.queued == stats.dropped == 0
    assert abs(stats.selectivity - 0.4) < 0.08
    # As many slots as plain training has batches: bars, schedules and validation go by them.
    assert trainer.num_training_batches == trainer.estimated_stepping_batches / 6 == 13
    assert trainer.fit_loop.epoch_loop.total_batch_idx + 1 == 6 * 13
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.05)
    assert module.validations == 2 + 6 * 4  # two batches in the sanity check


@pytest.mark.parametrize("method", ["unbiased", "ledger"])
def test_methods_that_need_the_selected_loss(method):
    module, _, selection = fit(method)
    assert selection.loader.stats.selectivity < 0.9
    assert all(parameter.isfinite().all() for parameter in module.parameters())
    call = r"compute the loss with self\.trainer\.train_dataloader\.loss\(outputs, targets\) in training_step"
    with pytest.raises(RuntimeError, match=call):  # not loader.loss, which a LightningModule does not have
        fit(method, module=Digits(selected_loss=False))


class Linear(L.LightningModule):
    """Compares the gradient of every optimizer step with that of the batches since the step before."""

    def __init__(self):
        super().__init__()
        self.layer, self.batches, self.slots = nn.Linear(64, 10), [], []

    def forward(self, inputs):
        return self.layer(inputs)

    def training_step(self, batch, batch_idx):
        self.batches.append(batch)
        self.slots.append((self.current_epoch, batch_idx))
        return self.loss([batch])

    def loss(self, batches):
        return sum(nn.functional.cross_entropy(self(inputs), targets) for inputs, targets in batches)

    def on_before_optimizer_step(self, optimizer):
        expected = torch.autograd.grad(
            self.loss(self.batches) / self.trainer.accumulate_grad_batches, self.layer.weight
        )
        torch.testing.assert_close(self.layer.weight.grad, expected[0])
        self.batches.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("window", [2, 5])
def test_accumulation_steps_on_whole_windows(window):
    module, trainer, selection = fit("sb", module=Linear(), accumulate_grad_batches=window, epochs=6, validate=False)
    windows = {(epoch, slot // window) for epoch, slot in module.slots}
    assert trainer.global_step == len(windows) > 6 and not module.batches
    assert len(module.slots) == selection.loader.stats.batches and selection.loader.stats.dropped == 0
    begins = {slot for slot in module.slots if slot[1] % window and (slot[0], slot[1] - 1) not in module.slots}
    assert begins or window == 2, "an epoch's last batches may begin in the middle of a window"
    for epoch, window_idx in windows:
        end = min(13, window * (window_idx + 1)) - 1
        assert (epoch, end) in module.slots, "a step is made after the last slot of a window"


def test_what_is_logged():
    _, trainer, selection = fit("sb")
    metrics, stats = trainer.callback_metrics, selection.loader.stats
    assert 0.2 < metrics["selection/selectivity"] < 0.6
    assert 0 < metrics["selection/trained"] < stats.trained
    for phase, seconds in stats.seconds.items():
        assert 0 < metrics[f"selection/seconds_{phase}"] < seconds
    assert "selection/selectivity" in trainer.progress_bar_metrics


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ({"every_n_train_steps": 2}, {}),
        ({"every_n_epochs": 1, "save_on_train_epoch_end": True}, {"method": "ledger", "accumulate_grad_batches": 2}),
        ({"every_n_epochs": 1}, {"limit_train_batches": 9}),
    ],
)
def test_any_checkpoint_of_lightning_resumes_exactly(where, options, tmp_path):
    options = {"method": "sb", **options}
    undisturbed, trainer, _ = fit(callbacks=[ModelCheckpoint(tmp_path, save_top_k=-1, **where)], **options)
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) >= 3
    for path in paths:
        module, resumed, _ = fit(ckpt_path=path, **options)
        assert same(module.state_dict(), undisturbed.state_dict()), path
        assert module.ids == undisturbed.ids[len(undisturbed.ids) - len(module.ids) :]
        assert resumed.global_step == trainer.global_step


def test_two_ranks(tmp_path):
    ranks(on_two_ranks, tmp_path, 1)

    def of(name):
        return [torch.load(tmp_path / f"{name}{rank}.pt", weights_only=True) for rank in (0, 1)]

    def parameters(result):  # each rank has BatchNorm statistics of its own until the next step
        return {name: value for name, value in result["model"].items() if "running" not in name}

    for plain, everything in zip(of("plain"), of("everything"), strict=True):
        assert same(plain["model"], everything["model"])
    for name in ("sb", "stale"):
        first, second = of(name)
        assert same(parameters(first), parameters(second))
        assert first["step"] == second["step"] == len(first["ids"]) == len(second["ids"]) > 4
        assert first["ids"] != second["ids"] and first["ids"][0] != first["ids"][1]
        sizes = [[len(ids) for ids in rank["ids"]] for rank in (first, second)]
        assert max(sizes[0]) == 16 and min(sizes[0]) >= 8
        assert all(abs(one - other) <= 1 for one, other in zip(*sizes, strict=True))
    for undisturbed, resumed in zip(of("sb"), of("resumed"), strict=True):
        assert same(undisturbed["model"], resumed["model"])
        assert resumed["ids"] == undisturbed["ids"][3:]


def trainer(**options):
    return L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, **options)


class Fetching(Digits):
    def training_step(self, dataloader_iter):
        return super().training_step(*next(dataloader_iter)[:2])


def make_selection():
    return SelectiveBackprop(sb.selective_backprop(0.4), nn.CrossEntropyLoss())


def test_what_cannot_work_is_refused_at_once():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(digits())

    selection, loader = make_selection(), DataLoader(digits(), 16)
    with pytest.raises(ValueError, match="length"):
        selection.wrap(DataLoader(Endless(), 16))
    with pytest.raises(RuntimeError, match=r"begins in Trainer\.fit"):
        selection.loss(torch.zeros(2, 10), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"pass selection\.wrap\(loader\)"):
        trainer(callbacks=[selection]).fit(Digits(), loader)
    with pytest.raises(RuntimeError, match=r"callbacks=\[selection\]"):
        trainer().fit(Digits(), make_selection().wrap(loader))
    with pytest.raises(ValueError, match=r"pass selection\.wrap\(loader\)"):
        trainer(callbacks=[selection]).fit(Digits(), {"a": selection.wrap(loader), "b": loader})
    for several in ([loader, loader], {"a": loader}, CombinedLoader([loader, loader])):
        with pytest.raises(ValueError, match="several"):
            selection.wrap(several)
    with pytest.raises(ValueError, match="your own DataLoader"):
        trainer(callbacks=[selection]).fit(Digits(), wrapped := selection.wrap(loader), wrapped)
    with pytest.raises(ValueError, match="dataloader_iter"):
        trainer(callbacks=[selection]).fit(Fetching(), selection.wrap(loader))
    with pytest.raises(ValueError, match="reload_dataloaders_every_n_epochs=1"):
        trainer(callbacks=[selection], reload_dataloaders_every_n_epochs=1).fit(Digits(), selection.wrap(loader))


def import_anew(monkeypatch):
    """Import the integration where Lightning has not been imported yet."""
    name = SelectiveBackprop.__module__
    for module in [one for one in sys.modules if one.startswith("lightning.") or one == name]:
        monkeypatch.delitem(sys.modules, module)
    importlib.import_module(name)


def test_a_missing_extra_names_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ImportError, match=r"pip install 'selective-backprop\[lightning\]'"):
        import_anew(monkeypatch)
