"""The thread that reads batches from a loader ahead of the caller."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sidestream import _interrupts, _leaves, _sidestream, _tree
from sidestream._follow import Follower
from sidestream._modes import Modes

#: Feeds whose threads must end before the interpreter does.
_running: weakref.WeakSet[Feed] = weakref.WeakSet()

#: Maximum seconds that ``close`` and the end of the program together wait for loaders that do not return. The
#: threads of such loaders die with the program. A DataLoader notices within 5 seconds that a worker was
#: killed.
PATIENCE_S = 10.0

#: Maximum seconds until Ctrl-C is noticed.
LONGEST_SLEEP_S = 0.5

#: Maximum number of batches whose page-locked memory is held for their copies.
_MOST_SENT = 2


@dataclass(slots=True)
class Entry:
    """A batch that was read but not taken yet."""

    index: int
    #: The batch itself if it is not uploaded, otherwise its structure.
    tree: Any
    ticket: _sidestream.Ticket | None = None
    #: Tensors that already were on the device, by their index among the arrays.
    here: Any = None
    #: An event that is recorded after the work that made those tensors.
    event: Any = None
    #: The loader's state as of this batch.
    note: Any = None


@dataclass
class Noted:
    """Counts, times and warnings of all iterations of a prefetcher."""

    #: Number of batches that were taken.
    given: int = 0
    #: Seconds from the first request for a batch to the last batch that was taken, over all iterations.
    elapsed_s: float = 0.0
    #: Seconds that the caller waited for the loader.
    loader_s: float = 0.0
    #: Seconds that the caller waited for a batch that was being packed or waited for a free slot.
    slots_s: float = 0.0
    #: Warnings, each once.
    warnings: list[str] = field(default_factory=list)
    #: Warnings that were not passed to Python's `warnings` yet.
    unsaid: deque[str] = field(default_factory=deque)


class Feed:
    """One iteration over a loader."""

    def __init__(
        self,
        follower: Follower,
        ring: _sidestream.Ring | None,
        target: Any,
        *,
        depth: int,
        grows: bool,
        noted: Noted,
        are_new: bool,
    ) -> None:
        self._source: Iterator[Any] | None = follower.begin()
        self._note = follower.note if follower.notes else None
        #: The loader's state at its end.
        self.last_note: Any = None
        self._objects = _tree.Objects(target.device)
        self._exporters: dict[Any, Any] = {}
        self._ring = ring
        #: The GPU's index, if PyTorch tensors are handed out.
        self._ordinal = target.ordinal
        self._grows = grows
        self._noted = noted
        #: Whether each batch has its own memory.
        self._are_new = are_new
        self._process = os.getpid()
        #: Seconds for which ending this feed may still wait for the thread.
        self._patience_s = PATIENCE_S
        # Queues instead of a condition: an interrupt while a condition waits may find its lock not held.
        self._ready: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        #: One token for each batch that the thread may still read, if no ring limits how far the thread runs
        #: ahead.
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        #: Guards `is_stopped` and `_is_over`, and is held briefly. Reentrant, since the garbage collector may
        #: stop the feed in a thread that holds it.
        self._ends = threading.RLock()
        self._error: BaseException | None = None
        self._is_over = False
        self._closes_ring = False
        #: Has an entry once the thread has ended.
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.is_stopped = False
        self._pulls = True
        if ring is not None:
            ring.pause(False)
        # The loader sees the context variables and modes of the iterating thread, as it would without a
        # separate thread.
        context, modes = contextvars.copy_context(), Modes()
        _interrupts.prepare()
        self._thread = threading.Thread(
            target=context.run, args=(self._run, modes), name="sidestream-feeder", daemon=True
        )
        _running.add(self)
        self._thread.start()

    # ------------------------------------------------------------------ the caller's side

    def take(self) -> Entry | None:
        """Return the next batch, or None after the last.

        Raises:
            BaseException: The error that the loader raised after the batches taken so far.
            RuntimeError: This process was forked from the one that began the iteration.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "this iteration began before the process was forked, and its thread is the parent's; iterate "
                "again in this process"
            )
        entry: Entry | None
        try:
            entry = self._ready.get_nowait()
        except queue.Empty:
            # An interrupt may have come after the end was taken out of the queue and before it was put back.
            entry = None if self._is_over and self._ready.empty() else self._waited()
        if entry is not None:
            if self._ring is None:
                self._room.put(None)
            return entry
        self._ready.put(None)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # The traceback holds this frame, which must not hold the error in turn.
                del error
        return None

    def _waited(self) -> Entry | None:
        started, pulls = time.perf_counter(), self._pulls
        if self._grows and self._ring is not None:
            self._ring.ask(True)
        try:
            while True:
                # A signal that comes just before the thread sleeps is handled when it wakes.
                try:
                    return self._ready.get(timeout=LONGEST_SLEEP_S)
                except queue.Empty:
                    continue
        finally:
            if self._grows and self._ring is not None:
                self._ring.ask(False)
            waited = time.perf_counter() - started
            if pulls:
                self._noted.loader_s += waited
            else:
                self._noted.slots_s += waited

    def stop(self) -> None:
        """Make the thread end as soon as it can. Batches that were not taken are dropped."""
        if os.getpid() != self._process:
            return  # A forked child has neither the thread nor the device.
        with self._ends:
            if self.is_stopped:
                return
            self.is_stopped = True
            if self._ring is not None and not self._is_over:
                self._ring.pause(True)
        while not self._ready.empty():
            with contextlib.suppress(queue.Empty):
                self._ready.get_nowait()
        self._ready.put(None)
        self._room.put(None)

    def join(self) -> None:
        """Block until the thread has ended."""
        self._wait(math.inf)

    def end(self, patience_s: float = math.inf) -> None:
        """Stop the thread, and wait for it at most ``patience_s``, and at most ``PATIENCE_S`` over all calls.
        """
        began = time.monotonic()
        try:
            self.stop()
            self._wait(min(patience_s, self._patience_s))
        except BaseException:
            # After an interrupt of this wait, the end of the program does not wait either.
            self._patience_s = 0.0
            raise
        self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))

    def _wait(self, timeout_s: float) -> None:
        if os.getpid() != self._process or threading.current_thread() is self._thread:
            return
        deadline = time.monotonic() + timeout_s
        # This does not use the thread's `join`: before Python 3.13 an interrupted `join` marks a running
        # thread as ended.
        while not self._is_over:
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                return
            with contextlib.suppress(queue.Empty):
                self._over.get(timeout=min(left_s, LONGEST_SLEEP_S))
        self._thread.join()

    def close_ring(self) -> None:
        """Close the ring once the thread has ended, so that the next prefetcher can reuse its device memory.
        """
        if os.getpid() != self._process:
            return
        with self._ends:
            self._closes_ring = True
            is_over = self._is_over
        if is_over and self._ring is not None:
            self._ring.close()

    # ------------------------------------------------------------------ the thread

    def _run(self, modes: Modes) -> None:
        error: BaseException | None = None
        _interrupts.let_waits_end(lambda: self.is_stopped)
        #: Batches whose page-locked memory is being read by the device.
        sent: deque[tuple[_sidestream.Ticket, list[Any]]] = deque()
        try:
            if self._ordinal is not None:
                # Each thread has its own current device, and the loader may use it.
                sys.modules["torch"].cuda.set_device(self._ordinal)
            index = 0
            with modes:
                while not self.is_stopped and self._feed(index, sent):
                    index += 1
        except BaseException as raised:  # noqa: BLE001 - errors of the loader belong to the caller.
            error = raised
        try:
            while sent:
                sent.popleft()[0].wait_source()
        except Exception as raised:  # noqa: BLE001
            error = error or raised
        with self._ends:
            # An error that will not be taken is not kept. A caller that sees `_is_over` takes the error.
            self._error = None if self.is_stopped else error
            self._source = None
            self._is_over = True
            closes_ring = self._closes_ring
            self._ready.put(None)
            self._over.put(None)
        del error
        if closes_ring and self._ring is not None:
            self._ring.close()

    def _feed(self, index: int, sent: deque[tuple[_sidestream.Ticket, list[Any]]]) -> bool:
        """Read one batch and start its upload. Return False after the last.

        No variable of this frame holds a batch while the loader makes the next one.
        """
        if self._ring is None:
            self._room.get()
            if self.is_stopped:
                return False
        assert self._source is not None
        try:
            batch = next(self._source)
        except StopIteration:
            self.last_note = None if self._note is None else self._note()
            return False
        note = None if self._note is None else self._note()
        if self._ring is None:
            return self._queue(Entry(index, batch, note=note))
        self._pulls = False
        try:
            try:
                leaves, shape = _tree.flatten(batch, self._objects)
                if index == 0:
                    # A loader has imported the library of its arrays by now.
                    self._exporters = _leaves.exporters()
                    self._objects.is_first = False
                    self._note_what_stays(self._objects.staying)
            except (RecursionError, TypeError) as error:
                raise type(error)(f"batch {index}: {error}") from error
            del batch
            return self._send(self._ring, Entry(index, shape, note=note), leaves, sent)
        finally:
            self._pulls = True

    def _note_what_stays(self, classes: list[str]) -> None:
        for name in classes:
            text = (
                f"the arrays of a {name} stay on the host, since it is not known how to rebuild one: let"
                " the loader return a dictionary or a dataclass"
            )
            if text not in self._noted.warnings:
                self._noted.warnings.append(text)
                self._noted.unsaid.append(text)

    def _send(
        self,
        ring: _sidestream.Ring,
        entry: Entry,
        leaves: list[Any],
        sent: deque[tuple[_sidestream.Ticket, list[Any]]],
    ) -> bool:
        here: dict[int, Any] = {}
        direct: list[int] = []

        def describe(at: int, leaf: Any) -> Any:
            if (
                self._ordinal is not None
                and _leaves.is_tensor(leaf)
                and leaf.is_cuda
                and leaf.device.index == self._ordinal
            ):
                here[at] = leaf.detach()
                return None
            try:
                described = _leaves.on_host(leaf)
            except TypeError as error:
                raise TypeError(f"{_where(entry, at)}: {error}") from None
            if described[3]:
                direct.append(at)
            return described

        ticket = self._put(ring, entry.index, leaves, describe)
        if ticket is None:
            return False
        entry.ticket, entry.here = ticket, here
        if here:
            entry.event = sys.modules["torch"].cuda.current_stream(self._ordinal).record_event()
        if not self._queue(entry):
            ticket.wait_source()
            return False
        if direct:
            if self._are_new or all(_leaves.is_sole_owner(leaves, at) for at in direct):
                sent.append((ticket, leaves))
            else:
                # The loader may write the next batch to this memory.
                ticket.wait_source()
        while sent and (len(sent) > _MOST_SENT or sent[0][0].is_source_free()):
            sent.popleft()[0].wait_source()
        return True

    def _put(
        self, ring: _sidestream.Ring, index: int, leaves: list[Any], describe: Callable[[int, Any], Any]
    ) -> _sidestream.Ticket | None:
        try:
            return ring.put(leaves, self._exporters, describe)
        except MemoryError as error:
            torch = sys.modules.get("torch") if self._ordinal is not None else None
            if torch is not None:
                # PyTorch's allocator caches unused memory; this frees it.
                torch.cuda.empty_cache()
                try:
                    return ring.put(leaves, self._exporters, describe)
                except MemoryError as again:
                    error = again
            text = (
                f"batch {index}: there is no memory for it on {ring.device} ({error}); use a smaller depth or"
                ' smaller batches, release earlier ones, or use keep="copy"'
            )
            out_of_memory: Any = MemoryError if torch is None else torch.cuda.OutOfMemoryError
            raise out_of_memory(text) from None

    def _queue(self, entry: Entry) -> bool:
        with self._ends:
            if self.is_stopped:
                return False
            self._ready.put(entry)
            return True


def _where(entry: Entry, at: int) -> str:
    path = entry.tree.path_of(at)
    return f"batch {entry.index}, {path}" if path else f"batch {entry.index}"


def _end_all() -> None:
    """End all threads, since they must not run while the interpreter shuts down."""
    feeds = list(_running)
    for feed in feeds:
        feed.stop()
    deadline = time.monotonic() + PATIENCE_S
    for feed in feeds:
        feed.end(deadline - time.monotonic())


atexit.register(_end_all)
