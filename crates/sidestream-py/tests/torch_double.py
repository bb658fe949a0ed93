"""What the package asks of ``torch.cuda``, without PyTorch: handles and who waited for whom.

It stands in for PyTorch where the driver is a stand-in too, on which PyTorch itself cannot run.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOG: list[tuple[Any, ...]] = []


class device:
    """``torch.device``, for CUDA alone."""

    def __init__(self, name: str) -> None:
        self.type, _, index = name.partition(":")
        self.index = int(index or 0)

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


class Stream:
    """``torch.cuda.Stream``, which PyTorch made."""

    def __init__(self, handle: int, on: Any = "cuda:0") -> None:
        self.cuda_stream, self.device, self.priority = handle, device(str(on)), 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def wait_stream(self, other: Stream) -> None:
        LOG.append(("wait_stream", self.cuda_stream, other.cuda_stream))


class ExternalStream(Stream):
    """A stream that somebody else made."""

    def __init__(self, handle: int, device: Any) -> None:
        # PyTorch takes an odd number for the id of a stream of its own.
        assert handle > 1 and handle % 2 == 0
        super().__init__(handle, device)


class Event:
    """``torch.cuda.Event``."""

    cuda_event = 77

    def __init__(self, enable_timing: bool = False) -> None:
        self.timing = enable_timing

    def record(self, stream: Stream) -> None:
        LOG.append(("record", stream.cuda_stream, self.timing))

    def wait(self, stream: Stream) -> None:
        LOG.append(("wait", stream.cuda_stream))


_current = [Stream(0)]


@contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


def install() -> types.ModuleType:
    """Put it where ``import torch`` finds it."""
    torch = types.ModuleType("torch")
    cuda: Any = types.ModuleType("torch.cuda")
    cuda.Stream, cuda.ExternalStream, cuda.Event = Stream, ExternalStream, Event
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.init = lambda: None
    cuda.current_device = lambda: 0
    cuda.current_stream = lambda device=None: _current[-1]
    cuda.default_stream = lambda device=None: Stream(0, device)
    cuda.stream = _stream
    torch.__dict__.update(cuda=cuda, device=device)
    sys.modules.update({"torch": torch, "torch.cuda": cuda})
    return torch
