"""Methods are told apart by their colours, by readers with and without colour blindness."""

import itertools

import numpy as np
import pytest

from selective_backprop_lab.report import draw
from selective_backprop_lab.runs.methods import METHODS

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHTS = {
    "ordinary": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.9503041]]
)


def linear(color):
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(color, sight):
    xyz = TO_XYZ @ np.clip(np.asarray(SIGHTS[sight]) @ linear(color), 0, 1) / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    bright, dark = sorted((float(TO_XYZ[1] @ linear(color)) + 0.05 for color in (one, other)), reverse=True)
    return bright / dark


def test_the_measure_is_right():
    assert lab("#ff0000", "ordinary") == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", [0, 1])
def test_any_two_methods_are_told_apart(theme, sight):
    colors = {name: style[theme] for name, style in {**draw.STYLES, "one's own": draw.OTHER_METHOD}.items()}
    seen = {name: lab(color, sight) for name, color in colors.items()}
    pairs = itertools.combinations(seen, 2)
    assert [(one, other) for one, other in pairs if np.linalg.norm(seen[one] - seen[other]) < 15] == []
    assert min(contrast(color, draw.COLORS["paper"][theme]) for color in colors.values()) >= 3


def test_every_method_has_its_colour():
    assert set(METHODS) <= set(draw.STYLES)
    assert not {color for style in draw.STYLES.values() for color in style} & set(draw.PHASES)
