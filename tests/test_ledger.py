import copy

import pytest
import torch

from selective_backprop.ledger import Column, Ledger, LedgerRows, before, epoch_before, shift


def test_rows_belong_to_ids():
    ledger = Ledger(5)
    ledger.record_scores(torch.tensor([3, 1]), torch.tensor([0.3, 0.1]), epoch=0)
    ledger.record_losses(torch.tensor([1]), torch.tensor([9.0]), epoch=2)
    assert ledger.score[[1, 3]].tolist() == pytest.approx([0.1, 0.3])
    assert ledger.score.isnan().tolist() == [True, False, True, False, True]
    assert ledger.loss[1] == 9
    assert ledger.loss_epoch.tolist() == [-1, 2, -1, -1, -1]


DECLARED = {
    "earlier_scores": Column("score", shift, width=2),
    "score_before_epoch": Column("score", epoch_before, dtype=torch.int32, fill=-1),
    "loss_before": Column("loss", before),
    "times_hard": Column("loss", lambda column, event: column + (event.values > 2), dtype=torch.int32, fill=0),
}


def test_declared_columns_follow_their_event_only():
    ledger, ids = Ledger(3, DECLARED), torch.tensor([0, 2])
    for epoch, score in ((0, 5.0), (2, 7.0), (3, 9.0)):
        ledger.record_scores(ids, torch.tensor([score, score + 1]), epoch)
    assert ledger.earlier_scores[ids].tolist() == [[7, 5], [8, 6]] and ledger.earlier_scores[1].isnan().all()
    assert ledger.score_before_epoch.tolist() == [2, -1, 2]
    assert ledger.loss_before.isnan().all() and not ledger.times_hard.any()
    for epoch, loss in enumerate([1.0, 3.0, 2.5]):
        ledger.record_losses(ids, torch.tensor([loss, 2 * loss]), torch.tensor([epoch, epoch]))
    assert ledger.loss_before[ids].tolist() == [3, 6]
    assert ledger.times_hard.tolist() == [2, 0, 2]
    assert ledger.earlier_scores[ids].tolist() == [[7, 5], [8, 6]]


@pytest.mark.parametrize("name", ["loss", "rows", "state_dict", "first loss", ""])
def test_names_that_cannot_be_columns_are_refused(name):
    with pytest.raises(ValueError, match="name"):
        Ledger(3, {name: Column("loss", before)})


def test_declared_columns_are_saved():
    ledger, other, plain = Ledger(3, DECLARED), Ledger(3, DECLARED), Ledger(3)
    ledger.record_losses(torch.tensor([1]), torch.tensor([4.0]), 0)
    other.load_state_dict(ledger.state_dict())
    assert other.times_hard[1] == 1
    with pytest.raises(ValueError, match="lacks earlier_scores, loss_before"):
        other.load_state_dict(plain.state_dict())


def test_training_does_not_overwrite_the_score_of_the_selection_pass():
    ledger = Ledger(1)
    ledger.record_scores(torch.tensor([0]), torch.tensor([2.0]), epoch=0)
    ledger.record_losses(torch.tensor([0]), torch.tensor([1.0]), epoch=0)
    assert (ledger.score[0], ledger.loss[0]) == (2, 1)


def test_repeated_ids_count_each_time():
    ledger = Ledger(3)
    ledger.count_offered(torch.tensor([2, 2, 0]))
    ledger.count_selected(torch.tensor([2, 2]))
    assert (ledger.offered.tolist(), ledger.selected.tolist()) == ([1, 0, 2], [0, 0, 2])


def test_rows_of_ids_have_every_column_of_the_ledger():
    ledger, ids = Ledger(6, DECLARED), torch.tensor([4, 0, 4])
    ledger.record_scores(torch.tensor([4, 1]), torch.tensor([0.4, 0.1]), epoch=1)
    ledger.record_losses(torch.tensor([0, 4]), torch.tensor([2.0, 3.0]), epoch=2)
    ledger.record_probabilities(torch.tensor([0]), torch.tensor([0.5]))
    ledger.count_offered(torch.tensor([4, 4]))
    ledger.count_selected(torch.tensor([0]))
    rows = ledger.rows(ids)
    assert set(DECLARED) < set(ledger.names) == set(ledger.state_dict())
    for name in ledger.names:
        torch.testing.assert_close(getattr(rows, name), getattr(ledger, name)[ids], rtol=0, atol=0, equal_nan=True)


def test_rows_fetch_a_column_once_and_when_it_is_read():
    fetched = []
    rows = LedgerRows(("score", "mine"), lambda name: fetched.append(name) or torch.zeros(2))
    assert not fetched
    for _ in range(2):
        assert rows.score.tolist() == [0, 0]
    assert fetched == ["score"]
    for reading in (rows, Ledger(2)):
        with pytest.raises(AttributeError, match="no column 'losses', only score, "):
            _ = reading.losses
    copy.copy(rows)
    copy.deepcopy(Ledger(2, DECLARED))


def test_earlier_losses_move_back():
    ledger = Ledger(3, {"earlier_losses": Column("loss", shift, width=2)})
    for epoch, loss in enumerate([1.0, 2.0, 3.0, 4.0]):
        ledger.record_losses(torch.tensor([0, 2, 2]), torch.tensor([loss, 9.0, 10 * loss]), epoch)
    ledger.record_losses(torch.tensor([1]), torch.tensor([7.0]), 4)
    assert ledger.loss.tolist() == [4, 7, 40]
    assert ledger.earlier_losses[[0, 2]].tolist() == [[3, 2], [30, 20]]
    assert ledger.earlier_losses[1].isnan().all()


def test_no_rows():
    assert Ledger(3, DECLARED).rows(torch.empty(0, dtype=torch.int64)).earlier_scores.shape == (0, 2)


def test_at_most_32_bytes_an_id():
    ledger = Ledger(1000)
    assert sum(column.nbytes for column in ledger.state_dict().values()) <= 32 * 1000


def test_state_of_another_data_set_is_refused():
    with pytest.raises(ValueError, match=r"4 .* 5"):
        Ledger(5).load_state_dict(Ledger(4).state_dict())


def test_state_is_a_copy():
    ledger = Ledger(2)
    state = ledger.state_dict()
    ledger.count_offered(torch.tensor([0]))
    assert state["offered"].tolist() == [0, 0]
