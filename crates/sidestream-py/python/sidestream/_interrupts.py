"""Ends a thread's wait for the workers of a DataLoader.

A DataLoader waits for its workers' batches in turns of five seconds, which nothing can interrupt. On
prefetching threads these turns are short, and the wait ends when the thread is to end. The waits of other
threads do not change.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

#: Maximum seconds for which a wait continues after its thread was stopped.
TURN_S = 0.1

#: The modules and names of the iterators that wait for workers.
_ITERATORS = (
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulMultiProcessingDataLoaderIter"),
)

_of_thread = threading.local()


class Stopped(BaseException):
    """The batch is no longer wanted. Like ``GeneratorExit`` this is not an ``Exception``, so that loaders do
    not catch it.
    """


def let_waits_end(is_stopped: Callable[[], bool]) -> None:
    """Make this thread's waits for workers end with ``Stopped`` as soon as ``is_stopped`` returns True."""
    _of_thread.is_stopped = is_stopped


def prepare() -> None:
    """Make the iterators that have been imported wait in short turns. Threads that have not called
    ``let_waits_end`` are not affected.
    """
    for module, name in _ITERATORS:
        kind = getattr(sys.modules.get(module), name, None)
        known = getattr(kind, "_try_get_data", None)
        if known is not None and not getattr(known, "_is_of_sidestream", False):
            kind._try_get_data = _in_turns(known)  # type: ignore[union-attr]


def _in_turns(known: Any) -> Any:
    default_s = (known.__defaults__ or (5.0,))[0]

    @functools.wraps(known)
    def _try_get_data(self: Any, timeout: float = default_s) -> Any:
        is_stopped = getattr(_of_thread, "is_stopped", None)
        if is_stopped is None:
            return known(self, timeout)
        deadline = time.monotonic() + timeout
        while True:
            if is_stopped():
                raise Stopped
            left_s = deadline - time.monotonic()
            got = known(self, max(0.0, min(left_s, TURN_S)))
            if got[0] or left_s <= TURN_S:
                return got

    _try_get_data._is_of_sidestream = True  # type: ignore[attr-defined]
    return _try_get_data
