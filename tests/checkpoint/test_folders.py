"""Checkpoint folders that several processes use, full disks, links that a stranger left: real processes and files."""

import errno
import fcntl
import functools
import os
import resource
import shutil
import subprocess
import sys
import time
import warnings

import pytest
import torch

import selective_backprop as sb
from selective_backprop.checkpoint import folders, saving
from selective_backprop.files.locks import FolderLock, is_locked
from selective_backprop.files.sealed import seal
from tests.lab.command_line import ENVIRONMENT, Running, run_function, text_of
from tests.torture import collisions
from tests.torture.collisions import load, make_parts, save_again_and_again, set_all


def saved(folder, value=7.0):
    loader, parts = make_parts()
    set_all(parts, value)
    sb.save_checkpoint(folder, loader, **parts)
    return loader, parts


def files_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- two processes


def test_two_processes_on_one_folder_never_mix(tmp_path):
    """Few of the collisions of `make torture`."""
    found, _ = collisions.try_collisions(tmp_path, 3)
    assert set(found) == {"good"} and found.total() >= 3, found


def save_impatiently(folder, first):
    assert folders.PATIENCE == 5, "as the docs say"
    folders.PATIENCE = 0.1
    save_again_and_again(folder, first)


def test_the_second_process_is_refused_while_the_first_lives(tmp_path):
    folder = tmp_path / "checkpoints"
    _loader, _parts = saved(folder)
    before = files_in(folder)
    (tmp_path / "go").touch()
    result = run_function(save_impatiently, folder, 100)
    assert "refused: another process saves its checkpoints to" in result.stdout, text_of(result)
    assert "still did after 0.1 seconds: end it, or save to another folder" in result.stdout
    assert files_in(folder) == before


