"""Damaged files, full disks and changed data: the run goes on as if nothing had happened, or says what to do."""

import ctypes
import functools
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.lab.command_line import ENVIRONMENT, run, run_function, text_of
from tests.torture.network import NAN_AT
from tests.torture.runs import check_same_outcome, command, contents, finish, place, undisturbed

ROOT = Path(__file__).parents[2]
METHOD = "stale"


class NotHere(Exception):  # noqa: N818
    """This machine does not let the fault happen."""


def copy_of_run(scratch):
    return shutil.copytree(undisturbed(METHOD), scratch / "run")


@functools.cache
def _stopped():
    """The folder of a run that ended in the middle, by outputs that became NaN."""
    folder = Path(place().name) / "stopped"
    result = run(*command(METHOD, folder), env=ENVIRONMENT | {NAN_AT: "30"})
    said = text_of(result)
    assert result.returncode == 2 and "training loss is nan" in said and "examples with ids [" in said, said
    assert "Traceback" not in said
    assert (folder / "checkpoint.pt").exists(), "it was in the middle"
    return folder


def copy_of_stopped_run(scratch):
    return shutil.copytree(_stopped(), scratch / "run")


def cut_to(share, path):
    os.truncate(path, int(share * path.stat().st_size))


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "empty": functools.partial(cut_to, 0),
    "cut in half": functools.partial(cut_to, 0.5),
    "last bytes missing": functools.partial(cut_to, 0.999),
    "a bit flipped": flip_a_bit,
}


def refused(*words, folder, run=run, **options):
    """Run a command that must end with code 2, without a traceback, and change nothing. Returns its message."""
    before = contents(folder)
    result = run(*words, **options)
    assert result.returncode == 2, text_of(result)
    assert "Traceback" not in text_of(result)
    after = contents(folder)
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after if name.endswith(".part")]
    return text_of(result)


def damaged_checkpoint(damage, scratch):
    folder = copy_of_run(scratch)
    DAMAGES[damage](folder / "checkpoint.pt")
    said = refused(*command(METHOD, folder), folder=folder)
    assert "checkpoint.pt is damaged, or was not" in said and "move it away to start the run again" in said, said


def damaged_records(damage, scratch):
    folder = copy_of_run(scratch)
    DAMAGES[damage](folder / "records.jsonl")
    finish(METHOD, folder)
    check_same_outcome(METHOD, folder)


def small_files_only(size):
    """No file can grow beyond this: what a full disk does, with an error of its own."""
    limits = (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    return functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits)


def no_room_for_a_checkpoint(scratch):
    folder = copy_of_stopped_run(scratch)
    size = (folder / "checkpoint.pt").stat().st_size
    said = refused(*command(METHOD, folder), folder=folder, prepare=small_files_only(size // 2))
    assert "File too large" in said and "checkpoint.pt" in said, said
    assert "bytes are needed, and what was there before is unchanged" in said, said
    finish(METHOD, folder)
    check_same_outcome(METHOD, folder)


def full_disk(scratch):
    """A disk of a few hundred kilobytes, full when the checkpoint is to be written, then made larger."""
    folder, disk, after = copy_of_stopped_run(scratch), scratch / "disk", scratch / "after"
    disk.mkdir()
    room = sum(map(len, contents(folder).values())) // 1024 + 64  # not enough for another checkpoint
    go_on = f"{sys.executable} -m selective_backprop_lab {' '.join(map(str, command(METHOD, disk / 'run')))!s}"
    script = f"""
        mount -t tmpfs -o size={room}k tmpfs {disk} || exit 77
        cp -r {folder} {disk}/run && {go_on}; test $? = 2 || exit 1
        cp -r {disk}/run {scratch}/full && mount -o remount,size=100m {disk} && {go_on} && cp -r {disk}/run {after}
    """
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    try:
        result = subprocess.run(words, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotHere("there is no command unshare") from None
    if result.returncode == 77 or "unshare:" in result.stderr:
        raise NotHere("a user may not mount here")
    assert result.returncode == 0, text_of(result)
    assert "No space left on device" in text_of(result), text_of(result)
    assert "what was there before is unchanged" in text_of(result)
    left = contents(scratch / "full")
    assert {name: left[name] for name in contents(folder)} == contents(folder)
    check_same_outcome(METHOD, after)


def obey_permissions():
    """For a process of its own: from now on it heeds the permissions of files. Root does not by itself."""
    if os.getuid() != 0:
        return
    library = ctypes.CDLL(None, use_errno=True)
    header, rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    done = library.capget(header, rights) == 0
    rights[0] &= ~(1 << 1)  # CAP_DAC_OVERRIDE, among those in effect
    if not done or library.capset(header, rights) != 0:
        raise OSError(ctypes.get_errno(), "cannot drop the right to ignore permissions")


def _write_obediently(folder):
    obey_permissions()
    (folder / "probe").touch()


def run_obediently(*words):
    """A command in a process that has no rights beyond those of the folder."""
    return run(*words, prepare=obey_permissions)


def require_obedience(folder):
    """Raise NotHere if a process could write to this folder although it may not."""
    if "PermissionError" not in run_function(_write_obediently, folder).stderr:
        raise NotHere("this user may write anywhere")


def read_only_folder(scratch):
    folder = copy_of_stopped_run(scratch)
    folder.chmod(0o555)
    try:
        require_obedience(folder)
        said = refused(*command(METHOD, folder), folder=folder, run=run_obediently)
    finally:
        folder.chmod(0o755)
    assert "Permission denied" in said, said
    finish(METHOD, folder)
    check_same_outcome(METHOD, folder)


def nan_in_the_middle(scratch):
    """A network whose outputs become NaN, once: the run stops with the ids, and goes on from its checkpoint."""
    folder = copy_of_stopped_run(scratch)
    finish(METHOD, folder)
    check_same_outcome(METHOD, folder)


def write_images(folder, train):
    """Grey squares in two classes, of a shade each."""
    for part, count in (("train", train), ("test", 4)):
        for number in range(count):
            file = folder / part / ("dark", "light")[number % 2] / f"{number:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 10 * number).save(file)


def _grow(folder):
    Image.new("L", (8, 8), 3).save(folder / "train" / "dark" / "99.png")


def _shrink(folder):
    (folder / "train" / "light" / "01.png").unlink()


def _replace(folder):
    Image.new("L", (8, 8), 3).save(folder / "train" / "light" / "01.png")


def changed_data(scratch):
    """More images, fewer, and as many of which one is another: none is trained on with what was learned of others."""
    data, folder = scratch / "images", scratch / "run"
    environment = ENVIRONMENT | {"XDG_CACHE_HOME": str(scratch / "cache")}
    words = ("train", "--dataset", data, "--epochs", 2, "--model", "tests.torture.network:small", "--out", folder)
    write_images(data, 12)
    result = run(*words, env=environment)
    assert result.returncode == 0, text_of(result)
    changes = {
        "12 train examples then, 13 now": _grow,
        "12 train examples then, 11 now": _shrink,
        "as many examples as now, but other ones": _replace,
    }
    for message, change in changes.items():
        shutil.rmtree(data)
        write_images(data, 12)
        change(data)
        said = refused(*words, "--resume", folder=folder, env=environment)
        assert "holds a run on other data" in said and message in said, said
