"""What a command meets on a machine: files that cannot grow, folders that it may not write to."""

import ctypes
import functools
import os
import resource

from tests.lab.command_line import run, run_function, text_of
from tests.torture.runs import contents


class NotHere(Exception):  # noqa: N818
    """This machine does not let the fault happen."""


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


def small_files_only(size):
    """No file can grow beyond this: what a full disk does, with an error of its own."""
    limits = (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    return functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits)


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
