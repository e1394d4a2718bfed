"""The formulas behind docs/scaling.md, against what real ranks sent."""

import pytest

from tests.ranks.exchange import BATCHES, CANDIDATES
from tests.ranks.launch import run
from tests.test_benchmarks import load


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_sent_are_those_of_the_formulas(size, tmp_path):
    formulas = load("exchange")
    over = (size - 1) * formulas.HEADER  # the round in which all say that they have no more
    for sent in run("exchange:job", tmp_path, size):
        for scope, total in sent["rounds"].items():
            assert total == BATCHES * formulas.round_bytes(size, CANDIDATES, scope) + over
        for scope, total in sent["plan"].items():
            assert total == formulas.plan_bytes(size, 30 * size, scope)
        everything = dict.fromkeys(("scored", "decided", "offered", "selected", "trained"), 12)
        assert sent["ledger"]["delivered"] == formulas.delivery_bytes(size, **everything)
        nothing_new = formulas.delivery_bytes(size)
        assert sent["ledger"]["delivered and asked"] == nothing_new + formulas.question_bytes(size, 12, 2)
        assert sent["ledger"]["rows"] == 12
