"""Check what `python -m build` made: nothing is missing, versions agree, and it works in a fresh environment.

    python tools/check_release.py dist

The fresh environment first has the core alone, with torch and numpy, then the extra `lab`. Versions are those of
constraints.txt.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = {"numpy", "selective-backprop", "torch"}


def main(folder: Path) -> None:
    """Check everything. The first problem ends it with one line that says what is wrong."""
    version = check_versions()
    wheel = folder / f"selective_backprop-{version}-py3-none-any.whl"
    source = folder / f"selective_backprop-{version}.tar.gz"
    for file in (wheel, source):
        require(file.is_file(), f"there is no {file}: run python -m build")
    check_wheel(wheel)
    check_source(source)
    with tempfile.TemporaryDirectory() as scratch:
        check_installed(wheel, Path(scratch), folder.parent / "sbom.cdx.json")


def require(holds: object, problem: str) -> None:
    """End the program with this problem unless the condition holds."""
    if not holds:
        raise SystemExit(f"release check: {problem}")


def done(what: str) -> None:
    """Tell that a check has passed."""
    print(f"ok: {what}", flush=True)


def check_versions() -> str:
    """The version of the package, after a check that the citation and the changelog have the same one."""
    text = (ROOT / "src" / "selective_backprop" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    changed = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    require(version == cited == changed, f"the package is {version}, CITATION.cff {cited}, CHANGELOG.md {changed}")
    done(f"version {version} everywhere")
    return version


def tracked(*folders: str) -> set[str]:
    """Files of the repository in these folders."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *folders], capture_output=True, text=True, check=True
    ).stdout
    return set(listed.splitlines())


def write_bill(python: Path, version: str, file: Path) -> None:
    """Write the software bill of materials of an environment that has the package and what it needs."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", ROOT / "pyproject.toml", python]
    bill = json.loads(subprocess.check_output(command))
    own = bill["metadata"]["component"]
    own |= {"version": version, "purl": f"pkg:pypi/{own['name']}@{version}"}
    found = {component["name"] for component in bill["components"]}
    require(found | {own["name"]} >= CORE, f"the bill of materials lacks {CORE - found}")
    file.write_text(json.dumps(bill, indent=2))


def check_wheel(wheel: Path) -> None:
    """Every file of the package is in the wheel, and nothing else."""
    expected = {name.removeprefix("src/") for name in tracked("src")}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    require(found == expected, f"missing in the wheel: {expected - found}; there by mistake: {found - expected}")
    done(f"the wheel has all {len(found)} files of the package")


def check_source(source: Path) -> None:
    """The source distribution has the package, its tests, and what these read."""
    with tarfile.open(source) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    expected = tracked(*included)
    require(expected <= found, f"missing in the source distribution: {sorted(expected - found)[:5]}")
    done(f"the source distribution has all {len(expected)} files")


def check_installed(wheel: Path, scratch: Path, bill: Path) -> None:
    """Install the wheel, first alone and then with the lab, and use it as a newcomer would.

    bill: where to write the software bill of materials of the core.
    """
    venv.create(scratch / "fresh", with_pip=True)
    python = scratch / "fresh" / "bin" / "python"

    def run(*words: str, fails: bool = False) -> str:
        result = subprocess.run(list(map(str, words)), cwd=scratch, capture_output=True, text=True)
        require((result.returncode != 0) == fails, f"{' '.join(words)}\n{result.stdout}{result.stderr}")
        return result.stdout + result.stderr

    def install(what: str) -> None:
        constraints = str(ROOT / "constraints.txt")
        run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints, what)

    install(str(wheel))
    script = "import importlib.metadata as m; print(*m.requires('selective-backprop'), sep='\\n')"
    needs = {
        re.split(r"[>=\[ ]", line)[0] for line in run(str(python), "-c", script).splitlines() if "extra" not in line
    }
    require(needs | {"selective-backprop"} == CORE, f"the core needs {needs}")
    write_bill(python, wheel.name.split("-")[1], bill)
    run(str(python), "-W", "error", "-c", "import selective_backprop")
    setup, changed = re.search(r"<!-- python\n(.*?)-->.*?```diff\n(.*?)```", README, re.DOTALL).groups()
    example = setup + re.sub(r"^-.*\n|^[+ ]", "", changed, flags=re.MULTILINE)
    require("selectivity" in run(str(python), "-c", example), "the README's example prints no statistics")
    command = str(python.with_name("selective-backprop"))
    said = run(command, "list", fails=True)
    require("pip install 'selective-backprop[lab]'" in said, f"without the extra, the command line says: {said}")
    done("the core alone works in a fresh environment, and the command line says what it needs")

    install(f"{wheel}[lab]")
    run(command, "train", "--method", "ledger", "--epochs", "1", "--out", "runs/ledger")
    require((scratch / "runs" / "ledger" / "records.jsonl").is_file(), "train wrote no records")
    done("the command line trains in a fresh environment")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
