"""Requests of many callers, run as batches on streams and graphs.

PyTorch's calls let go of the interpreter's lock and take it again, and a thread that takes it from a busy event loop may wait for 5 ms each time. So a batch
whose requests come from an event loop is packed and launched by the loop itself; a thread of the batcher does that for requests of threads. Another waits for
the device, and needs the lock twice a batch: after the wait it ends the requests, frees the slot and wakes the loop, which is where the lock may be lost again,
in that sequence. A loop that is asked meanwhile looks for itself which batches are over, and ends them without a change of threads. What happens for each
request is little, and what can be done once a batch is done once a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from sidestream import _tree
from sidestream._answer import ENDED, LAUNCHED, NOTHING, QUEUED, Answer, RequestExpired, RequestRefused, running_loop, tell
from sidestream._arguments import truth, whole
from sidestream._sidestream import BatcherStatistics, BatchRule

#: The longest one is not the longest that there will be. Room costs little: a loop that is behind catches up by so much sooner.
_ROOM = 1.25
#: For how long what batches took is believed while there are none, and in which time it is worth half after that.
_BELIEVED_S = 0.1
_HALF_LIFE_S = 0.1
#: How often that is looked at.
_LOOK_S = 0.002
#: Of how many batches the one counts that took longest. One answer in a hundred may be late, and where a loop is behind, whatever is accepted has just as much
#: time left as is expected.
_LATELY = 256
#: How many of the threads whose requests have ended are awake at once. With 64 of them 4 took half the time of all at once (`benches/requests_host.py`), and
#: fewer left in smaller batches.
_AWAKE = 4
#: After how long threads are woken that others were to wake.
_PATIENCE_S = 0.05


class _Bytes:
    """Memory of a device, as PyTorch takes it without owning it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "strides": None, "typestr": "|u1", "version": 3}


def _lent(torch: Any, made: Any) -> Any:
    """Return what a graph computes without holding its memory, so that the next capture of the slot puts its results there.

    A graph's pool stays as long as the graph. Of one slot no two graphs are at work at once, and results leave a slot before it has another batch.
    """
    leaves, shape = _tree.tensors_of(made)
    used = getattr(torch._C, "_storage_Use_Count", None)
    # A check follows whose memory a tensor is, and this would be nobody's.
    hooks = sys.modules.get("sidestream._check_hooks")
    if used is None or getattr(torch.cuda, "is_simulated", False) or (hooks is not None and hooks._listening):
        return made

    def is_plain(leaf: Any) -> bool:
        # Where a bit of the tensor says that it is conjugated or negated, its memory does not.
        return type(leaf) is torch.Tensor and leaf.is_cuda and leaf.layout is torch.strided and leaf.numel() > 0 and not leaf.is_conj() and not leaf.is_neg()

    storages = {at: leaf.untyped_storage() for at, leaf in enumerate(leaves) if is_plain(leaf)}
    for at, storage in storages.items():
        leaf = leaves[at]
        own = sum(other._cdata == storage._cdata for other in storages.values())
        # One more than the tensors is the storage that is asked. What somebody else holds, such as a model its last result, may not be of the pool.
        if used(storage._cdata) > own + 1:
            continue
        count = 1 + sum((length - 1) * step for length, step in zip(leaf.shape, leaf.stride()))
        owned = _Bytes(leaf.data_ptr(), count * leaf.element_size())
        leaves[at] = torch.as_tensor(owned, device=leaf.device).view(leaf.dtype).as_strided(leaf.shape, leaf.stride())
    return shape.unflatten(leaves)


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
        #: By size: the rows on the device with those on the host.
        self.rows: dict[int, list[tuple[Any, Any]]] = {}

    def rows_of(self, size: int) -> list[tuple[Any, Any]]:
        found = self.rows.get(size)
        if found is None:
            found = self.rows[size] = [(device[:size], host[:size]) for device, host in zip(self.device, self.host)]
        return found


