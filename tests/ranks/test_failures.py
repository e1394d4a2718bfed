"""When one rank fails, all end, and each says why."""

import signal
import subprocess
import sys

import pytest

from tests.ranks.launch import ENVIRONMENT, ROOT, SAFETY_NET, finish, run, start

LOST = "lost another rank while they agreed on what to train on"


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """All at once, because starting takes longer than failing."""
    folder = tmp_path_factory.mktemp("failures")
    jobs = {"nan": ["global"], "nan, local": ["local"], "worker": [], "killed": []}
    started = {name: start(f"failures:{name.split(',')[0]}", folder, 2, *args) for name, args in jobs.items()}
    return {name: finish(*job) for name, job in started.items()}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("nan", "rank 1 has scores that are not finite: see its own error"),
        ("nan, local", "rank 1 could not select from its candidates: see its own error"),
    ],
)
def test_7_a_loss_that_is_not_finite(failures, name, other):
    """The rank that has it names the example, the other names the rank."""
    (first, first_output), (second, second_output) = failures[name]
    assert first == second == 1
    assert other in first_output
    assert "21" in second_output.splitlines()[-1] and "nan" in second_output.splitlines()[-1]


def test_7_a_worker_that_raises(failures):
    (first, first_output), (second, second_output) = failures["worker"]
    assert first == second == 1
    assert "cannot read image 150" in second_output
    assert LOST in first_output or "Connection closed by peer" in first_output  # of gradients, if DDP notices first


def test_7_a_rank_that_is_killed(failures):
    (first, first_output), (second, _) = failures["killed"]
    assert (first, second) == (1, -signal.SIGKILL)
    assert f"rank 0 of 2 {LOST}" in first_output and "--max-restarts" in first_output


def test_7_the_job_of_torchrun_ends(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["-m", "tests.ranks.failures"]
    result = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=SAFETY_NET, check=False
    )
    assert result.returncode != 0
    assert "Signal 9 (SIGKILL)" in result.stderr


def test_5_a_state_of_another_rank_is_refused(tmp_path):
    for rank, (other_rank, one_process) in enumerate(run("failures:states", tmp_path)):
        assert f"saved by rank {1 - rank} of 2, this is rank {rank} of 2" in other_rank
        assert f"saved by rank 0 of 1, this is rank {rank} of 2" in one_process and "save_checkpoint" in one_process
