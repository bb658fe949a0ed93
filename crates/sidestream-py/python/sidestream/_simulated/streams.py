"""Streams and events of a simulated GPU, and the current streams."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.cuda import _gpu_trace

if TYPE_CHECKING:
    from sidestream._simulated.timing import Timing

#: Number of streams of each priority, which PyTorch hands out in turn.
POOL = 32
#: PyTorch's number for the device type ``cuda``.
CUDA = 1
#: Handles of streams and events: unique in the process, and outside all memory.
_handles = itertools.count(0x5000_0000_0000, 0x100)


class _Current(threading.local):
    """The current device and streams of a thread, and its other state."""

    device = 0

    def __init__(self, count: int) -> None:
        #: The handle of each device's current stream.
        self.streams = [0] * count
        #: The streams that were current for each autograd node: the sequence number of the first node, and
        #: the handles.
        self.history: list[tuple[int, tuple[int, ...]]] = [(0, (0,) * count)]
        #: The backward pass that this thread runs.
        self.backward: Any = None
        #: The tensor that was created last on the host: the call that created it, and its storage.
        self.made: tuple[int, Any, int, int] | None = None
        #: The capture that this thread has begun and not ended.
        self.capture: Any = None


class Streams:
    """All streams, and the current ones of each thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.devices = [torch.device("cuda", index) for index in range(count)]
        self.here = _Current(count)
        #: Whether the simulation has ended. Its objects may outlive it.
        self.is_over = False
        #: Whether only default streams have been current.
        self.is_one = True
        #: The streams of each device and priority, that which was handed out last at the end.
        self._pools: dict[tuple[int, int], deque[int]] = {}
        self._clock = itertools.count(1)
        #: Streams with work since the last wait, and the time of that wait.
        self.busy: set[tuple[int, int]] = set()
        self.waited: dict[tuple[int, int], int] = {}
        #: The latest waits of each stream for others: the time of the wait, the other stream, and the time up
        #: to which its work is waited for.
        self._behind: dict[tuple[int, int], deque[tuple[int, tuple[int, int], int]]] = {}
        self.waits = 0
        #: Number of captures that have not ended, and of those among them that forbid all threads to wait.
        self.captures = 0
        self.captures_of_all = 0
        #: The timeline; None where work takes no time.
        self.timing: Timing | None = None

    def handle(self) -> int:
        """Return a new number for a stream or an event."""
        return next(_handles)

    def now(self) -> int:
        return next(self._clock)

    def current(self, device: int) -> int:
        """Return the handle of a device's current stream."""
        here = self.here
        if here.backward is not None:
            here.backward.look()
        return here.streams[device]

    def make(self, device: int, priority: int) -> int:
        """Return the next stream of the pool."""
        priority = max(-3, min(0, priority))
        pool = self._pools.setdefault((device, priority), deque())
        if len(pool) < POOL:
            pool.append(self.handle())
            _gpu_trace.StreamCreationCallbacks.fire_callbacks(pool[-1])
        else:
            pool.rotate(-1)
        return pool[-1]

    def priority(self, handle: int) -> int:
        return next((priority for (_, priority), pool in self._pools.items() if handle in pool), 0)

    def set_current(self, device: int, handle: int) -> None:
        here = self.here
        here.device = device
        if here.streams[device] == handle:
            return
        here.streams[device] = handle
        self.is_one = False
        self.remember(here)

    def remember(self, here: _Current) -> None:
        """Let autograd nodes that are created after this call belong to the streams that are current now."""
        at = torch._C._autograd._get_sequence_nr()
        history, streams = here.history, tuple(here.streams)
        if history[-1][0] == at:
            history[-1] = (at, streams)
        elif history[-1][1] != streams:
            history.append((at, streams))

    def refuse_in_capture(self) -> None:
        if self.here.capture is not None or self.captures_of_all:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def stream_is_done(self, device: int, handle: int, since: int | None = None) -> None:
        """Record that the host has waited for a stream, or for the work that the stream had at the time
        ``since``.
        """
        self.waits += 1
        if since is None:
            self.busy.discard((device, handle))
        left = [((device, handle), self.now() if since is None else since)]
        while left:
            stream, until = left.pop()
            if self.waited.get(stream, 0) >= until:
                continue
            self.waited[stream] = until
            behind = self._behind.get(stream)
            # The work that the stream waited for is complete as well.
            while behind and behind[0][0] <= until:
                _, other, since_there = behind.popleft()
                left.append((other, since_there))

    def orders_after(self, stream: tuple[int, int], other: tuple[int, int], since: int) -> None:
        """Record that a stream waits for the work that another one had at the time ``since``."""
        if stream != other:
            self._behind.setdefault(stream, deque(maxlen=256)).append((self.now(), other, since))

    def has_waited(self, device: int, handle: int, since: int) -> bool:
        """Return whether the host has waited for all work that a stream had at the time ``since``."""
        return max(self.waited.get((device, handle), 0), self.waited.get((device, -1), 0)) >= since

    def synchronize(self, device: int | None = None) -> None:
        self.refuse_in_capture()
        device = self.here.device if device is None else device
        self.busy.difference_update([key for key in self.busy if key[0] == device])
        self.stream_is_done(device, -1)
        self.tell(_gpu_trace.DeviceSynchronizationCallbacks, device)

    def tell(self, callbacks: Any, device: int, *what: int) -> None:
        """Call what listens to a call of PyTorch, with the device as the current one."""
        here = self.here
        before, here.device = here.device, device
        try:
            if self.timing is not None:
                self.timing.told(callbacks, device, what)
            callbacks.fire_callbacks(*what)
        finally:
            here.device = before

    def record(self, event: int, device: int, stream: int) -> None:
        self.tell(_gpu_trace.EventRecordCallbacks, device, event, stream)

    def wait(self, event: int, device: int, stream: int) -> None:
        self.tell(_gpu_trace.EventWaitCallbacks, device, event, stream)

    def last_wait(self, event: int, device: int, stream: int) -> None:
        """Make a stream wait for an internal event of PyTorch, which ends with that."""
        self.wait(event, device, stream)
        _gpu_trace.EventDeletionCallbacks.fire_callbacks(event)

    def wait_stream(self, device: int, stream: int, source: int) -> None:
        """Make a stream wait for another one, as PyTorch does with an internal event."""
        event = self.handle()
        self.record(event, device, source)
        self.last_wait(event, device, stream)

    def index_of(self, device: Any) -> int:
        """Return the number of a device that is given in any form; for None, that of the current device."""
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type != "cuda":
                raise ValueError(f"Expected a cuda device, but got: {device}")
            device = device.index
        index = -1 if device is None else int(device)
        if index < 0:
            return self.here.device
        if index >= self.count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: cuda:{index} of {self.count} simulated; simulate more "
                "of them with --devices"
            )
        return index

    def device_of(self, device: Any) -> Any:
        """Return the GPU that is given in any form, with its number."""
        return self.devices[self.index_of(device)]


