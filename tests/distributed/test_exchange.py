"""The formulas behind docs/explanations/scaling.md, against what real ranks sent."""

import pytest

from tests.distributed.exchange import BATCHES, CANDIDATES
from tests.distributed.launch import run
from tests.test_benchmarks import load


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_sent_are_those_of_the_formulas(size, tmp_path):
    formulas = load("exchange")
    over = (size - 1) * formulas.HEADER  # the round in which all say that they have no more
    results = run("exchange:job", tmp_path, size)
    for sent in results:
        for scope, total in sent["rounds"].items():
            assert total == BATCHES * formulas.round_bytes(size, CANDIDATES, scope) + over
        for scope, total in sent["plan"].items():
            assert total == formulas.plan_bytes(size, 30 * size, scope)
        everything = dict.fromkeys(("scored", "decided", "offered", "selected", "trained"), 12)
        assert sent["ledger"]["delivered"] == formulas.delivery_bytes(size, **everything)
        nothing_new = formulas.delivery_bytes(size)
        assert sent["ledger"]["delivered and asked"] == nothing_new + formulas.question_bytes(size, 12, 2)
        assert sent["ledger"]["rows"] == 12
    for kind in ("selection pass", "planned"):
        for scope in ("global", "local"):
            runs = [sent["epochs"][kind][scope] for sent in results]
            selectivity = sum(one["trained"] for one in runs) / size
            expected = 4 * formulas.epoch_bytes(size, 300 * size, 30, selectivity, scope, kind == "planned")
            if kind == "planned":  # by chance, without a look at the ledger
                expected -= 4 * (formulas.question_bytes(size, 300, 2) + formulas.delivery_bytes(size))
            # Half a batch of 30 waits on each rank when the second, third and fourth epoch begin.
            expected += 3 * formulas.start_bytes(size, 15, planned=False)
            expected += 4 * formulas.start_bytes(size, 0, planned=kind == "planned")
            # Who owns what is selected, and how many rounds it makes, is left to chance; the last losses stay here.
            assert sum(one["sent"] for one in runs) / size == pytest.approx(expected, rel=0.03)
