"""Methods are told apart by their colours, by readers with and without colour blindness."""

import itertools
import math

import numpy as np
import pytest

from selective_backprop_lab.report import theme
from selective_backprop_lab.runs.methods import METHODS

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHTS = {
    "ordinary": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(color):
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(color, sight):
    seen = np.clip(np.asarray(SIGHTS[sight]) @ linear(color), 0, 1)
    x, y, z = (math.cbrt(v) if v > (6 / 29) ** 3 else v / (3 * (6 / 29) ** 2) + 4 / 29 for v in TO_XYZ @ seen / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one, other, sight):
    """CIE 1976."""
    return float(np.linalg.norm(lab(one, sight) - lab(other, sight)))


def contrast(one, other):
    bright, dark = sorted((float(TO_XYZ[1] @ linear(color)) + 0.05 for color in (one, other)), reverse=True)
    return bright / dark


def test_the_measure_is_right():
    assert lab("#ffffff", "ordinary") == pytest.approx([100, 0, 0], abs=0.01)
    assert lab("#ff0000", "ordinary") == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    # Red and green of one brightness: a reader with deuteranopia takes them for nearly the same.
    assert difference("#d62728", "#2ca02c", "deuteranopia") < difference("#d62728", "#2ca02c", "ordinary") / 2


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("name", theme.THEMES)
def test_any_two_methods_are_told_apart(name, sight):
    colors = {method: theme.color_of(method, name) for method in [*theme.STYLES, "one's own"]}
    near = [
        (one, other, round(difference(colors[one], colors[other], sight), 1))
        for one, other in itertools.combinations(colors, 2)
        if difference(colors[one], colors[other], sight) < 15
    ]
    assert near == []
    assert min(contrast(color, theme.PAPER[name]) for color in colors.values()) >= 3


def test_every_method_has_its_colour_and_a_marker():
    assert set(theme.STYLES) == set(METHODS)
    common = ["traditional", "repeated_random", "ledger_backprop", "selective_backprop", "stale_selective_backprop",
              "infobatch", "kath18", "random_backprop"]  # fmt: skip
    assert len({theme.shape_of(method) for method in common}) == len(common)


def test_phases_have_other_colours_than_methods():
    methods = {color for light, dark, _ in theme.STYLES.values() for color in (light, dark)}
    assert not methods & set(theme.PHASES)
    for one, other in itertools.combinations(theme.PHASES[:4], 2):
        assert min(difference(one, other, sight) for sight in SIGHTS) >= 15
