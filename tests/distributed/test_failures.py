"""When one rank fails, all end, and each says why."""

import signal
from pathlib import Path

import pytest

from tests.distributed.launch import SAFETY_NET, finish, start

LOST = "rank 0 of 2 lost another rank"


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
    assert "rank 1" in first_output and all("empty" in output for output in (first_output, second_output))


TIMEOUT = 8  # seconds, of init_process_group


STOPPED = ("stopped_before", "stopped_in_training", "saved_on_rank_0_alone")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """All wait for the timeout at the same time."""
    folder = tmp_path_factory.mktemp("stopped")
    jobs = {job: start(f"failures:{job}", folder, 2, folder / job, timeout=TIMEOUT) for job in STOPPED}
    yield jobs
    for _, processes in jobs.values():
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize("job", STOPPED)
def test_7_a_rank_that_stands_still_ends_the_others_within_the_timeout_of_the_user(job, stopped):
    store, (first, second) = stopped[job]
    first.join(SAFETY_NET)
    assert first.exitcode == 1
    assert second.is_alive()  # stopped, not ended
    said = Path(f"{store}-0.err").read_text()
    assert LOST in said and "save_checkpoint" in said
