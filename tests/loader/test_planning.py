"""Planning an epoch in blocks decides as planning it at once does, and loses no id."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.ledger import Ledger
from selective_backprop.loader.index_stream import joined
from selective_backprop.loader.planning import id_blocks, plan_epoch


def plan(num_examples, losses, block, *, batch=4, waiting=None, method=None):
    """Chunks and tail of the second epoch, with every loss of the first known."""
    method = method or sb.ledger_backprop(loss_share=1.0, max_age=None)
    ledger = Ledger(num_examples, earlier_losses=method.scorer.needs.earlier_losses)
    generator = torch.Generator().manual_seed(0)
    ledger.record_losses(torch.arange(num_examples), losses, 0)
    order = torch.randperm(num_examples, generator=torch.Generator().manual_seed(1))
    return order, plan_epoch(
        list(id_blocks(joined(order.split(batch), num_ids=10), block)),
        lambda number, num_batches: True,
        scorer=method.scorer,
        select=lambda scores, ids: method.policy.select(scores, generator),
        ledger=ledger,
        epoch=1,
        waiting=waiting,
    )


def zero_or_one(record_ids, num_examples):
    """A method whose decision about an example does not depend on the others."""
    record = sb.SelectionRecord(num_examples)
    record.add_ids(torch.tensor([], dtype=torch.int64))
    record.add_ids(record_ids)
    return sb.recorded_backprop(record)


@pytest.mark.parametrize("block", [1, 4, 7, 13, 1000])
@pytest.mark.parametrize("kept", [0, 1, 5, 30, 61])
def test_blocks_keep_and_skip_the_same_ids_in_the_same_order(block, kept):
    size = 61
    ids = torch.randperm(size, generator=torch.Generator().manual_seed(2))[:kept]
    waiting = torch.tensor([i for i in range(0, size, 9) if i not in ids.tolist()])
    order, (chunks, tail, tail_waiting) = plan(
        size, torch.ones(size), block, waiting=waiting, method=zero_or_one(ids, size)
    )
    loaded = torch.cat([tail[:0], *(chunk.ids for chunk in chunks)])
    offered = torch.cat([*(chunk.offered for chunk in chunks), tail])
    assert loaded.tolist() == [i for i in order.tolist() if i in set(ids.tolist())]
    assert offered.tolist() == order.tolist()  # each once, in the sampler's order
    assert sum(chunk.num_waiting for chunk in chunks) + tail_waiting == len(waiting)
    assert bool(chunks) == bool(kept)
    assert len(tail) == (0 if kept else size)
    fractions = [chunk.fraction for chunk in chunks]
    assert fractions == sorted(fractions)
    assert not chunks or fractions[-1] == pytest.approx(1.0)
    assert all(0 < len(chunk.ids) <= 4 for chunk in chunks)


def test_thousands_of_chunks_are_cut_where_each_is_full():
    size, batch = 9000, 2
    order, (chunks, tail, _) = plan(
        size, torch.ones(size), size, batch=batch, method=zero_or_one(torch.arange(0, size, 3), size)
    )
    expected = order[order % 3 == 0].split(batch)
    assert len(chunks) == len(expected) > 1024
    assert [chunk.ids.tolist() for chunk in chunks] == [ids.tolist() for ids in expected]
    assert torch.equal(torch.cat([chunk.offered for chunk in chunks]), order)
    assert all(chunk.offered[-1] == chunk.ids[-1] for chunk in list(chunks)[:-1])  # and none after it
    offered = torch.tensor([len(chunk.offered) for chunk in chunks]).cumsum(0)
    assert [chunk.fraction for chunk in chunks] == pytest.approx((offered / size).tolist())
    assert not len(tail)


def test_fractions_are_of_the_epoch_whatever_the_blocks():
    size = 64
    expected = [chunk.fraction for chunk in plan(size, torch.ones(size), 1000)[1][0]]
    assert [chunk.fraction for chunk in plan(size, torch.ones(size), 16)[1][0]] == pytest.approx(expected)


def test_each_block_keeps_its_share_of_the_loss():
    losses = torch.rand(4000, generator=torch.Generator().manual_seed(0))
    method = sb.ledger_backprop(loss_share=0.8, skip_at_least=0, most_rise=None, max_age=None)
    whole, blocks = (
        sum(len(chunk.ids) for chunk in plan(4000, losses, block, batch=32, method=method)[1][0])
        for block in (10_000, 512)
    )
    assert blocks == pytest.approx(whole, rel=0.02)


def test_an_epoch_of_which_nothing_is_known_is_not_planned():
    """The first batch comes before the sampler has been asked for the whole epoch."""
    asked = []

    class Noting(torch.utils.data.SequentialSampler):
        def __iter__(self):
            for index in super().__iter__():
                asked.append(index)
                yield index

    data = TensorDataset(torch.randn(256, 4), torch.zeros(256, dtype=torch.int64))
    model = nn.Linear(4, 2)
    loader = sb.SelectiveLoader(
        DataLoader(data, 16, sampler=Noting(data)), model, nn.CrossEntropyLoss(), sb.ledger_backprop(skip_at_least=0)
    )
    for epoch in range(2):
        asked.clear()
        for step, (inputs, targets) in enumerate(loader):
            if step == 0:
                assert (len(asked) < 256) == (epoch == 0)
            loader.loss(model(inputs), targets).backward()
    assert loader.stats.skipped_before_loading > 0
