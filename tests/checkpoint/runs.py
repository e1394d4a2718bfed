"""A short run with dropout, whose whole state fits a checkpoint; in this process, or killed in one of its own."""

import contextlib
import os
import signal
import sys

import torch

import selective_backprop as sb
from tests.helpers import make_loader, make_model, train

EPOCHS = 3
_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


class RandomState:
    """torch's global one, for dropout."""

    def state_dict(self):
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["torch"])


class Run:
    def __init__(self, method=None):
        self.model, generator = make_model(), torch.Generator().manual_seed(3)
        method = method or sb.selective_backprop(0.5)
        self.loader = make_loader(method, model=self.model, num_epochs=EPOCHS, loader_options={"generator": generator})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.parts = {"model": self.model, "optimizer": self.optimizer, "lr": schedule, "random": RandomState()}

    def save(self, folder):
        sb.save_checkpoint(folder, self.loader, **self.parts)

    def load(self, folder):
        return sb.load_checkpoint(folder, self.loader, **self.parts)

    def train(self, on_step=lambda step: None):
        """Train to the end; the ids of every batch."""

        def stepped(step, _):
            self.parts["lr"].step()
            on_step(step)

        return train(self.loader, self.model, EPOCHS, optimizer=self.optimizer, on_step=stepped)

    def state(self):
        return {name: part.state_dict() for name, part in self.parts.items()}


class Stop(Exception):  # noqa: N818
    pass


def saved(folder, steps):
    """Train for some steps and save; returns the run, and what it trained on."""
    torch.manual_seed(7)
    run, given = Run(), []

    def on_step(step):
        given.append(run.loader.batch.ids.tolist())
        if step in steps:
            run.save(folder)
        if step == max(steps):
            raise Stop

    with contextlib.suppress(Stop):
        run.train(on_step)
    return run, given


def save_and_die(folder, number):
    """Go on from the newest checkpoint for a step and save, in a process that kills itself while it saves.

    number: of the file operation before which it dies, counted from the beginning of the save.
    """
    run, done = Run(), 0
    assert run.load(folder)

    def count(event, arguments):
        nonlocal done
        if event in _OPERATIONS and str(arguments[0]).startswith(str(folder)):
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def on_step(step):
        sys.addaudithook(count)
        run.save(folder)
        raise Stop

    with contextlib.suppress(Stop):
        run.train(on_step)
