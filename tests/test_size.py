"""Code lines and calls per batch stay within their budgets. To raise one takes a commit of its own that says why."""

import ast
import importlib.util
import io
import tokenize
from pathlib import Path

import pytest

import selective_backprop as sb

SOURCE = Path(sb.__file__).parent
ROOMS = ("advice", "dynamics", "forward_reuse", "pruning", "rl")
FLOW = (
    *("chain", "loader.py", "sampler.py", "sampler_checks.py", "groups.py", "run.py", "step_losses.py"),
    *("ranks.py", "rows.py", "stats.py", "checks.py", "checkpoint.py"),
)


def code_lines(path):
    """Lines with code: without blanks, comments and docstrings."""
    text = path.read_text()
    strings = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", [])
        for part in body if isinstance(body, list) else []:
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                strings |= set(range(part.lineno, part.end_lineno + 1))
    ignored = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for token in tokens if token.type not in ignored for n in range(token.start[0], token.end[0] + 1)}
    return len(lines - strings)


def lines_of(folder, *, only=None, without=()):
    names = {path: path.relative_to(folder).parts[0] for path in folder.rglob("*.py")}
    return sum(code_lines(p) for p, name in names.items() if name not in without and (only is None or name in only))


@pytest.mark.parametrize(
    ("area", "count", "budget"),
    [
        ("core", lambda: lines_of(SOURCE, without=(*ROOMS, "integrations")), 6850),
        ("rooms of their own", lambda: lines_of(SOURCE, only=ROOMS), 1600),
        ("integrations", lambda: lines_of(SOURCE, only=("integrations",)), 1850),
        ("loader, sampler, chain, ranks and checkpoint", lambda: lines_of(SOURCE, only=FLOW), 3850),
        ("lab", lambda: lines_of(SOURCE.parent / "selective_backprop_lab"), 5800),
    ],
)
def test_code_lines(area, count, budget):
    found = count()
    assert found <= budget, f"{area}: {found:,} code lines, and the budget is {budget:,}"


def test_files_that_a_batch_passes_through_can_be_read_at_once():
    paths = [SOURCE / name for name in FLOW]
    files = [file for path in paths for file in ([path] if path.suffix else path.rglob("*.py"))]
    long = {file.name: count for file in files if (count := len(file.read_text().splitlines())) > 300}
    assert not long, f"files of more than 300 lines: {long}"


@pytest.mark.parametrize(
    ("method", "calls", "changes"),
    [(sb.methods.ledger_percentile(0.5), 40, 18), (sb.selective_backprop(1 / 3), 90, 55)],
    ids=["planned, per training batch", "scored, per candidate batch"],
)
def test_calls_per_batch(method, calls, changes):
    """In an epoch that skips examples."""
    spec = importlib.util.spec_from_file_location("calls", SOURCE.parent.parent / "benchmarks" / "calls.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    found = module.count(method)
    assert found["calls"] <= calls, f"{found['calls']:.0f} calls of our own functions, and the budget is {calls}"
    assert found["changes of file"] <= changes, f"{found['changes of file']:.0f} changes of file, of {changes}"
