"""Requests of many callers, run as batches on streams and CUDA graphs.

PyTorch's calls release the interpreter's lock and take it again, and a thread that takes the lock from a busy
event loop may wait for 5 ms each time. So an event loop packs and launches the batches of its own requests,
and a thread of the batcher launches those of requests from threads. Another thread waits for the device. That
thread needs the lock twice for each batch: after the wait, it ends the requests and frees the slot; then it
wakes the loop, and may lose the lock again. If a request is submitted in a loop meanwhile, the loop itself
finds the batches that are complete, and ends them without a change of threads. Work that can be done once per
batch is not done for each request.

`Requests`, a state machine in Rust, decides which requests wait or are refused, when a batch leaves, and who
may launch it, and counts them. It takes one call for a request, or two if that has a deadline, and a handful
for a batch. A request that it returns has been claimed and counted: only the receiver ends the request, and
then tells its caller.

The threads hold a reference to the batcher only while they work for it. So they end when the program no
longer references the batcher and it has nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn

from sidestream import _simulate, _tree
from sidestream._answer import NOTHING, Answer, RequestExpired, RequestRefused, Value, running_loop, tell
from sidestream._arguments import truth, whole
from sidestream._batch import Batch, Class, Slot, described, lent
from sidestream._batcher_fork import MADE, Forked
from sidestream._sidestream import BatcherStatistics, DeviceError, Requests

#: Seconds after which a thread launches a batch that is due in an event loop, if requests of other threads
#: and loops wait behind the batch; if none do, ten times as long.
_GRACE_S = 0.005
#: Number of threads that are woken at once after their requests have ended. Of 64 threads, waking 4 at once
#: took half the time of waking all (`benches/requests_host.py`); waking fewer made batches smaller.
_AWAKE = 4
#: Seconds after which threads are woken in place of the thread that should have woken them.
_PATIENCE_S = 0.05


class Batcher(Generic[Value]):
    """Runs the requests of many callers as batches, several at once on separate streams.

    ``model`` is called with tensors on the device, in the structure of the requests; their first dimension is
    the batch. It returns tensors with the same first dimension, in any structure. A request is one row: what
    ``submit`` is given, without that dimension. All requests have the shapes, types and structure of
    ``like``, or of the first one that is answered; numbers other than tensors are part of the structure.
    PyTorch and a GPU are needed; ``check(simulate=True)`` has a simulated one.

    **When a batch leaves.** A batch leaves when a slot is free and either as many requests wait as the
    largest size, or the oldest has waited for ``max_delay`` seconds. The batch is filled up with zeros to the
    next size, uploaded as one copy of each tensor, computed, and downloaded on the streams of its slot. The
    first batch of a size runs the model as it is; then each slot captures that size into a CUDA graph when it
    is idle, and later batches replay it. A model that cannot be captured runs as it is, and ``not_captured``
    says why, by size.

    **Threads.** Any thread and any event loop may submit. An event loop launches the batches of its own
    requests; a thread of the batcher launches those of threads, and those of a loop that is busy or gone: 5
    ms after the batch was due if other requests wait behind it, otherwise 50 ms after. A batcher that is no
    longer referenced and has nothing to do ends its threads. In a forked child it raises a ``DeviceError``.

    **How requests end.** Each request ends once: answered, cancelled, with ``RequestExpired``,
    ``RequestRefused``, or with the model's exception. If a batch fails, its requests are run again one by
    one, so that only those fail that fail alone. A ``KeyboardInterrupt`` in a batch that an event loop
    launches also stops that loop. A request is counted before its caller is told. ``with`` and ``async with``
    close the batcher at the end; after an exception ``with`` does not drain it.

    Attributes:
        not_captured: Why a size was not captured into a CUDA graph, by size.
    """

    def __init__(
        self,
        model: Callable[..., Value],
        sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
        max_delay: float = 0.0005,
        *,
        slots: int = 3,
        max_queue: int = 4096,
        classes: Mapping[str, int] | None = None,
        graphs: bool = True,
        like: Any = None,
        device: Any = None,
        **others: NoReturn,
    ) -> None:
        """Start the threads of the batcher.

        Args:
            model: The model or function that computes a batch, in inference mode. Its weights must be on the
                device.
            sizes: The numbers of rows that a batch may have.
            max_delay: Seconds that the oldest request waits for others while a slot is free, less than an
                hour. With 0, a batch has the requests that came while all slots were busy.
            slots: Maximum number of batches of a class that are on the device at once.
            max_queue: Maximum number of requests of a class that may wait. Further requests are refused.
            classes: Names of classes of requests with the priorities of their streams, such as ``{"usual": 0,
                "urgent": -1}``. If several batches are due, the one with the lowest priority number leaves
                first, and its thread blocks are scheduled first on multiprocessors that become free; running
                kernels are not stopped. By default one class of priority 0.
            graphs: Whether batches are captured into CUDA graphs.
            like: An example of a request, as ``submit`` takes it, or a tuple if that takes several values.
                All requests must have its shapes, types and structure, and the memory of the slots is
                allocated at once. By default all must be like the first request that is answered.
            device: The GPU; by default PyTorch's current one.

        Raises:
            TypeError: ``model`` cannot be called, or an argument has the wrong type or an unknown name.
            ValueError: A figure is out of range, ``sizes`` or ``classes`` is empty, or the weights are on the
                host.
            RuntimeError: There is no GPU, or PyTorch has not been imported.
        """
        for name in others:
            instead = (
                "; the largest of sizes is that, such as sizes=(1, 2, 4, 8)"
                if name in ("max_batch_size", "batch_size", "max_batch")
                else ""
            )
            raise TypeError(f"a Batcher has no argument {name!r}{instead}")
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            raise RuntimeError(
                "a Batcher runs PyTorch models on a GPU, and there is none here; "
                "`sidestream.check(simulate=True)` has a simulated one"
            )
        if not callable(model):
            raise TypeError(f"model is {model!r}; give a callable of tensors")
        rows = sorted({whole("a size", size, 1, "the number of rows of a batch") for size in sizes})
        if not rows:
            raise ValueError("sizes is empty; give the rows that a batch may have, such as (1, 2, 4, 8)")
        if (
            isinstance(max_delay, bool)
            or not isinstance(max_delay, (int, float))
            or not 0 <= max_delay < 3600
        ):
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
        self._device = (
            torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        )
        if isinstance(model, torch.nn.Module) and self._device.type == "cuda":
            if {weight.device.type for weight in model.parameters()} == {"cpu"}:
                raise ValueError(
                    f"the weights of the model are on the host, and batches are on {self._device}; give "
                    f"model.to({str(self._device)!r})"
                )
        #: Held briefly, while answers are written or a thread begins to wait for one.
        self._lock = threading.Lock()
        #: The event loop that will look for complete batches.
        self._looking: Any = None
        self._classes = [Class(at, *each) for at, each in enumerate((classes or {"default": 0}).items())]
        self._by_name = {each.name: each for each in self._classes}
        self._by_urgency = sorted(self._classes, key=lambda each: each.priority)
        self._requests = Requests(
            rows,
            self._max_delay,
            self._max_queue,
            [each.priority for each in self._classes],
            self._slots,
            _GRACE_S,
        )
        self._shape: Any = None
        self._like: list[Any] = []
        #: The shape and type of each tensor of a request.
        self._kinds: list[tuple[Any, Any]] = []
        #: Whether a request is a single tensor, which need not be flattened.
        self._is_bare = False
        #: Where the shapes of requests come from, for error messages. Empty until a request is answered;
        #: until then the next request may have other shapes.
        self._said_by = ""
        self._lost: BaseException | None = None
        #: Whether requests wait in the same time in which the device works.
        self._has_clock = _simulate.entered() is None
        #: For each size that was not captured, the reason.
        self.not_captured: dict[int, str] = {}
        self._to_capture: queue.SimpleQueue[tuple[Class, int] | None] = queue.SimpleQueue()
        self._asked: set[tuple[str, int]] = set()
        #: Locks of threads whose requests have ended. Each thread that wakes wakes the next: woken all at
        #: once, the threads would only contend for the interpreter's lock.
        self._sleepers: deque[Any] = deque()
        self._end = weakref.finalize(self, _end, self._requests, self._classes, self._to_capture)
        self._end.atexit = False
        if like is not None:
            leaves, shape, is_bare = self._taken_apart(like if isinstance(like, tuple) else (like,))
            self._begin(leaves, shape, is_bare)
            self._said_by = "as like= gives it"
        self._threads = [self._thread("batcher", _dispatch, self._requests)]
        self._threads += [
            self._thread(f"batcher {each.name}", _finish, each, self._sleepers) for each in self._classes
        ]
        if graphs:
            self._threads.append(self._thread("batcher graphs", _capture, self._to_capture))
        MADE.add(self)
        for thread in self._threads:
            thread.start()

    def _thread(self, name: str, run: Callable[..., None], *what: Any) -> threading.Thread:
        return threading.Thread(target=_thread, args=(run, weakref.ref(self), *what), name=name, daemon=True)

    # ------------------------------------------------------------------------------------------ requests

    def submit(self, *values: Any, of: str | None = None, deadline: float | None = None) -> Answer[Value]:
        """Queue a request, and return its answer: a future that can be awaited. Never blocks.

        Args:
            values: The model's arguments, without the batch dimension: CPU tensors, NumPy arrays, and
                structures of them. They are copied when the batch leaves, so do not change them until the
                request is answered.
            of: The class of the request; by default the first.
            deadline: Seconds after which the answer is of no use, counted from this call. The batcher
                compares the deadline with the time that recent batches took, until the last of their callers
                had its answer: now, and again before the batch leaves. Pass the time that is left for the
                request; 0 or less is refused at once.

        Returns:
            The ``Answer``, with ``result()``, ``done()``, ``cancel()`` and ``add_done_callback()``.

        Raises:
            RequestRefused: Too many requests wait, the deadline cannot be kept, or the batcher is closed.
            ValueError: There is no such class, the request has no tensor, or its shapes, types or structure
                differ from those of this batcher.
            TypeError: A value is on a device, or ``deadline`` is not a number.
            DeviceError: This is a forked child of the process that made the batcher.
        """
        try:
            each = self._classes[0] if of is None else self._by_name[of]
        except KeyError:
            raise ValueError(
                f"there is no class {of!r}; there is {', '.join(map(repr, self._by_name))}"
            ) from None
        if deadline is not None:
            # Deadlines are checked first: a loop that cannot keep up with arrivals catches up by refusing,
            # which has to be cheap.
            if type(deadline) is not float:
                deadline = _deadline(deadline)
            # This condition is also true for NaN.
            if not deadline > 0:
                self._refuse_late(each, deadline, None)
            expected = self._requests.late(each.number, time.monotonic(), deadline)
            if expected is not None:
                self._refuse_late(each, deadline, expected)
        leaves: list[Any]
        shape: Any = None
        is_bare = self._is_bare and len(values) == 1 and type(values[0]) is self._torch.Tensor
        if is_bare:
            leaves = [values[0]]
            kind = self._kinds[0]
            is_like = values[0].shape == kind[0] and values[0].dtype is kind[1]
        else:
            leaves, shape, is_bare = self._taken_apart(values)
            is_like = self._is_like(leaves, shape, is_bare)
        for leaf in leaves:
            if leaf.is_cuda:
                raise TypeError(
                    "a request has a tensor on a device; pass CPU tensors, which are packed and uploaded"
                    " together"
                )
        loop = running_loop()
        answer = Answer(self, leaves, loop, each.number)
        home = None if loop is None else id(loop)
        # By this lock a check observes the order between threads; it does not see the extension's lock.
        with self._lock:
            # The slots have memory for the shapes of the requests that wait or run.
            if not (is_like and self._said_by) and not self._is_like(leaves, shape, is_bare):
                counts = self._requests.statistics()
                if self._said_by or counts.waiting or counts.in_flight:
                    raise ValueError(self._unlike(leaves))
                self._begin(leaves, shape, is_bare)
            many = self._requests.submit(each.number, answer, time.monotonic(), deadline, home)
        if many <= 0:
            self._refuse(many)
        if loop is not None:
            if each.running:
                self._look_soon(loop)
            if many >= self._sizes[-1]:
                self._tick(each)
            elif many == 1:
                loop.call_later(self._max_delay, self._tick, each)
        return answer

    def _refuse(self, why: int) -> NoReturn:
        if why == -1:
            raise RequestRefused(
                "full",
                f"{self._max_queue} requests are already waiting, the maximum; try again later, or raise "
                "max_queue",
            )
        if why == -2:
            raise RequestRefused("late", "the requests ahead of this one leave too little time")
        raise RequestRefused("closed", "the batcher is closed") from self._lost

    def _refuse_late(self, each: Class, deadline: float, expected: float | None) -> NoReturn:
        """Refuse a request that would be answered too late. Its answer would be of no use, and would delay
        the requests behind it.
        """
        if math.isnan(deadline):
            raise ValueError("deadline is nan; give seconds, or leave it out")
        if each.running:
            self._look_soon(running_loop())
        if expected is None:
            expected = self._requests.late(each.number, time.monotonic(), 0.0)
            if expected is None:
                self._refuse(0)
            raise RequestRefused("late", "its deadline has passed")
        raise RequestRefused(
            "late",
            f"the answer would take {expected:.6f} s, as recent batches and max_delay show, which is past the"
            " deadline",
        )

    def _taken_apart(self, values: tuple[Any, ...]) -> tuple[list[Any], Any, bool]:
        """Return the tensors of a request, its structure, and whether it is a single tensor."""
        leaves, shape = _tree.flatten(values)
        if not leaves:
            raise ValueError(
                "a request has no tensor: numbers are a part of its structure, which is the same for all"
                " requests; pass them as torch.tensor(...)"
            )
        is_bare = len(values) == 1 and leaves[0] is values[0]
        return (
            [
                leaf if isinstance(leaf, self._torch.Tensor) else self._torch.as_tensor(leaf)
                for leaf in leaves
            ],
            shape,
            is_bare,
        )

    def _is_like(self, leaves: list[Any], shape: Any, is_bare: bool) -> bool:
        kinds = self._kinds
        if len(leaves) != len(kinds) or is_bare is not self._is_bare:
            return False
        for leaf, kind in zip(leaves, kinds):
            if leaf.shape != kind[0] or leaf.dtype is not kind[1]:
                return False
        return is_bare or self._shape.is_same(shape)

    def _unlike(self, leaves: list[Any]) -> str:
        said, own = described(self._like), described(leaves)
        by = self._said_by or "as the previous one, which is not answered yet"
        if said == own:
            return (
                "a request of this batcher has another structure, or other numbers in it, than this one, "
                f"{by}; values that differ must be tensors"
            )
        return (
            f"a request of this batcher is {said}, and this one is {own}: the first is {by}; a request is one"
            " row, without the batch dimension, and like= sets its form in advance"
        )

    def _begin(self, leaves: list[Any], shape: Any, is_bare: bool) -> None:
        """Allocate the memory of each slot, for requests like this one. No batch is on the device."""
        made = [
            [
                Slot(self._torch, self._device, each.priority, self._sizes[-1], leaves, self._graphs)
                for _ in range(self._slots)
            ]
            for each in self._classes
        ]
        # Either all slots get memory, or none does.
        for each, slots in zip(self._classes, made):
            each.slots[:] = slots
        self._shape = shape
        self._like = [leaf.clone() for leaf in leaves]
        self._kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self._is_bare = is_bare

    # ------------------------------------------------------------------------------------------ batches

    def _tick(self, each: Class) -> None:
        """Launch the batches that are due. This runs in the event loop."""
        while self._leave(each):
            pass
        due = self._requests.due(each.number, time.monotonic())
        loop = running_loop()
        # If no request waits or no slot is free, the thread that frees a slot looks again.
        if due is not None and loop is not None:
            loop.call_later(due, self._tick, each)

    def _leave(self, each: Class) -> bool:
        """Launch a batch if one is due, and return whether one was."""
        with self._lock:
            taken = self._requests.take(each.number, time.monotonic())
        if taken is None:
            return False
        answers, expired, number, size, due = taken
        if expired:
            with self._lock:
                for answer in expired:
                    answer._end(None, RequestExpired("the deadline passed while the request waited"))
            tell(expired)
        if answers:
            self._launch(each, Batch(answers, number, each.slots[number], size, due))
        return True

    def _on_device(self) -> None:
        """Make the batcher's device the current one of this thread, since libraries use the current device.
        """
        self._torch.cuda.set_device(self._device)

    def _launch(self, each: Class, batch: Batch) -> None:
        """Pack and submit a batch, and pass it to the thread that waits for the device."""
        try:
            batch.results = self._submit(batch.slot, batch.size, [answer._leaves for answer in batch.answers])
        except BaseException as error:
            batch.error = error
        # The lock lets a check order the launch before the code of an event loop that finds the batch here.
        with self._lock:
            each.running.append(batch)
        each.launched.put(batch)
        # Ctrl-C stops the loop; the thread that waits for the device ends the batch.
        if isinstance(batch.error, KeyboardInterrupt) and running_loop() is not None:
            raise batch.error

    def _submit(self, slot: Slot, size: int, requests: list[list[Any]]) -> list[Any]:
        """Submit rows to an idle slot, and return the rows of the results, which are valid once the slot's
        last event is complete.
        """
        torch = self._torch
        many = len(requests)
        for at, slab in enumerate(slot.host):
            torch.stack([leaves[at] for leaves in requests], out=slab[:many])
            if many < size:
                slab[many:size].zero_()
        points = slot.points
        # The context of a stream also makes its device current, and restores the previous stream and device.
        with torch.inference_mode(), torch.cuda.stream(slot.stream):
            points[0].record(slot.stream)
            for device, slab in slot.rows_of(size):
                device.copy_(slab, non_blocking=True)
            points[1].record(slot.stream)
            graph = slot.graphs.get(size)
            if graph is None:
                made = self._run(slot, size)
            else:
                graph[0].replay()
                made = graph[1]
            points[2].record(slot.stream)
            leaves, shape = _tree.tensors_of(made)
            torch.cuda.set_stream(slot.down)
            slot.down.wait_event(points[2])
            columns = []
            for leaf in leaves:
                if leaf.dim() == 0 or leaf.shape[0] != size:
                    raise ValueError(
                        f"the model was given {size} rows and returned a tensor of shape {tuple(leaf.shape)};"
                        " it must return one row for each"
                    )
                host = torch.empty((many, *leaf.shape[1:]), dtype=leaf.dtype, pin_memory=True)
                columns.append(host.copy_(leaf if many == size else leaf[:many], non_blocking=True))
            points[3].record(slot.down)
            # Unbind while the device works.
            unbound = [column.unbind(0) for column in columns]
            if len(leaves) == 1 and leaves[0] is made:
                return list(unbound[0])
            return [shape.unflatten([column[at] for column in unbound]) for at in range(many)]

    def _run(self, slot: Slot, size: int) -> Any:
        rows = [device for device, _ in slot.rows_of(size)]
        return self._model(*(rows if self._is_bare else self._shape.unflatten(rows)))

    # ------------------------------------------------------------------------------------------ ends

    def _finished(self, each: Class, batch: Batch) -> None:
        """Wait for a batch, and end it unless another thread has."""
        error = batch.error
        if error is None and not batch.is_over:
            try:
                batch.slot.points[3].synchronize()
            except BaseException as lost:
                error = lost
        if not self._is_mine(each, batch):
            return
        batch.error = error
        try:
            if error is not None:
                self._again(each, batch)
        finally:
            self._over(each, batch)

    def _is_mine(self, each: Class, batch: Batch) -> bool:
        """Return whether the calling thread has to end a complete batch: True for the first thread that asks.
        """
        with self._lock:
            is_mine = not batch.is_over
            batch.is_over = True
            if is_mine:
                each.running.remove(batch)
        return is_mine

    def _look_soon(self, loop: Any) -> None:
        """Make an event loop look for complete batches in its next turn. A busy loop gets there before a
        thread, which has to wait for the interpreter's lock.
        """
        if loop is not None and loop is not self._looking:
            self._looking = loop
            loop.call_soon(self._look)

    def _look(self) -> None:
        """End the batches that are complete. This runs in an event loop. A failed batch is left to the
        thread, which runs its requests again.
        """
        self._looking = None
        for each in self._by_urgency:
            while True:
                with self._lock:
                    batch = each.running[0] if each.running else None
                if batch is None or batch.error is not None or batch.results is None:
                    break
                try:
                    if not batch.slot.points[3].query():
                        break
                    # The event is complete, so this does not block. It tells a check that all work before the
                    # event is complete.
                    batch.slot.points[3].synchronize()
                except Exception:
                    # The thread that waits for the device gets this error too.
                    break
                if not self._is_mine(each, batch):
                    break
                self._over(each, batch)

    def _over(self, each: Class, batch: Batch) -> None:
        """Hand out the answers, free the slot, and wake whatever launches the next batch."""
        answers = batch.answers if batch.error is None else []
        requests, number = self._requests, batch.number
        if answers:
            points = batch.slot.points
            times = [before.elapsed_time(after) for before, after in zip(points, points[1:])]
            self._succeeded(each, batch)
        sleepers = self._sleepers
        with self._lock:
            now = time.monotonic()
            if answers:
                requests.answered(each.number, number, None, times, now)
            oldest = requests.over(each.number, number, now)
            has_woken = bool(sleepers)
            for answer, row in zip(answers, batch.results or ()):
                answer._value, answer._leaves = row, NOTHING
                answer._has_ended = True
                if answer._locks:
                    sleepers.extend(answer._locks)
                    answer._locks = None
        if sleepers and not has_woken:
            self._wake_threads(_AWAKE)
        tell(
            answers,
            each,
            None if oldest is None else oldest._loop,
            self._tick,
            # How long the batch took until all callers had been told: the last of them waited that long.
            lambda: requests.told(each.number, batch.due, time.monotonic()),
        )

    def _succeeded(self, each: Class, batch: Batch) -> None:
        """Take the shapes of requests from an answered batch, and have its size captured."""
        if not self._said_by:
            self._said_by = "as the first that was answered"
        asked = each.name, batch.size
        if (
            self._graphs
            and batch.size not in batch.slot.graphs
            and batch.size not in self.not_captured
            and asked not in self._asked
        ):
            self._asked.add(asked)
            self._to_capture.put((each, batch.size))

    def _wake_threads(self, many: int) -> None:
        with self._lock:
            woken = [self._sleepers.popleft() for _ in range(min(many, len(self._sleepers)))]
        for lock in woken:
            lock.release()

    def _again(self, each: Class, batch: Batch) -> None:
        """Run the requests of a failed batch one by one, so that only those fail that fail alone."""
        error = batch.error
        try:
            batch.slot.stream.synchronize()
        except Exception as lost:
            self._lose(lost)
        for at, answer in enumerate(batch.answers):
            value: Any = None
            failed = self._lost or (error if len(batch.answers) == 1 else None)
            if failed is None:
                try:
                    value = self._submit(batch.slot, self._sizes[0], [answer._leaves])[0]
                    batch.slot.points[3].synchronize()
                except BaseException as alone:
                    failed = alone
            if failed is None:
                self._requests.answered(each.number, batch.number, at, None, time.monotonic())
                self._said_by = self._said_by or "as the first that was answered"
            else:
                self._requests.failed()
            with self._lock:
                answer._end(value, failed)
            tell([answer])

    def _lose(self, error: BaseException) -> None:
        """Record that the device is lost, and refuse all waiting requests."""
        self._lost = error
        self._refuse_what_waits(error)

    # ------------------------------------------------------------------------------------------ graphs

    def _capture_all(self, each: Class, size: int) -> None:
        """Capture a size in each slot of a class as the slot becomes idle."""
        for number, slot in enumerate(each.slots):
            if size in self.not_captured or not self._requests.claim(each.number, number):
                return
            try:
                with self._lock:
                    # Orders the capture after the last use of the slot, in a way that a check observes.
                    pass
                slot.graphs[size] = self._captured(slot, size)
            except BaseException as error:
                self.not_captured[size] = f"{type(error).__name__}: {error}"
            with self._lock:
                oldest = self._requests.over(each.number, number, time.monotonic())
            tell((), each, None if oldest is None else oldest._loop, self._tick)

    def _captured(self, slot: Slot, size: int) -> tuple[Any, Any]:
        torch = self._torch
        with torch.inference_mode(), torch.cuda.stream(slot.stream):
            # Runs once before the capture: libraries initialize at their first call in a thread, which cannot
            # be captured.
            self._run(slot, size)
            slot.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # `torch.cuda.graph` would synchronize the device and empty the cache. With "thread_local", other
            # threads may call CUDA meanwhile.
            graph.capture_begin(pool=slot.pool, capture_error_mode="thread_local")
            try:
                made = self._run(slot, size)
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph, lent(torch, made)

    # ------------------------------------------------------------------------------------------ the end

    @property
    def statistics(self) -> BatcherStatistics:
        """A copy of the counts and times so far: how requests ended, ``batches`` by size, ``padding_rows``,
        and the times ``queue``, ``upload``, ``compute``, ``download`` and ``total``.

        Its ``prometheus("model")`` returns them as text, with the names of Triton Inference Server's metrics.
        On a GPU of ``simulate``, ``upload``, ``compute`` and ``download`` are those of the simulated device;
        ``queue`` and ``total`` are empty, since requests arrive and wait in this machine's time.
        """
        return self._requests.statistics(self._has_clock)

    def refuse(self) -> None:
        """Refuse further requests. Those that were accepted are answered. Never blocks."""
        self._requests.close(True)

    def close(self, drain: bool = True) -> BatcherStatistics:
        """Refuse further requests, block until the accepted ones have ended, and return the statistics.

        Args:
            drain: Whether waiting requests are computed. Otherwise they are refused, and only the requests on
                the device are waited for.
        """
        if drain:
            self.refuse()
        else:
            self._refuse_what_waits(None)
        self._threads[0].join()
        for each in self._classes:
            each.launched.put(None)
        self._to_capture.put(None)
        for thread in self._threads:
            thread.join()
        # An event loop may be ending a batch.
        self._requests.settle()
        return self.statistics

    def _refuse_what_waits(self, because: BaseException | None) -> None:
        ended = self._requests.close(False)
        with self._lock:
            for answer in ended:
                refused = RequestRefused("closed", "the batcher was closed while the request waited")
                refused.__cause__ = because
                answer._end(None, refused)
        tell(ended)

    async def aclose(self) -> BatcherStatistics:
        """Close as ``close()`` does, without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Batcher[Value]:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self) -> Batcher[Value]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        requests: Any = self._requests
        what = "of another process" if isinstance(requests, Forked) else repr(self.statistics)
        return f"<Batcher on {self._device}: {what}>"


