"""Disables batchers in forked children, which have neither the threads nor the device of the parent."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NoReturn

from sidestream._sidestream import DeviceError
from sidestream._system import after_forks

#: The batchers that a child of a fork must not use.
MADE: weakref.WeakSet[Any] = weakref.WeakSet()


class Forked:
    """Replaces `Requests` in a forked child, which has neither the threads nor the device of its parent.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise DeviceError(
            "the Batcher was made before the fork, and a child has neither the threads nor the device of its "
            "parent; use it in the process that made it, or spawn this process instead of forking it"
            ' (multiprocessing\'s method "spawn")'
        )


def _in_child() -> None:
    for one in MADE:
        one._requests = Forked()
        # The old lock may be held by a thread that does not exist in the child.
        one._lock = threading.Lock()
        one._end.detach()


after_forks(_in_child)
