"""Outcomes of runs that never ran, with known multipliers."""

from selective_backprop_lab.leaderboard.records import Cell, Outcome


def outcomes(arm, points, seeds=3, spread=0.0, setting=None):
    """Outcomes of an arm. points: (length, compute, error); errors of seeds lie evenly within +- spread."""
    found = []
    for length, compute, error in points:
        for seed in range(seeds):
            offset = spread * (2 * seed / max(1, seeds - 1) - 1)
            cell = Cell(arm, setting or arm, length, seed, False)
            found.append(Outcome(cell, error + offset, compute, 2.0, 2.0))
    return found


PLAIN = [(1, 1.0, 0.4), (2, 2.0, 0.2), (4, 4.0, 0.1)]
RANDOM = [(1, 0.5, 0.6), (2, 1.0, 0.4), (4, 2.0, 0.2)]
