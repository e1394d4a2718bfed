"""Real small runs, their page, and a browser to look at it; each is made once per process."""

import dataclasses
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


def train(out, texts, data, *, seeds=1, probes=(), **more):
    recipe = find_recipe("digits").with_(epochs=3)
    for seed in range(seeds):
        entries = [Entry(text, settings_for(MethodSpec.parse(text), recipe, seed=seed, **more)) for text in texts]
        run_in_turns(
            entries,
            lambda settings: data,
            out,
            observers=lambda folder, settings: [LedgerLog(folder), *make_probes(probes, folder)],
        )


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """Traditional and SB with two seeds, on digits."""
    out = tmp_path_factory.mktemp("experiment")
    train(out, ["traditional", "sb"], small_digits(), seeds=2, probes=("gradients", "confidence"))
    return out


@pytest.fixture(scope="session")
def page_file(experiment, tmp_path_factory):
    """The report of the experiment, with a second data set and a method of names that must not be run."""
    folder = tmp_path_factory.mktemp("page")
    for name, label in (("traditional", None), ("sb", HOSTILE)):
        copy = folder / "runs" / name / "seed-0"
        shutil.copytree(experiment / name / "seed-0", copy, ignore=shutil.ignore_patterns("probes", "checkpoint.pt"))
        config = json.loads((copy / "config.json").read_text())
        config["recipe"]["dataset"] = HOSTILE_DATA
        config["label"] = label or config["label"]
        (copy / "config.json").write_text(json.dumps(config))
        (copy / "environment.json").write_text(json.dumps({"command": ["</script>", HOSTILE], "commit": HOSTILE}))
    write_report([experiment, folder / "runs"], folder / "report.html", load=lambda run: small_digits())
    return folder / "report.html"


@dataclasses.dataclass
class Visit:
    """A page that was opened, and what it did beside being looked at."""

    page: object
    said: list
    asked: list


@pytest.fixture(scope="module")
def visit(browser, page_file):
    """Opens the report, or another page; with a width, light or dark, and with a clock that only the test turns."""
    opened = []

    def open_page(width=1200, scheme="light", url=None, clock=False):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        if clock:
            page.clock.install()
            page.clock.pause_at(time.time() + 10)
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url or page_file.as_uri())
        if url is None:
            page.evaluate("document.querySelectorAll('details.workload').forEach(details => { details.open = true })")
            page.evaluate("Promise.all(figures.filter(f => !drawn.get(f.id)).map(draw))")
        return Visit(page, said, asked)

    yield open_page
    for page in opened:
        page.close()


@pytest.fixture(scope="module")
def seen(visit):
    """The report with all its charts drawn. Tests leave it as they found it."""
    return visit()
