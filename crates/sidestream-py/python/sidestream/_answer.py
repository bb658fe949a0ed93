"""Answers of a `Batcher`: futures for threads and event loops, and the code that wakes waiting threads and
tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from sidestream._batch import Class
    from sidestream._batcher import Batcher

Value = TypeVar("Value")

#: The values of a request that has ended.
NOTHING: list[Any] = []


class RequestRefused(RuntimeError):
    """A request was not accepted, or waited when the batcher was closed. ``reason`` is ``"full"``, ``"late"``
    or ``"closed"``.

    Its arguments are the reason and a message. An overloaded server raises many of these, so the class has no
    ``__init__``.
    """

    @property
    def reason(self) -> str:
        """``"full"`` (too many requests wait), ``"late"`` (the deadline cannot be kept) or ``"closed"``."""
        return str(self.args[0])

    def __str__(self) -> str:
        return str(self.args[1])


class RequestExpired(TimeoutError):
    """The deadline of a request passed while it waited."""


class Answer(Generic[Value]):
    """The future answer of a request, for threads and for ``await``. ``Batcher.submit`` makes these."""

    __slots__ = (
        "_batcher",
        "_calls",
        "_error",
        "_futures",
        "_has_ended",
        "_leaves",
        "_locks",
        "_loop",
        "_of",
        "_value",
        "__weakref__",
    )

    def __init__(self, batcher: Batcher[Value], leaves: list[Any], loop: Any, of: int) -> None:
        """Begin as the answer of a waiting request."""
        self._batcher = batcher
        self._leaves: list[Any] = leaves
        #: Number of the class of the request.
        self._of = of
        self._has_ended = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._loop = loop
        #: Futures of waiting tasks, locks of waiting threads, and callbacks. Few answers have more than one
        #: of these, so each list is made when it is needed.
        self._futures: list[Any] | None = None
        self._locks: list[Any] | None = None
        self._calls: list[Callable[[Answer[Any]], object]] | None = None

    def done(self) -> bool:
        """Return whether the request has ended, with an answer or otherwise. Never blocks."""
        return self._has_ended

    def cancelled(self) -> bool:
        """Return whether the request was cancelled. Never blocks."""
        return isinstance(self._error, CancelledError)

    def cancel(self) -> bool:
        """Cancel the request, and return whether it was cancelled: False once its batch has been launched.
        Never blocks.
        """
        if not self._batcher._requests.cancel(self._of, self):
            return False
        with self._batcher._lock:
            self._end(None, CancelledError("the request was taken back"))
        tell([self])
        return True

    def add_done_callback(self, call: Callable[[Answer[Any]], object]) -> None:
        """Call ``call`` with this answer when the request has ended, or at once if it has ended already.

        ``call`` runs in a thread of the batcher, or in an event loop in which a request is submitted.
        Exceptions that it raises are logged.
        """
        with self._batcher._lock:
            has_ended = self._has_ended
            if not has_ended:
                self._calls = [*(self._calls or []), call]
        if has_ended:
            _called(call, self)

    def result(self, timeout: float | None = None) -> Value:
        """Block until the request has ended, and return the answer, in pinned memory that is kept while a row
        of the batch is held.

        Args:
            timeout: Maximum number of seconds to wait; by default there is no limit.

        Raises:
            TimeoutError: The request has not ended within ``timeout`` seconds. The request continues; call
                ``result`` again to wait further.
            CancelledError: The request was cancelled.
            RequestExpired: Its deadline passed while it waited.
            RequestRefused: The batcher was closed while it waited.
            RuntimeError: The event loop that submitted the request calls this, which would block it; await
                instead.
            Exception: The model's exception, if the request fails alone too.
        """
        if not self._has_ended and self._loop is not None and running_loop() is self._loop:
            raise RuntimeError(
                "this would block the event loop that has to launch the batch; await the answer instead"
            )
        lock: Any = None
        # Take the lock even if the request has ended: the lock orders this thread after the one that wrote
        # the answer.
        with self._batcher._lock:
            if not self._has_ended:
                # Raises in a forked child, where no thread would end the request.
                _ = self._batcher._requests.settle
                lock = threading.Lock()
                lock.acquire()
                self._locks = [*(self._locks or ()), lock]
        if lock is not None and not self._sleep(lock, -1 if timeout is None else timeout):
            raise TimeoutError(f"the request has not been answered within {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]

    def _sleep(self, lock: Any, timeout: float) -> bool:
        """Wait for a lock that is released when the request ends, and return whether it has ended."""
        batcher = self._batcher
        try:
            lock.acquire(timeout=timeout)
        finally:
            with batcher._lock:
                has_ended = self._has_ended
                if has_ended:
                    following = batcher._sleepers.popleft() if batcher._sleepers else None
                else:
                    following = None
                    self._locks = [other for other in self._locks or () if other is not lock]
            if following is not None:
                following.release()
        return has_ended

    def __await__(self) -> Generator[Any, None, Value]:
        """Let other tasks of the event loop run until the request has ended. A task that is cancelled cancels
        its request.
        """
        if not self._has_ended:
            future = asyncio.get_running_loop().create_future()
            with self._batcher._lock:
                has_ended = self._has_ended
                if not has_ended:
                    self._futures = [*(self._futures or ()), future]
            if not has_ended:
                try:
                    yield from future.__await__()
                except asyncio.CancelledError:
                    self.cancel()
                    raise
                # The thread that wrote the answer woke the loop, which orders this code after that thread.
                if self._error is not None:
                    raise self._error
                return self._value  # type: ignore[no-any-return]
        return self.result()

    def _end(self, value: Any, error: BaseException | None) -> None:
        """Record how the request ended. The caller holds the batcher's lock, and the request has not ended
        yet.
        """
        self._value, self._error, self._leaves = value, error, NOTHING
        self._has_ended = True

    def __repr__(self) -> str:
        return f"<Answer: {'there' if self._has_ended else 'not there yet'}>"


def tell(
    answers: Iterable[Answer[Any]],
    each: Class | None = None,
    loop: Any = None,
    tick: Callable[[Class], None] | None = None,
    told: Callable[[], None] | None = None,
) -> None:
    """Wake the waiting threads and tasks, each event loop once, and have a loop look at a class of requests.
    Call this without holding the batcher's lock, since it runs callbacks of the users.

    Args:
        answers: Answers whose requests have ended.
        each: The class to look at.
        loop: The event loop that looks: that of the oldest request of the class.
        tick: The function that the loop calls to look.
        told: Called when all have been woken; in an event loop after the tasks that were woken.
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
        # A loop that is closed has no waiting task.
        with contextlib.suppress(RuntimeError):
            one.call_soon_threadsafe(_wake, *what)


def _called(call: Callable[[Answer[Any]], object], answer: Answer[Any]) -> None:
    try:
        call(answer)
    except BaseException as error:
        # The error is logged with its traceback, as in `concurrent.futures`.
        logging.getLogger("sidestream").exception(
            "a callback of an answer raised %s, which was ignored", type(error).__name__
        )


def _wake(
    futures: list[Any],
    told: Callable[[], None] | None,
    each: Class | None,
    tick: Callable[[Class], None] | None,
) -> None:
    """Wake the tasks of an event loop, in that loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)
    # Runs after the tasks that were woken, which may submit again.
    if told is not None:
        running_loop().call_soon(told)
    if tick is not None:
        running_loop().call_soon(tick, each)


def running_loop() -> Any:
    return asyncio._get_running_loop()