def test_a_second_process_may_load_and_is_told(tmp_path):
    folder = tmp_path / "checkpoints"
    (tmp_path / "go").touch()
    with Running(save_again_and_again, (folder, 0), ENVIRONMENT, None) as other:
        try:
            while "saved" not in other.output():
                assert other.poll() is None, other.communicate()
            loader, parts = make_parts()
            with pytest.warns(
                UserWarning, match="this process can load them, but it cannot save there before the other one"
            ):
                assert sb.load_checkpoint(folder, loader, **parts)
        finally:
            other.send_signal(9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sb.load_checkpoint(folder, loader, **parts)
        sb.save_checkpoint(folder, loader, **parts)  # the dead one does not hold it


def hold_and_be_killed(folder):
    """In a process of its own, which leaves a worker behind that lives until a file is there."""
    _lock = FolderLock(folder)
    if os.fork() == 0:
        (folder / "worker").touch()
        while not (folder / "over").exists():
            time.sleep(0.01)
        os._exit(0)
    while not (folder / "worker").exists():
        time.sleep(0.01)
    assert is_locked(folder)
    (folder / "was locked").touch()
    os.kill(os.getpid(), 9)


def test_a_worker_that_outlives_its_parent_does_not_hold_the_lock(tmp_path):
    """DataLoader workers notice some seconds later that their parent was killed."""
    with Running(hold_and_be_killed, (tmp_path,), ENVIRONMENT, None) as process:
        try:
            while process.poll() is None:
                time.sleep(0.01)
            assert (tmp_path / "was locked").exists()
            assert not is_locked(tmp_path)
        finally:
            (tmp_path / "over").touch()


def test_a_forked_process_does_not_release_the_lock_of_its_parent(tmp_path):
    lock = FolderLock(tmp_path)
    if (child := os.fork()) == 0:
        try:
            lock.release()
        finally:
            os._exit(int(lock.is_held))
    assert os.waitpid(child, 0)[1] == 0, "the child does not hold it"
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_a_folder_that_was_removed_belongs_to_who_saves_to_it_first(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "PATIENCE", 0)
    folder = tmp_path / "checkpoints"
    loader, parts = saved(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    other = FolderLock(folder)  # as another process would take it
    with pytest.raises(RuntimeError, match="another process saves its checkpoints to"):
        sb.save_checkpoint(folder, loader, **parts)
    other.release()
    shutil.rmtree(folder)
    sb.save_checkpoint(folder, loader, **parts)
    assert is_locked(folder)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_without_locks_at_most_one_process_saves(tmp_path, monkeypatch, number):
    """Some network file systems have no flock at all (ENOSYS). Others have one that fails (ENOLCK)."""

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(folders, "PATIENCE", 0)
    loader, parts = make_parts()
    if number == errno.ENOLCK:
        (tmp_path / "checkpoint-1.unfinished").mkdir()
        with pytest.raises(OSError, match=r"this folder cannot be locked \(No locks available\), so that another"):
            sb.save_checkpoint(tmp_path, loader, **parts)
        assert list(tmp_path.glob("*.unfinished")), "it may belong to another process"
        return
    with pytest.warns(UserWarning, match="flock not supported on this filesystem"):
        other = FolderLock(tmp_path)
        with pytest.raises(RuntimeError, match=r"another process saves.*if it was killed, remove .*/\.lock"):
            sb.save_checkpoint(tmp_path, loader, **parts)
        other.release()
        sb.save_checkpoint(tmp_path, loader, **parts)
        assert is_locked(tmp_path)


@pytest.mark.parametrize("name", ["checkpoint-007", "checkpoint-0", "checkpoint-\u0663", "checkpoint-" + "9" * 30])
def test_names_that_are_not_ours_are_passed_over(tmp_path, name):
    (tmp_path / name).mkdir()
    loader, parts = make_parts()
    assert not sb.load_checkpoint(tmp_path, loader, **parts)
    for value in (1.0, 2.0, 3.0):
        set_all(parts, value)
        sb.save_checkpoint(tmp_path, loader, **parts)
    assert load(tmp_path) == ("good", 3.0)
    assert (tmp_path / name).exists()


def test_other_files_in_a_checkpoint_do_not_matter(tmp_path):
    saved(tmp_path)
    (tmp_path / "checkpoint-1" / "notes.txt").write_text("the good one")
    assert load(tmp_path) == ("good", 7.0)


def test_a_number_that_leaves_no_next_one_is_refused(tmp_path):
    loader, parts = saved(tmp_path)
    (tmp_path / f"checkpoint-{10**18 - 1}").touch()
    with pytest.raises(FileExistsError, match=r"no checkpoint can follow .*/checkpoint-9{18}: remove it"):
        sb.save_checkpoint(tmp_path, loader, **parts)
    assert not list(tmp_path.glob("*.unfinished"))
    assert load(tmp_path) == ("good", 7.0)


def test_a_checkpoint_that_is_removed_while_it_is_read(tmp_path, monkeypatch):
    saved(tmp_path, 1.0)
    map_large = saving.map_large

    def read_late(path):
        if path.parent.name == "checkpoint-1":  # another process has saved meanwhile
            path.parent.rename(tmp_path / "checkpoint-2")
        return map_large(path)

    monkeypatch.setattr(saving, "map_large", read_late)
    assert load(tmp_path) == ("good", 1.0)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]


def test_what_has_a_right_checksum_and_cannot_be_read_is_passed_over(tmp_path):
    loader, parts = saved(tmp_path, 1.0)
    set_all(parts, 2.0)
    sb.save_checkpoint(tmp_path, loader, **parts)
    for content in (seal({"ranks": 1}), seal({"ranks": "many", "loader": {}, "parts": {}, "tensors": {}}), seal({})):
        (tmp_path / "checkpoint-2" / "rank-0.pt").write_bytes(content)
        with pytest.warns(UserWarning, match=r"going on from .*checkpoint-1, as newer checkpoints are damaged"):
            sb.load_checkpoint(tmp_path, loader, **parts)
        assert parts["value"].value == 1.0
        assert float(next(parts["model"].parameters()).detach()[0, 0]) == 1.0


# ---- full disks


def save_in_vain(folder, size):
    """In a process of its own: no file may grow beyond the size."""
    loader, parts = saved(folder, 1.0)
    set_all(parts, 2.0)
    before = files_in(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        sb.save_checkpoint(folder, loader, **parts)
    except Exception as error:  # what a user's own handler would catch
        print(f"{type(error).__name__} {error.errno}: {error}")
    assert files_in(folder) == before
    assert load(folder) == ("good", 1.0)


@pytest.mark.parametrize("size", [0, 1000, 3000, 100_000])
def test_no_room_for_a_checkpoint_is_an_oserror(tmp_path, size):
    result = run_function(save_in_vain, tmp_path / "run", size)
    assert result.returncode == 0, text_of(result)
    assert result.stdout.startswith(f"OSError {errno.EFBIG}: "), result.stdout
    assert "File too large" in result.stdout and "those before are as they were" in result.stdout
    assert "bytes are free there" in result.stdout and str(tmp_path / "run") in result.stdout


def write_in_vain(kind, path):
    scores, record = torch.rand(5000), sb.pruning.SelectionRecord(40_000)
    record.add_ids(torch.arange(100))
    write = (
        functools.partial(sb.pruning.save_scores, scores, path)
        if kind == "scores"
        else functools.partial(record.save, path)
    )
    write()
    before = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        write()
    except OSError as error:
        print(f"{error.errno}: {error}")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["scores", "record"])
def test_no_room_for_scores_or_records_leaves_the_old_file(tmp_path, kind):
    result = run_function(write_in_vain, kind, tmp_path / "file.pt")
    assert result.returncode == 0, text_of(result)
    assert result.stdout.startswith(f"{errno.EFBIG}: ") and "bytes are needed" in result.stdout, result.stdout
    assert "bytes are free there" in result.stdout and str(tmp_path / "file.pt") in result.stdout


FULL = """
import sys, torch
from pathlib import Path
import selective_backprop as sb
from tests.torture.collisions import make_parts, set_all
folder = Path(sys.argv[1])
loader, parts = make_parts()
for value in range(1, 20):
    set_all(parts, value)
    try:
        sb.save_checkpoint(folder / "run", loader, **parts)
    except OSError as error:
        assert error.errno == 28, error
        print("full", value, error)
        break
    (folder / f"filler-{value}").write_bytes(bytes(300_000))
assert sb.load_checkpoint(folder / "run", loader, **parts)
assert parts["value"].value == value - 1
assert not list((folder / "run").glob("*.unfinished"))
try:
    sb.pruning.save_scores(torch.rand(300_000), folder / "scores.pt")
except OSError as error:
    assert error.errno == 28, error
    print("full too")
assert not list(folder.glob("scores*"))
"""


def test_a_disk_that_is_really_full(tmp_path):
    script = f'mount -t tmpfs -o size=2500k tmpfs {tmp_path} || exit 77; exec {sys.executable} -c "$0" {tmp_path}'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, FULL]
    try:
        result = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no command unshare")
    if result.returncode == 77 or "unshare:" in result.stderr:
        pytest.skip("a user may not mount here")
    assert result.returncode == 0, text_of(result)
    assert "full too" in result.stdout and "No space left on device" in result.stdout, text_of(result)


