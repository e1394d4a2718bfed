"""Whatever string stands in any place of a run's files, the page shows it as text."""

import copy
import json

from selective_backprop_lab.report import write_report
from tests.lab.report.made_up import made_up_run

ATTACK = "<script>alert({0})</script>\"'><img src=x onerror=alert({0})>`${{{0}}}</script><!--"


class Attacks:
    """A different one for each place, so that a page tells which got through."""

    def __init__(self):
        self.places = {}

    def at(self, *path):
        text = ATTACK.format(len(self.places))
        self.places[text] = path
        return text

    def everywhere(self, tree, *path):
        """In the place of every string, and in a key that was not there."""
        if isinstance(tree, dict):
            filled = {key: self.everywhere(value, *path, key) for key, value in tree.items()}
            more = {self.at(*path, "new key"): self.at(*path, "new value")}
            return filled if path[-1:] == ("seconds",) else filled | more  # which are numbers, or refused
        if isinstance(tree, list):
            return [self.everywhere(value, *path, number) for number, value in enumerate(tree)]
        return self.at(*path) if isinstance(tree, str) else tree


def write_runs(folder, attacks):
    """Two methods that differ in everything that can differ, so that each section has something to draw."""
    environment = {"command": ["selective-backprop", "x"], "commit": "c", "torch": "t", "python": "p", "machine": "m"}
    environment |= {"cores": "1", "threads": "1", "accelerator": "a", "selective_backprop": "0"}
    for number, selectivity in enumerate((0.3, 0.6)):
        run = made_up_run("sb", [0.3, 0.2, 0.1], scored=100, recipe={"decay": {"kind": "cosine"}})
        config = copy.deepcopy(run.config) | {"selectivity": selectivity, "options": {"o": "v"}, "label": "sb"}
        config = attacks.everywhere(config, "config")
        path = folder / attacks.at("folder").replace("/", "_") / f"seed-{number}"
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config))
        (path / "environment.json").write_text(json.dumps(attacks.everywhere(environment, "environment")))
        records = [attacks.everywhere(record, "records", i) for i, record in enumerate(run.records)]
        (path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_no_string_of_any_field_becomes_markup(tmp_path):
    attacks = Attacks()
    write_runs(tmp_path / "runs", attacks)
    write_report([tmp_path / "runs"], tmp_path / "report.html", images=False)
    page = (tmp_path / "report.html").read_text()
    through = [place for text, place in attacks.places.items() if text[:15] in page or f"<img {text[35:50]}" in page]
    assert not through
    assert "<script>alert" not in page and "<img src=x" not in page and "</script><!--" not in page
    shown = {place for text, place in attacks.places.items() if text.split(")")[0].split("<script>")[1] + ")" in page}
    expected = {("config", "label"), ("config", "recipe", "dataset"), ("config", "recipe", "model")}
    assert expected <= shown and ("environment", "commit") in shown, "they are there, as text"