class Class:
    """Requests of one priority."""

    def __init__(self, name: str, priority: int) -> None:
        self.name = name
        self.priority = priority
        self.waiting: deque[Answer] = deque()
        self.free: list[_Slot] = []
        self.slots: list[_Slot] = []
        #: What a batch took lately from when it was due until the last caller had its answer: in the mean, and the longest of the last ones.
        self.mean_s = 0.0
        self.longest_s = 0.0
        self._lately: deque[float] = deque(maxlen=_LATELY)
        self._noted = 0.0
        #: In how many seconds a request would be answered that came now, until when that is so, and the refusal of one that cannot wait so long. Nothing where
        #: it has to be asked.
        self.expected: tuple[float, float, str] | None = None
        #: When a slot became free last.
        self.freed = 0.0
        #: Batches that were launched, for the thread that waits for them.
        self.launched: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        #: The same, for whoever finds one over first.
        self.running: deque[_Batch] = deque()
        self.in_flight = 0

    def took(self, seconds: float, now: float) -> None:
        """Note what a batch took. The batcher's lock is held."""
        self._forget(now)
        self.mean_s = seconds if self.mean_s == 0.0 else (7 * self.mean_s + seconds) / 8
        self._lately.append(seconds)
        self.longest_s = max(self._lately)
        self._noted = now
        self.expected = None

    def _forget(self, now: float) -> None:
        """What took long once is worth less and less while there is nothing to be noted, so that one is tried again: only a batch says what batches take now."""
        idle_s = now - self._noted - _BELIEVED_S
        if self.in_flight == 0 and idle_s > 0 and self._lately:
            share = 0.5 ** (idle_s / _HALF_LIFE_S)
            self.mean_s *= share
            self.longest_s *= share
            self._lately.clear()
            self._lately.append(self.longest_s)
            self._noted = now - _BELIEVED_S

    def expects(self, rule: BatchRule, slots: int, max_delay: float, now: float) -> tuple[float, float, str]:
        """Say in how many seconds a request would be answered that came now, with room: those that were accepted are to be answered in time.

        One batch of the last ones took longest, and so may its own. A mean with room for what is usual is not enough: what holds up an event loop or a thread
        that waits for the interpreter comes seldom and lasts for milliseconds.
        """
        self._forget(now)
        before_s = rule.expected(len(self.waiting), self.in_flight, slots, self.mean_s)
        seconds = max_delay + (before_s or self.mean_s) + max(0.0, _ROOM * self.longest_s - self.mean_s)
        # While there are batches each says anew; then what they took is believed for a while, and worth a little less with each look.
        until = math.inf if self.in_flight else max(self._noted + _BELIEVED_S, now) + _LOOK_S
        text = f"the answer would take {seconds:.6f} s by what batches took lately, which is past the deadline"
        self.expected = found = seconds, until, text
        return found


