"""No tensor on the wrong device, and promise 8, without a GPU: every method trains on a device in pure Python."""

import functools
import json
import subprocess
import sys

import pytest
import torch.utils.backend_registration

from tests.contracts.methods import METHODS
from tests.processes import ENVIRONMENT, ROOT

pytestmark = [
    pytest.mark.xdist_group("toy device"),  # all take what one process found out
    pytest.mark.skipif(
        not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="this torch takes no devices written in Python",
    ),
]
RUNS = [*METHODS, "an audit", "SelectiveSampler", "SelectiveLoss"]
NUM_BATCHES = 19
SELDOM = {
    "/scorers/proxies.py": "the proxy moves to the device once",
    "/scorers/base.py": "every hundredth batch is scored by the large model too",
}
OTHERS_THAN_ON_THE_CPU = {
    "proxy": "it trains with dropout, which draws in another way there",
    "kath18": "the schedule learns losses some steps later where reading them at once would wait",
}


@functools.cache
def found():
    command = [sys.executable, "-m", "tests.contracts.on_the_toy_device"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", RUNS)
def test_8_trains_on_another_device_and_waits_once_per_candidate_batch(name):
    run = found()[name]
    assert not run["error"], run["error"]
    assert run["as on the CPU"] or any(part in name for part in OTHERS_THAN_ON_THE_CPU)
    for number, epoch in enumerate(run["epochs"]):
        waits = [wait for wait in epoch["waits"] if number or not any(place in wait for place in SELDOM)]
        # The last losses of an epoch are read before the next one is planned.
        assert len(waits) <= 1 + (0 if epoch["planned"] else NUM_BATCHES), waits


def test_every_run_is_tested():
    assert set(found()) == set(RUNS)
