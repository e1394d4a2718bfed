"""The notebooks of the docs run from top to bottom, in a kernel of their own, with shorter runs than a reader's."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="needs nbclient")
pytest.importorskip("sklearn", reason="needs the extra lab")

import nbformat
from nbclient import NotebookClient

from tests.processes import ROOT

FOLDER = ROOT / "docs" / "notebooks"
REPOSITORY = "selective-backprop/selective-backprop"
pytestmark = pytest.mark.filterwarnings("ignore")  # of Jupyter's own packages: the notebook runs in another process


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The name of a kernel that runs this very Python, whatever kernels there are on the machine."""
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "here"}
    folder = tmp_path / "kernels" / "here"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec | {"language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return "here"


def run(name, kernel, tmp_path, shorter):
    """Run the notebook with these parts of its code replaced; return what each cell of code printed and showed."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    for old, new in shorter.items():
        (cell,) = (cell for cell in notebook.cells if old in cell.source)
        cell.source = cell.source.replace(old, new)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name=kernel, resources=resources).execute()
    return [shown(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def shown(outputs):
    return "".join(
        output.text if output.output_type == "stream" else "".join(map(str, output.data.values())) for output in outputs
    )


def test_does_it_pay(kernel, tmp_path):
    shorter = {"seconds=3)": "seconds=0.3)", "SEEDS, EPOCHS = range(3), 12": "SEEDS, EPOCHS = range(1), 12"}
    found = run("does_it_pay.ipynb", kernel, tmp_path, shorter)
    assert "<pre>" in found[1] and "speed-up" in found[1] and "ledger_backprop(" in found[1]
    assert re.search(r"test error \d", found[2]) and "skipped before loading" in found[3]
    rows = re.findall(r"^(\S.*?) +([\d.]+) +([\d.]+%.*)mean ([\d.]+)%$", found[4], re.MULTILINE)
    budgets = [float(compute) for _, compute, _, _ in rows]
    assert len(rows) == 4 and budgets[0] < 0.8 * budgets[3] == 0.8 * 12
    assert all(abs(budget - budgets[0]) < 1 for budget in budgets[1:3])  # the same compute
    assert all(float(error) < 10 for *_, error in rows)  # all of them learn
    assert found[5].startswith("Here") and "at about the same compute" in found[5]


def test_what_did_it_skip(kernel, tmp_path):
    found = run("what_did_it_skip.ipynb", kernel, tmp_path, {"--epochs 10": "--epochs 2"})
    assert found[1].count("<iframe") == 1 and "What selection did" in found[1]
    shares = [int(share) for share in re.findall(r"(\d+)%", found[2])]
    assert len(shares) == 10 and shares[0] == 100 and min(shares) < 80
    assert len(found[3].splitlines()) == 10
    assert found[4].count("data:image/png") == 24
    wrong, right = map(int, re.findall(r"(\d+)% (?:of the epochs )?if", found[5]))
    assert wrong > right


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_kept_without_results(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)
        links = re.findall(r"\]\(([^)#]+)\)", cell.source) if cell.cell_type == "markdown" else []
        assert all((FOLDER / link).exists() for link in links if "://" not in link)
    link = f"(https://colab.research.google.com/github/{REPOSITORY}/blob/main/docs/notebooks/{path.name})"
    assert link in notebook.cells[0].source and link in (FOLDER / "index.md").read_text()
