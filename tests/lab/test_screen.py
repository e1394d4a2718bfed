"""What people and scripts see: a terminal of 80 columns, pipes, JSON, --help, Ctrl-C."""

import functools
import json
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import selective_backprop as sb
from selective_backprop import methods
from selective_backprop_lab.cli import app, screen
from selective_backprop_lab.runs.recipes import RECIPES
from tests.lab.command_line import ENVIRONMENT, records, run, text_of

COMMAND = [sys.executable, "-m", "selective_backprop_lab"]
BARE = [sys.executable, "-X", "importtime", "-m", "selective_backprop_lab"]
FAST = ("--epochs", 2, "--model", "strided_cnn")


def in_terminal(*words, columns=80):
    """What a terminal of this width shows, without colours, and the exit code."""
    ours, theirs = pty.openpty()
    environment = ENVIRONMENT | {"COLUMNS": str(columns), "LINES": "50", "TERM": "xterm"}
    attach = functools.partial(_attach, os.ttyname(theirs))
    shown = bytearray()

    def read():
        try:
            while part := os.read(ours, 65536):
                shown.extend(part)
        except OSError:  # how Linux says that the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    result = run(*words, env=environment, prepare=attach)
    os.close(theirs)  # the last end on that side, so the reader comes to its end
    reader.join()
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()), result.returncode


def _attach(terminal):
    """Make this terminal the three standard streams of the process."""
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    for stream in range(3):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def test_list_fits_a_terminal_and_names_everything_whole():
    shown, code = in_terminal("list")
    lines = shown.splitlines()
    assert code == 0 and max(map(len, lines)) <= 80 and len(lines) < 30
    assert "…" not in shown
    words = set(re.findall(r"[\w.:@-]+", shown))
    assert {*RECIPES, *methods.__all__} <= words
    piped = run("list")
    assert max(map(len, piped.stdout.splitlines())) > 120, "no limit in a pipe"
    assert piped.stdout.split() == shown.split(), "the same words"


WIDE = (["method", "error", "M"], [["repeated_random, 2 epochs of compute", "12.50% ± 1.25", "1.25x (1.00 to 1.50)"]])


@pytest.mark.parametrize("width", [None, 200, 72, 45, 20])
def test_no_cell_is_lost_at_any_width(width, monkeypatch, capsys):
    monkeypatch.setattr(screen, "console", functools.partial(Console, width=width or 100_000))
    screen.Screen().table("title", *WIDE)
    lines = capsys.readouterr().out.splitlines()
    assert width is None or max(map(len, lines)) <= width
    letters = sorted("".join(lines).replace("─", "").replace(" ", ""))
    told = "title" + "".join(cell for row in (WIDE[0], *WIDE[1]) for cell in row)
    assert letters == sorted(told.replace(" ", "")), "every letter, on however many lines"


def test_train_tells_programs_in_json_and_is_quiet(tmp_path):
    result = run("train", *FAST, "--out", tmp_path, "--json", "--quiet")
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert (told["method"], told["dataset"], told["epochs"]) == ("ledger_backprop", "digits", 2)
    assert told["records"] == records(tmp_path)
    assert "selectivity" not in told, "the ledger has none"
    assert told["trained"] == sum(record["trained"] for record in told["records"])


def test_comparisons_in_json_with_reports(tmp_path):
    arguments = ("--seeds", 1, *FAST, "--json", "--quiet", "--method", "ledger")
    compared = run("compare", *arguments, "--out", tmp_path / "compare")
    assert compared.returncode == 0, text_of(compared)
    told = json.loads(compared.stdout)
    assert "ledger" in [arm["label"] for arm in told["arms"]]
    (ledger,) = [method for method in told["methods"] if method["name"] == "ledger"]
    assert ledger["plain"].keys() == told["targets"].keys() and "lossless" in told["targets"]
    assert ledger["plain"]["lossless"]["multiple"].keys() == {"value", "bound"}
    assert all(0 <= arm["compute"]["errors"][0] <= 1 and arm["compute"]["costs"][0] > 0 for arm in told["arms"])
    assert (tmp_path / "compare" / "report.html").exists()
    made = run("report", tmp_path / "compare", "--out", tmp_path / "r.html", "--json")
    assert json.loads(made.stdout)["report"] == str(tmp_path / "r.html")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train", "--method", "ledger:losshare=0.9"), 2, "did you mean loss_share?"),
        (("train", "--method", "ledger:loss_share=abc"), 2, "'abc'"),
        (("train", "--method", "kath18:score=los"), 2, "'los'"),
        (("sweep", "--vary", "selectivty=0.2"), 2, "did you mean selectivity?"),
        (("train", "--method", "no_package:thing"), 2, "no_package"),
        (("report", "/nowhere"), 2, "/nowhere"),
        (("list", "ledgr"), 2, "did you mean ledger?"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(arguments, code, message):
    result = run(*arguments)
    assert result.returncode == code, text_of(result)
    assert message in result.stderr
    assert result.stdout == ""
    assert "Usage" not in result.stderr and "Traceback" not in result.stderr


def commands_of(group, *before):
    """The words of every command, such as ["diet", "score"]."""
    for name, found in group.commands.items():
        yield from commands_of(found, *before, name) if hasattr(found, "commands") else [[*before, name]]


def test_help_fits_80_columns_and_elides_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    group = typer.main.get_command(app)
    for words in ([], *commands_of(group)):
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0 and "Usage" in result.output
        assert max(map(len, result.output.splitlines())) <= 80
        assert "…" not in result.output, words


def test_help_and_version_do_not_import_torch():
    for words in (["--help"], ["train", "--help"], ["diet", "score", "--help"], ["--version"]):
        done = subprocess.run([*BARE, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "typer" in imported and not {"torch", "numpy", "sklearn"} & imported
    assert done.stdout.strip() == f"selective-backprop {sb.__version__}"
