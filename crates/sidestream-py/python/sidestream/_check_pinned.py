"""Measures how much of the host's memory a program has pinned at once."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from sidestream import _prefetch
from sidestream._check_changes import wrap
from sidestream._system import memory_bytes

#: The pinned share of the host's memory above which the check makes a remark. NVIDIA's CUDA C++ Best
#: Practices Guide, "Pinned Memory", calls pinned memory scarce, and says that it should not be overused and
#: that how much is too much is hard to know in advance.
MOST_PINNED = 0.25


class Pinned:
    """Counts the memory that PyTorch's operators and prefetchers have pinned, and tells ``recorder`` about
    each new maximum.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = weakref.ref(recorder)
        # Reentrant, since storages may die at any time, even while the lock is held.
        self._lock = threading.RLock()
        self._alive: dict[Any, int] = {}
        self._bytes, self._most = 0, int(MOST_PINNED * memory_bytes())

    def heard(self, func: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to call for an operator. If the operator can pin memory, its result is counted.
        """
        schema = getattr(func, "_schema", None)
        always = schema is not None and schema.name == "aten::_pin_memory"
        if not always and (schema is None or all(one.name != "pin_memory" for one in schema.arguments)):
            return call

        def pins(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if always or kwargs.get("pin_memory"):
                storage = result.untyped_storage()
                self.owns(storage, storage.nbytes())
            return result

        return pins

    def owns(self, owner: Any, size: int) -> None:
        """Count ``size`` pinned bytes for an owner until it dies or reports another size."""

        def gone(reference: Any) -> None:
            with self._lock:
                self._bytes -= self._alive.pop(reference, 0)

        with self._lock:
            reference = weakref.ref(owner, gone)
            self._bytes += size - self._alive.get(reference, 0)
            self._alive[reference] = size
            is_most = self._bytes > self._most
            self._most = max(self._most, self._bytes)
        recorder = self._recorder()
        if is_most and recorder is not None:
            recorder.much_pinned(self._most)

    @contextlib.contextmanager
    def prefetchers_heard(self) -> Iterator[None]:
        """While this is entered, the memory into which prefetchers pack batches is counted at each batch that
        is taken.
        """
        with contextlib.ExitStack() as stack:
            wrap(
                stack,
                _prefetch._Batches,
                "_next",
                after=lambda _, batches: self.owns(batches._owner, batches._owner.statistics.pinned_bytes),
            )
            yield
