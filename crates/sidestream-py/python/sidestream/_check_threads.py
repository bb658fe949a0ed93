"""Observes what host threads hand over to each other while a check runs.

Each handover orders two threads: everything that the first did before it handed over comes before everything
that the second does after it has taken over. Nothing else is recorded; the checker decides which two calls
race.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures._base
import concurrent.futures.thread
import contextlib
import functools
import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

from sidestream._sidestream import Recorder

#: The calls that are observed, as the documentation and the command's help list them.
HEARD = (
    "queue.Queue, LifoQueue, PriorityQueue and SimpleQueue; threading.Thread.start and join, Lock, RLock, "
    "Condition, Event, Semaphore and Barrier; the futures of concurrent.futures; asyncio's "
    "call_soon_threadsafe"
)
#: Name of the check's own thread, which keeps the command's report file up to date.
OWN_THREAD = "sidestream-check"

Put = Callable[[contextlib.ExitStack, Any, str, Any], None]


def threads_heard(recorder: Recorder, stack: contextlib.ExitStack, put: Put) -> None:
    """While the stack is open, the recorder observes threads that start, and what threads hand over to each
    other.
    """
    heard = _Heard(recorder)
    changes: list[tuple[Any, str, Any]] = []
    for part in (_threads, _queues, _events, _semaphores, _conditions, _barriers, _futures, _loops, _locks):
        changes += part(heard)
    for owner, name, value in changes:
        put(stack, owner, name, value)
    stack.callback(heard.end)


_numbers = itertools.count(1)


class _Key:
    """The number that identifies one object that is handed over, as long as that object lives."""

    def __init__(self, heard: _Heard) -> None:
        self.number = next(_numbers)
        self._heard = heard

    def __del__(self) -> None:
        # This may run in any thread at any time, so it only queues the number.
        self._heard.gone.append(self.number)


class _Local(threading.local):
    #: Whether the thread is in an observed call. Locks and conditions inside that call are not observed.
    inside = False


class _Heard:
    """Passes observed calls to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder | None = recorder
        self._local = _Local()
        self.gone: collections.deque[int] = collections.deque()

    def end(self) -> None:
        self._recorder = None

    def begin(self) -> None:
        if self._recorder is not None:
            self._recorder.threads_begin()

    def begins(self, name: str, key: _Key) -> None:
        if self._recorder is not None:
            self._recorder.thread_begins(name, key.number)

    @property
    def is_inside(self) -> bool:
        return self._local.inside

    @contextlib.contextmanager
    def whole(self) -> Any:
        before, self._local.inside = self._local.inside, True
        try:
            yield
        finally:
            self._local.inside = before

    def hand_over(self, key: _Key | None) -> None:
        if self._recorder is not None and key is not None:
            while self.gone:
                self._recorder.forget_over(self.gone.popleft())
            self._recorder.hand_over(key.number)

    def take_over(self, key: _Key | None) -> None:
        if self._recorder is not None and key is not None:
            self._recorder.take_over(key.number)

    def key(self, thing: Any, what: str = "") -> _Key:
        """Return the key of a Python object, which is stored in the object."""
        name = f"_sidestream_{what}"
        known = getattr(thing, name, None)
        if isinstance(known, _Key) and known._heard is self:
            return known
        key = _Key(self)
        with contextlib.suppress(AttributeError):
            setattr(thing, name, key)
        return key


Changes = list[tuple[Any, str, Any]]


def _threads(heard: _Heard) -> Changes:
    start, join, alive = threading.Thread.start, threading.Thread.join, threading.Thread.is_alive
    run: Any = vars(threading.Thread)["_bootstrap_inner"]

    @functools.wraps(start)
    def begins(self: threading.Thread) -> None:
        if self.name != OWN_THREAD:
            heard.begin()
            heard.hand_over(heard.key(self, "start"))
        with heard.whole():
            start(self)

    def runs(self: threading.Thread) -> None:
        heard.begins(self.name, heard.key(self, "start"))
        try:
            run(self)
        finally:
            heard.hand_over(heard.key(self, "end"))

    @functools.wraps(join)
    def joins(self: threading.Thread, timeout: float | None = None) -> None:
        with heard.whole():
            join(self, timeout)
        if not alive(self):
            heard.take_over(heard.key(self, "end"))

    @functools.wraps(alive)
    def is_alive(self: threading.Thread) -> bool:
        lives = alive(self)
        if not lives:
            heard.take_over(heard.key(self, "end"))
        return lives

    owner = threading.Thread
    return [
        (owner, "start", begins),
        (owner, "_bootstrap_inner", runs),
        (owner, "join", joins),
        (owner, "is_alive", is_alive),
    ]


class _Items:
    """The keys of the items in a queue, and of the places that were freed in it."""

    def __init__(self, most: int) -> None:
        self.keys: dict[int, collections.deque[_Key]] = {}
        self.places: collections.deque[_Key | None] = collections.deque([None] * most)
        self.has_bound = most > 0


