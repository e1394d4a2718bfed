"""When one rank fails, all end, and each says why."""

import signal
import subprocess
import sys

import pytest

from tests.ranks.launch import ENVIRONMENT, ROOT, SAFETY_NET, finish, start

LOST = "rank 0 of 2 lost another rank while they agreed on what to train on"


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """All at once, because starting takes longer than failing."""
    folder = tmp_path_factory.mktemp("failures")
    started = {name: start(f"failures:{name}", folder, 2) for name in ("worker", "killed")}
    return {name: finish(*job) for name, job in started.items()}


def test_7_a_worker_that_raises(failures):
    (first, first_output), (second, second_output) = failures["worker"]
    assert first == second == 1
    assert "cannot read image 40" in second_output
    assert LOST in first_output


def test_7_a_rank_that_is_killed(failures):
    (first, first_output), (second, _) = failures["killed"]
    assert (first, second) == (1, -signal.SIGKILL)
    assert LOST in first_output and "--max-restarts" in first_output


def test_7_the_job_of_torchrun_ends():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["-m", "tests.ranks.failures"]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=SAFETY_NET)
    assert result.returncode != 0
    assert "Signal 9 (SIGKILL)" in result.stderr
