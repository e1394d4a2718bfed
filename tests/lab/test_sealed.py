"""States in files that tell whether they are whole."""

import hashlib
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selective_backprop.lab.runs.sealed import read_sealed, seal, unseal

STATE = {"epoch": 3, "weights": torch.arange(40.0)}


def test_torch_and_zip_read_it_as_any_other_file(tmp_path):
    file = tmp_path / "state.pt"
    file.write_bytes(seal(STATE))
    for options in ({}, {"mmap": True}):
        assert torch.load(file, weights_only=True, **options)["weights"].tolist() == list(range(40))
    assert read_sealed(file)["weights"].tolist() == list(range(40))
    with zipfile.ZipFile(file) as opened:
        content = file.read_bytes()
        assert opened.comment == b"sha256:" + hashlib.sha256(content[:-71]).hexdigest().encode()
        assert content.endswith(opened.comment)


@given(st.binary(max_size=400))
def test_no_bytes_are_a_state_by_chance(content):
    with pytest.raises(ValueError):
        unseal(content)


@given(st.data())
def test_a_bit_flipped_anywhere_is_found(data):
    content = bytearray(seal(STATE))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError):
        unseal(bytes(content))
