"""Collectives of torch.distributed: their reads and writes, and the waits for them.

NCCL runs a collective on its own stream, after the work that the current stream had at the call. Only
`wait()` on the returned work orders the current stream after it. Until then, a store to its buffers, or a
load of what it writes, races with it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from sidestream._check_changes import around, put
from sidestream._sidestream import Recorder

#: A tensor, whether it is read and written, and the name of the argument if possibly only a part of it is
#: touched.
Given = list[tuple[Any, bool, bool, str | None]]

#: The first number for events of collectives. Handles of events are smaller.
_EVENTS = 3 << 62
#: Collectives whose first arguments are the results, followed by the inputs.
_FROM_TO = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
_IN_PLACE = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier")
_BETWEEN_TWO = {"send": (True, False), "recv": (False, True), "recv_anysource": (False, True)}


def collectives_heard(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """While the stack is open, the recorder observes the collectives that Python calls."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    heard = _Collectives(recorder)
    group, work = distributed.ProcessGroup, distributed.Work

    def hear(owner: Any, name: str, *around_it: Callable[..., None] | None) -> None:
        if plain := getattr(owner, name, None):
            put(stack, owner, name, around(_muted(plain), *around_it))

    for name in (*_IN_PLACE, *_FROM_TO, *_BETWEEN_TWO):
        hear(group, name, None, functools.partial(heard.called, name))
    hear(group, "_start_coalescing", heard.starts)
    hear(group, "_end_coalescing", None, heard.ended)
    # Getting the future counts as a wait, since later waits for the future are not observed.
    for name in ("wait", "synchronize", "block_current_stream", "get_future"):
        hear(work, name, None, heard.waited)
    hear(work, "is_completed", None, heard.asked)
    stack.callback(heard.end)


class _Together(threading.local):
    """The collectives that a thread calls between the start and the end of coalescing."""

    given: Given | None = None


class _Collectives:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder | None = recorder
        self._groups: dict[Any, int] = {}
        self._events: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = weakref.WeakKeyDictionary()
        self._free: list[int] = []
        self._count = itertools.count()
        self._together = _Together()

    def end(self) -> None:
        self._recorder = None

    def called(self, name: str, work: Any, group: Any, *args: Any, **_: Any) -> None:
        given = _given(name, group, args)
        if self._together.given is not None:
            self._together.given += given
        elif given:
            self._called(name, group, given, work, args[1:2] if name in _BETWEEN_TWO else ())

    def starts(self, *_: Any) -> None:
        self._together.given = []

    def ended(self, work: Any, group: Any, *_: Any) -> None:
        given, self._together.given = self._together.given, None
        if given:
            self._called("collectives together", group, given, work, ())

    def _called(self, name: str, group: Any, given: Given, work: Any, peer: tuple[Any, ...]) -> None:
        if self._recorder is None:
            return
        of = self._groups.setdefault((group.group_name, *peer), len(self._groups))
        event = self._free.pop() if self._free else _EVENTS + next(self._count)
        is_on_device = self._recorder.collective(name.lstrip("_"), given, of, event)
        if is_on_device and work is not None:
            self._events[work] = (event, _host_waits(group))
            weakref.finalize(work, self._free.append, event).atexit = False
            return
        if is_on_device:
            # Without a work object, the collective is ordered in the current stream.
            self._recorder.collective_waited(event)
        self._free.append(event)

    def waited(self, _: Any, work: Any, *__: Any, **___: Any) -> None:
        event, host = self._events.get(work, (None, False))
        if event is not None and self._recorder is not None:
            self._recorder.collective_waited(event)
            if host:
                self._recorder.event_complete(event)

    def asked(self, done: bool, work: Any) -> None:
        event, _ = self._events.get(work, (None, False))
        if done and event is not None and self._recorder is not None:
            self._recorder.event_complete(event)


def _muted(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose operators are not reported one by one."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        Recorder.mute()
        try:
            return plain(*args, **kwargs)
        finally:
            Recorder.unmute()

    return call


def _given(name: str, group: Any, args: tuple[Any, ...]) -> Given:
    """Return what a collective reads and writes."""
    if name == "barrier" or not args:
        return []
    if name in _FROM_TO:
        pairs = [(args[0], False, True), *((each, True, False) for each in args[1:2])]
    elif name in _BETWEEN_TWO:
        pairs = [(args[0], *_BETWEEN_TWO[name])]
    elif name in ("broadcast", "reduce"):
        root = getattr(args[1], "rootRank", None) if len(args) > 1 else None
        is_root = root is None or root == group.rank()
        # In a broadcast the root sends and the others receive; in a reduction the opposite is true.
        pairs = [(args[0], is_root, not is_root) if name == "broadcast" else (args[0], True, is_root)]
    else:
        pairs = [(args[0], True, True)]
    return [(tensor, reads, writes, None) for given, reads, writes in pairs for tensor in _flat(given)]


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, (list, tuple)):
        for each in given:
            yield from _flat(each)
    elif given is not None and hasattr(given, "data_ptr"):
        yield given


def _host_waits(group: Any) -> bool:
    """Return whether `wait` blocks the host, as it does for all backends but NCCL. A simulated GPU uses Gloo
    instead of NCCL.
    """
    import torch

    if torch.cuda.Stream.__module__.startswith("sidestream."):
        return False
    try:
        return "nccl" not in group._get_backend(torch.device("cuda")).name().lower()
    except RuntimeError:
        return True
