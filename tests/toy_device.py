"""A device in pure Python, named "toy": with it, tests find out what code does with devices where there is no GPU.

Its memory is the CPU's, so that values are right, but torch takes it for another device. An operation on tensors of
both raises, as on a GPU. A copy to the CPU with non_blocking=True arrives only when somebody waits, so a value that
is read too early is wrong. `waits` lists every operation for which the CPU would wait for a GPU. This needs torch 2.13
and changes torch for the whole process: import it in a process of its own.
"""

import contextlib
import ctypes
import functools
import inspect
import threading
from pathlib import Path

import torch
from torch.utils import dlpack
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import selective_backprop

waits: list[str] = []
"""The operations that waited for the device, each with the place in our source that asked for it."""
num_steps = 0
"""Training steps so far. The test counts them."""

# Operations whose result has a size that only the device knows, or is a number on the CPU.
_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "bincount")
_INDEXING = ("index", "index_put_", "_index_put_impl_")
_CPU, _OTHER = 1, 12  # device types of DLPack
_SOURCE = str(Path(selective_backprop.__file__).parent)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_launched = _finished = 0  # operations launched on the device, and those that the CPU knows to be finished
_arriving: list[tuple[torch.Tensor, torch.Tensor]] = []  # copies to the CPU that nobody has waited for


class Event:
    """As torch.cuda.Event, of the slowest device there can be."""

    def record(self):
        self._launched, self._step = _launched, num_steps

    def query(self):
        return self._launched <= _finished

    def synchronize(self):
        # If later steps are in the device's queue, it has work to do while the CPU waits for an earlier one.
        if not self.query() and num_steps < self._step + 4:
            _wait("event")
        _arrive()


class _Module(_DummyBackendModule):
    Event = Event
    device = contextlib.nullcontext
    generator = torch.Generator()

    def get_rng_state(self, device="toy"):
        return self.generator.get_state()

    def set_rng_state(self, state, device="toy"):
        self.generator.set_state(state)

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


class _Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")  # torch has no way to make one for a device in Python


def _arrive():
    while _arriving:
        destination, value = _arriving.pop()
        destination.copy_(value)


def _wait(what):
    global _finished
    _arrive()
    # Nothing has been launched since the last wait, or a thread in the background waits.
    if _finished == _launched or threading.current_thread().name.startswith("selective_backprop"):
        return
    _finished = _launched
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_SOURCE):
        frame = frame.f_back
    place = "the loop" if frame is None else f"{frame.f_code.co_filename.removeprefix(_SOURCE)}:{frame.f_lineno}"
    waits.append(f"{what} in {place}")


def _relabelled(tensor, device):
    """The same memory as a tensor of another device."""
    capsule = dlpack.to_dlpack(tensor.detach())
    ctypes.c_int32.from_address(_pointer_of(capsule, b"dltensor") + 8).value = device
    return dlpack.from_dlpack(capsule)


def _is_toy(value):
    return isinstance(value, torch.Tensor) and value.device.type == "toy"


def _on_cpu(value):
    if _is_toy(value):
        return _relabelled(value, _CPU)
    return torch.device("cpu") if isinstance(value, torch.device) else value


@functools.cache
def _known(operation):
    """The name of an operation, and whether it draws random numbers."""
    schema = operation._schema
    return schema.name.removeprefix("aten::"), any(argument.name == "generator" for argument in schema.arguments)


def _mapped(function, value):
    """The value with this done to all in it; torch's own way for any structure takes longer than most operations."""
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, part) for part in value])
    return function(value)


def _run(operation, *args, **options):
    """Any operation, on the CPU's memory."""
    global _launched
    _launched += 1
    name, draws = _known(operation)
    strangers, written = [], {}

    def lend(value):
        if isinstance(value, torch.Tensor) and not _is_toy(value) and value.dim():
            strangers.append(tuple(value.shape))
        lent = _on_cpu(value)
        if isinstance(lent, torch.Tensor):
            written[id(lent)] = lent, value
        return lent

    def label(value):
        """An operation that writes to a tensor returns it."""
        if not isinstance(value, torch.Tensor):
            return value
        return written[id(value)][1] if id(value) in written else _relabelled(value, _OTHER)

    args = _mapped(lend, args)
    options = {option: _mapped(lend, value) for option, value in options.items()}
    if strangers:
        raise RuntimeError(f"{name} has tensors of two devices; those on the CPU have the shapes {strangers}")
    has_mask = name in _INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
    if name in _WAITING or has_mask:
        _wait(name)
    if draws:
        options = {"generator": _Module.generator} | options
    return _mapped(label, operation(*args, **options))


def _copy(source, destination, non_blocking=False):
    """Copy from one device to the other, or within the toy."""
    global _launched
    _launched += 1
    crosses = _is_toy(source) != _is_toy(destination)
    if crosses and non_blocking and not _is_toy(destination):
        destination.fill_(-(2**15))  # what is there before the value arrives
        _arriving.append((destination, _on_cpu(source).clone()))
        return destination
    if crosses and not non_blocking:
        _wait("blocking copy")
    _on_cpu(destination).copy_(_on_cpu(source))
    return destination


def _to_copy(source, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    """Torch's own would ask for pinned memory."""
    kept = torch.preserve_format if memory_format is None else memory_format
    value = torch.empty_like(_on_cpu(source), dtype=dtype or source.dtype, memory_format=kept)
    if device is None or device.type == "toy":
        value = _relabelled(value, _OTHER)
    return _copy(source, value, non_blocking)


def _deepcopy(tensor, memo, of_torch=torch.Tensor.__deepcopy__):
    """Torch's own would ask for memory of the device."""
    if not _is_toy(tensor):
        return of_torch(tensor, memo)
    return memo.setdefault(id(tensor), tensor.detach().clone().requires_grad_(tensor.requires_grad))


torch.Tensor.__deepcopy__, torch.Generator = _deepcopy, _Generator
_setup_privateuseone_for_python_backend("toy", backend_module=_Module())
_everything, _aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_everything.fallback(_run, "PrivateUse1")
_everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_aten.impl("_copy_from", _copy, "PrivateUse1")
_aten.impl("_to_copy", _to_copy, "PrivateUse1")
for _name in ("abs", "logsumexp"):  # torch's own would ask for more memory for their results
    _operation = getattr(torch.ops.aten, _name).default
    _aten.impl(_name, functools.partial(_run, _operation), "PrivateUse1")
