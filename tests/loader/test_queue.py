import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_backprop.batches.layout import Layout
from selective_backprop.loader.queue import Queue
from selective_backprop.types import Selection


def add(queue, start, size, positions):
    """Candidates that carry their number in a tensor and in a list."""
    values = torch.arange(start, start + size)
    batch = (values.float(), [str(v) for v in values.tolist()])
    queue.layout = queue.layout or Layout.of((torch.ones(5), list("abcde")))
    positions = torch.tensor(positions, dtype=torch.int64)
    selection = Selection(positions, values[positions].float() / 10, values.double() / 100)
    queue.add(queue.layout.columns(batch), selection, values)


def everything(size):
    return Selection(torch.arange(size), torch.ones(size), torch.ones(size, dtype=torch.float64))


def check(batch):
    values, names = batch.data
    assert values.long().tolist() == batch.ids.tolist() == [int(name) for name in names]
    assert torch.equal(batch.weights, batch.ids.float() / 10)
    assert torch.equal(batch.probabilities, batch.ids.double() / 100)


@settings(max_examples=100)
@given(st.integers(1, 9), st.lists(st.lists(st.booleans(), min_size=1, max_size=20), max_size=12), st.data())
def test_full_batches_in_order_without_loss_or_repetition(batch_size, masks, data):
    queue, expected, got, start = Queue(batch_size), [], [], 0
    for mask in masks:
        positions = [i for i, keep in enumerate(mask) if keep]
        add(queue, start, len(mask), positions)
        expected += [start + p for p in positions]
        start += len(mask)
        if data.draw(st.booleans()):  # save and load at any time
            again = Queue(batch_size)
            again.load_state_dict(queue.state_dict())
            queue = again
        while (batch := queue.pop()) is not None:
            assert len(batch) == batch_size
            check(batch)
            got += batch.ids.tolist()
    assert len(queue) == len(expected) - len(got) < batch_size
    assert queue.finish(drop_last=False) == 0
    if (last := queue.pop()) is not None:
        check(last)
        got += last.ids.tolist()
    assert got == expected and queue.pop() is None


@given(st.integers(1, 9), st.lists(st.integers(0, 20), max_size=12), st.booleans())
def test_the_last_two_batches_share_what_is_left(batch_size, sizes, drop_last):
    queue, taken, start = Queue(batch_size), [], 0
    queue.hold_back(True)
    for size in sizes:
        add(queue, start, size, list(range(size)))
        start += size
        while (batch := queue.pop()) is not None:
            taken.append(len(batch))
    dropped = queue.finish(drop_last=drop_last)
    while (batch := queue.pop()) is not None:
        taken.append(len(batch))
    assert sum(taken) + dropped == start and set(taken[:-2]) <= {batch_size}
    assert dropped == (start % batch_size if drop_last else 0)
    assert not taken or start < batch_size / 2 or all(2 * size >= batch_size for size in taken)


def test_a_batch_that_fits_is_not_copied():
    queue, column = Queue(4), torch.arange(4.0)
    queue.layout = Layout.of(column)
    queue.add([column], everything(4), None, keeps_all=True)
    assert queue.pop().data is column


def test_a_part_of_a_candidate_batch_lies_in_memory_as_after_a_resume():
    queue, resumed = Queue(2), Queue(2)
    queue.layout = Layout.of(column := torch.randn(6, 3))
    queue.add([column], everything(6), None)
    queue.pop()
    resumed.load_state_dict(queue.state_dict())
    for _ in range(2):
        there, here = resumed.pop().data, queue.pop().data
        assert torch.equal(there, here)
        assert there.data_ptr() % 64 == here.data_ptr() % 64 == 0  # a matrix product may differ in its last bit


def test_batches_given_out_are_never_written_again():
    queue = Queue(2)
    add(queue, 0, 3, [0, 1, 2])
    first = queue.pop().data[0]
    add(queue, 3, 3, [0, 1, 2])
    assert first.tolist() == [0, 1]


def test_examples_of_different_shapes():
    queue = Queue(4)
    queue.layout = Layout.of(torch.ones(3, 5))
    queue.add([torch.ones(3, 5)], everything(3), None)
    queue.add([torch.ones(3, 6)], everything(3), None)
    with pytest.raises(ValueError, match=r"shape \(5,\) \(torch.float32\) and \(6,\) .* pad to one size"):
        queue.pop()


def test_rows_that_wait_do_not_keep_their_candidate_batch_in_memory():
    queue, column = Queue(4), torch.ones(1000, 5)
    queue.layout = Layout.of(column)
    selection = Selection(torch.tensor([3]), torch.ones(1), torch.ones(1000, dtype=torch.float64))
    queue.add([column], selection, None)
    [[columns, *_]] = queue.state_dict()["pieces"]
    assert columns[0].untyped_storage().nbytes() == 20