def _queues(heard: _Heard) -> Changes:
    changes: Changes = []

    def items(of: Any) -> _Items:
        known = getattr(of, "_sidestream_items", None)
        if not isinstance(known, _Items):
            most = getattr(of, "maxsize", 0)
            # A queue that was used before the check may have items that are not known.
            known = _Items(max(0, most))
            of._sidestream_items = known
        return known

    def putting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def put(self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
            if heard.is_inside:
                return plain(self, item, *args, **kwargs)
            known = items(self)
            key = _Key(heard)
            heard.hand_over(key)
            waiting = known.keys.setdefault(id(item), collections.deque())
            waiting.append(key)
            try:
                with heard.whole():
                    done = plain(self, item, *args, **kwargs)
            except BaseException:
                with contextlib.suppress(ValueError):
                    waiting.remove(key)
                raise
            if known.has_bound:
                # A put into a place that was freed is ordered after the get that freed it.
                with contextlib.suppress(IndexError):
                    heard.take_over(known.places.popleft())
            return done

        return put

    def getting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def get(self: Any, *args: Any, **kwargs: Any) -> Any:
            if heard.is_inside:
                return plain(self, *args, **kwargs)
            known = items(self)
            place = None
            if known.has_bound:
                place = _Key(heard)
                heard.hand_over(place)
                known.places.append(place)
            try:
                with heard.whole():
                    item = plain(self, *args, **kwargs)
            except BaseException:
                if place is not None:
                    with contextlib.suppress(ValueError):
                        known.places.remove(place)
                raise
            waiting = known.keys.get(id(item))
            if waiting:
                with contextlib.suppress(IndexError):
                    heard.take_over(waiting.popleft())
                if not waiting:
                    known.keys.pop(id(item), None)
            return item

        return get

    done, join = queue.Queue.task_done, queue.Queue.join

    @functools.wraps(done)
    def task_done(self: Any) -> None:
        heard.hand_over(heard.key(self, "done"))
        with heard.whole():
            done(self)

    @functools.wraps(join)
    def joins(self: Any) -> None:
        with heard.whole():
            join(self)
        heard.take_over(heard.key(self, "done"))

    changes += [
        (queue.Queue, "put", putting(queue.Queue.put)),
        (queue.Queue, "get", getting(queue.Queue.get)),
    ]
    changes += [(queue.Queue, "task_done", task_done), (queue.Queue, "join", joins)]
    simple: Any = queue.SimpleQueue
    if not hasattr(simple, "_sidestream_plain"):
        body = {"put": putting(simple.put), "get": getting(simple.get), "_sidestream_plain": simple}
        body["put_nowait"] = lambda self, item: self.put(item, False)
        body["get_nowait"] = lambda self: self.get(False)
        changes.append((queue, "SimpleQueue", type("SimpleQueue", (simple,), body)))
    return changes


def _events(heard: _Heard) -> Changes:
    event = threading.Event
    plain_set, plain_wait, plain_ask, plain_clear = event.set, event.wait, event.is_set, event.clear

    @functools.wraps(plain_set)
    def sets(self: Any) -> None:
        if not heard.is_inside:
            heard.hand_over(heard.key(self))
        with heard.whole():
            plain_set(self)

    @functools.wraps(plain_wait)
    def waits(self: Any, timeout: float | None = None) -> bool:
        if heard.is_inside:
            return plain_wait(self, timeout)
        with heard.whole():
            is_up = plain_wait(self, timeout)
        if is_up:
            heard.take_over(heard.key(self))
        return is_up

    @functools.wraps(plain_ask)
    def is_set(self: Any) -> bool:
        is_up = plain_ask(self)
        if is_up and not heard.is_inside:
            heard.take_over(heard.key(self))
        return is_up

    @functools.wraps(plain_clear)
    def clear(self: Any) -> None:
        with heard.whole():
            plain_clear(self)
        # An earlier `set` does not order the waits after this `clear`.
        vars(self).pop("_sidestream_", None)

    return [(event, "set", sets), (event, "wait", waits), (event, "is_set", is_set), (event, "clear", clear)]


def _semaphores(heard: _Heard) -> Changes:
    changes: Changes = []

    def acquiring(plain: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(plain)
        def acquire(self: Any, *args: Any, **kwargs: Any) -> bool:
            with heard.whole():
                got = plain(self, *args, **kwargs)
            if got and not heard.is_inside:
                heard.take_over(heard.key(self))
            return got

        return acquire

    def releasing(plain: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def release(self: Any, *args: Any, **kwargs: Any) -> None:
            if not heard.is_inside:
                heard.hand_over(heard.key(self))
            with heard.whole():
                plain(self, *args, **kwargs)

        return release

    acquire = acquiring(threading.Semaphore.acquire)
    changes += [(threading.Semaphore, "acquire", acquire), (threading.Semaphore, "__enter__", acquire)]
    changes += [
        (owner, "release", releasing(owner.release))
        for owner in (threading.Semaphore, threading.BoundedSemaphore)
    ]
    return changes


def _conditions(heard: _Heard) -> Changes:
    """Observe conditions. A condition counts as a lock that is released during a wait. Conditions that share
    a lock count as that lock.
    """
    condition = threading.Condition
    plain_enter, plain_exit, plain_wait = condition.__enter__, condition.__exit__, condition.wait

    def lock_of(of: Any) -> Any:
        lock = of._lock
        return lock if isinstance(lock, _Lock) else of

    def enter(self: Any) -> Any:
        got = plain_enter(self)
        if not heard.is_inside:
            heard.take_over(heard.key(lock_of(self)))
        return got

    def leave(self: Any, *args: Any) -> None:
        if not heard.is_inside:
            heard.hand_over(heard.key(lock_of(self)))
        plain_exit(self, *args)

    @functools.wraps(plain_wait)
    def wait(self: Any, timeout: float | None = None) -> bool:
        if heard.is_inside:
            return plain_wait(self, timeout)
        heard.hand_over(heard.key(lock_of(self)))
        with heard.whole():
            got = plain_wait(self, timeout)
        heard.take_over(heard.key(lock_of(self)))
        return got

    return [(condition, "__enter__", enter), (condition, "__exit__", leave), (condition, "wait", wait)]


def _barriers(heard: _Heard) -> Changes:
    plain = threading.Barrier.wait

    @functools.wraps(plain)
    def wait(self: Any, timeout: float | None = None) -> int:
        heard.hand_over(heard.key(self))
        with heard.whole():
            at = plain(self, timeout)
        heard.take_over(heard.key(self))
        return at

    return [(threading.Barrier, "wait", wait)]


def _futures(heard: _Heard) -> Changes:
    future: Any = concurrent.futures._base.Future
    item: Any = getattr(concurrent.futures.thread, "_WorkItem", None)

    def settling(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def settle(self: Any, *args: Any, **kwargs: Any) -> Any:
            heard.hand_over(heard.key(self))
            with heard.whole():
                return plain(self, *args, **kwargs)

        return settle

    done = future.done

    def asking(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                with heard.whole():
                    return plain(self, *args, **kwargs)
            finally:
                with heard.whole():
                    is_over = done(self)
                if is_over:
                    heard.take_over(heard.key(self))

        return ask

    changes: Changes = [
        (future, name, settling(getattr(future, name))) for name in ("set_result", "set_exception")
    ]
    changes += [(future, name, asking(getattr(future, name))) for name in ("result", "exception", "done")]
    if item is not None:
        make, run = item.__init__, item.run

        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            # Work items have `__slots__` in some versions of Python, so the future has the key.
            heard.hand_over(heard.key(self.future, "start"))

        def runs(self: Any, *args: Any, **kwargs: Any) -> Any:
            heard.take_over(heard.key(self.future, "start"))
            return run(self, *args, **kwargs)

        changes += [(item, "__init__", made), (item, "run", runs)]
    return changes


def _loops(heard: _Heard) -> Changes:
    plain = asyncio.BaseEventLoop.call_soon_threadsafe

    @functools.wraps(plain)
    def call_soon_threadsafe(self: Any, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        key = _Key(heard)
        heard.hand_over(key)

        @functools.wraps(callback)
        def called(*args: Any) -> Any:
            heard.take_over(key)
            return callback(*args)

        return plain(self, called, *args, **kwargs)

    return [(asyncio.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe)]


class _Lock:
    """A lock of the interpreter whose acquisitions are observed. This wraps the lock, since the interpreter
    does not allow subclasses of its lock types.
    """

    def __init__(self, plain: Any, heard: _Heard) -> None:
        self._plain = plain
        self._heard = heard

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        got: bool = self._plain.acquire(*args, **kwargs)
        if got and not self._heard.is_inside:
            self._heard.take_over(self._heard.key(self))
        return got

    def release(self) -> None:
        if not self._heard.is_inside:
            self._heard.hand_over(self._heard.key(self))
        self._plain.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def __repr__(self) -> str:
        return repr(self._plain)


def _locks(heard: _Heard) -> Changes:
    """Observe locks that are created while the check runs. Earlier locks are the interpreter's own, and
    cannot be observed.
    """

    def making(name: str) -> Any:
        plain = getattr(threading, name)
        # The replacement is a class, as these are in newer versions of Python.
        return in_place_of(name, type(plain()), _Lock, lambda self: _Lock.__init__(self, plain(), heard))

    return [(threading, name, making(name)) for name in ("Lock", "RLock")]


def in_place_of(name: str, kind: type, base: type, make: Callable[..., None]) -> type:
    """Return a class that replaces one that cannot be changed. Instances of either pass as instances of both,
    since programs test that.
    """

    class Kind(type):
        def __instancecheck__(cls, thing: Any) -> bool:
            return type.__instancecheck__(cls, thing) or isinstance(thing, kind)

    return Kind(name, (base,), {"__init__": make})
