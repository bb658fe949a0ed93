"""Requests of many callers, run as batches on streams and graphs.

PyTorch's calls let go of the interpreter's lock and take it again, and a thread that takes it from a busy event loop may wait for 5 ms each time. So a batch
whose requests come from an event loop is packed and launched by the loop itself; a thread of the batcher does that for requests of threads. Another waits for
the device, which needs the lock once a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from sidestream import _tree
from sidestream._arguments import truth, whole
from sidestream._sidestream import BatcherStatistics

_QUEUED, _LAUNCHED, _ENDED = range(3)


class RequestRefused(RuntimeError):
    """A request that was not taken, or that waited when the batcher was closed: ``reason`` is ``"full"``, ``"late"`` or ``"closed"``."""

    def __init__(self, reason: str, text: str) -> None:
        """Say why."""
        super().__init__(text)
        self.reason = reason


class RequestExpired(TimeoutError):
    """A request whose deadline passed while it waited."""


class Answer:
    """What a request will be answered with: a future for threads, which can be awaited too. ``Batcher.submit`` makes these."""

    __slots__ = ("_arrived", "_batcher", "_calls", "_deadline", "_error", "_futures", "_leaves", "_loop", "_ready", "_state", "_value")

    def __init__(self, batcher: Batcher, leaves: list[Any], arrived: float, deadline: float | None, loop: Any) -> None:
        """Begin as one that waits."""
        self._batcher = batcher
        self._leaves: list[Any] = leaves
        self._arrived = arrived
        self._deadline = deadline
        self._state = _QUEUED
        self._value: Any = None
        self._error: BaseException | None = None
        self._loop = loop
        #: Of tasks that await it.
        self._futures: list[Any] = []
        self._calls: list[Callable[[Answer], object]] | None = None
        #: Held until it has ended.
        self._ready = threading.Lock()
        self._ready.acquire()

    def done(self) -> bool:
        """Return whether it has ended, by an answer or otherwise. Never waits."""
        return self._state == _ENDED

    def cancelled(self) -> bool:
        """Return whether it was taken back."""
        return isinstance(self._error, CancelledError)

    def cancel(self) -> bool:
        """Take the request back, and return whether it will not be computed: false if its batch has been launched."""
        with self._batcher._lock:
            if self._state != _QUEUED:
                return False
            self._end(None, CancelledError("the request was taken back"))
            self._batcher._counts.count("cancelled", 1)
        _tell([self])
        return True

    def add_done_callback(self, call: Callable[[Answer], object]) -> None:
        """Call with this answer when it has ended, from a thread of the batcher: at once if it has. What it raises is logged."""
        with self._batcher._lock:
            has_ended = self._state == _ENDED
            if not has_ended:
                self._calls = [*(self._calls or []), call]
        if has_ended:
            _called(call, self)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer and return it, in pinned memory that stays as it is while it is held.

        Raises:
            TimeoutError: It has not ended after so many seconds. It goes on, and can be waited for again.
            CancelledError: It was taken back.
            RequestExpired: Its deadline passed.
            RequestRefused: The batcher was closed while it waited.
            Exception: What the model raised, if that fails with this request alone too.
        """
        if self._state != _ENDED and self._loop is not None and _running_loop() is self._loop:
            raise RuntimeError("this would stop the event loop that has to launch the batch; await the answer instead")
        # Also where it has ended: the lock is what orders this thread behind the one that wrote the answer.
        if not self._ready.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(f"the request has not been answered within {timeout} s")
        self._ready.release()
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Any, None, Any]:
        """Let the other tasks of the event loop go on until it has ended. A task that is cancelled takes its request back."""
        if self._state != _ENDED:
            future = asyncio.get_running_loop().create_future()
            with self._batcher._lock:
                has_ended = self._state == _ENDED
                if not has_ended:
                    self._futures.append(future)
            if not has_ended:
                try:
                    yield from future.__await__()
                except asyncio.CancelledError:
                    self.cancel()
                    raise
        return self.result()

    def _end(self, value: Any, error: BaseException | None) -> None:
        """Note how it ended. The batcher's lock is held, and it has not ended before."""
        self._value, self._error, self._state = value, error, _ENDED
        self._leaves = []

    def __repr__(self) -> str:
        return f"<Answer: {('waits', 'with the device', 'there')[self._state]}>"


