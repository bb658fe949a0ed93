"""Requests of many callers, run as batches on streams and graphs.

PyTorch's calls let go of the interpreter's lock and take it again, and a thread that takes it from a busy
event loop may wait for 5 ms each time. So a batch whose requests come from an event loop is packed and
launched by the loop itself; a thread of the batcher does that for requests of threads. Another waits for the
device, and needs the lock twice a batch: after the wait it ends the requests, frees the slot and wakes the
loop, which is where the lock may be lost again, in that sequence. A loop that is asked meanwhile looks for
itself which batches are over, and ends them without a change of threads. What happens for each request is
little, and what can be done once a batch is done once a batch.

What waits, when a batch leaves, who may launch it, what is refused and what is counted is decided by
`Requests`, Rust's machine: one call for a request, or two if it has a deadline, and a handful for a batch.
What it gives back has been claimed and counted: nobody else ends that, and its caller is told after that.

The threads hold the batcher only while they work for it, so that one that nobody holds, and that has nothing
to do, ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn, cast

from sidestream import _tree
from sidestream._answer import NOTHING, Answer, RequestExpired, RequestRefused, Value, running_loop, tell
from sidestream._arguments import truth, whole
from sidestream._batch import Batch, Class, Slot, lent
from sidestream._sidestream import BatcherStatistics, DeviceError, Requests

#: By how much a batch is overdue when a thread launches it that an event loop was to launch, if requests of
#: others wait behind it; ten times as much if not.
_GRACE_S = 0.005
#: How many of the threads whose requests have ended are awake at once. With 64 of them 4 took half the time
#: of all at once (`benches/requests_host.py`), and fewer left in smaller batches.
_AWAKE = 4
#: After how long threads are woken that others were to wake.
_PATIENCE_S = 0.05


class _Forked:
    """What a batcher of the parent asks in a child of a fork, where its threads and its device are not."""

    def __getattr__(self, name: str) -> NoReturn:
        raise DeviceError(
            "the Batcher was made before the fork, and a child has neither the threads nor the device of its "
            "parent; use it in the process that made it, or start this one anew instead of forking it"
            ' (multiprocessing\'s method "spawn")'
        )


#: Those that a child of a fork has to disown.
_made: weakref.WeakSet[Batcher[Any]] = weakref.WeakSet()


def _in_child() -> None:
    for one in _made:
        # Their locks may be held by threads that are not here.
        one._requests = cast(Requests, _Forked())
        one._lock = threading.Lock()
        one._end.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Batcher(Generic[Value]):
    """Runs the requests of many callers as batches, several at once, each on a stream of its own.

    ``model`` is called with tensors on the device whose first dimension is the batch, in the structure that
    requests have, and returns tensors with the same first dimension, in any structure. A request is one row:
    what ``submit`` is given without that dimension.

    A batch leaves when a slot is free and there are as many requests as the largest size, or when the oldest
    has waited for ``max_delay`` seconds. It is filled up with zeros to the next size. The first batch of a
    size in a slot runs the model as it is; meanwhile a thread captures it into a CUDA graph as soon as the
    slot is idle, and later batches replay that. A model that cannot be captured runs as it is;
    ``Batcher.not_captured`` says why.

    Each request ends exactly once. Where a batch fails, its requests are run again one by one, so that one
    that fails does so alone.
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
        """Begin to serve.

        Args:
            model: What computes a batch. It has to be on the device.
            sizes: The rows that a batch may have.
            max_delay: How many seconds the oldest request waits for others, if a slot is free. 0: a batch is
                what came while the slots were busy.
            slots: How many batches of a class are on the device at once.
            max_queue: How many requests of a class may wait. More are refused.
            classes: Names of classes of requests with the priorities of their streams, of which lower is more
                urgent; one of priority 0 without this. Priority decides whose blocks go next as room becomes
                free, and does not stop a kernel that runs.
            graphs: Whether batches become CUDA graphs.
            like: A request, as ``submit`` takes it, or a tuple if that takes several values: all are like it.
                Without it they are like the first one that is answered.
            device: The GPU; PyTorch's current one without this.

        Raises:
            TypeError, ValueError: An argument means nothing.
            RuntimeError: There is no GPU.
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
                "a Batcher runs models of PyTorch on a GPU, and there is none here; "
                "`sidestream.check(simulate=True)` has a simulated one"
            )
        if not callable(model):
            raise TypeError(f"model is {model!r}; give a callable of tensors")
        rows = sorted({whole("a size", size, 1, "how many rows a batch may have") for size in sizes})
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
        #: Held for moments: while answers are told and waited for.
        self._lock = threading.Lock()
        #: The event loop that will look which batches are over.
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
        #: The shapes and types that requests have.
        self._kinds: list[tuple[Any, Any]] = []
        #: Whether a request is nothing but one tensor, which need not be taken apart.
        self._is_bare = False
        #: Who says what all requests are like. Before one is answered the next may be otherwise.
        self._said_by = ""
        self._lost: BaseException | None = None
        #: By size: why it was not captured.
        self.not_captured: dict[int, str] = {}
        self._to_capture: queue.SimpleQueue[tuple[Class, int] | None] = queue.SimpleQueue()
        self._asked: set[tuple[str, int]] = set()
        #: Locks of threads whose requests have ended. Each that is woken wakes the next: all at once they
        #: would only wait for the interpreter's lock, and push each other aside there.
        self._sleepers: deque[Any] = deque()
        self._end = weakref.finalize(self, _end, self._requests, self._classes, self._to_capture)
        self._end.atexit = False
        if like is not None:
            leaves, shape, is_bare = self._taken_apart(like if isinstance(like, tuple) else (like,))
            self._begin(leaves, shape, is_bare)
            self._said_by = "as like= says"
        self._threads = [self._thread("batcher", _dispatch, self._requests)]
        self._threads += [
            self._thread(f"batcher {each.name}", _finish, each, self._sleepers) for each in self._classes
        ]
        if graphs:
            self._threads.append(self._thread("batcher graphs", _capture, self._to_capture))
        _made.add(self)
        for thread in self._threads:
            thread.start()

    def _thread(self, name: str, run: Callable[..., None], *what: Any) -> threading.Thread:
        return threading.Thread(target=_thread, args=(run, weakref.ref(self), *what), name=name, daemon=True)

    # ------------------------------------------------------------------------------------------ requests

    def submit(self, *values: Any, of: str | None = None, deadline: float | None = None) -> Answer[Value]:
        """Queue a request, and return its answer: a future that can be awaited. Does not wait.

        Args:
            values: What the model takes, without the batch's dimension: tensors of the host, arrays of numpy,
                and structures of them. Not copied before the batch leaves, so leave them as they are until
                the answer is there.
            of: The class; the first one without this.
            deadline: In how many seconds the answer is of no more use. Looked at now, by what batches took
                lately, and before the batch leaves.

        Raises:
            RequestRefused: Too many wait, the deadline cannot be kept, or the batcher is closed.
            ValueError: There is no such class, or it is not like the first request that was answered: in
                shapes, types and structure.
            TypeError: A value is on a device.
        """
        try:
            each = self._classes[0] if of is None else self._by_name[of]
        except KeyError:
            raise ValueError(
                f"there is no class {of!r}; there is {', '.join(map(repr, self._by_name))}"
            ) from None
        if deadline is not None:
            # First of all: where a loop is behind with what arrives, it catches up by refusing, which has to
            # cost next to nothing.
            if type(deadline) is not float:
                deadline = _deadline(deadline)
            # Of NaN neither is true.
            if not deadline > 0:
                self._refuse_late(each, deadline, None)
            expected = self._requests.late(each.number, time.perf_counter(), deadline)
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
                    "a request has a tensor on a device; give rows of the host, which are packed and uploaded"
                    " as one"
                )
        loop = running_loop()
        answer = Answer(self, leaves, loop, each.number)
        home = None if loop is None else id(loop)
        # A check hears of this lock who handed what to whom, and not of the extension's.
        with self._lock:
            # Whatever waits and runs is like what the slots have room for.
            if not (is_like and self._said_by) and not self._is_like(leaves, shape, is_bare):
                counts = self._requests.statistics()
                if self._said_by or counts.waiting or counts.in_flight:
                    raise ValueError(self._unlike(leaves))
                self._begin(leaves, shape, is_bare)
            many = self._requests.submit(each.number, answer, time.perf_counter(), deadline, home)
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
                f"{self._max_queue} requests wait already, as many as may; try again later, or raise "
                "max_queue",
            )
        if why == -2:
            raise RequestRefused("late", "others came first, and the deadline cannot be kept")
        raise RequestRefused("closed", "the batcher is closed") from self._lost

    def _refuse_late(self, each: Class, deadline: float, expected: float | None) -> NoReturn:
        """Refuse a request that would be answered too late. Late answers are worth nothing and hold up those
        behind them.
        """
        if math.isnan(deadline):
            raise ValueError("deadline is nan; give seconds, or leave it out")
        if each.running:
            self._look_soon(running_loop())
        if expected is None:
            expected = self._requests.late(each.number, time.perf_counter(), 0.0)
            if expected is None:
                self._refuse(0)
            raise RequestRefused("late", "its deadline is over")
        raise RequestRefused(
            "late",
            f"the answer would take {expected:.6f} s by what batches took lately and max_delay, which is past"
            " the deadline",
        )

    def _taken_apart(self, values: tuple[Any, ...]) -> tuple[list[Any], Any, bool]:
        """Return the tensors of a request, its shape, and whether it is nothing but one tensor."""
        leaves, shape = _tree.flatten(values)
        if not leaves:
            raise ValueError(
                "a request has no tensor: its numbers are taken as a part of its structure, which is the same"
                " for all; give torch.tensor(...) of them"
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
        said, own = _said(self._like), _said(leaves)
        by = self._said_by or "as the one before it has, which is not answered yet"
        if said == own:
            return (
                "a request of this batcher has another structure, or other numbers in it, than this one has, "
                f"{by}; what differs has to be a tensor"
            )
        return (
            f"a request of this batcher is {said}, and this one is {own}: the first is {by}; a request is one"
            " row, without the batch's dimension, and like= says beforehand what one is"
        )

    def _begin(self, leaves: list[Any], shape: Any, is_bare: bool) -> None:
        """Have each slot get memory for requests like this one. Nothing is with the device."""
        made = [
            [
                Slot(self._torch, self._device, each.priority, self._sizes[-1], leaves, self._graphs)
                for _ in range(self._slots)
            ]
            for each in self._classes
        ]
        # All, or none.
        for each, slots in zip(self._classes, made):
            each.slots[:] = slots
        self._shape = shape
        self._like = [leaf.clone() for leaf in leaves]
        self._kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self._is_bare = is_bare

    # ------------------------------------------------------------------------------------------ batches

    def _tick(self, each: Class) -> None:
        """Launch what is due, in the event loop."""
        while self._leave(each):
            pass
        due = self._requests.due(each.number, time.perf_counter())
        loop = running_loop()
        # If nobody waits, or no slot is free, whoever frees one looks again.
        if due is not None and loop is not None:
            loop.call_later(due, self._tick, each)

    def _leave(self, each: Class) -> bool:
        """Launch a batch if one is due, and return whether one was."""
        with self._lock:
            taken = self._requests.take(each.number, time.perf_counter())
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
        """Make the device that of this thread, which libraries of CUDA ask for."""
        self._torch.cuda.set_device(self._device)

    def _launch(self, each: Class, batch: Batch) -> None:
        """Pack and submit a batch, and hand it to the thread that waits for it."""
        try:
            batch.results = self._submit(batch.slot, batch.size, [answer._leaves for answer in batch.answers])
        except BaseException as error:
            batch.error = error
        # Under the lock, so that a check hears that the launch came before whatever the loop does that finds
        # it here.
        with self._lock:
            each.running.append(batch)
        each.launched.put(batch)
        # That is how a loop is stopped; the batch is in good hands.
        if isinstance(batch.error, KeyboardInterrupt) and running_loop() is not None:
            raise batch.error

    def _submit(self, slot: Slot, size: int, requests: list[list[Any]]) -> list[Any]:
        """Submit rows to a slot that is idle, and return the rows of its results, which are there when its
        last event is over.
        """
        torch = self._torch
        many = len(requests)
        for at, slab in enumerate(slot.host):
            torch.stack([leaves[at] for leaves in requests], out=slab[:many])
            if many < size:
                slab[many:size].zero_()
        points = slot.points
        # The context of a stream makes its device the current one too, and brings both back.
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
                        " it has to return a row for each"
                    )
                host = torch.empty((many, *leaf.shape[1:]), dtype=leaf.dtype, pin_memory=True)
                columns.append(host.copy_(leaf if many == size else leaf[:many], non_blocking=True))
            points[3].record(slot.down)
            # While the device works.
            unbound = [column.unbind(0) for column in columns]
            if len(leaves) == 1 and leaves[0] is made:
                return list(unbound[0])
            return [shape.unflatten([column[at] for column in unbound]) for at in range(many)]

    def _run(self, slot: Slot, size: int) -> Any:
        rows = [device for device, _ in slot.rows_of(size)]
        return self._model(*(rows if self._is_bare else self._shape.unflatten(rows)))

    # ------------------------------------------------------------------------------------------ ends

    def _finished(self, each: Class, batch: Batch) -> None:
        """Wait for a batch, and end it unless somebody else has."""
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
        """Tell whether a batch that is over is to be ended by who asks: the first one."""
        with self._lock:
            is_mine = not batch.is_over
            batch.is_over = True
            if is_mine:
                each.running.remove(batch)
        return is_mine

    def _look_soon(self, loop: Any) -> None:
        """Have an event loop look in its next turn what is over. One that is busy is there before a thread,
        which has to wait for the interpreter's lock.
        """
        if loop is not None and loop is not self._looking:
            self._looking = loop
            loop.call_soon(self._look)

    def _look(self) -> None:
        """End what is over, in an event loop. What failed is left to the thread, since it runs again."""
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
                    # Which does not wait now, and says of what stands before it that it is over, too.
                    batch.slot.points[3].synchronize()
                except Exception:
                    # The thread hears of it too.
                    break
                if not self._is_mine(each, batch):
                    break
                self._over(each, batch)

    def _over(self, each: Class, batch: Batch) -> None:
        """Give the answers and the slot back, and see to it that whoever has to launches the next batch."""
        answers = batch.answers if batch.error is None else []
        requests, number = self._requests, batch.number
        if answers:
            points = batch.slot.points
            times = [before.elapsed_time(after) for before, after in zip(points, points[1:])]
            self._succeeded(each, batch)
        sleepers = self._sleepers
        with self._lock:
            now = time.perf_counter()
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
            lambda: self._told(each, batch),
        )

    def _succeeded(self, each: Class, batch: Batch) -> None:
        """What was answered says what requests are like, and is worth a graph."""
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

    def _told(self, each: Class, batch: Batch) -> None:
        """Note what a batch took, with what it took to tell everybody: the last of them waited for that
        too.
        """
        self._requests.told(each.number, batch.due, time.perf_counter())

    def _wake_threads(self, many: int) -> None:
        with self._lock:
            woken = [self._sleepers.popleft() for _ in range(min(many, len(self._sleepers)))]
        for lock in woken:
            lock.release()

    def _again(self, each: Class, batch: Batch) -> None:
        """Run the requests of a batch that failed one by one; what fails alone has failed."""
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
                self._requests.answered(each.number, batch.number, at, None, time.perf_counter())
                self._said_by = self._said_by or "as the first that was answered"
            else:
                self._requests.failed()
            with self._lock:
                answer._end(value, failed)
            tell([answer])

    def _lose(self, error: BaseException) -> None:
        """The device is lost: nothing runs there any more."""
        self._lost = error
        self._refuse_what_waits(error)

    # ------------------------------------------------------------------------------------------ graphs

    def _capture_all(self, each: Class, size: int) -> None:
        """Capture a size in each slot of a class as it becomes idle."""
        for number, slot in enumerate(each.slots):
            if size in self.not_captured or not self._requests.claim(each.number, number):
                return
            try:
                with self._lock:
                    # Behind whoever used the slot, as a check hears it.
                    pass
                slot.graphs[size] = self._captured(slot, size)
            except BaseException as error:
                self.not_captured[size] = f"{type(error).__name__}: {error}"
            with self._lock:
                oldest = self._requests.over(each.number, number, time.perf_counter())
            tell((), each, None if oldest is None else oldest._loop, self._tick)

    def _captured(self, slot: Slot, size: int) -> tuple[Any, Any]:
        torch = self._torch
        with torch.inference_mode(), torch.cuda.stream(slot.stream):
            # What libraries make at their first call in a thread cannot be captured.
            self._run(slot, size)
            slot.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Not `torch.cuda.graph`, which waits for the device and empties the cache. The calls of other
            # threads are theirs.
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
        """What has become of the requests so far, as a copy."""
        return self._requests.statistics()

    def refuse(self) -> None:
        """Take no more requests. Those that were taken are answered."""
        self._requests.close(True)

    def close(self, drain: bool = True) -> BatcherStatistics:
        """Take no more requests, wait until those that were taken have ended, and return the statistics.

        Args:
            drain: Whether what waits is computed; without it that ends as refused, and only what is with the
                device is waited for.
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
        # An event loop may be about to end a batch.
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
        """Close without stopping the event loop."""
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
        what = "of another process" if isinstance(requests, _Forked) else repr(self.statistics)
        return f"<Batcher on {self._device}: {what}>"


