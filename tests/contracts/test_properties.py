"""The promises at batch sizes, selectivities, lengths and stops that nobody chose."""

import io

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.contracts.methods import KINDS, METHODS
from tests.helpers import NUM_DIGITS, digits, train, train_plainly

EXAMPLES = 30
SELECTIVITIES = st.floats(0.02, 1)
EPOCHS = st.integers(1, 4)


def make_network():
    """Without BatchNorm, which cannot train on a single example."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10))
    torch.set_rng_state(state)
    return network


def make(method, model, candidates, epochs, *, batch_size=None, drop_last=False):
    options = {"shuffle": True, "drop_last": drop_last}
    train_loader = DataLoader(digits(), candidates, generator=torch.Generator().manual_seed(3), **options)
    return sb.SelectiveLoader(
        train_loader, model, nn.CrossEntropyLoss(), method, num_epochs=epochs, batch_size=batch_size
    )


def check_batches(loader, model, epochs, own_size):
    """Full batches, each example once in a selection, nothing lost; returns the ids of all that was given out."""
    given_out = []
    for _ in range(epochs):
        sizes, before = [], loader.ledger.selected.clone()
        for inputs, targets in loader:
            batch = loader.batch
            expected = (column[batch.ids] for column in digits().tensors)
            assert all(map(torch.equal, (inputs, targets), expected))
            loader.loss(model(inputs), targets).backward()
            given_out += batch.ids.tolist()
            sizes.append(len(inputs))
        size = loader.batch_size
        # An epoch that keeps everything is that of the user's own loader, whose last batch may be small.
        is_plain = sum(sizes) == NUM_DIGITS and all(other in (size, own_size) for other in sizes[:-1])
        assert is_plain or all(other == size for other in sizes[:-2])
        assert is_plain or all(2 * other >= size for other in sizes[-2:]) or sum(sizes) <= size
        if loader.method.name not in ("kath18", "repeated_random"):  # which draw with replacement, and across epochs
            assert int((loader.ledger.selected - before).max()) <= 1
    counts = torch.bincount(torch.tensor(given_out, dtype=torch.int64), minlength=NUM_DIGITS)
    assert torch.equal(loader.ledger.selected, counts.int()), "what is given out is what the ledger counts"
    assert loader.stats.queued == 0


@settings(max_examples=EXAMPLES)
@example("kath18, unbiased", 0.75, 2, None, 1, False)  # as many draws as candidates, and some twice
@given(
    st.sampled_from(list(METHODS)),
    SELECTIVITIES,
    st.integers(1, NUM_DIGITS + 5),
    st.none() | st.integers(1, 70),
    EPOCHS,
    st.booleans(),
)
def test_6_batches_are_full_and_nothing_is_lost_or_repeated(name, selectivity, candidates, size, epochs, drop_last):
    # A pruned epoch without a full batch would be refused as empty.
    drop_last = drop_last and candidates <= (NUM_DIGITS // 4 if name.startswith("diet") else NUM_DIGITS)
    model = make_network()
    loader = make(METHODS[name](selectivity), model, candidates, epochs, batch_size=size, drop_last=drop_last)
    check_batches(loader, model, epochs, size or min(candidates, NUM_DIGITS))
    offered = NUM_DIGITS // candidates * candidates if drop_last else NUM_DIGITS
    if loader.method.keep is None:
        assert loader.stats.offered == epochs * offered


@settings(max_examples=EXAMPLES // 2)
@given(st.sampled_from(list(METHODS)), st.integers(1, NUM_DIGITS + 5), EPOCHS)
def test_2_selectivity_1_passes_everything_through(name, candidates, epochs):
    torch.manual_seed(1)
    plain_model, generator = make_network(), torch.Generator().manual_seed(3)
    train_plainly(DataLoader(digits(), candidates, shuffle=True, generator=generator), plain_model, epochs)
    torch.manual_seed(1)
    model = make_network()
    train(make(METHODS[name](1.0), model, candidates, epochs), model, epochs)
    assert same(model.state_dict(), plain_model.state_dict())


@settings(max_examples=EXAMPLES // 2)
@given(st.sampled_from(list(KINDS)), SELECTIVITIES, st.integers(2, 80), EPOCHS, st.integers(1, 25))
def test_5_saved_at_any_step_the_rest_is_the_same(name, selectivity, candidates, epochs, stop):
    states = {}

    def save(step, optimizer):
        if step == stop:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(parts | {"random": torch.get_rng_state()}, file := io.BytesIO())
            states[step] = file

    torch.manual_seed(1)
    model = make_network()
    loader = make(KINDS[name](selectivity), model, candidates, epochs)
    batches = train(loader, model, epochs, on_step=save)
    if stop not in states:
        return
    states[stop].seek(0)
    state = torch.load(states[stop], weights_only=True)
    torch.manual_seed(9)
    resumed_model = make_network()
    resumed = make(KINDS[name](selectivity), resumed_model, candidates, epochs)
    optimizer = torch.optim.SGD(resumed_model.parameters(), lr=0.05, momentum=0.9)
    resumed_model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    resumed.load_state_dict(state["loader"])
    torch.set_rng_state(state["random"])
    assert train(resumed, resumed_model, epochs, optimizer=optimizer) == batches[stop:]
    assert same(resumed_model.state_dict(), model.state_dict())
    assert same(resumed.ledger.state_dict(), loader.ledger.state_dict())
