"""A finished run that the tests of a module damage, each its own copy."""

import shutil

import pytest

from tests.lab.command_line import run, text_of


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """The folder of a run by the module's own command TRAIN."""
    folder = tmp_path_factory.mktemp("run") / "finished"
    result = run(*request.module.TRAIN, "--out", folder)
    assert result.returncode == 0, text_of(result)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")
