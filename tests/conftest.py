"""Small real data and a model on which every promise can be broken: BatchNorm, dropout, a frozen part."""

import gc
import os
import shutil

import hypothesis
import pytest
import torch

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported; its own default is TensorFlow

# Scripts for processes of their own. JAX in this one would make every fork a warning, and Keras has one backend. The
# toy device would be the accelerator of torch in all tests.
collect_ignore = ["contracts/on_the_toy_device.py", "integrations/keras_jax.py", "toy_device.py"]

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


@pytest.fixture(scope="session")
def browser():
    """Chromium, once per process: Playwright refuses to start a second time beside itself."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        # Tests that share something costly go to one worker (--dist loadgroup), or each would make it anew.
        if shared := _shared_with_others(item):
            item.add_marker(pytest.mark.xdist_group(min(shared)))


def pytest_collection_finish(session):
    """Leave all that is imported by now out of garbage collections, which trainers ask for: 0.4 s each without this."""
    gc.collect()
    gc.freeze()


def _shared_with_others(item):
    """Ids of the modules and packages below this one whose long-lived fixtures this test uses."""
    information = getattr(item, "_fixtureinfo", None)  # doctests have none
    fixtures = [made[-1] for made in information.name2fixturedefs.values()] if information is not None else []
    return {
        fixture.baseid
        for fixture in fixtures
        if fixture.scope in ("module", "session") and fixture.baseid not in ("", "tests")
    }