# ---------------------------------------------------------------------------------------------- threads


def _thread(run: Callable[..., None], one: weakref.ref[Batcher[Any]], *what: Any) -> None:
    try:
        run(one, *what)
    except BaseException as error:
        batcher = one()
        if batcher is not None:
            # Nobody does its work any more.
            batcher._lose(error)
        raise


def _dispatch(one: weakref.ref[Batcher[Any]], requests: Requests) -> None:
    """Launch what threads have asked for, and event loops that are busy or gone."""
    while (number := requests.wait(time.perf_counter())) is not None:
        batcher = one()
        if batcher is not None:
            batcher._on_device()
            batcher._leave(batcher._classes[number])
        del batcher


def _finish(one: weakref.ref[Batcher[Any]], each: Class, sleepers: deque[Any]) -> None:
    """Wait for the batches of a class, in the sequence in which they were launched."""
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
            # Whoever was to wake them was interrupted.
            batcher._wake_threads(len(sleepers))
        # Who waits holds nothing.
        del batcher, batch


def _capture(one: weakref.ref[Batcher[Any]], wanted: queue.SimpleQueue[tuple[Class, int] | None]) -> None:
    """Make graphs of what has been computed without one."""
    while (what := wanted.get()) is not None:
        batcher = one()
        if batcher is not None:
            batcher._on_device()
            batcher._capture_all(*what)
        del batcher, what


def _end(requests: Requests, classes: list[Class], to_capture: queue.SimpleQueue[Any]) -> None:
    """End the threads of a batcher that nobody holds: no request waits, or its answer would hold it."""
    requests.close(False)
    for each in classes:
        each.launched.put(None)
    to_capture.put(None)


def _deadline(given: Any) -> float:
    """Return seconds that are not a ``float``."""
    if isinstance(given, (bool, str)):
        raise TypeError(f"deadline is {given!r}; give seconds, or leave it out")
    return float(given)


def _said(leaves: list[Any]) -> str:
    return (
        ", ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in leaves)
        or "no tensor"
    )
