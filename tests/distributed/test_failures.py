"""When one rank fails, all end, and each says why."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.launch import ENVIRONMENT, ROOT, SAFETY_NET, finish, run, start

LOST = "rank 0 of 2 lost another rank while they agreed on what to train on"


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """All at once, because starting takes longer than failing."""
    folder = tmp_path_factory.mktemp("failures")
    started = {name: start(f"failures:{name}", folder, 2) for name in ("worker", "killed", "empty")}
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


def test_7_an_error_of_one_rank_at_the_start_ends_all(failures):
    """With torch's own timeout of half an hour, which nobody waits for."""
    (first, first_output), (second, second_output) = failures["empty"]
    assert first == second == 1
    assert "RuntimeError: rank 1 could not start: the loader is empty: it has no batch to offer" in first_output
    assert "ValueError: the loader is empty" in second_output


TIMEOUT = 8  # seconds, of init_process_group


STOPPED = {
    "stopped_before": "connected to select together",
    "stopped_in_training": "agreed on what to train on",
    "stopped_in_delivery": "agreed on what to train on",
    "saved_on_rank_0_alone": "agreed on what to train on",
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """All wait for the timeout at the same time."""
    folder = tmp_path_factory.mktemp("stopped")
    jobs = {job: (folder / job, *start(f"failures:{job}", folder, 2, folder / job, timeout=TIMEOUT)) for job in STOPPED}
    yield jobs
    for _, _, processes in jobs.values():
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize(("job", "doing"), STOPPED.items())
def test_7_a_rank_that_stands_still_ends_the_others_within_the_timeout_of_the_user(job, doing, stopped):
    file, store, (first, second) = stopped[job]
    first.join(SAFETY_NET)
    assert first.exitcode == 1
    assert second.is_alive()  # stopped, not ended
    printed = Path(f"{store}-0.err")
    said = printed.read_text()
    assert f"rank 0 of 2 lost another rank while they {doing}" in said
    assert "all ranks must call save_checkpoint, not rank 0 alone" in said
    waited = printed.stat().st_mtime - file.stat().st_mtime
    assert waited < TIMEOUT + 20  # a busy machine takes its time to end a process


def test_7_the_job_of_torchrun_ends():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["-m", "tests.distributed.failures"]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=SAFETY_NET)
    assert result.returncode != 0
    assert "Signal 9 (SIGKILL)" in result.stderr


def test_no_thread_is_left_that_would_abort_a_process_at_its_end(tmp_path):
    """One that frees the tensors of the last message while the interpreter shuts down."""
    for left in run("failures:ended", tmp_path, 2, tmp_path / "checkpoint"):
        assert not left["open"] and left["threads"] > 0
        assert left["message"].startswith("the process group that the loader was made in is closed: make the loader")
