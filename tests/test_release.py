"""What a release and its docs are made by: workflows, the place of each version's site, the bill of materials."""

import re
import runpy

import pytest
import yaml

from tests.processes import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
place = runpy.run_path(str(ROOT / "tools" / "place_docs.py"))["place"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_a_job_that_may_write_runs_no_build(path):
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in used)
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        steps = "\n".join(step.get("run", "") for step in job["steps"])
        assert "permissions" not in job or not re.search(r"\b(make|pip|uv|build)\b", steps)


def site(folder, text):
    folder.mkdir()
    (folder / "index.html").write_text(text)
    (folder / "assets").mkdir()
    (folder / "assets" / f"{text}.css").touch()
    return folder


def test_main_has_the_root_of_the_site_and_each_release_its_folder(tmp_path):
    pages = tmp_path / "pages"
    (pages / ".git").mkdir(parents=True)
    for number, (text, ref) in enumerate(
        [("old", "heads/main"), ("one", "tags/v0.9.0"), ("ten", "tags/v0.10.0"), ("new", "heads/main")]
    ):
        place(site(tmp_path / str(number), text), pages, f"refs/{ref}")
    assert [(pages / name / "index.html").read_text() for name in ("", "v0.9.0", "v0.10.0")] == ["new", "one", "ten"]
    assert [path.name for path in (pages / "assets").iterdir()] == ["new.css"]
    assert re.findall(r'href="(\S+?)"', (pages / "versions.html").read_text()) == [
        "index.html",
        "v0.10.0/index.html",
        "v0.9.0/index.html",
    ]
    assert (pages / ".git").is_dir()
    with pytest.raises(SystemExit, match="refs/heads/other"):
        place(tmp_path / "0", pages, "refs/heads/other")
