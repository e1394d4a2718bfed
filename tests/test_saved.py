"""Files of the library: torch.load reads them, damage is an error, and never another value."""

import random

import pytest
import torch

import selective_backprop as sb
from selective_backprop.dynamics.log import Dynamics
from selective_backprop.testing import same


def write_scores(file):
    sb.pruning.save_scores(torch.arange(50) / 50, file)


def write_dynamics(file):
    dynamics = Dynamics(50)
    dynamics.record(torch.arange(50), torch.arange(50) / 50, epoch=0)
    dynamics.save(file)


KINDS = {
    "scores": (write_scores, sb.pruning.load_scores),
    "dynamics": (write_dynamics, Dynamics.load),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_an_error_or_holds_the_same_values(name, tmp_path):
    """A bit of the zip file's padding has no meaning."""
    write, read = KINDS[name]
    file, damaged = tmp_path / "file.pt", tmp_path / "damaged.pt"
    write(file)
    whole, draw, found = file.read_bytes(), random.Random(0), 0
    state = torch.load(file, weights_only=True)
    for place in draw.sample(range(len(whole)), 300):
        content = bytearray(whole)
        content[place] ^= 1 << draw.randrange(8)
        damaged.write_bytes(content)
        try:
            read(damaged)
        except ValueError as error:
            assert "damaged.pt" in str(error)
            found += 1
        else:
            assert same(torch.load(damaged, weights_only=True), state)
    assert found > 50
    for content in (b"", whole[:-1], whole[: len(whole) // 2]):
        damaged.write_bytes(content)
        with pytest.raises(ValueError, match=r"damaged\.pt"):
            read(damaged)


def test_no_file_is_left_half_written(tmp_path):
    write_scores(tmp_path / "scores.pt")
    with pytest.raises(OSError):
        write_scores(tmp_path / "nowhere" / "scores.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["scores.pt"]
