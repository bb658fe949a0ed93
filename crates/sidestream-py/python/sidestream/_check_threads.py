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
from collections.abc import Callable, Iterator
from typing import Any

from sidestream._check_changes import Changes, InPlaceOf, around, put
from sidestream._sidestream import Recorder

#: The calls that are observed, as the documentation and the command's help list them.
HEARD = (
    "queue.Queue, LifoQueue, PriorityQueue and SimpleQueue; threading.Thread.start and join, Lock, RLock, "
    "Condition, Event, Semaphore and Barrier; the futures of concurrent.futures; asyncio's "
    "call_soon_threadsafe"
)
#: Name of the check's own thread, which keeps the command's report file up to date.
OWN_THREAD = "sidestream-check"


def threads_heard(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """While the stack is open, the recorder observes threads that start, and what threads hand over to each
    other.
    """
    heard = _Heard(recorder)
    parts = (_threads, _queues, _calls, _futures, _loops, _locks)
    for change in [change for part in parts for change in part(heard)]:
        put(stack, *change)
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
        self.local = _Local()
        self.gone: collections.deque[int] = collections.deque()

    def end(self) -> None:
        self._recorder = None

    def begin(self) -> None:
        if self._recorder is not None:
            self._recorder.threads_begin()

    def begins(self, name: str, key: _Key) -> None:
        if self._recorder is not None:
            self._recorder.thread_begins(name, key.number)

    @contextlib.contextmanager
    def whole(self) -> Any:
        before, self.local.inside = self.local.inside, True
        try:
            yield
        finally:
            self.local.inside = before

    def hand_over(self, key: _Key | None) -> None:
        if self._recorder is not None and key is not None:
            while self.gone:
                self._recorder.forget_over(self.gone.popleft())
            self._recorder.hand_over(key.number)

    def take_over(self, key: _Key | None) -> None:
        if self._recorder is not None and key is not None:
            self._recorder.take_over(key.number)

    def call(
        self,
        owner: Any,
        name: str,
        *,
        gives: bool = False,
        takes: Callable[[Any, Any], bool] | None = None,
        what: str = "",
        of: Callable[[Any], Any] = lambda thing: thing,
        always: bool = False,
        whole: bool = True,
    ) -> tuple[Any, str, Any]:
        """Return a change of a method.

        Args:
            owner: The class that has the method.
            name: The method.
            gives: Whether the thread hands over before the call.
            takes: Whether the thread has taken over, by the object and the result; None if it never does.
            what: What is handed over, where an object hands over several things.
            of: The object that stands for the one that the method is called on.
            always: Whether a call inside another observed one counts, too.
            whole: Whether calls inside this one do not count.
        """
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def call(thing: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.local.inside
            is_heard = always or not before
            if gives and is_heard:
                self.hand_over(self.key(of(thing), what))
            self.local.inside = before or whole
            try:
                result = plain(thing, *args, **kwargs)
            finally:
                self.local.inside = before
            if takes is not None and is_heard and takes(thing, result):
                self.take_over(self.key(of(thing), what))
            return result

        return owner, name, call

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


def _threads(heard: _Heard) -> Changes:
    thread, alive = threading.Thread, threading.Thread.is_alive
    start, run = thread.start, vars(thread)["_bootstrap_inner"]

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

    yield thread, "start", begins
    yield thread, "_bootstrap_inner", runs
    yield heard.call(thread, "join", takes=lambda self, _: not alive(self), what="end", always=True)
    yield heard.call(
        thread, "is_alive", takes=lambda _, lives: not lives, what="end", always=True, whole=False
    )


class _Items:
    """The keys of the items in a queue, and of the places that were freed in it."""

    def __init__(self, most: int) -> None:
        self.keys: dict[int, collections.deque[_Key]] = {}
        self.places: collections.deque[_Key | None] = collections.deque([None] * most)
        self.has_bound = most > 0


def _queues(heard: _Heard) -> Changes:
    def items(of: Any) -> _Items:
        known = getattr(of, "_sidestream_items", None)
        if not isinstance(known, _Items):
            most = getattr(of, "maxsize", 0)
            # A queue that was used before the check may have items that are not known.
            known = _Items(max(0, most))
            of._sidestream_items = known
        return known

    @contextlib.contextmanager
    def handing_over(keys: collections.deque[Any]) -> Iterator[None]:
        """Hand over under a new key, unless the call fails."""
        key = _Key(heard)
        heard.hand_over(key)
        keys.append(key)
        before, heard.local.inside = heard.local.inside, True
        try:
            yield
        except BaseException:
            with contextlib.suppress(ValueError):
                keys.remove(key)
            raise
        finally:
            heard.local.inside = before

    def take_over(keys: collections.deque[Any]) -> None:
        with contextlib.suppress(IndexError):
            heard.take_over(keys.popleft())

    def putting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def put(self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
            if heard.local.inside:
                return plain(self, item, *args, **kwargs)
            known = items(self)
            with handing_over(known.keys.setdefault(id(item), collections.deque())):
                done = plain(self, item, *args, **kwargs)
            if known.has_bound:
                # A put into a place that was freed is ordered after the get that freed it.
                take_over(known.places)
            return done

        return put

    def getting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def get(self: Any, *args: Any, **kwargs: Any) -> Any:
            if heard.local.inside:
                return plain(self, *args, **kwargs)
            known = items(self)
            with handing_over(known.places) if known.has_bound else heard.whole():
                item = plain(self, *args, **kwargs)
            waiting = known.keys.get(id(item))
            if waiting:
                take_over(waiting)
                if not waiting:
                    known.keys.pop(id(item), None)
            return item

        return get

    yield queue.Queue, "put", putting(queue.Queue.put)
    yield queue.Queue, "get", getting(queue.Queue.get)
    simple: Any = queue.SimpleQueue
    if not hasattr(simple, "_sidestream_plain"):
        body = {"put": putting(simple.put), "get": getting(simple.get), "_sidestream_plain": simple}
        body["put_nowait"] = lambda self, item: self.put(item, False)
        body["get_nowait"] = lambda self: self.get(False)
        yield queue, "SimpleQueue", type("SimpleQueue", (simple,), body)


def _calls(heard: _Heard) -> Changes:
    """Observe the calls that only hand over when they begin, or take over when they return."""

    def succeeded(_: Any, result: Any) -> bool:
        return bool(result)

    def returned(*_: Any) -> bool:
        return True

    def lock_of(condition: Any) -> Any:
        # A condition counts as a lock that is released during a wait. Conditions that share a lock count as
        # that lock.
        lock = condition._lock
        return lock if isinstance(lock, _Lock) else condition

    items, event, condition = queue.Queue, threading.Event, threading.Condition
    yield heard.call(items, "task_done", gives=True, what="done", always=True)
    yield heard.call(items, "join", takes=returned, what="done", always=True)
    yield heard.call(event, "set", gives=True)
    yield heard.call(event, "wait", takes=succeeded)
    yield heard.call(event, "is_set", takes=succeeded, whole=False)
    plain_clear = event.clear

    @functools.wraps(plain_clear)
    def clear(self: Any) -> None:
        with heard.whole():
            plain_clear(self)
        # An earlier `set` does not order the waits after this `clear`.
        vars(self).pop("_sidestream_", None)

    yield event, "clear", clear
    acquire = heard.call(threading.Semaphore, "acquire", takes=succeeded)
    yield acquire
    yield threading.Semaphore, "__enter__", acquire[2]
    yield heard.call(threading.Semaphore, "release", gives=True)
    yield heard.call(threading.BoundedSemaphore, "release", gives=True)
    yield heard.call(condition, "__enter__", takes=returned, of=lock_of, whole=False)
    yield heard.call(condition, "__exit__", gives=True, of=lock_of, whole=False)
    yield heard.call(condition, "wait", gives=True, takes=returned, of=lock_of)
    yield heard.call(threading.Barrier, "wait", gives=True, takes=returned, always=True)


def _futures(heard: _Heard) -> Changes:
    future: Any = concurrent.futures._base.Future
    item: Any = getattr(concurrent.futures.thread, "_WorkItem", None)
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

    for name in ("set_result", "set_exception"):
        yield heard.call(future, name, gives=True, always=True)
    for name in ("result", "exception", "done"):
        yield future, name, asking(getattr(future, name))
    if item is not None:

        def made(_: None, self: Any, *__: Any, **___: Any) -> None:
            # Work items have `__slots__` in some versions of Python, so the future has the key.
            heard.hand_over(heard.key(self.future, "start"))

        yield item, "__init__", around(item.__init__, after=made)
        yield item, "run", around(item.run, lambda self, *_: heard.take_over(heard.key(self.future, "start")))


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

    yield asyncio.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe


class _Lock(InPlaceOf):
    """A lock of the interpreter whose acquisitions are observed. This wraps the lock, since the interpreter
    does not allow subclasses of its lock types.
    """

    def __init__(self, plain: Any, heard: _Heard) -> None:
        super().__init__(plain)
        self._heard = heard

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        got: bool = self._plain.acquire(*args, **kwargs)
        if got and not self._heard.local.inside:
            self._heard.take_over(self._heard.key(self))
        return got

    def release(self) -> None:
        if not self._heard.local.inside:
            self._heard.hand_over(self._heard.key(self))
        self._plain.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __repr__(self) -> str:
        return repr(self._plain)


def _locks(heard: _Heard) -> Changes:
    """Observe locks that are created while the check runs. Earlier locks are the interpreter's own, and
    cannot be observed.
    """

    for name in ("Lock", "RLock"):
        plain = getattr(threading, name)

        def make(self: Any, plain: Any = plain) -> None:
            _Lock.__init__(self, plain(), heard)

        # The replacement is a class, as these are in newer versions of Python.
        yield threading, name, in_place_of(name, type(plain()), _Lock, make)


def in_place_of(name: str, kind: type, base: type, make: Callable[..., None]) -> type:
    """Return a class that replaces one that cannot be changed. Instances of either pass as instances of both,
    since programs test that.
    """

    class Kind(type):
        def __instancecheck__(cls, thing: Any) -> bool:
            return type.__instancecheck__(cls, thing) or isinstance(thing, kind)

    return Kind(name, (base,), {"__init__": make})
