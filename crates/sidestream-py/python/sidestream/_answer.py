"""Answers of a `Batcher`: futures for threads and event loops, and how those who wait for one are woken."""

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
    """A request that was not taken, or that waited when the batcher was closed: ``reason`` is ``"full"``,
    ``"late"`` or ``"closed"``.

    It is made of that and a text. A server that is behind makes many of these, so it has no ``__init__`` of
    its own.
    """

    @property
    def reason(self) -> str:
        """Why, in a word."""
        return str(self.args[0])

    def __str__(self) -> str:
        return str(self.args[1])


class RequestExpired(TimeoutError):
    """A request whose deadline passed while it waited."""


class Answer(Generic[Value]):
    """What a request will be answered with: a future for threads, which can be awaited too.
    ``Batcher.submit`` makes these.
    """

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
        """Begin as one that waits."""
        self._batcher = batcher
        self._leaves: list[Any] = leaves
        #: The number of its class.
        self._of = of
        self._has_ended = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._loop = loop
        #: Of tasks and of threads that wait for it, and what is called when it ends. Few have more than one
        #: of these, so none is made before it is needed.
        self._futures: list[Any] | None = None
        self._locks: list[Any] | None = None
        self._calls: list[Callable[[Answer[Any]], object]] | None = None

    def done(self) -> bool:
        """Return whether it has ended, by an answer or otherwise. Never waits."""
        return self._has_ended

    def cancelled(self) -> bool:
        """Return whether it was taken back."""
        return isinstance(self._error, CancelledError)

    def cancel(self) -> bool:
        """Take the request back, and return whether it will not be computed: false if its batch has been
        launched.
        """
        if not self._batcher._requests.cancel(self._of, self):
            return False
        with self._batcher._lock:
            self._end(None, CancelledError("the request was taken back"))
        tell([self])
        return True

    def add_done_callback(self, call: Callable[[Answer[Any]], object]) -> None:
        """Call with this answer when it has ended, from a thread of the batcher or an event loop that asks
        it: at once if it has. What it raises is logged.
        """
        with self._batcher._lock:
            has_ended = self._has_ended
            if not has_ended:
                self._calls = [*(self._calls or []), call]
        if has_ended:
            _called(call, self)

    def result(self, timeout: float | None = None) -> Value:
        """Wait for the answer and return it, in pinned memory that stays as it is while it is held.

        Raises:
            TimeoutError: It has not ended after so many seconds. It goes on, and can be waited for again.
            CancelledError: It was taken back.
            RequestExpired: Its deadline passed.
            RequestRefused: The batcher was closed while it waited.
            Exception: What the model raised, if that fails with this request alone too.
        """
        if not self._has_ended and self._loop is not None and running_loop() is self._loop:
            raise RuntimeError(
                "this would stop the event loop that has to launch the batch; await the answer instead"
            )
        lock: Any = None
        # Also where it has ended: the lock is what orders this thread behind the one that wrote the answer.
        with self._batcher._lock:
            if not self._has_ended:
                # In a child of a fork that raises: nobody there ends it.
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
        """Wait for a lock that whoever ends this lets go of, and return whether it has ended."""
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
        """Let the other tasks of the event loop go on until it has ended. A task that is cancelled takes its
        request back.
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
                # The loop was told of it, which orders this behind the thread that wrote it.
                if self._error is not None:
                    raise self._error
                return self._value  # type: ignore[no-any-return]
        return self.result()

    def _end(self, value: Any, error: BaseException | None) -> None:
        """Note how it ended. The batcher's lock is held, and it has not ended before."""
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
    """Wake those who wait, each event loop once, and have a class looked at in its loop. Without the
    batcher's lock, since it calls code of others.

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


def _called(call: Callable[[Answer[Any]], object], answer: Answer[Any]) -> None:
    try:
        call(answer)
    except BaseException as error:
        # As `concurrent.futures` does, and with the traceback.
        logging.getLogger("sidestream").exception(
            "a callback of an answer raised %s, which was ignored", type(error).__name__
        )


def _wake(
    futures: list[Any],
    told: Callable[[], None] | None,
    each: Class | None,
    tick: Callable[[Class], None] | None,
) -> None:
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
