"""Files of the lab: each tells whether it is whole, and asks for no more memory than it has bytes."""

import hashlib
import io
import random
import zipfile

import numpy as np
import pytest
import torch

from selective_backprop_lab.files.sealed import (
    read_sealed,
    seal,
    unseal,
    write_sealed,
)
from selective_backprop_lab.probes.files import read_epochs, write_arrays

STATE = {"epoch": 3, "weights": torch.arange(40.0)}


def test_torch_and_zip_read_it_as_any_other_file(tmp_path):
    file = tmp_path / "state.pt"
    write_sealed(file, "state 1", STATE)
    for options in ({}, {"mmap": True}):
        assert torch.load(file, weights_only=True, **options)["weights"].tolist() == list(range(40))
    with read_sealed(file, "state 1") as state:
        assert state["weights"].tolist() == list(range(40))
    with zipfile.ZipFile(file) as opened:
        content = file.read_bytes()
        assert opened.comment == b"sha256:" + hashlib.sha256(content[:-71]).hexdigest().encode()
        assert content.endswith(opened.comment)


# ---- every kind of file


KINDS = {
    "arrays of the lab": (
        lambda file: write_arrays(file, loss=np.zeros(50)),
        lambda file: read_epochs(file.parent, "file", loss="f"),
    ),
}


@pytest.fixture(params=KINDS)
def kind(request, tmp_path):
    write, read = KINDS[request.param]
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "file-0000.pt")
    return tmp_path / "run" / "file-0000.pt", read


def test_one_flipped_bit_is_found(kind):
    file, read = kind
    content, draw = file.read_bytes(), random.Random(0)
    for place in draw.sample(range(len(content)), 300):
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"file-0000\.pt is damaged"):
            read(file)
    file.write_bytes(content)
    read(file)


def test_a_file_of_another_kind_is_refused(kind, tmp_path):
    file, read = kind
    write_sealed(file, "state 1", STATE)
    with pytest.raises(ValueError, match=r"file-0000\.pt holds 'state 1', where '.* 1' is expected"):
        read(file)


# ---- sizes


def sealed_as(content):
    """The same zip file with the checksum of its content: whoever can change a file can change its checksum."""
    content = content[:-2] + (71).to_bytes(2, "little")
    return content + b"sha256:" + hashlib.sha256(content).hexdigest().encode()


def test_what_would_grow_is_refused():
    """A stranger's file of a kilobyte must not ask for terabytes, now or when its tensors are used."""
    content, compressed = seal({"zeros": torch.zeros(100_000)}), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as there, zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as here:
        for entry in there.infolist():
            here.writestr(entry, there.read(entry), zipfile.ZIP_DEFLATED)
    assert len(compressed.getvalue()) < 10_000
    with pytest.raises(ValueError, match="it would become larger than the file"):
        unseal(sealed_as(compressed.getvalue()))
    sparse = torch.sparse_coo_tensor([[0], [0]], [1.0], (2**20, 2**25), check_invariants=True)
    expanded, meta = torch.zeros(1).expand(2**20, 2**25), torch.empty(2**45, device="meta")
    for tensor in (sparse, expanded, meta):
        torch.save({"state": [tensor]}, file := io.BytesIO())
        with pytest.raises(ValueError, match="without a number for each entry"):
            unseal(sealed_as(file.getvalue()))


def with_pickle(content):
    """A sealed file with the right checksum and this pickle: (plain data and globals that torch.load allows)."""
    with zipfile.ZipFile(io.BytesIO(seal({"x": 1}))) as there, zipfile.ZipFile(made := io.BytesIO(), "w") as here:
        for entry in there.infolist():
            here.writestr(entry, content if entry.filename.endswith("data.pkl") else there.read(entry))
    return sealed_as(made.getvalue())


def pickled(value):
    return b"\x80\x02}(X\x04\0\0\0kindX\x08\0\0\0scores 1X\x06\0\0\0scores" + value + b"u."


TWICE = b"".join(b"](h%ch%ceq%c" % (level, level, level + 1) for level in range(40))
BOMBS = {
    "a list of two lists of two lists, and so on": (b"(]q\0" + TWICE + b"t", "holds far more than it has bytes"),
    "a list in a list, 5000 deep": (b"]" * 5000 + b"a" * 4999, "is nested more than 100 levels deep"),
    "a list that holds itself": (b"]q\0h\0a", "is nested more than 100 levels deep"),
    "many zeros": (b"cbuiltins\nbytearray\nJ\0\0\0\x0c\x85R", "holds far more than it has bytes"),
    "a tensor that is not in the file": (b"ctorch\nTensor\nJ\0\0\0\x0c\x85R", "has a tensor without its numbers"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_cannot_hold_more_than_it_has_bytes(name, tmp_path):
    value, message = BOMBS[name]
    (tmp_path / "scores.pt").write_bytes(with_pickle(pickled(value)))
    told = rf"scores\.pt is damaged, or was not written by this package: .*{message}"
    with pytest.raises(ValueError, match=told), read_sealed(tmp_path / "scores.pt", "scores 1"):
        pass


def test_a_slice_is_written_without_the_rest_of_its_tensor():
    whole = torch.arange(1000.0).view(100, 10)
    state = {"rows": whole[3:5], "column": whole[:, 3], "same": torch.ones(1).expand(3)}
    content = seal(state)
    assert len(content) < 3000
    for name, tensor in unseal(content).items():
        assert torch.equal(tensor, state[name])