def test_no_permission_is_an_oserror_with_the_free_bytes(tmp_path, monkeypatch):
    """Made by a call that refuses: whoever runs tests as root may write anywhere."""

    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    loader, parts = make_parts()
    monkeypatch.setattr(os, "mkdir", refuse)
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(PermissionError, match=r"Permission denied; [\d,]+ bytes are free there.*"):
            sb.save_checkpoint(folder, loader, **parts)


def test_a_device_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to("/dev/full")
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(OSError, match="this is not a regular file, so it is not replaced"):
            sb.pruning.save_scores(torch.rand(5), path)
    assert pipe.is_fifo() and (tmp_path / "link").is_symlink()


# ---- links


def test_links_in_a_folder_of_checkpoints_lead_nowhere(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "run"
    for place in (outside, folder):
        place.mkdir()
    (outside / "mine").write_text("mine")
    (outside / "folder").mkdir()
    (outside / "folder" / "mine").write_text("mine")
    before = files_in(outside)
    loader, parts = make_parts()
    (folder / ".lock").symlink_to(outside / "mine")
    with pytest.raises(OSError, match="must be a regular file to lock the folder, and is none: remove it"):
        sb.save_checkpoint(folder, loader, **parts)
    (folder / ".lock").unlink()
    for name in ("checkpoint-1", "checkpoint-2", "checkpoint-3.unfinished", "checkpoint-4.unfinished"):
        (folder / name).symlink_to(outside / ("folder" if "3" in name or "1" in name else "mine"))
    for _ in range(3):
        sb.save_checkpoint(folder, loader, **parts)
    assert files_in(outside) == before
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-5"]
    (tmp_path / "scores.pt.part").symlink_to(outside / "mine")
    (tmp_path / "scores.pt").symlink_to(outside / "mine")
    sb.pruning.save_scores(torch.rand(5), tmp_path / "scores.pt")
    assert files_in(outside) == before and not (tmp_path / "scores.pt").is_symlink()


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (sb.pruning.load_scores, sb.pruning.SelectionRecord.load):
        with pytest.raises(OSError, match="is a pipe, not a file with content"):
            read(tmp_path / "pipe")
    loader, parts = saved(tmp_path / "run")
    file = tmp_path / "run" / "checkpoint-1" / "rank-0.pt"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used: .* is a pipe"):
        sb.load_checkpoint(tmp_path / "run", loader, **parts)
