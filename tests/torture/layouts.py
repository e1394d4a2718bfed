"""Random layouts on 2 to 4 ranks, many in one start of real processes."""

from tests.distributed import launch
from tests.distributed.layouts import SIZES, check, layouts_of

AT_ONCE = 10
"""Layouts in one start of ranks: starting them takes longer than a layout."""


def survive(number, count, seed, scratch):
    """Layouts of the number-th start; ranks are 2, 3, 4, 2, ... of them."""
    size, first = SIZES[number % len(SIZES)], number // len(SIZES) * AT_ONCE
    results = launch.run("layouts:job", scratch, size, str(seed), str(first), str(count))
    for layout, ranks in zip(layouts_of(seed, size, first, count), zip(*results, strict=True), strict=True):
        try:
            check(layout, ranks)
        except AssertionError as error:
            raise AssertionError(f"{size} ranks, {layout}: {error}") from None
    return count
