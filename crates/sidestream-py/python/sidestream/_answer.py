"""Answers of a `Batcher`: futures for threads and event loops, and how those who wait for one are woken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidestream._batcher import Batcher, Class

QUEUED, LAUNCHED, ENDED = range(3)
#: The values of a request that has ended.
NOTHING: list[Any] = []


class RequestRefused(RuntimeError):
    """A request that was not taken, or that waited when the batcher was closed: ``reason`` is ``"full"``, ``"late"`` or ``"closed"``.

    It is made of that and a text. A server that is behind makes many of these, so it has no ``__init__`` of its own.
    """

    @property
    def reason(self) -> str:
        """Why, in a word."""
        return str(self.args[0])

    def __str__(self) -> str:
        return str(self.args[1])


class RequestExpired(TimeoutError):
    """A request whose deadline passed while it waited."""


class Answer:
    """What a request will be answered with: a future for threads, which can be awaited too. ``Batcher.submit`` makes these."""

    __slots__ = ("_arrived", "_batcher", "_calls", "_deadline", "_error", "_futures", "_leaves", "_locks", "_loop", "_state", "_value")

    def __init__(self, batcher: Batcher, leaves: list[Any], arrived: float, deadline: float | None, loop: Any) -> None:
        """Begin as one that waits."""
        self._batcher = batcher
        self._leaves: list[Any] = leaves
        self._arrived = arrived
        self._deadline = deadline
        self._state = QUEUED
        self._value: Any = None
        self._error: BaseException | None = None
        self._loop = loop
        #: Of tasks and of threads that wait for it, and what is called when it ends. Few have more than one of these, so none is made before it is needed.
        self._futures: list[Any] | None = None
        self._locks: list[Any] | None = None
        self._calls: list[Callable[[Answer], object]] | None = None

    def done(self) -> bool:
        """Return whether it has ended, by an answer or otherwise. Never waits."""
        return self._state == ENDED

    def cancelled(self) -> bool:
        """Return whether it was taken back."""
        return isinstance(self._error, CancelledError)

    def cancel(self) -> bool:
        """Take the request back, and return whether it will not be computed: false if its batch has been launched."""
        with self._batcher._lock:
            if self._state != QUEUED:
                return False
            self._end(None, CancelledError("the request was taken back"))
            self._batcher._counts.count("cancelled", 1)
        tell([self])
        return True

    def add_done_callback(self, call: Callable[[Answer], object]) -> None:
        """Call with this answer when it has ended, from a thread of the batcher or an event loop that asks it: at once if it has. What it raises is logged."""
        with self._batcher._lock:
            has_ended = self._state == ENDED
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
        if self._state != ENDED and self._loop is not None and running_loop() is self._loop:
            raise RuntimeError("this would stop the event loop that has to launch the batch; await the answer instead")
        lock: Any = None
        # Also where it has ended: the lock is what orders this thread behind the one that wrote the answer.
        with self._batcher._lock:
            if self._state != ENDED:
                lock = threading.Lock()
                lock.acquire()
                self._locks = [*(self._locks or ()), lock]
        if lock is not None and not self._sleep(lock, -1 if timeout is None else timeout):
            raise TimeoutError(f"the request has not been answered within {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value

    def _sleep(self, lock: Any, timeout: float) -> bool:
        """Wait for a lock that whoever ends this lets go of, and return whether it has ended."""
        batcher = self._batcher
        try:
            lock.acquire(timeout=timeout)
        finally:
            with batcher._lock:
                has_ended = self._state == ENDED
                if has_ended:
                    following = batcher._sleepers.popleft() if batcher._sleepers else None
                else:
                    following = None
                    self._locks = [other for other in self._locks or () if other is not lock]
            if following is not None:
                following.release()
        return has_ended

    def __await__(self) -> Generator[Any, None, Any]:
        """Let the other tasks of the event loop go on until it has ended. A task that is cancelled takes its request back."""
        if self._state != ENDED:
            future = asyncio.get_running_loop().create_future()
            with self._batcher._lock:
                has_ended = self._state == ENDED
                if not has_ended:
                    self._futures = [*(self._futures or ()), future]
            if not has_ended:
                try:
                    yield from future.__await__()
                except asyncio.CancelledError:
                    self.cancel()
                    raise
                # The loop was told of it, which orders this behind the thread that wrote it.
                if self._error is not None:
                    raise self._error
                return self._value
        return self.result()

    def _end(self, value: Any, error: BaseException | None) -> None:
        """Note how it ended. The batcher's lock is held, and it has not ended before."""
        self._value, self._error, self._leaves = value, error, NOTHING
        self._state = ENDED

    def __repr__(self) -> str:
        return f"<Answer: {('waits', 'with the device', 'there')[self._state]}>"


def tell(
    answers: Iterable[Answer],
    each: Class | None = None,
    loop: Any = None,
    tick: Callable[[Class], None] | None = None,
    told: Callable[[], None] | None = None,
) -> None:
    """Wake those who wait, each event loop once, and have a class looked at in its loop. Without the batcher's lock, since it calls code of others.

    Args:
        answers: What has ended.
        each: The class that is looked at.
        loop: In which loop; that of its oldest request.
        tick: What looks.
        told: Is called when all have been told: in an event loop behind the tasks that have gone on.
    """
    loops: dict[Any, list[Any]] = {}
    for answer in answers:
        if answer._locks:
            for lock in answer._locks:
                lock.release()
        if answer._futures:
            for future in answer._futures:
                loops.setdefault(future.get_loop(), []).append(future)
        if answer._calls:
            for call in answer._calls:
                _called(call, answer)
    if told is not None and not loops:
        told()
    if loop is not None:
        loops.setdefault(loop, [])
    here = running_loop()
    for one, futures in loops.items():
        what = futures, told if futures else None, each, tick if one is loop else None
        if one is here:
            _wake(*what)
            continue
        # Of a loop that is closed nobody waits.
        with contextlib.suppress(RuntimeError):
            one.call_soon_threadsafe(_wake, *what)


def _called(call: Callable[[Answer], object], answer: Answer) -> None:
    try:
        call(answer)
    except BaseException as error:
        # As `concurrent.futures` does, and with the traceback.
        logging.getLogger("sidestream").exception("a callback of an answer raised %s, which was ignored", type(error).__name__)


def _wake(futures: list[Any], told: Callable[[], None] | None, each: Class | None, tick: Callable[[Class], None] | None) -> None:
    """Go on in an event loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)
    # Behind the tasks that go on, which may ask again.
    if told is not None:
        running_loop().call_soon(told)
    if tick is not None:
        running_loop().call_soon(tick, each)


def running_loop() -> Any:
    return asyncio._get_running_loop()
