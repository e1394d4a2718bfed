"""Place a built site in a checkout of the branch that is served: main's in the root, a release's in its own folder.

    python tools/place_docs.py site pages refs/tags/v0.1.0

The page versions.html lists all releases that are there.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

_RELEASE = re.compile(r"v\d+\.\d+\.\d+")


def place(site: Path, pages: Path, ref: str) -> None:
    """Put the site where it belongs. ref: refs/heads/main, or refs/tags/ with a version."""
    name = ref.rpartition("/")[2]
    if _RELEASE.fullmatch(name):
        shutil.rmtree(pages / name, ignore_errors=True)
        shutil.copytree(site, pages / name)
    elif name == "main":
        for entry in pages.iterdir():
            if entry.is_dir() and not _RELEASE.fullmatch(entry.name) and entry.name != ".git":
                shutil.rmtree(entry)
            elif entry.is_file() and entry.name != ".git":
                entry.unlink()
        shutil.copytree(site, pages, dirs_exist_ok=True)
    else:
        raise SystemExit(f"{ref} is neither main nor a version such as refs/tags/v0.1.0")
    (pages / ".nojekyll").touch()  # or GitHub leaves out files whose names begin with _
    releases = [entry.name for entry in pages.iterdir() if _RELEASE.fullmatch(entry.name)]
    newest_first = sorted(releases, key=lambda release: [int(part) for part in release[1:].split(".")], reverse=True)
    links = "".join(f'<li><a href="{each}/index.html">{each}</a></li>' for each in newest_first)
    title = "selective-backprop: documentation by version"
    text = f'<ul><li><a href="index.html">main, the newest code</a></li>{links}</ul>'
    (pages / "versions.html").write_text(f"<!doctype html><title>{title}</title><h1>{title}</h1>{text}\n")


if __name__ == "__main__":
    place(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
