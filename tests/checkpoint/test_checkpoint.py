"""Checkpoints of one process: exact, and sound whatever happens while they are written or afterwards."""

import errno
import resource
import shutil
import signal
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.checkpoint.runs import Run, save_and_die, saved
from tests.helpers import digits
from tests.lab.command_line import run_function


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "method",
    [sb.traditional(), sb.selective_backprop(0.5), sb.ledger_backprop(), sb.methods.predicted_selective_backprop(0.5)],
    ids=lambda method: method.name,
)
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path, method):
    torch.manual_seed(7)
    expected = Run(method)
    assert not expected.load(tmp_path / "runs"), "the first start"
    batches = expected.train(lambda step: step in (4, 9) and expected.save(tmp_path / "runs"))
    torch.manual_seed(99)
    run = Run(method)
    assert run.load(tmp_path / "runs")
    assert run.train() == batches[9:]
    assert same(run.state(), expected.state())


def test_a_run_of_the_sampler_goes_on(tmp_path):
    def make():
        return sb.SelectiveSampler(100, sb.ledger_backprop(), batch_size=10, num_epochs=3, seed=3)

    def epoch(sampler):
        ids = []
        for (batch,) in DataLoader(torch.utils.data.TensorDataset(torch.arange(100)), 10, sampler=sampler):
            sampler.update(batch.float() % 7)
            ids += batch.tolist()
        return ids

    sampler, resumed = make(), make()
    epoch(sampler)
    sb.save_checkpoint(tmp_path, sampler)
    assert sb.load_checkpoint(tmp_path, resumed)
    assert epoch(resumed) == epoch(sampler)


def test_plain_torch_load_reads_every_file(tmp_path):
    run, _ = saved(tmp_path, [2])
    state = torch.load(tmp_path / "checkpoint-00000001" / "rank-0.pt", weights_only=True)
    assert same(state["model"], dict(run.model.state_dict()))


def test_the_last_two_are_kept(tmp_path):
    (tmp_path / "checkpoint-00000007.unfinished").mkdir()  # of a save that was killed
    saved(tmp_path, [1, 2, 3])
    assert names(tmp_path) == ["checkpoint-00000002", "checkpoint-00000003"]


def test_a_save_that_is_killed_at_any_moment_loses_nothing(tmp_path):
    saved(tmp_path / "before", [1, 2])
    steps, number, killed = [], 0, True
    while killed:
        number += 1
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", folder)
        done = run_function(save_and_die, folder, number)
        killed = done.returncode != 0
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        run = Run()
        assert run.load(folder)
        steps.append(run.loader.stats.batches)
        run.save(folder)
        assert len(names(folder)) == 2, "nothing of the killed save is left"
    assert number > 8
    assert steps == sorted(steps) and set(steps) == {2, 3}


def test_a_full_disk_loses_nothing(tmp_path):
    run, _ = saved(tmp_path, [1, 2])
    before = contents(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = {len(content) for content in before.values()}
    for size in (0, 10, max(sizes) // 3, max(sizes) // 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(OSError) as error:
                run.save(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.errno == errno.EFBIG
        assert contents(tmp_path) == before and len(names(tmp_path)) == 2


def damages(file):
    """The file without its end, without its content, and with a bit flipped at many places."""
    whole = file.read_bytes()
    yield b""
    yield whole[:-1]
    chance = torch.Generator().manual_seed(0)
    for place in torch.randint(8 * len(whole), (25,), generator=chance).tolist():
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        yield bytes(content)


def test_damage_is_noticed_and_the_checkpoint_before_is_loaded(tmp_path):
    saved(tmp_path, [2, 3])
    newest = tmp_path / "checkpoint-00000002"
    run = Run()
    for file in newest.iterdir():
        whole = file.read_bytes()
        for content in damages(file):
            file.write_bytes(content)
            with pytest.warns(UserWarning, match=f"00000001.*{newest.name}.*damaged|damaged.*{newest.name}"):
                assert run.load(tmp_path)
            assert run.loader.stats.batches == 2
        file.unlink()
        with pytest.warns(UserWarning, match=newest.name):
            run.load(tmp_path)
        file.write_bytes(whole)
    assert run.load(tmp_path) and run.loader.stats.batches == 3
    for file in tmp_path.rglob("*.pt"):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"rank-0\.pt"):
        run.load(tmp_path)


def test_a_checkpoint_of_another_run_is_refused_and_changes_nothing(tmp_path):
    saved(tmp_path, [2])
    run = Run(sb.ledger_backprop())
    before = run.state()
    with pytest.raises(ValueError, match="ledger_backprop"):
        run.load(tmp_path)
    run = Run()
    with pytest.raises(ValueError, match="optimizer"):
        sb.load_checkpoint(tmp_path, run.loader, model=run.model)
    assert same(run.state(), before)


class Odd(nn.Module):
    def get_extra_state(self):
        return {Odd}

    def set_extra_state(self, state):
        pass


def test_what_cannot_be_saved_is_refused_at_once(tmp_path):
    run = Run()
    with pytest.raises(TypeError, match="state_dict"):
        sb.save_checkpoint(tmp_path, DataLoader(digits()))
    with pytest.raises(TypeError, match="odd must have state_dict"):
        sb.save_checkpoint(tmp_path, run.loader, odd=3)
    with pytest.raises(TypeError, match="plain data"):
        sb.save_checkpoint(tmp_path, run.loader, odd=Odd())
    assert not names(tmp_path)
    run.save(tmp_path)
    for call in (run.save, run.load):
        for path in (tmp_path / "checkpoint-00000001", tmp_path / "checkpoint-00000001" / "rank-0.pt"):
            with pytest.raises(ValueError, match="pass"):
                call(path)


def test_saving_changes_nothing(tmp_path):
    torch.manual_seed(7)
    expected = Run().train()
    torch.manual_seed(7)
    run = Run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.train(lambda step: run.save(tmp_path)) == expected
