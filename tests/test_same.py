"""What all tests of "to the bit" rest on."""

import pytest
import torch

from selective_backprop.testing import same

NAN = float("nan")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), True),
        (torch.tensor([0.0]), torch.tensor([NAN]), False),
        (torch.tensor([float("inf")]), torch.tensor([torch.finfo(torch.float32).max]), False),
        (torch.tensor([1.0]), torch.tensor([1.0]).double(), False),
        (torch.tensor(3), torch.tensor(3), True),
        (torch.tensor([True, False]), torch.tensor([True, False]), True),
        (torch.ones(2, 3).T, torch.ones(3, 2), True),
        ({"a": [NAN, None, "x"]}, {"a": [NAN, None, "x"]}, True),
        ({"a": NAN}, {"a": 0.0}, False),
        ([None], [0], False),
    ],
)
def test_equal_to_the_bit(a, b, expected):
    assert same(a, b) == expected
