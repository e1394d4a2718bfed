"""What one run selected, repeated by another."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import selective_backprop as sb
from selective_backprop import testing
from tests.helpers import NUM_DIGITS, digits, make_loader, make_model, train

EPOCHS = 4


class Listing(TensorDataset):
    """Lists what is loaded."""

    def __init__(self):
        super().__init__(*digits().tensors)
        self.loaded = []

    def __getitem__(self, index):
        self.loaded.append(index)
        return super().__getitem__(index)


def record_of(*epochs, num_examples=NUM_DIGITS):
    record = sb.pruning.SelectionRecord(num_examples)
    for ids in epochs:
        record.add_ids(torch.tensor(ids, dtype=torch.int64))
    return record


def run(method, *, epochs=EPOCHS, seed=3, record=None):
    """A run from a seed: its loader, model, batches of ids, and what was loaded in each epoch."""
    torch.manual_seed(seed)
    model, dataset = make_model(), Listing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = make_loader(method, dataset=dataset, model=model, num_epochs=epochs)
    batches, loaded = [], []
    for epoch in range(epochs):
        dataset.loaded = []
        batches += train(loader, model, epoch + 1, optimizer=optimizer)
        loaded.append(sorted(dataset.loaded))
        if record is not None:
            record.add(loader)
    return loader, model, batches, loaded


METHODS = {
    "top_k, proxy": lambda: sb.top_k(0.5, scoring=sb.scorers.proxy(nn.Linear(64, 10), train_every=2)),
    "selective_backprop": lambda: sb.selective_backprop(0.3),
    "stale_selective_backprop": lambda: sb.stale_selective_backprop(0.3, every=2, warmup_epochs=1),
    "random_backprop": lambda: sb.random_backprop(0.4),
    "traditional": lambda: sb.traditional(),
}


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_the_same_seed_and_order_give_the_same_run_without_a_selection_pass(make):
    record = sb.pruning.SelectionRecord(NUM_DIGITS)
    loader, model, batches, _ = run(make(), record=record)
    again, same_model, same_batches, loaded = run(sb.methods.recorded_backprop(record=record))
    assert same_batches == batches
    assert testing.same(same_model.state_dict(), model.state_dict())
    assert torch.equal(again.ledger.selected, loader.ledger.selected)
    assert loaded == [record.mask(epoch).nonzero().flatten().tolist() for epoch in range(EPOCHS)]
    assert again.stats.scored == 0
    assert again.stats.skipped_before_loading == EPOCHS * NUM_DIGITS - sum(map(len, loaded))


@pytest.mark.parametrize("num_examples", [1, 7, 8, 9, 203, 1000])
def test_masks_come_back(num_examples, tmp_path):
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(num_examples, generator=generator) < share for share in (0.0, 0.3, 1.0)]
    record = record_of(*(mask.nonzero().flatten().tolist() for mask in masks), num_examples=num_examples)
    record.save(tmp_path / "record.pt")
    for found in (record, sb.pruning.SelectionRecord.load(tmp_path / "record.pt")):
        assert (len(found), found.num_examples) == (3, num_examples)
        assert all(torch.equal(found.mask(epoch), mask) for epoch, mask in enumerate(masks))


def test_a_bit_per_example_and_epoch(tmp_path):
    sizes = []
    for epochs in (10, 110):
        record_of(*([[0, 5]] * epochs), num_examples=80_000).save(tmp_path / "record.pt")
        sizes.append((tmp_path / "record.pt").stat().st_size)
    assert sizes[1] - sizes[0] == pytest.approx(100 * 80_000 / 8, rel=0.01)


def test_what_is_drawn_twice_is_in_it_once():
    record = sb.pruning.SelectionRecord(NUM_DIGITS)
    loader, *_ = run(sb.kath18(0.5, variable_start=False), epochs=1, record=record)
    assert int(loader.ledger.selected.max()) > 1
    assert torch.equal(record.mask(0), loader.ledger.selected > 0)


def test_epochs_that_were_missed_or_counted_twice_are_told():
    model, record = make_model(), sb.pruning.SelectionRecord(NUM_DIGITS)
    loader = make_loader(sb.selective_backprop(0.3), model=model)
    with pytest.raises(ValueError, match="0 epochs"):
        record.add(loader)
    train(loader, model, 1)
    record.add(loader)
    with pytest.raises(ValueError, match="1 epochs"):
        record.add(loader)
    train(loader, model, 3)
    with pytest.raises(
        ValueError, match=r"once after each epoch.* the record has 1 epochs, but the loader has offered 3"
    ):
        record.add(loader)
    assert len(record) == 1


def test_an_epoch_left_early_is_recorded_as_far_as_it_went():
    model, record = make_model(), sb.pruning.SelectionRecord(NUM_DIGITS)
    loader = make_loader(sb.selective_backprop(0.3), model=model)
    for number, _ in enumerate(loader):
        if number == 1:  # one that is left at its first batch does not count
            break
    assert loader.stats.offered < NUM_DIGITS
    record.add(loader)
    assert torch.equal(record.mask(0), loader.ledger.selected > 0)


def test_a_run_longer_than_the_record():
    method = sb.methods.recorded_backprop(record=record_of(range(100), range(50)))
    with pytest.raises(ValueError, match="num_epochs=3"):
        make_loader(method, num_epochs=3)
    loader = make_loader(method)
    for _ in range(2):
        list(loader)
    with pytest.raises(ValueError, match="epoch 2"):
        list(loader)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sb.pruning.SelectionRecord(0), ValueError, "num_examples .* 0"),
        (lambda: record_of([0, 203]), ValueError, "0 to 203"),
        (lambda: record_of([-1]), ValueError, "-1"),
        (lambda: record_of([[1, 2]]), ValueError, r"\(1, 2\)"),
        (lambda: record_of([1]).mask(1), ValueError, "epoch 1"),
        (
            lambda: record_of([1], num_examples=99).add(make_loader(sb.traditional())),
            ValueError,
            "99 .* 203",
        ),
        (
            lambda: make_loader(sb.methods.recorded_backprop(record=record_of([1], num_examples=99))),
            ValueError,
            "99 .* 203",
        ),
        (
            lambda: sb.methods.recorded_backprop(record=record_of()),
            ValueError,
            "empty",
        ),
        (
            lambda: sb.methods.recorded_backprop(record="record.pt"),
            TypeError,
            "SelectionRecord",
        ),
        (lambda: sb.pruning.SelectionRecord.load("no/record.pt"), FileNotFoundError, "no/record.pt"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_files_of_something_else(tmp_path):
    path = tmp_path / "record.pt"
    path.write_text("hello")
    with pytest.raises(ValueError, match="damaged"):
        sb.pruning.SelectionRecord.load(path)
    sb.pruning.save_scores(torch.zeros(3), path)
    with pytest.raises(ValueError, match="selection record"):
        sb.pruning.SelectionRecord.load(path)
