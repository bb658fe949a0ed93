"""Drives the recorder of a check by hand. The extension has the methods declared in `Recorder` below only if
it is built with the feature `drive`, as for the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidestream import _sidestream

#: Addresses and sizes.
Ranges = list[tuple[int, int]]

if TYPE_CHECKING:

    class Recorder(_sidestream.Recorder):
        def operator(
            self,
            name: str,
            reads: Ranges,
            writes: Ranges,
            stream: int,
            device: int = 0,
            *,
            product: bool = False,
        ) -> None: ...
        def record_stream(self, ptr: int, bytes: int, stream: int, device: int = 0) -> None: ...
        def host_memory(self, ptr: int, bytes: int, pinned: bool) -> None: ...
        def host_copy(
            self,
            name: str,
            host: int,
            memory: int,
            bytes: int,
            upload: bool,
            stream: int,
            device: int = 0,
        ) -> None: ...
        def device_copy(
            self,
            source: int,
            target: int,
            bytes: int,
            source_stream: int,
            target_stream: int,
            devices: tuple[int, int],
        ) -> None: ...
        def host_access(self, name: str, ptr: int, bytes: int, write: bool) -> None: ...
        def pretend_stream(self, stream: int) -> None: ...
        def pretend_pinned(self, ptr: int, bytes: int) -> None: ...

else:
    Recorder = _sidestream.Recorder


def recorder(
    raises: bool = False, memory: int = 1 << 30, hidden: tuple[list[str], list[str], str] | None = None
) -> Recorder:
    """Make a recorder that observes only calls of the methods declared in `Recorder` above, and no PyTorch
    operators.
    """

    def plan(_: Any) -> Any:
        raise AssertionError("no operator of PyTorch runs here")

    functions = {
        "planner": plan,
        "shown": str,
        "called": lambda one, two: (None, None),
        "current_stream": None,
        "current_device": None,
        "thread_name": lambda: "MainThread",
        "plain": [],
        "no_dispatch": None,
    }
    return Recorder(functions, None, memory, raises, hidden, True)