def classes(streams: Streams) -> tuple[type, type, type]:
    """Return the replacements for ``torch.cuda.Stream``, ``ExternalStream`` and ``Event``."""

    class Stream(torch.Stream):  # type: ignore[misc]
        """A stream of a simulated GPU."""

        def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Any:
            if "stream_id" in given:
                at, handle = given["device_index"], given["stream_id"]
            elif "stream_ptr" in given:
                at, handle = streams.index_of(device), int(given["stream_ptr"])
            else:
                at = streams.index_of(device)
                handle = streams.make(at, priority)
            return super().__new__(cls, stream_id=handle, device_index=at, device_type=CUDA)

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def _as_parameter_(self) -> Any:
            return ctypes.c_void_p(self.cuda_stream)

        @property
        def priority(self) -> int:
            return streams.priority(self.cuda_stream)

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -3

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.cuda_stream

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, stream: Any) -> None:
            self.wait_event(stream.record_event())

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def query(self) -> bool:
            # The first query never finds work complete, so that a program that queries only once is not
            # ordered by the query.
            key = (self.device_index, self.cuda_stream)
            is_busy = key in streams.busy
            streams.busy.discard(key)
            return not is_busy

        def is_capturing(self) -> bool:
            return streams.here.capture is not None

        def synchronize(self) -> None:
            streams.refuse_in_capture()
            streams.stream_is_done(self.device_index, self.cuda_stream)
            streams.tell(_gpu_trace.StreamSynchronizationCallbacks, self.device_index, self.cuda_stream)

        def __enter__(self) -> Any:
            self._inside = torch.cuda.stream(self)
            self._inside.__enter__()
            return self

        def __exit__(self, *given: Any) -> None:
            self._inside.__exit__(*given)

        def __reduce__(self) -> Any:
            raise TypeError("a stream cannot be pickled")

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    class ExternalStream(Stream):
        """A stream that another library made."""

        def __new__(cls, stream_ptr: int, device: Any = None, **given: Any) -> Any:
            return super().__new__(cls, device, stream_ptr=stream_ptr, **given)

    class Event:
        """An event of a simulated GPU."""

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            self._timed = enable_timing
            self.cuda_event = 0
            self._on = (0, 0)
            self._pending = False
            self._recorded, self._at_ns = 0, 0

        @property
        def device(self) -> Any:
            return torch.device("cuda", self._on[0]) if self.cuda_event else None

        @property
        def event_id(self) -> int:
            return int(self.cuda_event)

        @property
        def _as_parameter_(self) -> Any:
            return ctypes.c_void_p(self.cuda_event)

        def record(self, stream: Any = None) -> None:
            stream = torch.cuda.current_stream() if stream is None else stream
            device, handle = stream.device_index, stream.stream_id
            if not self.cuda_event:
                self.cuda_event = streams.handle()
                streams.tell(_gpu_trace.EventCreationCallbacks, device, self.cuda_event)
            elif device != self._on[0]:
                raise RuntimeError(
                    f"Event device {self._on[0]} does not match recording stream's device {device}."
                )
            self._on = (device, handle)
            self._pending = (device, handle) in streams.busy
            self._recorded, self._at_ns = streams.now(), time.perf_counter_ns()
            streams.record(self.cuda_event, device, handle)

        def wait(self, stream: Any = None) -> None:
            if self.cuda_event:
                stream = torch.cuda.current_stream() if stream is None else stream
                streams.wait(self.cuda_event, stream.device_index, stream.stream_id)
                streams.orders_after((stream.device_index, stream.stream_id), self._on, self._recorded)

        def _is_over(self) -> bool:
            return not self._pending or streams.has_waited(*self._on, self._recorded)

        def query(self) -> bool:
            if streams.timing is not None:
                return streams.timing.is_complete(self.cuda_event)
            is_over, self._pending = self._is_over(), False
            return is_over

        def synchronize(self) -> None:
            if self.cuda_event:
                streams.refuse_in_capture()
                self._pending = False
                # All work of the stream before the event is complete, too.
                streams.stream_is_done(*self._on, self._recorded)
                streams.tell(_gpu_trace.EventSynchronizationCallbacks, self._on[0], self.cuda_event)

        def elapsed_time(self, end_event: Any) -> float:
            if not (self._timed and end_event._timed):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if not (self.cuda_event and end_event.cuda_event):
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            if not (self._is_over() and end_event._is_over()):
                raise RuntimeError(
                    "CUDA error: device not ready: synchronize with the second event before the time is "
                    "asked for"
                )
            if streams.timing is not None:
                begin, end = (streams.timing.end_ns(each.cuda_event) for each in (self, end_event))
                return (end - begin) / 1e6
            # This is the CPU's time, which says nothing about that of a GPU; it is never 0, since programs
            # divide by it.
            return max(float(end_event._at_ns - self._at_ns), 1e3) / 1e6

        def ipc_handle(self) -> Any:
            raise RuntimeError("an event of a simulated GPU cannot be shared with another process")

        def __del__(self) -> None:
            # The interpreter clears modules when it ends, and the callbacks are then None.
            if self.cuda_event and not streams.is_over and _gpu_trace.EventDeletionCallbacks is not None:
                _gpu_trace.EventDeletionCallbacks.fire_callbacks(self.cuda_event)

        def __repr__(self) -> str:
            return (
                f"<torch.cuda.Event {self.cuda_event:#x}>"
                if self.cuda_event
                else "<torch.cuda.Event uninitialized>"
            )

    return Stream, ExternalStream, Event


def of_any_device(plain: Any, simulated: Any) -> type:
    """Return the replacement for ``torch.Stream`` or ``torch.Event``, which makes the ``simulated`` class of
    ``torch.cuda`` unless the CPU is named.
    """

    class Kind(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, plain | simulated)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, plain | simulated)

        def __call__(cls, device: Any = None, *args: Any, **given: Any) -> Any:
            if device is not None and not isinstance(device, int) and torch.device(device).type == "cpu":
                return plain(device, *args, **given)
            if issubclass(simulated, plain):
                return simulated(device, *args, **given)
            return simulated(*args, **given)

    return Kind(plain.__name__, (plain,), {})
