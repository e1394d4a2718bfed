"""Real small runs, their page, and a browser to look at it; each is made once per process."""

import json
import shutil
import time

import pytest

from selective_backprop_lab.data.datasets import ImageSet, load_images
from selective_backprop_lab.probes import make_probes
from selective_backprop_lab.report import write_report
from selective_backprop_lab.runs.experiment import Entry, run_in_turns
from selective_backprop_lab.runs.ledger_log import LedgerLog
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.study.comparison import settings_for

HOSTILE = "<script>alert(1)</script>&\"'`${1}"
HOSTILE_DATA = '"><img src=x onerror=alert(2)>'


def small_digits():
    """Quick to train on."""
    data = load_images("digits")
    parts = (data.train_images[:300], data.train_labels[:300], data.test_images[:200], data.test_labels[:200])
    return ImageSet("digits", *parts, data.classes)


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """Traditional and SB with two seeds, on digits."""
    out, recipe = tmp_path_factory.mktemp("experiment"), find_recipe("digits").with_(epochs=3)
    for seed in (0, 1):
        texts = ("traditional", "sb")
        entries = [Entry(text, settings_for(MethodSpec.parse(text), recipe, seed=seed)) for text in texts]
        run_in_turns(
            entries,
            lambda settings: small_digits(),
            out,
            observers=lambda folder, settings: [LedgerLog(folder), *make_probes(("gradients", "confidence"), folder)],
        )
    return out


@pytest.fixture(scope="session")
def page_file(experiment, tmp_path_factory):
    """The report of the experiment, with a second data set and a method of names that must not be run."""
    folder = tmp_path_factory.mktemp("page")
    for name, label in (("traditional", "traditional"), ("sb", HOSTILE)):
        copy = folder / "runs" / name / "seed-0"
        shutil.copytree(experiment / name / "seed-0", copy, ignore=shutil.ignore_patterns("probes", "checkpoint.pt"))
        config = json.loads((copy / "config.json").read_text()) | {"label": label}
        config["recipe"]["dataset"] = HOSTILE_DATA
        (copy / "config.json").write_text(json.dumps(config))
        (copy / "environment.json").write_text(json.dumps({"command": ["</script>", HOSTILE], "commit": HOSTILE}))
    write_report([experiment, folder / "runs"], folder / "report.html", load=lambda run: small_digits())
    return folder / "report.html"


@pytest.fixture(scope="module")
def visit(browser):
    """Opens a page with a width, light or dark. What it complained of and asked for is in `said` and `asked`."""
    opened = []

    def open_page(url, width=1280, scheme="light", clock=False):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        if clock:  # only the test turns it
            page.clock.install()
            page.clock.pause_at(time.time() + 10)
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: (page.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for page in opened:
        page.close()
