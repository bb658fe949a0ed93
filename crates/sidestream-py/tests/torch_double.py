"""A double of ``torch.cuda`` without PyTorch: it has handles, and records which stream waited for which. It
replaces PyTorch in tests on the stand-in driver, on which PyTorch itself cannot run. Its device has one queue
and its own clock: ``work`` takes a given time.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOG: list[tuple[Any, ...]] = []


class device:
    """A ``torch.device``, but only for CUDA."""

    def __init__(self, name: str, index: int = 0) -> None:
        self.type, _, given = name.partition(":")
        self.index = int(given or index)

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


class Stream:
    """``torch.cuda.Stream``, as created by PyTorch."""

    def __init__(self, handle: int, on: Any = "cuda:0") -> None:
        self.cuda_stream, self.device, self.priority = handle, device(str(on)), 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def wait_stream(self, other: Stream) -> None:
        LOG.append(("wait_stream", self.cuda_stream, other.cuda_stream))


class ExternalStream(Stream):
    """A stream that another library created."""

    def __init__(self, handle: int, device: Any) -> None:
        # PyTorch interprets an odd number as the id of one of its own streams.
        assert handle > 1 and handle % 2 == 0
        super().__init__(handle, device)


class Event:
    """``torch.cuda.Event``."""

    cuda_event = 77
    at_ns = 0

    def __init__(self, enable_timing: bool = False) -> None:
        self.timing = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        LOG.append(("record", (stream or _current[-1]).cuda_stream, self.timing))
        self.at_ns = work(0)

    def synchronize(self) -> None:
        while time.perf_counter_ns() < self.at_ns:
            pass

    def query(self) -> bool:
        return time.perf_counter_ns() >= self.at_ns

    def elapsed_time(self, end: Event) -> float:
        return (end.at_ns - self.at_ns) / 1e6

    def wait(self, stream: Stream) -> None:
        LOG.append(("wait", stream.cuda_stream))


_current = [Stream(0)]
_over_ns = 0


def work(duration_ns: int) -> int:
    """Enqueue work on the device, and return the time at which it will be complete."""
    global _over_ns
    _over_ns = max(_over_ns, time.perf_counter_ns()) + duration_ns
    return _over_ns


@contextmanager
def _device(_: Any) -> Iterator[None]:
    yield


@contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


def install() -> types.ModuleType:
    """Install the double, so that ``import torch`` finds it."""
    torch = types.ModuleType("torch")
    cuda: Any = types.ModuleType("torch.cuda")
    cuda.Stream, cuda.ExternalStream, cuda.Event = Stream, ExternalStream, Event
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.init = lambda: None
    cuda.current_device, cuda.device_count = lambda: 0, lambda: 2
    cuda.current_stream = lambda device=None: _current[-1]
    cuda.default_stream = lambda device=None: Stream(0, device)
    cuda.stream, cuda.device, cuda._sleep = _stream, _device, work
    cuda.get_device_name = lambda device=None: "NVIDIA H200"
    torch.__dict__.update(cuda=cuda, device=device)
    sys.modules.update({"torch": torch, "torch.cuda": cuda})
    return torch