def _tell(answers: Iterable[Answer]) -> None:
    """Wake those who wait, each event loop once. Without the batcher's lock, since it calls code of others."""
    loops: dict[Any, list[Any]] = {}
    for answer in answers:
        answer._ready.release()
        for future in answer._futures:
            loops.setdefault(future.get_loop(), []).append(future)
        for call in answer._calls or ():
            _called(call, answer)
    for loop, futures in loops.items():
        _soon(loop, _wake, futures)


def _called(call: Callable[[Answer], object], answer: Answer) -> None:
    try:
        call(answer)
    except BaseException as error:
        # As `concurrent.futures` does, and with the traceback.
        logging.getLogger("sidestream").exception("a callback of an answer raised %s, which was ignored", type(error).__name__)


def _wake(futures: list[Any]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _soon(loop: Any, call: Callable[..., None], *args: Any) -> None:
    # Of a loop that is closed nobody waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def _running_loop() -> Any:
    return asyncio._get_running_loop()


class _Slot:
    """Two streams with the memory of a batch, and its graphs, which share a pool and never run at once.

    The slot is idle again when the host has waited for the download, so nothing else has to be ordered behind it.
    """

    def __init__(self, torch: Any, device: Any, priority: int, largest: int, like: list[Any], has_graphs: bool) -> None:
        self.stream = torch.cuda.Stream(device, priority=priority)
        # Never captured: where a caller lets go of results, PyTorch records an event in the stream that downloaded them.
        self.down = torch.cuda.Stream(device, priority=priority)
        # The model was made there.
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            self.device = [torch.zeros((largest, *leaf.shape), dtype=leaf.dtype, device=device) for leaf in like]
        self.host = [torch.zeros((largest, *leaf.shape), dtype=leaf.dtype, pin_memory=True) for leaf in like]
        self.points = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self.pool = torch.cuda.graph_pool_handle() if has_graphs else None
        #: By size: a graph and what it computes.
        self.graphs: dict[int, tuple[Any, Any]] = {}


class _Class:
    """Requests of one priority."""

    def __init__(self, name: str, priority: int) -> None:
        self.name = name
        self.priority = priority
        self.waiting: deque[Answer] = deque()
        self.free: list[_Slot] = []
        self.slots: list[_Slot] = []
        #: What a batch took lately.
        self.batch_s = 0.0
        #: Batches that were launched, for the thread that waits for them.
        self.launched: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self.in_flight = 0


class _Batch:
    __slots__ = ("answers", "error", "expired", "left", "results", "size", "slot")

    def __init__(self, answers: list[Answer], expired: list[Answer], slot: _Slot, size: int, left: float) -> None:
        self.answers = answers
        #: Those that it would have had, and that have not been told yet.
        self.expired = expired
        self.slot = slot
        self.size = size
        self.left = left
        self.results: Any = None
        self.error: BaseException | None = None


class Batcher:
    """Runs the requests of many callers as batches, several at once, each on a stream of its own.

    ``model`` is called with tensors on the device whose first dimension is the batch, in the structure that requests have, and returns tensors with
    the same first dimension, in any structure. A request is one row: what ``submit`` is given without that dimension.

    A batch leaves when a slot is free and there are as many requests as the largest size, or when the oldest has waited for ``max_delay`` seconds. It is
    filled up with zeros to the next size. The first batch of a size in a slot runs the model as it is; meanwhile a thread captures it into a CUDA graph
    as soon as the slot is idle, and later batches replay that. A model that cannot be captured runs as it is; ``Batcher.not_captured`` says why.

    Each request ends exactly once. Where a batch fails, its requests are run again one by one, so that one that fails does so alone.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
        max_delay: float = 0.0005,
        *,
        slots: int = 3,
        max_queue: int = 4096,
        classes: Mapping[str, int] | None = None,
        graphs: bool = True,
        device: Any = None,
    ) -> None:
        """Begin to serve.

        Args:
            model: What computes a batch. It has to be on the device.
            sizes: The rows that a batch may have.
            max_delay: How many seconds the oldest request waits for others, if a slot is free. 0: a batch is what came while the slots were busy.
            slots: How many batches of a class are on the device at once.
            max_queue: How many requests of a class may wait. More are refused.
            classes: Names of classes of requests with the priorities of their streams, of which lower is more urgent; one of priority 0 without this.
                Priority decides whose blocks go next as room becomes free, and does not stop a kernel that runs.
            graphs: Whether batches become CUDA graphs.
            device: The GPU; PyTorch's current one without this.

        Raises:
            TypeError, ValueError: An argument means nothing.
            RuntimeError: There is no GPU.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            raise RuntimeError(
                "a Batcher runs models of PyTorch on a GPU, and there is none here; `sidestream.check(simulate=True)` has a simulated one"
            )
        if not callable(model):
            raise TypeError(f"model is {model!r}; give a callable of tensors")
        rows = sorted({whole("a size", size, 1, "how many rows a batch may have") for size in sizes})
        if not rows:
            raise ValueError("sizes is empty; give the rows that a batch may have, such as (1, 2, 4, 8)")
        if isinstance(max_delay, bool) or not isinstance(max_delay, (int, float)) or not 0 <= max_delay < 3600:
            raise ValueError(f"max_delay is {max_delay!r}; give seconds, 0 or more and less than an hour")
        if classes is not None and not classes:
            raise ValueError("classes is empty; give names with priorities, or leave it out")
        truth("graphs", graphs)
        self._torch = torch
        self._model = model
        self._sizes = rows
        self._max_delay = float(max_delay)
        self._slots = whole("slots", slots, 1, "how many batches are on the device at once")
        self._max_queue = whole("max_queue", max_queue, 1, "how many requests may wait")
        self._graphs = graphs
        self._device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        #: Held for moments: while requests come, leave and end.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._counts = BatcherStatistics()
        self._classes = [_Class(name, priority) for name, priority in (classes or {"default": 0}).items()]
        self._by_name = {each.name: each for each in self._classes}
        self._shape: Any = None
        self._like: list[Any] = []
        self._is_closed = False
        self._lost: BaseException | None = None
        #: By size: why it was not captured.
        self.not_captured: dict[int, str] = {}
        self._to_capture: queue.SimpleQueue[tuple[_Class, int] | None] = queue.SimpleQueue()
        self._asked: set[tuple[str, int]] = set()
        self._threads = [threading.Thread(target=self._dispatch, name="batcher", daemon=True)]
        for each in self._classes:
            self._threads.append(threading.Thread(target=self._finish, args=(each,), name=f"batcher {each.name}", daemon=True))
        if graphs:
            self._threads.append(threading.Thread(target=self._capture, name="batcher graphs", daemon=True))
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------------------------------ requests

    def submit(self, *values: Any, of: str | None = None, deadline: float | None = None) -> Answer:
        """Queue a request, and return its answer: a future that can be awaited. Does not wait.

        Args:
            values: What the model takes, without the batch's dimension: tensors of the host, arrays of numpy, and structures of them. Not copied
                before the batch leaves, so leave them as they are until the answer is there.
            of: The class; the first one without this.
            deadline: In how many seconds the answer is of no more use. Looked at now, by what batches took lately, and before the batch leaves.

        Raises:
            RequestRefused: Too many wait, the deadline cannot be kept, or the batcher is closed.
            ValueError: There is no such class, or it has not the shapes that the first request had.
            TypeError: A value is on a device.
        """
        leaves, shape = _tree.flatten(values)
        torch = self._torch
        for at, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                leaves[at] = torch.as_tensor(leaf)
            elif leaf.is_cuda:
                raise TypeError("a request has a tensor on a device; give rows of the host, which are packed and uploaded as one")
        if not self._like:
            self._begin(leaves, shape)
        elif len(leaves) != len(self._like) or any(
            leaf.shape != like.shape or leaf.dtype != like.dtype for leaf, like in zip(leaves, self._like)
        ):
            raise ValueError(f"a request of this batcher is {_said(self._like)}, and this one is {_said(leaves)}")
        try:
            each = self._classes[0] if of is None else self._by_name[of]
        except KeyError:
            raise ValueError(f"there is no class {of!r}; there is {', '.join(map(repr, self._by_name))}") from None
        loop = _running_loop()
        now = time.perf_counter()
        answer = Answer(self, leaves, now, None if deadline is None else now + deadline, loop)
        largest = self._sizes[-1]
        with self._lock:
            if self._is_closed:
                raise RequestRefused("closed", "the batcher is closed") from self._lost
            waiting = each.waiting
            if len(waiting) >= self._max_queue:
                self._counts.count("refused_full", 1)
                raise RequestRefused(
                    "full", f"{self._max_queue} requests wait already, as many as may; try again later, or raise max_queue"
                )
            if deadline is not None:
                before = each.in_flight + len(waiting) // largest
                # Where nobody is before it, it is taken: only a batch says what batches take now.
                expected = (before // self._slots + 1) * each.batch_s if before else 0.0
                if deadline <= 0 or expected > deadline:
                    self._counts.count("refused_late", 1)
                    raise RequestRefused("late", f"the answer would take {expected:.6f} s by what batches took lately, which is past the deadline")
            waiting.append(answer)
            many = len(waiting)
            if loop is None and (many in (1, largest) or waiting[0]._loop is not None):
                self._changed.notify_all()
        if loop is not None:
            if many >= largest:
                self._tick(each)
            elif many == 1:
                loop.call_later(self._max_delay, self._tick, each)
        return answer

    def _begin(self, leaves: list[Any], shape: Any) -> None:
        """The first request says what all are like. Each slot gets its memory."""
        if not leaves:
            raise ValueError("a request needs at least one tensor")
        with self._lock:
            if self._like:
                return
            for each in self._classes:
                for _ in range(self._slots):
                    slot = _Slot(self._torch, self._device, each.priority, self._sizes[-1], leaves, self._graphs)
                    each.slots.append(slot)
                    each.free.append(slot)
            self._shape = shape
            self._like = [leaf.clone() for leaf in leaves]

    # ------------------------------------------------------------------------------------------ batches

    def _due(self, each: _Class, now: float) -> float | None:
        """In how many seconds a batch leaves: 0 or less is now, none if nobody waits."""
        waiting = each.waiting
        if not waiting:
            return None
        if len(waiting) >= self._sizes[-1] or self._is_closed:
            return 0.0
        return waiting[0]._arrived + self._max_delay - now

    def _tick(self, each: _Class) -> None:
        """Launch what is due, in the event loop."""
        while True:
            now = time.perf_counter()
            with self._lock:
                due = self._due(each, now)
                batch = self._take(each, now) if due is not None and due <= 0 and each.free else None
            if batch is not None:
                self._launch(each, batch)
            elif due is not None and due > 0:
                loop = _running_loop()
                if loop is not None:
                    loop.call_later(due, self._tick, each)
                return
            else:
                # Nobody waits, or no slot is free: then whoever frees one looks again.
                return

    def _on_device(self) -> None:
        """Make the device that of this thread, which libraries of CUDA ask for."""
        self._torch.cuda.set_device(self._device)

    def _dispatch(self) -> None:
        """Launch what threads have asked for."""
        self._on_device()
        while True:
            found: tuple[_Class, _Batch] | None = None
            with self._lock:
                while found is None:
                    now = time.perf_counter()
                    soonest: float | None = None
                    for each in self._classes:
                        due = self._due(each, now)
                        if due is None or not each.free:
                            continue
                        # What a loop has asked for it launches itself, as long as there is that loop.
                        loop = each.waiting[0]._loop
                        if loop is not None and not loop.is_closed() and not self._is_closed:
                            continue
                        if due <= 0:
                            found = each, self._take(each, now)
                            break
                        soonest = due if soonest is None else min(soonest, due)
                    else:
                        if self._is_closed and not any(each.waiting for each in self._classes):
                            return
                        self._changed.wait(soonest)
            self._launch(*found)

    def _take(self, each: _Class, now: float) -> _Batch:
        """Take the oldest requests and a slot. The lock is held; a batch may be empty."""
        answers: list[Answer] = []
        waited = []
        expired = []
        while each.waiting and len(answers) < self._sizes[-1]:
            answer = each.waiting.popleft()
            if answer._state != _QUEUED:
                continue
            if answer._deadline is not None and answer._deadline <= now:
                answer._end(None, RequestExpired("the deadline passed while the request waited"))
                expired.append(answer)
                continue
            answer._state = _LAUNCHED
            waited.append(now - answer._arrived)
            answers.append(answer)
        self._counts.left(waited)
        self._counts.count("expired", len(expired))
        each.in_flight += 1
        size = next(size for size in self._sizes if size >= len(answers))
        return _Batch(answers, expired, each.free.pop(), size, now)

    def _launch(self, each: _Class, batch: _Batch) -> None:
        """Pack and submit a batch, and hand it to the thread that waits for it."""
        _tell(batch.expired)
        try:
            if batch.answers:
                batch.results = self._submit(batch.slot, batch.size, [answer._leaves for answer in batch.answers])
        except Exception as error:
            batch.error = error
        each.launched.put(batch)

    def _submit(self, slot: _Slot, size: int, requests: list[list[Any]]) -> tuple[Any, list[Any]]:
        """Submit rows to a slot that is idle, and return the rows of its results, which are there when its last event is over."""
        torch = self._torch
        many = len(requests)
        for at, slab in enumerate(slot.host):
            torch.stack([leaves[at] for leaves in requests], out=slab[:many])
            if many < size:
                slab[many:size].zero_()
        points = slot.points
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(slot.stream):
            points[0].record()
            for device, slab in zip(slot.device, slot.host):
                device[:size].copy_(slab[:size], non_blocking=True)
            points[1].record()
            graph = slot.graphs.get(size)
            if graph is None:
                made = self._run(slot, size)
            else:
                graph[0].replay()
                made = graph[1]
            points[2].record()
        leaves, shape = _tree.tensors_of(made)
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(slot.down):
            slot.down.wait_event(points[2])
            hosts = []
            for leaf in leaves:
                if leaf.dim() == 0 or leaf.shape[0] != size:
                    raise ValueError(f"the model was given {size} rows and returned a tensor of shape {tuple(leaf.shape)}; it has to return a row for each")
                host = torch.empty((many, *leaf.shape[1:]), dtype=leaf.dtype, pin_memory=True)
                hosts.append(host.copy_(leaf[:many], non_blocking=True))
            points[3].record()
        return shape, [host.unbind(0) for host in hosts]

    def _run(self, slot: _Slot, size: int) -> Any:
        return self._model(*self._shape.unflatten([device[:size] for device in slot.device]))

    # ------------------------------------------------------------------------------------------ ends

    def _finish(self, each: _Class) -> None:
        """Wait for the batches of a class, in the sequence in which they were launched."""
        self._on_device()
        while True:
            batch = each.launched.get()
            if batch is None:
                return
            if batch.error is None and batch.results is not None:
                try:
                    batch.slot.points[3].synchronize()
                except Exception as error:
                    batch.error = error
            if batch.error is not None:
                self._again(batch)
            elif batch.answers:
                self._give(batch)
            self._free(each, batch)

    def _give(self, batch: _Batch) -> None:
        now = time.perf_counter()
        points = batch.slot.points
        times = tuple(before.elapsed_time(after) for before, after in zip(points, points[1:]))
        shape, columns = batch.results
        rows = [shape.unflatten([column[at] for column in columns]) for at in range(len(batch.answers))]
        totals = []
        with self._lock:
            for answer, row in zip(batch.answers, rows):
                totals.append(now - answer._arrived)
                answer._end(row, None)
            self._counts.batch(batch.size, len(batch.answers), times, totals)
        _tell(batch.answers)

    def _again(self, batch: _Batch) -> None:
        """Run the requests of a batch that failed one by one; what fails alone has failed."""
        error = batch.error
        try:
            batch.slot.stream.synchronize()
        except Exception as lost:
            self._lose(lost)
        for answer in batch.answers:
            value: Any = None
            failed = self._lost or (error if len(batch.answers) == 1 else None)
            size = self._sizes[0]
            if failed is None:
                try:
                    shape, columns = self._submit(batch.slot, size, [answer._leaves])
                    batch.slot.points[3].synchronize()
                    value = shape.unflatten([column[0] for column in columns])
                except Exception as alone:
                    failed = alone
            with self._lock:
                answer._end(value, failed)
                if failed is None:
                    self._counts.batch(size, 1, (0.0, 0.0, 0.0), [time.perf_counter() - answer._arrived])
                else:
                    self._counts.count("failed", 1)
            _tell([answer])

    def _lose(self, error: BaseException) -> None:
        """The device is lost: nothing runs there any more."""
        with self._lock:
            self._lost = error
        self._refuse_what_waits(error)

    def _free(self, each: _Class, batch: _Batch) -> None:
        """Give a slot back, and see to it that whoever has to launches the next batch."""
        wants_graph = self._graphs and batch.error is None and batch.answers and batch.size not in batch.slot.graphs
        with self._lock:
            each.in_flight -= 1
            took = time.perf_counter() - batch.left
            each.batch_s = took if each.batch_s == 0.0 else (7 * each.batch_s + took) / 8
            each.free.append(batch.slot)
            loop = each.waiting[0]._loop if each.waiting else None
            if wants_graph and batch.size not in self.not_captured and (each.name, batch.size) not in self._asked:
                self._asked.add((each.name, batch.size))
                self._to_capture.put((each, batch.size))
            self._changed.notify_all()
        if loop is not None:
            _soon(loop, self._tick, each)

    # ------------------------------------------------------------------------------------------ graphs

    def _capture(self) -> None:
        """Capture a size in each slot of a class as it becomes idle."""
        self._on_device()
        while True:
            wanted = self._to_capture.get()
            if wanted is None:
                return
            each, size = wanted
            for slot in each.slots:
                with self._lock:
                    while slot not in each.free and not self._is_closed:
                        self._changed.wait()
                    if self._is_closed:
                        return
                    each.free.remove(slot)
                try:
                    slot.graphs[size] = self._captured(slot, size)
                except Exception as error:
                    self.not_captured[size] = f"{type(error).__name__}: {error}"
                with self._lock:
                    each.free.append(slot)
                    loop = each.waiting[0]._loop if each.waiting else None
                    self._changed.notify_all()
                if loop is not None:
                    _soon(loop, self._tick, each)
                if size in self.not_captured:
                    break

    def _captured(self, slot: _Slot, size: int) -> tuple[Any, Any]:
        torch = self._torch
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(slot.stream):
            # What libraries make at their first call in a thread cannot be captured.
            self._run(slot, size)
            slot.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Not `torch.cuda.graph`, which waits for the device and empties the cache. The calls of other threads are theirs.
            graph.capture_begin(pool=slot.pool, capture_error_mode="thread_local")
            try:
                made = self._run(slot, size)
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph, made

    # ------------------------------------------------------------------------------------------ the end

    @property
    def statistics(self) -> BatcherStatistics:
        """What has become of the requests so far, as a copy."""
        with self._lock:
            waiting = sum(answer._state == _QUEUED for each in self._classes for answer in each.waiting)
            return self._counts.now(waiting, sum(each.in_flight for each in self._classes))

    def refuse(self) -> None:
        """Take no more requests. Those that were taken are answered."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()

    def close(self, drain: bool = True) -> BatcherStatistics:
        """Take no more requests, wait until those that were taken have ended, and return the statistics.

        Args:
            drain: Whether what waits is computed; without it that ends as refused, and only what is with the device is waited for.
        """
        if not drain:
            self._refuse_what_waits(None)
        self.refuse()
        self._threads[0].join()
        for each in self._classes:
            each.launched.put(None)
        self._to_capture.put(None)
        for thread in self._threads:
            thread.join()
        return self.statistics

    def _refuse_what_waits(self, because: BaseException | None) -> None:
        ended = []
        with self._lock:
            self._is_closed = True
            for each in self._classes:
                while each.waiting:
                    answer = each.waiting.popleft()
                    if answer._state == _QUEUED:
                        refused = RequestRefused("closed", "the batcher was closed while the request waited")
                        refused.__cause__ = because
                        answer._end(None, refused)
                        ended.append(answer)
            self._counts.count("dropped", len(ended))
            self._changed.notify_all()
        _tell(ended)

    async def aclose(self) -> BatcherStatistics:
        """Close without stopping the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self) -> Batcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Batcher on {self._device}: {self.statistics!r}>"


def _said(leaves: list[Any]) -> str:
    return ", ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in leaves) or "no tensor"
