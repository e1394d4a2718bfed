import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_backprop.distributed.ledger import ShardedLedger
from selective_backprop.ledger import Column, Ledger, before, epoch_before, shift
from selective_backprop.testing import same
from tests.distributed.threads import run_processes, run_threads

KINDS = ["scores", "losses", "probabilities", "offered", "selected"]


def declared(width):
    """Columns of every kind, one of them of this width, which may be 0."""
    return {
        "earlier_scores": Column("score", shift, width=width),
        "earlier_losses": Column("loss", shift, width=2),
        "loss_before": Column("loss", before),
        "loss_before_epoch": Column("loss", epoch_before, dtype=torch.int32, fill=-1),
        "epochs": Column("score", lambda column, event: column + event.epochs, dtype=torch.int32, fill=0),
    }


def write(ledger, kind, ids, seed, epoch):
    ids = torch.tensor(ids, dtype=torch.int64)
    values = torch.rand(len(ids), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if kind in ("scores", "losses"):
        getattr(ledger, f"record_{kind}")(ids, values, epoch)
    elif kind == "probabilities":
        ledger.record_probabilities(ids, values)
    else:
        getattr(ledger, f"count_{kind}")(ids)


@st.composite
def runs(draw):
    """Ranks, examples, the width of a column; per delivery and rank some writes; and per rank the ids that are read."""
    size, examples = draw(st.integers(1, 5)), draw(st.integers(1, 23))
    ids = st.lists(st.integers(0, examples - 1), max_size=12)
    one = st.tuples(st.sampled_from(KINDS), ids, st.integers(0, 10**6), st.integers(0, 5))
    deliveries = draw(st.lists(st.lists(st.lists(one, max_size=5), min_size=size, max_size=size), max_size=3))
    return size, examples, draw(st.integers(0, 2)), deliveries, draw(st.lists(ids, min_size=size, max_size=size))


@settings(max_examples=150, deadline=None)
@given(runs())
def test_equals_one_ledger_with_the_same_writes(run):
    size, examples, width, deliveries, asked = run
    expected = Ledger(examples, declared(width))
    for writes_by_rank in deliveries:
        for writes in writes_by_rank:
            for item in writes:
                write(expected, *item)

    def work(ranks):
        ledger = ShardedLedger(examples, ranks, declared(width))
        for writes_by_rank in deliveries:
            for item in writes_by_rank[ranks.rank]:
                write(ledger, *item)
            ledger.deliver()
        rows = ledger.rows(torch.tensor(asked[ranks.rank], dtype=torch.int64))
        return {name: getattr(rows, name) for name in expected.names}, ledger.whole(), len(ledger)

    for rank, (rows, whole, length) in enumerate(run_threads(size, work)):
        assert length == examples
        assert same(whole.state_dict(), expected.state_dict())
        theirs = expected.rows(torch.tensor(asked[rank], dtype=torch.int64))
        assert same(rows, {name: getattr(theirs, name) for name in expected.names})


def test_blocks_are_those_of_torch_chunk_and_memory_falls_with_ranks():
    for examples in (0, 1, 5, 9, 10, 12):
        for size in range(1, 6):
            blocks = run_threads(size, lambda ranks, examples=examples: len(ShardedLedger(examples, ranks).block))
            chunks = [len(chunk) for chunk in torch.arange(examples).chunk(size)] if examples else [0]
            assert blocks == chunks + [0] * (size - len(chunks))


def test_reading_delivers_what_was_written_by_any_rank():
    def work(ranks):
        ledger = ShardedLedger(6, ranks)
        ledger.record_losses(torch.tensor([5 - ranks.rank]), torch.tensor([float(ranks.rank)]), epoch=2)
        return ledger.rows(torch.tensor([5, 4])).loss.tolist()

    assert run_threads(2, work) == [[0, 1]] * 2


def test_a_report_changes_nothing():
    def work(ranks):
        ledger = ShardedLedger(4, ranks)
        for loss in (1.0, 2.0):
            if ranks.rank == (loss == 1):  # rank 1 first, then rank 0
                ledger.record_losses(torch.tensor([3]), torch.tensor([loss]), epoch=0)
            assert ledger.whole().loss[3] == 1, "rank by rank: rank 1's is the last, whenever it was recorded"
        ledger.deliver()
        return float(ledger.rows(torch.tensor([3])).loss)

    assert run_threads(2, work) == [1, 1]  # rank by rank, as without a report in between


def test_a_delivery_is_two_exchanges_and_a_column_one():
    def work(ranks):
        ledger = ShardedLedger(100, ranks, declared(2))
        for i in range(20):
            for kind in KINDS:
                write(ledger, kind, [i, 99 - i, 50], i, 0)
        assert ranks.messages == 0
        ledger.deliver()
        delivery = ranks.messages
        rows = ledger.rows(torch.arange(10))
        assert ranks.messages == delivery
        _ = rows.loss  # delivers, sends the ids, and gets the column
        first = ranks.messages - delivery
        _ = rows.earlier_scores, rows.loss
        return delivery, first, ranks.messages - delivery - first

    assert run_threads(3, work) == [(2, 4, 1)] * 3


def test_large_ids_stay_exact():
    examples = 2**24 + 6  # beyond what float32 can tell apart

    def work(ranks):
        ledger = ShardedLedger(examples, ranks)
        ledger.record_scores(torch.tensor([2**24 + 1 + ranks.rank]), torch.tensor([1.0 + ranks.rank]), epoch=70_000)
        rows = ledger.rows(torch.arange(2**24, 2**24 + 4))
        return rows.score.nan_to_num(0).tolist(), rows.score_epoch.tolist()

    assert run_threads(2, work) == [([0, 1, 2, 0], [-1, 70_000, 70_000, -1])] * 2


def test_what_was_written_is_a_copy():
    def work(ranks):
        ledger = ShardedLedger(2, ranks)
        ids, losses = torch.tensor([1]), torch.tensor([3.0])
        ledger.record_losses(ids, losses, epoch=0)
        ids.zero_()
        losses.zero_()
        return ledger.whole().loss.nan_to_num(-1).tolist()

    assert run_threads(1, work) == [[-1, 3]]


def test_an_id_of_another_data_set_is_refused_at_once():
    def work(ranks):
        with pytest.raises(IndexError, match="ids reach from 2 to 5, but the ledger has 5 examples"):
            ShardedLedger(5, ranks).count_offered(torch.tensor([2, 5]))

    run_threads(2, work)


def filled(ranks, examples=7):
    """With writes that were delivered, and others that were not."""
    ledger = ShardedLedger(examples, ranks, declared(1))
    for number, kind in enumerate(KINDS * 2):
        write(ledger, kind, [ranks.rank, examples - 1, 3], number + 10 * ranks.rank, number % 3)
        if number == 6:
            ledger.deliver()
    return ledger


def test_saved_before_a_delivery_and_loaded_it_goes_on():
    def work(ranks):
        ledger, resumed = filled(ranks), ShardedLedger(7, ranks, declared(1))
        state = copy.deepcopy(ledger.state_dict())
        assert len(state["writes"]) == 3
        expected = ledger.whole().state_dict()
        resumed.load_state_dict(state)
        assert same(resumed.state_dict(), state)
        assert same(resumed.whole().state_dict(), expected)

    run_threads(3, work)


def test_states_of_others_are_refused():
    states = run_threads(2, lambda ranks: filled(ranks).state_dict())

    def work(ranks, state, examples=7):
        ShardedLedger(examples, ranks, declared(1)).load_state_dict(state)

    with pytest.raises(ValueError, match="saved ledger has 7 examples but the data set has 8"):
        run_threads(2, lambda ranks: work(ranks, states[ranks.rank], examples=8))
    with pytest.raises(ValueError, match="of one process, this run has 2 ranks"):
        run_threads(2, lambda ranks: work(ranks, Ledger(7).state_dict()))


def share(ranks, folder):
    ledger = filled(ranks)
    ids = torch.arange(7)[ranks.rank :: 2][: 4 - 4 * ranks.rank]  # rank 1 asks for nothing
    rows = ledger.rows(ids)
    return {"rows": [rows.earlier_scores, rows.loss, rows.offered], "ids": ids, "whole": ledger.whole().state_dict()}


def test_real_processes(tmp_path):
    expected = run_threads(2, lambda ranks: filled(ranks).whole())[0]
    for result in run_processes(2, share, tmp_path / "run"):
        assert same(result["whole"], expected.state_dict())
        rows = expected.rows(result["ids"])
        assert same(result["rows"], [rows.earlier_scores, rows.loss, rows.offered])
