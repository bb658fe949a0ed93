"""Determines whether the host's own loads and stores of pinned memory can be observed, and reports when
storages of that memory die.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from sidestream._check_changes import wrap
from sidestream._sidestream import RaceError, Recorder

#: CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES.
_USES_HOST_PAGE_TABLES = 100


@contextlib.contextmanager
def watched(recorder: Recorder, asked: bool, pretend: bool) -> Iterator[list[str]]:
    """While this is entered, the host's accesses to pinned memory are observed. If they are not, the list
    that this yields has the reason.
    """
    if not asked:
        yield ["the check was asked not to"]
        return
    alive: set[weakref.ref[Any]] = set()
    known: list[str | None] = []

    def keep(storage: Any, start: int, end: int, who: int) -> None:
        # The driver is asked at the first copy: asking earlier would open devices that the program may not
        # open in this process.
        if not known:
            known.append(None if pretend else _refused())
            if known[0] is None:
                _lead_ctypes(recorder)
            else:
                recorder.leave_host(known[0])

        # Memory of another owner, such as a NumPy array, outlives its storage.
        frees: bool = storage.resizable()

        def gone(reference: weakref.ref[Any]) -> None:
            alive.discard(reference)
            recorder.host_memory_gone(start, end, who, frees)

        alive.add(weakref.ref(storage, gone))

    recorder.watch_host(keep)
    try:
        with contextlib.ExitStack() as stack:
            _resizes(recorder, stack)
            _registrations(recorder, stack)
            yield []
    except BaseException:
        alive.clear()
        with contextlib.suppress(RaceError):
            recorder.unwatch_host()
        raise
    alive.clear()
    recorder.unwatch_host()


def _lead_ctypes(recorder: Recorder) -> None:
    """Redirect functions of the C library that ctypes looked up before the check. Later look-ups are
    redirected already.
    """
    for thing in gc.get_objects():
        if issubclass(type(thing), ctypes._CFuncPtr):  # type: ignore[attr-defined]
            address = ctypes.c_void_p.from_address(ctypes.addressof(thing))
            to = recorder.stand_in(address.value or 0)
            if to is not None:
                # The pointer stays redirected after the check; the stand-in then calls the real function.
                address.value = to


def _resizes(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe resized storages, whose bytes move."""
    torch = sys.modules.get("torch")
    if torch is None:
        return

    def resizes(self: Any, *_: Any, **__: Any) -> None:
        storage = self.untyped_storage() if isinstance(self, torch.Tensor) else self.untyped()
        if storage.device.type == "cpu":
            start = storage.data_ptr()
            recorder.host_memory_gone(start, start + storage.nbytes(), storage._cdata, True)

    for owner, name in (
        (torch.Tensor, "resize_"),
        (torch.Tensor, "resize_as_"),
        (torch.UntypedStorage, "resize_"),
    ):
        wrap(stack, owner, name, resizes)


def _registrations(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe memory that the program pins and unpins in place."""
    torch = sys.modules.get("torch")
    runtime = getattr(getattr(torch, "_C", None), "_cudart", None)
    if not hasattr(runtime, "cudaHostRegister") or not hasattr(runtime, "cudaHostUnregister"):
        return
    sizes: dict[int, int] = {}

    def registered(_: Any, ptr: int, size: int, *__: Any) -> None:
        sizes[int(ptr)] = int(size)

    wrap(stack, runtime, "cudaHostRegister", after=registered)
    wrap(
        stack,
        runtime,
        "cudaHostUnregister",
        lambda ptr: recorder.host_unpinned(int(ptr), sizes.pop(int(ptr), 1)),
    )


def _refused() -> str | None:
    """Return why pages cannot be protected here, or None."""
    unknown = "the driver does not report how its devices read host memory"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        answer, count = ctypes.c_int(0), ctypes.c_int(0)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return unknown
        for device in range(count.value):
            if driver.cuDeviceGetAttribute(ctypes.byref(answer), _USES_HOST_PAGE_TABLES, device):
                return unknown
            if answer.value:
                return (
                    f"cuda:{device} reads the host's memory by the host's page tables, so its copies would "
                    "fail"
                )
    except (OSError, AttributeError):
        return unknown
    return None
