"""The formulas behind docs/explanations/scaling.md, against what real ranks sent."""

import pytest

from tests.distributed.exchange import BATCHES, CANDIDATES
from tests.distributed.launch import run
from tests.test_benchmarks import load


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_sent_are_those_of_the_formulas(size, tmp_path):
    formulas = load("exchange")
    results = run("exchange:job", tmp_path, size)
    for sent in results:
        assert sent["rounds"] == BATCHES * formulas.round_bytes(size, CANDIDATES)
        assert sent["plan"] == formulas.plan_bytes(size, 30 * size)
        everything = dict.fromkeys(("scored", "decided", "offered", "selected", "trained"), 12)
        assert sent["ledger"]["delivered"] == formulas.delivery_bytes(size, **everything)
        nothing_new = formulas.delivery_bytes(size)
        assert sent["ledger"]["delivered and asked"] == nothing_new + formulas.question_bytes(size, 12, 2)
        assert sent["ledger"]["rows"] == 12
    for kind in ("scored", "planned"):
        runs = [sent["epochs"][kind] for sent in results]
        selectivity = sum(one["trained"] for one in runs) / size
        expected = 4 * formulas.epoch_bytes(size, 300 * size, 30, selectivity, kind == "planned")
        if kind == "planned":  # by chance, without a look at the ledger
            expected -= 4 * (formulas.question_bytes(size, 300, 2) + formulas.delivery_bytes(size))
        # Chance decides who owns what is selected, and how many planned ids move.
        assert sum(one["sent"] for one in runs) / size == pytest.approx(expected, rel=0.04)
