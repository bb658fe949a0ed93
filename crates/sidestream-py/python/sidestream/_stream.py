"""Streams and events that PyTorch and other libraries understand."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from sidestream import _sidestream


class Stream(_sidestream.Stream):
    """A stream of a GPU, real or simulated, beside PyTorch's.

    What is put into one stream runs in that sequence. Nothing orders two streams until one of them waits for the
    other. No stream waits for the default stream by itself, nor the other way round.

    Wherever a stream is asked for, ``torch.cuda.Stream``, any object with ``__cuda_stream__``, a handle as a
    number and ``None`` for PyTorch's current stream do as well. The NULL stream is taken as the legacy default
    stream, and never handed out.

    A stream whose handle was handed out is not destroyed with its last object, because PyTorch's allocator may
    still use the handle: the next ``Stream`` of the same device, priority and name gets it.

    Args:
        device: ``"cuda"`` (PyTorch's current device), ``"cuda:1"``, a ``torch.device`` or its number; or a simulated
            device such as ``"sim:h200"``, whose streams have no handles.
        priority: Lower is more urgent, as in PyTorch.
        name: What traces call it. Use few names.

    Raises:
        DeviceError: The device cannot be opened.
        ValueError: It has no such priority.
    """

    def __new__(cls, device: Any = "cuda", *, priority: int = 0, name: str | None = None) -> Stream:
        """Make a stream."""
        return super().__new__(cls, device, priority, name, None)

    @classmethod
    def of(cls, other: Any, *, device: Any = None, name: str | None = None) -> Stream:
        """Return a stream of another library as one of these. It stays the other's, and is kept alive.

        Args:
            other: A ``torch.cuda.Stream``, an object with ``__cuda_stream__``, a handle, or ``None`` for PyTorch's
                current stream. A handle has to stay valid as long as this object is used.
            device: Its device, where ``other`` does not say; by default PyTorch's current one.
            name: What traces call it.

        Raises:
            TypeError: It is no stream.
            ValueError: It belongs to another device, or there is no current stream.
        """
        return _sidestream.Stream.__new__(cls, device, 0, name, other)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return version 0 of the protocol and the handle, for other libraries.

        Raises:
            ValueError: The device is simulated.
        """
        return (0, self.cuda_stream)

    def __repr__(self) -> str:
        return f"<sidestream.Stream {self.name!r} device={self.device}>"
