"""Small real data and a model on which every promise can be broken: BatchNorm, dropout, a frozen part."""

import os

import hypothesis
import pytest
import torch

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported; its own default is TensorFlow

# Several test processes share the cores; and sums in a fixed order make "to the bit" meaningful.
torch.set_num_threads(1)


# Neither the clock nor chance decides whether a test passes.
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
