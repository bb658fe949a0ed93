"""Streams and events that PyTorch and other libraries can use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sidestream import _sidestream
from sidestream._arguments import truth
from sidestream._devices import name_with_streams

if TYPE_CHECKING:
    from typing_extensions import Self

#: The contexts that each thread has entered with ``with stream:``, the innermost last.
_entered = threading.local()


class Stream(_sidestream.Stream):
    """A stream of a real or simulated GPU, separate from PyTorch's streams.

    Work in one stream runs in the order in which it was submitted. Two streams are unordered until one of
    them waits for the other. The streams are non-blocking: they and the default stream do not wait for each
    other.

    Wherever a stream is asked for, a ``torch.cuda.Stream``, an object with ``__cuda_stream__`` (cuda.core,
    CuPy, numba), a handle as a number, or ``None`` for PyTorch's current stream is accepted as well. The NULL
    stream is taken as the legacy default stream, and never handed out. ``with stream:`` makes it PyTorch's
    current stream, as ``torch.cuda.stream`` does. If memory that PyTorch allocated on one stream is used on
    another one, tell the allocator with ``tensor.record_stream``, as between PyTorch's own streams.

    A stream whose handle was handed out (``cuda_stream``, ``__cuda_stream__``, ``torch()``) is not destroyed
    with its last object, because PyTorch's allocator may still use the handle: the next ``Stream`` of the
    same device, priority and name gets it.

    A process opens each device once, in its primary context, which is PyTorch's. A stream cannot be used in a
    forked child, and cannot be pickled. Streams of two GPUs wait for each other through PyTorch's events, so
    PyTorch is needed for that. A stream of a simulated device has no handle, so ``cuda_stream``, ``torch()``
    and ``with stream:`` raise; waits, events, queries and synchronization work.

    Args:
        device: ``"cuda"`` (PyTorch's current device), ``"cuda:1"``, a ``torch.device`` or its number; or a
            simulated device such as ``"sim:h200"``.
        priority: Lower is more urgent, as in PyTorch: if several kernels wait, those of the stream with the
            lowest priority number start first. ``caps(device)`` has the range.
        name: The name in traces. Use few different names.

    Raises:
        DeviceError: The device cannot be opened.
        TypeError: ``device`` names no device, ``priority`` is not a number or ``name`` not a string.
        ValueError: The device has no such priority, or is the CPU.
    """

    def __new__(cls, device: Any = "cuda", *, priority: int = 0, name: str | None = None) -> Self:
        """Create a stream."""
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority is {priority!r}; give a whole number; lower is more urgent")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {name!r}; give a string, or leave it out")
        return super().__new__(cls, name_with_streams(device), priority, name, None)

    @classmethod
    def of(cls, other: Any, *, device: Any = None, name: str | None = None) -> Self:
        """Return a stream of another library as a ``Stream``. The stream still belongs to the library, and
        ``other`` is kept alive.

        Args:
            other: A ``torch.cuda.Stream``, an object with ``__cuda_stream__``, a handle, or ``None`` for
                PyTorch's current stream. A handle must stay valid as long as the returned object is used.
            device: The stream's device, if ``other`` does not have one; by default PyTorch's current device.
            name: The name in traces.

        Raises:
            TypeError: ``other`` is not a stream.
            ValueError: ``other`` belongs to another device, or there is no current stream.
        """
        where = None if device is None else name_with_streams(device)
        return _sidestream.Stream.__new__(cls, where, 0, name, (other,))

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return version 0 of the protocol and the handle, for other libraries.

        Raises:
            ValueError: The device is simulated.
        """
        return (0, self.cuda_stream)

    def torch(self) -> Any:
        """Return this stream as a ``torch.cuda.Stream``, which keeps this object alive. Nothing waits. If you
        submit PyTorch's work to this stream, make it wait for the data that the work reads, and mark memory
        of other streams with ``record_stream``, as for any other PyTorch stream.

        Raises:
            ImportError: PyTorch is not installed.
            ValueError: The device is simulated.
        """
        adopted = self.adopted
        if not isinstance(adopted, _sidestream.Stream) and hasattr(adopted, "cuda_stream"):
            return adopted
        handle = self.cuda_stream
        cuda = _torch_cuda()
        # PyTorch would interpret the handle of the legacy stream as one of its own stream ids.
        external = (
            cuda.default_stream(self.device)
            if handle == 1
            else cuda.ExternalStream(handle, device=self.device)
        )
        external._sidestream = self
        return external

    def wait_stream(self, other: Any) -> None:
        """Make later work of this stream wait for all work that was submitted to ``other`` so far.

        The host does not wait. Waiting for a stream of another real device needs PyTorch.

        Raises:
            TypeError: ``other`` is not a stream.
            ValueError: The two streams belong to devices that cannot wait for each other.
        """
        if _elsewhere(self, other):
            self.torch().wait_stream(_as_torch_stream(other))
        else:
            super().wait_stream(other)

    def wait_event(self, event: Any) -> None:
        """Make later work of this stream wait for the last record of ``event``.

        The host does not wait. An event that was never recorded is not waited for.

        Args:
            event: An ``Event`` or a ``torch.cuda.Event``.
        """
        if isinstance(event, Event):
            event.wait(self)
        else:
            _event_of_torch(event).wait(self.torch())

    def record_event(self, event: Any = None) -> Any:
        """Record ``event`` after all work that was submitted to this stream so far, and return it.

        The host does not wait.

        Args:
            event: An ``Event`` or a ``torch.cuda.Event``; by default a new ``Event`` without timing.
        """
        if event is None:
            event = Event(device=self.device)
        if isinstance(event, Event):
            event.record(self)
        else:
            _event_of_torch(event).record(self.torch())
        return event

    def __enter__(self) -> Stream:
        """Make this PyTorch's current stream, and its device the current device, for this thread. Nothing
        waits.
        """
        external = self.torch()
        context = _torch_cuda().stream(external)
        context.__enter__()
        _contexts().append(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make the previous stream and device current again. Nothing waits."""
        _contexts().pop().__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<sidestream.Stream {self.name!r} device={self.device} priority={self.priority}>"


class InFlight:
    """A limit on the pieces of background work in flight, on all its streams together.

    A kernel or a copy waits for all work of its priority that the device was given before it, and copies have
    no priorities. So do not submit work that is not urgent far ahead::

        background = sidestream.InFlight(2)
        stream = sidestream.Stream(priority=0)
        for batch in batches:
            with background(stream):
                step(batch)

    Each ``with`` block is a piece of work, for which the stream is current, as with ``with stream:``. At its
    beginning the host blocks until fewer than ``most`` earlier pieces are in flight, on all streams and from
    all threads. With 1 the device idles for some microseconds between two pieces; with 2 it does not.

    Args:
        most: Number of pieces that may be in flight, at least 1.

    Raises:
        TypeError: ``most`` is not a whole number.
        ValueError: ``most`` is less than 1.
    """

    def __init__(self, most: int) -> None:
        """Create a limit."""
        if isinstance(most, bool) or not isinstance(most, int):
            raise TypeError(f"most is {most!r}; give a whole number of pieces")
        if most < 1:
            raise ValueError(f"most is {most}; give at least 1, or work without a limit")
        self.most = most
        #: One entry for each piece that may be in flight: the event at the end of the last piece that had the
        #: entry.
        self._turns: queue.Queue[Any] = queue.Queue()
        for _ in range(most):
            self._turns.put(None)
        self._inside = threading.local()

    @contextmanager
    def __call__(self, stream: Any) -> Iterator[Any]:
        """Block until a piece of work may begin, and make the stream current for it.

        Args:
            stream: A ``Stream`` of a real device or a ``torch.cuda.Stream``.

        Raises:
            TypeError: ``stream`` is not a stream.
            DeviceError: Work of an earlier piece failed on the device.
            RuntimeError: This thread is already in a piece of this limit.
        """
        if isinstance(stream, type) or not hasattr(stream, "record_event"):
            raise TypeError(f"stream is {stream!r}; give a Stream or a torch.cuda.Stream")
        if getattr(self._inside, "piece", False):
            raise RuntimeError(
                "this thread is already in a piece of this limit, and a second one could wait for the first; "
                "leave it first"
            )
        event, done = self._turns.get(), None
        self._inside.piece = True
        try:
            if event is not None:
                event.synchronize()
            with stream if isinstance(stream, Stream) else _torch_cuda().stream(stream):
                try:
                    yield stream
                finally:
                    done = stream.record_event()
        finally:
            self._turns.put(done)
            self._inside.piece = False


class Event(_sidestream.Event):
    """A point in a stream. Each record replaces the previous one.

    A submitted wait refers to the record that the event had at that time. Until the first record, waits for
    the event have no effect, and the event counts as complete. An event cannot be used in a forked child, and
    cannot be pickled; with ``interprocess=True`` another process can open it by its ``ipc_handle``.

    Args:
        timing: Whether the event records the device's time, for ``elapsed_time``.
        blocking: Whether a thread in ``synchronize`` sleeps until the device wakes it. By default it polls,
            which keeps a core busy and returns some microseconds sooner.
        interprocess: Whether another process can open the event. It is recorded in this process only.
            ``sidestream.check`` observes one process, and does not know the order that such an event makes.
        device: As for ``Stream``.

    Raises:
        DeviceError: The device cannot be opened.
        TypeError: ``device`` names no device, or another argument is neither True nor False.
        ValueError: The device is the CPU; it is simulated and ``interprocess`` is True; or more than
            one of ``timing``, ``blocking`` and ``interprocess`` is True.
    """

    def __new__(
        cls,
        timing: bool = False,
        *,
        blocking: bool = False,
        interprocess: bool = False,
        device: Any = "cuda",
    ) -> Self:
        """Create an event."""
        if not isinstance(timing, bool):
            raise TypeError(f"timing is {timing!r}; give True or False, and the device as device=")
        truth("blocking", blocking)
        if timing and blocking:
            raise ValueError(
                "an event keeps time or lets its waiting thread sleep; make one with timing=True and another "
                "with blocking=True"
            )
        if truth("interprocess", interprocess) and (timing or blocking):
            raise ValueError(
                "an event for other processes keeps no time and lets no thread sleep; leave out timing= and "
                "blocking="
            )
        return super().__new__(cls, timing, blocking, interprocess, None, name_with_streams(device))

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Self:
        """Open an event that another process created and records, by the result of ``ipc_handle`` there. The
        event may be waited for and queried, but not recorded. A wait is for the last record that the other
        process had made at the call, so let that process announce its records.

        Args:
            device: The event's device, as for ``Stream``; the same GPU in both processes.
            handle: From an ``Event`` or a ``torch.cuda.Event`` with ``interprocess=True``.

        Raises:
            DeviceError: The handle opens no event: it is this process's own, or the event no longer exists.
            TypeError: ``handle`` is not ``bytes``.
            ValueError: ``handle`` has the wrong length, or the device is simulated.
        """
        if not isinstance(handle, bytes):
            raise TypeError(f"handle is {handle!r}; give the bytes that ipc_handle() returned")
        if len(handle) != 64:
            raise ValueError(
                f"handle has {len(handle)} bytes and that of an event has 64; give what ipc_handle() returned"
            )
        return super().__new__(cls, False, False, False, handle, name_with_streams(device))

    def ipc_handle(self) -> bytes:
        """Return the 64 bytes by which another process opens the event, with ``from_ipc_handle`` or PyTorch's
        call.

        Keep the event until no other process uses it.

        Raises:
            ValueError: The event was not created with ``interprocess=True``.
        """
        return bytes(super().ipc_handle())

    def record(self, stream: Any = None) -> None:
        """Record the event after all work that was submitted to ``stream`` so far. The host does not wait.

        Args:
            stream: Any stream of the event's device; by default PyTorch's current one.
        """
        super().record(stream)

    def wait(self, stream: Any = None) -> None:
        """Make later work of ``stream`` wait for the last record. The host does not wait.

        Args:
            stream: Any stream; by default PyTorch's current one. A stream of another real device needs
                PyTorch.
        """
        if _elsewhere(self, stream):
            self.torch().wait(_as_torch_stream(stream))
        else:
            super().wait(stream)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds on the device from this event to ``end``. Both must be complete.

        Raises:
            DeviceError: One of them has no timing, was not recorded, or is not complete.
            TypeError: ``end`` is not an ``Event``.
        """
        if not isinstance(end, Event):
            raise TypeError(f"end is {end!r}; give a sidestream.Event with timing=True")
        return self.elapsed_ns(end) / 1e6

    def torch(self) -> Any:
        """Return a ``torch.cuda.Event`` that is complete when the last record of this event is.

        It is recorded in a separate stream, which waits for this event: later records do not change it, and
        its time, if this event has timing, is a few microseconds later. The host does not wait.

        Raises:
            ImportError: PyTorch is not installed.
            ValueError: The device is simulated.
        """
        if self.device.startswith("sim:"):
            raise ValueError(
                f"an event of {self.device} is not a CUDA event: the device is simulated; make the event on"
                ' "cuda"'
            )
        bridge = Stream(self.device, name="bridge")
        external = bridge.torch()
        bridge.wait_event(self)
        event = _torch_cuda().Event(enable_timing=self.timing)
        event.record(external)
        return event

    def __repr__(self) -> str:
        return f"<sidestream.Event device={self.device} timing={self.timing} blocking={self.blocking}>"


def _contexts() -> list[Any]:
    if not hasattr(_entered, "contexts"):
        _entered.contexts = []
    contexts: list[Any] = _entered.contexts
    return contexts


def _torch_cuda() -> Any:
    """Return ``torch.cuda``, initialized."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("this needs PyTorch, which is not installed; pip install torch") from error
    if not torch.cuda.is_available():
        raise _sidestream.DeviceError(
            "PyTorch cannot use CUDA here: it was built without CUDA, or finds no driver; install a build "
            "with CUDA"
        )
    torch.cuda.init()
    return torch.cuda


def _elsewhere(mine: Stream | Event, other: Any) -> bool:
    """Return whether ``other`` belongs to another real device. Each device has its own runtime, which can
    wait only for its own streams and events.
    """
    theirs = str(getattr(other, "device", mine.device))
    return theirs != mine.device and theirs.startswith("cuda:") and mine.device.startswith("cuda:")


def _as_torch_stream(stream: Any) -> Any:
    return stream.torch() if isinstance(stream, Stream) else stream


def _event_of_torch(event: Any) -> Any:
    if hasattr(event, "cuda_event"):
        return event
    raise TypeError(f"{event!r} is not an event; give a sidestream.Event or a torch.cuda.Event")
