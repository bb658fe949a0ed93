"""Ends a thread's wait for the workers of a DataLoader.

A DataLoader looks for its workers' batches in turns of five seconds, and nobody can wake it. On the threads
that prefetch the turns are short, and one ends the wait when the thread is to end. Other threads wait as
ever.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

#: So long a wait goes on after its thread was told to end.
TURN_S = 0.1

#: Where iterators over workers are, and what they are called.
_ITERATORS = (
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulMultiProcessingDataLoaderIter"),
)

_of_thread = threading.local()


class Stopped(BaseException):
    """Nobody wants the batch any more. Like ``GeneratorExit`` no error, so that loaders do not take it for
    one.
    """


def let_waits_end(is_stopped: Callable[[], bool]) -> None:
    """From here on a wait of this thread for workers ends with ``Stopped`` as soon as ``is_stopped`` says
    so.
    """
    _of_thread.is_stopped = is_stopped


def prepare() -> None:
    """Make the iterators that are imported by now ask. Nothing changes for threads that have not said so."""
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
