"""The leaderboard's digits, half of them, with a network that trains in no time."""

import dataclasses

from selective_backprop_lab.leaderboard import workloads

SMALL_DIGITS = dataclasses.replace(
    workloads.DIGITS,
    recipe=workloads.DIGITS.recipe.with_(model="tests.torture.network:small"),
    train_size=480,
)


def shrink():
    """For the process of a command: the digits that it finds are these."""
    workloads.DIGITS = SMALL_DIGITS