class _Batch:
    __slots__ = ("answers", "arrived", "due", "error", "expired", "is_over", "results", "size", "slot")

    def __init__(self, answers: list[Answer], arrived: list[float], expired: list[Answer], slot: _Slot, size: int, due: float) -> None:
        self.answers = answers
        self.arrived = arrived
        #: Those that it would have had, and that have not been told yet.
        self.expired = expired
        self.slot = slot
        self.size = size
        #: When it was to leave.
        self.due = due
        self.results: Any = None
        self.error: BaseException | None = None
        #: Whether somebody ends it already.
        self.is_over = False


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
        #: When a batch leaves, by what Rust's batcher goes by too: three calls a batch, and one for a request with a deadline.
        self._rule = BatchRule(rows, float(max_delay))
        self._max_delay = float(max_delay)
        self._slots = whole("slots", slots, 1, "how many batches are on the device at once")
        self._max_queue = whole("max_queue", max_queue, 1, "how many requests may wait")
        self._graphs = graphs
        self._device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        #: Held for moments: while requests come, leave and end.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._counts = BatcherStatistics()
        #: Requests that were refused for their deadline and are not among the counts yet.
        self._late = 0
        #: The event loop that will look which batches are over.
        self._looking: Any = None
        self._classes = [Class(name, priority) for name, priority in (classes or {"default": 0}).items()]
        self._by_name = {each.name: each for each in self._classes}
        self._by_urgency = sorted(self._classes, key=lambda each: each.priority)
        self._shape: Any = None
        self._like: list[Any] = []
        #: The shapes and types that requests have.
        self._kinds: list[tuple[Any, Any]] = []
        #: Whether a request is nothing but one tensor, which need not be taken apart.
        self._is_bare = False
        #: Whether somebody waits for a slot to capture in.
        self._wants_slot = False
        self._is_closed = False
        self._lost: BaseException | None = None
        #: By size: why it was not captured.
        self.not_captured: dict[int, str] = {}
        self._to_capture: queue.SimpleQueue[tuple[Class, int] | None] = queue.SimpleQueue()
        self._asked: set[tuple[str, int]] = set()
        #: Locks of threads whose requests have ended. Each that is woken wakes the next: all at once they would only wait for the interpreter's lock, and push
        #: each other aside there.
        self._sleepers: deque[Any] = deque()
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
        try:
            each = self._classes[0] if of is None else self._by_name[of]
        except KeyError:
            raise ValueError(f"there is no class {of!r}; there is {', '.join(map(repr, self._by_name))}") from None
        if deadline is not None:
            # First of all: where a loop is behind with what arrives, it catches up by refusing, which has to cost next to nothing.
            expected = each.expected
            if deadline <= 0:
                self._refuse_late(each, "its deadline is over")
            elif expected is None or time.perf_counter() >= expected[1]:
                with self._lock:
                    expected = each.expects(self._rule, self._slots, self._max_delay, time.perf_counter())
            if expected is not None and deadline < expected[0]:
                self._refuse_late(each, expected[2])
        if self._is_bare and len(values) == 1 and type(values[0]) is self._torch.Tensor:
            leaves: list[Any] = [values[0]]
            shape: Any = None
        else:
            leaves, shape = _tree.flatten(values)
            for at, leaf in enumerate(leaves):
                if not isinstance(leaf, self._torch.Tensor):
                    leaves[at] = self._torch.as_tensor(leaf)
        for leaf in leaves:
            if leaf.is_cuda:
                raise TypeError("a request has a tensor on a device; give rows of the host, which are packed and uploaded as one")
        if not self._like:
            self._begin(leaves, shape, len(values) == 1 and leaves[0] is values[0])
        kinds = self._kinds
        is_like = len(leaves) == len(kinds)
        for leaf, kind in zip(leaves, kinds):
            is_like = is_like and leaf.shape == kind[0] and leaf.dtype is kind[1]
        if not is_like:
            raise ValueError(f"a request of this batcher is {_said(self._like)}, and this one is {_said(leaves)}")
        loop = running_loop()
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
            waiting.append(answer)
            many = len(waiting)
            if many % largest == 0:
                each.expected = None
            # Without a free slot nothing leaves: then whoever frees one looks again.
            if loop is None and each.free and (many == 1 or many == largest or waiting[0]._loop is not None):
                self._changed.notify_all()
        if loop is not None:
            if each.running:
                self._look_soon(loop)
            if many >= largest:
                self._tick(each)
            elif many == 1:
                loop.call_later(self._max_delay, self._tick, each)
        return answer

    def _refuse_late(self, each: Class, text: str) -> NoReturn:
        """Refuse a request that would be answered too late. Late answers are worth nothing and hold up those behind them."""
        if each.running:
            self._look_soon(running_loop())
        with self._lock:
            if not self._is_closed:
                self._late += 1
                raise RequestRefused("late", text)
        raise RequestRefused("closed", "the batcher is closed") from self._lost

    def _begin(self, leaves: list[Any], shape: Any, is_bare: bool) -> None:
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
            self._kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
            self._is_bare = is_bare
            self._like = [leaf.clone() for leaf in leaves]

    # ------------------------------------------------------------------------------------------ batches

    def _due(self, each: Class, now: float) -> float | None:
        """In how many seconds a batch leaves: 0 is now, none if nobody waits."""
        waiting = each.waiting
        return self._rule.due(len(waiting), now - waiting[0]._arrived, not self._is_closed) if waiting else None

    def _tick(self, each: Class) -> None:
        """Launch what is due, in the event loop."""
        while True:
            now = time.perf_counter()
            with self._lock:
                due = self._due(each, now)
                batch = self._take(each, now) if due is not None and due <= 0 and each.free else None
            if batch is not None:
                self._launch(each, batch)
            elif due is not None and due > 0:
                loop = running_loop()
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
            found: tuple[Class, _Batch] | None = None
            with self._lock:
                while found is None:
                    now = time.perf_counter()
                    soonest: float | None = None
                    for each in self._by_urgency:
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

    def _take(self, each: Class, now: float) -> _Batch:
        """Take the oldest requests and a slot. The lock is held; a batch may be empty."""
        answers: list[Answer] = []
        expired: list[Answer] = []
        waiting, largest = each.waiting, self._sizes[-1]
        due = min(now, max(waiting[0]._arrived + self._max_delay, each.freed))
        while waiting and len(answers) < largest:
            answer = waiting.popleft()
            if answer._state != QUEUED:
                continue
            if answer._deadline is not None and answer._deadline <= now:
                answer._end(None, RequestExpired("the deadline passed while the request waited"))
                expired.append(answer)
                continue
            answer._state = LAUNCHED
            answers.append(answer)
        arrived = [answer._arrived for answer in answers]
        self._counts.left(arrived, now)
        if expired:
            self._counts.count("expired", len(expired))
        each.in_flight += 1
        each.expected = None
        return _Batch(answers, arrived, expired, each.free.pop(), self._rule.size_of(len(answers)), due)

    def _launch(self, each: Class, batch: _Batch) -> None:
        """Pack and submit a batch, and hand it to the thread that waits for it."""
        if batch.expired:
            tell(batch.expired)
        try:
            if batch.answers:
                batch.results = self._submit(batch.slot, batch.size, [answer._leaves for answer in batch.answers])
        except Exception as error:
            batch.error = error
        # Under the lock, so that a check hears that the launch came before whatever the loop does that finds it here.
        with self._lock:
            each.running.append(batch)
        each.launched.put(batch)

    def _submit(self, slot: _Slot, size: int, requests: list[list[Any]]) -> list[Any]:
        """Submit rows to a slot that is idle, and return the rows of its results, which are there when its last event is over."""
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
                    raise ValueError(f"the model was given {size} rows and returned a tensor of shape {tuple(leaf.shape)}; it has to return a row for each")
                host = torch.empty((many, *leaf.shape[1:]), dtype=leaf.dtype, pin_memory=True)
                columns.append(host.copy_(leaf if many == size else leaf[:many], non_blocking=True))
            points[3].record(slot.down)
            # While the device works.
            unbound = [column.unbind(0) for column in columns]
            if len(leaves) == 1 and leaves[0] is made:
                return list(unbound[0])
            return [shape.unflatten([column[at] for column in unbound]) for at in range(many)]

    def _run(self, slot: _Slot, size: int) -> Any:
        rows = [device for device, _ in slot.rows_of(size)]
        return self._model(*(rows if self._is_bare else self._shape.unflatten(rows)))

    # ------------------------------------------------------------------------------------------ ends

    def _finish(self, each: Class) -> None:
        """Wait for the batches of a class, in the sequence in which they were launched."""
        self._on_device()
        while True:
            try:
                batch = each.launched.get(timeout=_PATIENCE_S if self._sleepers else None)
            except queue.Empty:
                # Whoever was to wake them was interrupted.
                self._wake_threads(len(self._sleepers))
                continue
            if batch is None:
                self._wake_threads(len(self._sleepers))
                return
            error = batch.error
            if error is None and batch.results is not None and not batch.is_over:
                try:
                    batch.slot.points[3].synchronize()
                except Exception as lost:
                    error = lost
            if not self._is_mine(each, batch):
                continue
            batch.error = error
            if batch.error is not None:
                self._again(batch)
            self._over(each, batch)

    def _is_mine(self, each: Class, batch: _Batch) -> bool:
        """Tell whether a batch that is over is to be ended by who asks: the first one."""
        with self._lock:
            is_mine = not batch.is_over
            batch.is_over = True
            if is_mine:
                each.running.remove(batch)
        return is_mine

    def _look_soon(self, loop: Any) -> None:
        """Have an event loop look in its next turn what is over. One that is busy is there before a thread, which has to wait for the interpreter's lock."""
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

    def _over(self, each: Class, batch: _Batch) -> None:
        """Give the answers and the slot back, and see to it that whoever has to launches the next batch."""
        answers = batch.answers if batch.error is None else []
        points = batch.slot.points
        times = [before.elapsed_time(after) for before, after in zip(points, points[1:])] if answers else []
        wants_graph = self._graphs and bool(answers) and batch.size not in batch.slot.graphs
        sleepers = self._sleepers
        with self._lock:
            now = time.perf_counter()
            has_woken = bool(sleepers)
            for answer, row in zip(answers, batch.results or ()):
                answer._value, answer._leaves = row, NOTHING
                answer._state = ENDED
                if answer._locks:
                    sleepers.extend(answer._locks)
                    answer._locks = None
            if answers:
                self._counts.batch(batch.size, times, batch.arrived, now)
            if wants_graph and batch.size not in self.not_captured and (each.name, batch.size) not in self._asked:
                self._asked.add((each.name, batch.size))
                self._to_capture.put((each, batch.size))
            each.in_flight -= 1
            loop = self._free(each, batch.slot, now)
        if sleepers and not has_woken:
            self._wake_threads(_AWAKE)
        tell(answers, each, loop, self._tick, lambda: self._told(each, batch))

    def _told(self, each: Class, batch: _Batch) -> None:
        """Note what a batch took, with what it took to tell everybody: the last of them waited for that too."""
        with self._lock:
            now = time.perf_counter()
            each.took(now - batch.due, now)

    def _wake_threads(self, many: int) -> None:
        with self._lock:
            woken = [self._sleepers.popleft() for _ in range(min(many, len(self._sleepers)))]
        for lock in woken:
            lock.release()

    def _free(self, each: Class, slot: _Slot, now: float) -> Any:
        """Give a slot back, and return the event loop that has to look whether a batch is due. The lock is held."""
        each.free.append(slot)
        each.freed = now
        each.expected = None
        loop = each.waiting[0]._loop if each.waiting else None
        # Nobody else is woken, who would take the interpreter's lock for nothing.
        if self._wants_slot or self._is_closed or (each.waiting and (loop is None or loop.is_closed())):
            self._changed.notify_all()
        return loop

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
                    value = self._submit(batch.slot, size, [answer._leaves])[0]
                    batch.slot.points[3].synchronize()
                except Exception as alone:
                    failed = alone
            with self._lock:
                answer._end(value, failed)
                if failed is None:
                    self._counts.batch(size, [0.0, 0.0, 0.0], [answer._arrived], time.perf_counter())
                else:
                    self._counts.count("failed", 1)
            tell([answer])

    def _lose(self, error: BaseException) -> None:
        """The device is lost: nothing runs there any more."""
        with self._lock:
            self._lost = error
        self._refuse_what_waits(error)

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
                        self._wants_slot = True
                        self._changed.wait()
                    self._wants_slot = False
                    if self._is_closed:
                        return
                    each.free.remove(slot)
                try:
                    slot.graphs[size] = self._captured(slot, size)
                except Exception as error:
                    self.not_captured[size] = f"{type(error).__name__}: {error}"
                with self._lock:
                    loop = self._free(each, slot, time.perf_counter())
                tell((), each, loop, self._tick)
                if size in self.not_captured:
                    break

    def _captured(self, slot: _Slot, size: int) -> tuple[Any, Any]:
        torch = self._torch
        with torch.inference_mode(), torch.cuda.stream(slot.stream):
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
        return graph, _lent(torch, made)

    # ------------------------------------------------------------------------------------------ the end

    @property
    def statistics(self) -> BatcherStatistics:
        """What has become of the requests so far, as a copy."""
        with self._lock:
            self._counts.count("refused_late", self._late)
            self._late = 0
            waiting = sum(answer._state == QUEUED for each in self._classes for answer in each.waiting)
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
        with self._lock:
            # An event loop may be about to end a batch.
            while any(each.in_flight for each in self._classes):
                self._changed.wait()
        return self.statistics

    def _refuse_what_waits(self, because: BaseException | None) -> None:
        ended = []
        with self._lock:
            self._is_closed = True
            for each in self._classes:
                while each.waiting:
                    answer = each.waiting.popleft()
                    if answer._state == QUEUED:
                        refused = RequestRefused("closed", "the batcher was closed while the request waited")
                        refused.__cause__ = because
                        answer._end(None, refused)
                        ended.append(answer)
            self._counts.count("dropped", len(ended))
            self._changed.notify_all()
        tell(ended)

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