# ---------------------------------------------------------------------------------------------- threads


def _thread(run: Callable[..., None], one: weakref.ref[Batcher[Any]], *what: Any) -> None:
    try:
        run(one, *what)
    except BaseException as error:
        batcher = one()
        if batcher is not None:
            # No other thread does this work.
            batcher._lose(error)
        raise


def _dispatch(one: weakref.ref[Batcher[Any]], requests: Requests) -> None:
    """Launch the batches of threads, and those of event loops that are busy or gone."""
    while (number := requests.wait(time.monotonic())) is not None:
        batcher = one()
        if batcher is not None:
            batcher._on_device()
            batcher._leave(batcher._classes[number])
        del batcher


def _finish(one: weakref.ref[Batcher[Any]], each: Class, sleepers: deque[Any]) -> None:
    """Wait for the batches of a class, in the order in which they were launched."""
    is_last = False
    while not is_last:
        batch: Batch | None = None
        with contextlib.suppress(queue.Empty):
            batch = each.launched.get(timeout=_PATIENCE_S if sleepers else None)
            is_last = batch is None
        batcher = one()
        if batcher is not None and batch is not None:
            batcher._on_device()
            batcher._finished(each, batch)
        elif batcher is not None:
            # The thread that should have woken these threads was interrupted.
            batcher._wake_threads(len(sleepers))
        # This thread must hold no reference to the batcher while it waits.
        del batcher, batch


def _capture(one: weakref.ref[Batcher[Any]], wanted: queue.SimpleQueue[tuple[Class, int] | None]) -> None:
    """Capture the sizes that have been computed without a graph."""
    while (what := wanted.get()) is not None:
        batcher = one()
        if batcher is not None:
            batcher._on_device()
            batcher._capture_all(*what)
        del batcher, what


def _end(requests: Requests, classes: list[Class], to_capture: queue.SimpleQueue[Any]) -> None:
    """End the threads of a batcher that is no longer referenced. No request waits, since its answer would
    hold the batcher.
    """
    requests.close(False)
    for each in classes:
        each.launched.put(None)
    to_capture.put(None)


def _deadline(given: Any) -> float:
    """Convert a deadline in seconds to a ``float``."""
    if isinstance(given, (bool, str)):
        raise TypeError(f"deadline is {given!r}; give seconds, or leave it out")
    return float(given)
