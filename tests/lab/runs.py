"""Training to the end, as the commands do it."""

from selective_backprop_lab.runs.training import advance, start


def train(settings, data, *, folder=None, device=None, observers=()):
    """Start from the folder's last checkpoint if there is one, and save after every epoch. Returns the records."""
    training = start(settings, data, folder, device)
    while len(training.records) < settings.epochs:
        advance(training, folder, observers)
    return training.records
