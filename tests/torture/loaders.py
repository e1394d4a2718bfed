"""What can happen to a SelectiveLoader: workers that die, data that changed, losses that are all the same."""

import functools
import os
import signal
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import selective_backprop as sb
from selective_backprop.testing import same
from tests.contracts.methods import METHODS
from tests.helpers import digits, make_loader, make_model, train
from tests.lab.command_line import run_function, text_of

EPOCHS = 3


class Dangerous(torch.utils.data.Dataset):
    """Digits. Once a certain file exists, a process that loads an example dies in the given way."""

    def __init__(self, end=None, file=None):
        self.end, self.file = end, file

    def __len__(self):
        return len(digits())

    def __getitem__(self, index):
        if self.end is not None and self.file.exists():
            self.end()
        return digits()[index]


def _raise():
    raise OSError("cannot read this image")


def _exit():
    os._exit(1)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


ENDS = {"exits": _exit, "is killed": _die, "raises": _raise}


def _new(dataset):
    model, generator = make_model(), torch.Generator().manual_seed(4)
    method, options = sb.stale_selective_backprop(0.4, every=2), {"num_workers": 2, "generator": generator}
    return model, make_loader(method, dataset=dataset, model=model, num_epochs=EPOCHS, loader_options=options)


def _train_until_the_end(end, scratch):
    """In a process of its own: torch raises the death of a worker anywhere, in the middle of other things."""
    warnings.filterwarnings("ignore", "This DataLoader")  # on a machine with one core
    torch.manual_seed(1)
    model, loader = _new(Dangerous(ENDS[end], scratch / "from now on"))

    def save(step, optimizer):
        if step % 3 == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(parts | {"step": step, "random": torch.get_rng_state()}, scratch / "state.pt")
        if step == 7:
            (scratch / "from now on").touch()

    train(loader, model, EPOCHS, on_step=save)


def dying_worker(end, scratch):
    """The loop ends with an error. A resume from the last saved state gives the same result as an undisturbed run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader")
        torch.manual_seed(1)
        expected_model, loader = _new(Dangerous())
        expected = train(loader, expected_model, EPOCHS)
        result = run_function(_train_until_the_end, end, scratch)
        assert result.returncode == 1, text_of(result)
        told = (
            ("cannot read this image",)
            if end == "raises"
            else ("DataLoader worker", "ConnectionResetError", "EOFError")
        )
        assert any(message in result.stderr for message in told), text_of(result)
        state = torch.load(scratch / "state.pt", weights_only=True)
        model, loader = _new(Dangerous())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"])
        assert train(loader, model, EPOCHS, optimizer=optimizer) == expected[state["step"] :]
    assert same(model.state_dict(), expected_model.state_dict())


def changed_data_set(scratch):
    """A state is refused by a loader of more or fewer examples, before anything of it is loaded."""
    loader = make_loader(sb.selective_backprop(0.5), dataset=digits(100))
    next(iter(loader))
    state = loader.state_dict()
    for count in (90, 110):
        other = make_loader(sb.selective_backprop(0.5), dataset=digits(count))
        before = {**other.stats.state_dict(), "ledger": other.ledger.state_dict()}
        message = _error_of(functools.partial(other.load_state_dict, state))
        assert f"saved ledger has 100 examples but the data set has {count}" in message, message
        assert same({**other.stats.state_dict(), "ledger": other.ledger.state_dict()}, before)


class Stream(IterableDataset):
    """Digits without ids."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return (digits()[index] for index in range(self.count))


def shorter_stream(scratch):
    """A stream that ends before the place where the state was saved."""

    def new(count):
        return sb.SelectiveLoader(
            DataLoader(Stream(count), 16), make_model(), nn.CrossEntropyLoss(), sb.selective_backprop(0.5)
        )

    loader = new(160)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state, shorter = loader.state_dict(), new(32)
    shorter.load_state_dict(state)
    message = _error_of(lambda: list(shorter))
    assert "ended after 2 batches" in message, message


def _error_of(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was noticed")


class Indifferent(nn.Module):
    """Every example has the same loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 10, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, inputs):
        return self.layer(inputs[:, :10])


def equal_losses(scratch):
    """Every method goes on, with full batches, and loses or repeats nothing."""
    for name, make in METHODS.items():
        model = Indifferent()
        loader = make_loader(make(0.4), model=model, num_epochs=EPOCHS)
        given, sizes = [], []
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                loader.loss(model(inputs), targets).backward()
                given += loader.batch.ids.tolist()
                sizes.append(len(inputs))
        counts = torch.bincount(torch.tensor(given), minlength=len(loader.ledger))
        assert given and torch.equal(counts, loader.ledger.selected.to(counts.dtype)), name
        assert loader.stats.queued == loader.stats.dropped == 0, name
        assert max(sizes) <= loader.batch_size and sizes.count(loader.batch_size) >= len(sizes) - 2 * EPOCHS, name
