"""Every code block of every page, run as a reader would: see `tests/pages.py` for what is done with each language."""

import ast
import functools
import json
import os
import re
import runpy
import tomllib

import pytest
import torch

import selective_backprop as sb
from selective_backprop import methods
from tests.lab.command_line import run, text_of
from tests.pages import DOCS, GRANTED, PAGES, SELF_CONTAINED, TRAIN, blocks, commands, sides, smallest, write_images
from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = PROJECT["project"]["urls"]["Source"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
TARGETS = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)

# Pages that other tests run, because they change the package or look at the files that commands make.
ELSEWHERE = {
    "docs/changelog.md": "has CHANGELOG.md alone",
    "docs/guides/extending.md": "test_extending.py",
    "docs/lab/figures.md": "lab/report/test_figures_page.py",
}
FRAMEWORKS = ("keras", "lightning", "transformers", "trl", "peft", "datasets", "tensorboard")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def python(code, page, line, names):
    """Run Python with the line numbers of the page, so that a traceback shows where to look."""
    exec(compile("\n" * line + code, name_of(page), "exec"), names)


def shell(words, folder, images):
    """Run a command at the smallest size. Commands that would change this machine are checked only."""
    program, *rest = words
    there = functools.partial(os.chdir, folder)
    if program == "git":
        assert rest == ["clone", REPOSITORY]
    elif program == "cd":
        assert rest == [REPOSITORY.rsplit("/", 1)[1]], "what git clone makes"
    elif program == "pip":
        for extras in re.findall(r"\[(.*?)\]", " ".join(rest)):
            assert set(extras.split(",")) <= EXTRAS.keys(), f"there is no extra {extras}"
    elif program == "uv":
        assert rest[0] == "add" and rest[2:3] in ([], ["--extra"]) and set(rest[3:]) <= EXTRAS.keys()
    elif program == "make":
        assert rest[0] in TARGETS, f"the Makefile has no {rest[0]}"
    elif program == "python":
        assert (ROOT / rest[0]).is_file() or rest[:1] == ["-m"], f"there is no {rest[0]}"
    else:
        assert program == "selective-backprop", f"tests do not know how to run {program}"
        result = run(*smallest(rest, images), prepare=there)
        assert result.returncode == 0, f"{rest}\n{text_of(result)}"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "images"
    write_images(folder)
    return folder


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own, here and below
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`")
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # Keras' own
@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in ELSEWHERE], ids=name_of)
def test_every_block_runs(page, images, tmp_path, monkeypatch):
    found = blocks(page.read_text())
    for framework in FRAMEWORKS:
        if any(re.search(rf"^[ +]*(import|from) {framework}\b", block.code, re.MULTILINE) for block in found):
            pytest.importorskip(framework, reason=f"needs {framework}")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    try:
        if name_of(page) not in SELF_CONTAINED:
            exec(GRANTED, names)
        for block in found:
            match block.language:
                case "python":
                    python(block.code, page, block.line, names)
                case "diff":
                    old, new = sides(block.code)
                    compile(old, name_of(page), "exec")
                    python(new, page, block.line, names)
                case "sh":
                    for words in commands(block.code):
                        shell(words, tmp_path, images)
                case "toml":
                    tomllib.loads(block.code)
                case "json":
                    json.loads(block.code)
                case "py" if name_of(page) == "docs/guides/sampler.md":
                    compile(block.code, name_of(page), "exec")  # sampler/test_other_frameworks.py runs it
                case "text" | "bibtex" | "imports":
                    pass
                case _:
                    pytest.fail(f"{name_of(page)}:{block.line}: a block of {block.language or 'no language'}")
        if page.parent == DOCS / "methods" and page.stem in methods.__all__:
            exec(TRAIN, names)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_fences_are_closed_and_seen():
    for page in PAGES:
        text = page.read_text()
        fences = len(re.findall(r"^ *```", text, re.MULTILINE))
        shown = sum(1 for block in blocks(text) if text.splitlines()[block.line - 1].lstrip().startswith("```"))
        assert fences == 2 * shown, f"{name_of(page)} has a fence that is not closed"


def test_links_to_the_repository_lead_to_files():
    """mkdocs checks the links between pages. These lead to the repository, where it cannot look."""
    raw = REPOSITORY.replace("github.com", "raw.githubusercontent.com")
    checked = 0
    for page in PAGES:
        for path in re.findall(rf"(?:{REPOSITORY}/(?:blob|tree)/main|{raw}/main)/([^)#\s\"]+)", page.read_text()):
            assert (ROOT / path).exists(), f"{name_of(page)} links to {path}"
            checked += 1
    assert checked > 3


def test_every_page_says_what_it_is():
    for page in DOCS.rglob("*.md"):
        if name_of(page) != "docs/changelog.md":
            assert re.match(r"(---\n.*?---\n+)?# \S", page.read_text(), re.DOTALL), f"{name_of(page)} has no title"


def _texts():
    """All texts of the source. A gap (…) stands for a value."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_that_are_explained_are_those_of_the_source():
    """Readers paste them into the search."""
    quoted = re.findall(r"^\*\*`(.+)`\*\*$", (DOCS / "questions.md").read_text(), re.MULTILINE)
    written = list(_texts())
    assert quoted and [quote for quote in quoted if not any(quote.strip("… ") in text for text in written)] == []


# ---- the pages of methods

INDEX = (DOCS / "methods" / "index.md").read_text()


@pytest.mark.parametrize("name", methods.__all__)
def test_every_method_has_a_page_with_all_that_a_reader_asks(name):
    assert f"| [`{name}(" in INDEX, "no row in docs/methods/index.md"
    text = (DOCS / "methods" / f"{name}.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert {"The rule", "Cost", "When to use it", "When not", "Options"} <= set(headings)
    assert f"../images/methods/{name}.svg" in text and (DOCS / "images" / "methods" / f"{name}.svg").is_file()
    assert "$" in text, "no formula"
    place = name if name in sb.__all__ else f"methods.{name}"
    assert f"::: selective_backprop.{place}\n" in text
    assert f"sb.{place}(" in text


def test_the_picture_of_a_method_shows_what_the_method_does():
    """Its hardest examples follow from the losses alone, so the picture is the same wherever it is drawn."""
    drawn = runpy.run_path(str(ROOT / "tools" / "method_pictures.py"))["picture"]("traditional")
    assert (DOCS / "images" / "methods" / "traditional.svg").read_text() == drawn
    weights, loader = runpy.run_path(str(ROOT / "tools" / "method_pictures.py"))["run"]("ledger_backprop")
    hardest = weights[1:10].sum(0) > 0
    assert weights[0].min() == 1 and hardest[-100:].all() and not hardest[:50].any()
    assert loader.stats.scored == 0


def test_the_reference_of_the_command_line_has_every_command_and_option():
    written = runpy.run_path(str(ROOT / "tools" / "cli_page.py"))["commands"]()
    for command in (
        "train",
        "compare",
        "sweep",
        "report",
        "advise",
        "diet score",
        "diet prune",
        "list",
        "demo",
    ):
        assert f"## selective-backprop {command}\n" in written
    assert "| `--resume` | " in written and "Default: `digits`." in written
