"""A consumer of DLPack capsules, for memory that this process cannot read."""

from __future__ import annotations

import ctypes
from typing import Any


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    name = b"dltensor"
    used = b"used_dltensor"


class Versioned(ctypes.Structure):
    name = b"dltensor_versioned"
    used = b"used_dltensor_versioned"


Legacy._fields_ = [
    ("tensor", Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Legacy))),
]
Versioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Versioned))),
    ("flags", ctypes.c_uint64),
    ("tensor", Tensor),
]

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def taken(capsule: Any, form: Any = Legacy) -> Any:
    """Take the contents of a capsule. The caller must call its deleter."""
    managed = ctypes.cast(_api.PyCapsule_GetPointer(capsule, form.name), ctypes.POINTER(form))
    _api.PyCapsule_SetName(capsule, form.used)
    return managed


def delete(managed: Any) -> None:
    """Call the deleter: the contents are no longer used."""
    managed.contents.deleter(managed)


def facts(managed: Any) -> tuple[Any, ...]:
    """Return the device, dtype, shape and strides."""
    tensor = managed.contents.tensor
    sizes = [tuple(each[at] for at in range(tensor.ndim)) for each in (tensor.shape, tensor.strides)]
    return (tensor.device_type, tensor.device_id), (tensor.code, tensor.bits, tensor.lanes), *sizes


class Cuda:
    """Replaces the parts of ``torch.cuda`` that ``sidestream.prefetch`` uses with our streams, on a driver
    without a GPU.

    Imported tensors have the right shapes and types, and zeros as values. Each stream records its work and
    its waits in `seen`: work without a recorded wait in between may run concurrently.
    """

    def __init__(self, torch: Any) -> None:
        import contextlib
        import weakref

        import sidestream

        main, side = sidestream.Stream("cuda:0", name="main"), sidestream.Stream("cuda:0", name="transform")

        class Stream:
            def __init__(self, device: Any = None, ours: Any = side) -> None:
                self.ours = ours
                self.cuda_stream = ours.cuda_stream
                self.seen: set[Any] = set()

            def wait_stream(self, other: Any) -> None:
                self.ours.wait_stream(other.ours)
                self.seen |= other.seen

            def wait_event(self, event: Any) -> None:
                event.ours.wait(self.ours)
                self.seen |= event.seen

            def record_event(self) -> Any:
                event = Event()
                event.ours.record(self.ours)
                event.seen = frozenset(self.seen)
                return event

        class Event:
            seen: Any = frozenset()

            def __init__(self) -> None:
                self.ours = sidestream.Event(device="cuda:0")

        current = [Stream(ours=main)]

        @contextlib.contextmanager
        def on(stream: Any) -> Any:
            current.append(stream)
            try:
                yield
            finally:
                current.pop()

        types = {(0, 64): torch.int64, (1, 8): torch.uint8, (2, 32): torch.float32, (4, 16): torch.bfloat16}

        def made(capsule: Any) -> Any:
            managed = taken(capsule)
            _, (code, bits, _), shape, _ = facts(managed)
            tensor = torch.zeros(shape, dtype=types[code, bits])
            weakref.finalize(tensor, delete, managed)
            return tensor

        self.current = current
        cuda: Any = torch.cuda
        cuda.is_available, cuda.current_device, cuda.set_device = (
            lambda: True,
            lambda: 0,
            lambda ordinal: None,
        )
        cuda.current_stream, cuda.Stream, cuda.stream = lambda ordinal=None: current[-1], Stream, on
        cuda.init = lambda: None
        cuda.device = lambda ordinal: contextlib.nullcontext()
        torch._C._cuda_getCurrentRawStream = lambda ordinal: current[-1].cuda_stream
        torch._C._from_dlpack = made
