"""Whether the host's own loads and stores of pinned memory can be heard, and for how long its storages are there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from sidestream._check_hooks import replace
from sidestream._sidestream import RaceError, Recorder

#: CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES.
_USES_HOST_PAGE_TABLES = 100


@contextlib.contextmanager
def watched(recorder: Recorder, asked: bool, pretend: bool) -> Iterator[list[str]]:
    """While this is entered, accesses of the host to pinned memory are heard. What it gives says why they are not, if so."""
    why: list[str] = []
    refused = _refused(pretend) if asked else "the check was told not to"
    alive: set[weakref.ref[Any]] = set()

    def keep(storage: Any, start: int, end: int, who: int) -> None:
        def gone(reference: weakref.ref[Any]) -> None:
            alive.discard(reference)
            recorder.host_memory_gone(start, end, who)

        alive.add(weakref.ref(storage, gone))

    refused = refused or recorder.watch_host(keep)
    if refused is not None:
        why.append(refused)
    try:
        with contextlib.ExitStack() as stack:
            _resizes(recorder, stack)
            yield why
    except BaseException:
        alive.clear()
        with contextlib.suppress(RaceError):
            recorder.unwatch_host()
        raise
    alive.clear()
    recorder.unwatch_host()


def _resizes(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """A storage that is resized has its bytes elsewhere afterwards."""
    torch = sys.modules.get("torch")
    if torch is None:
        return

    def wrapped(resize: Callable[..., Any]) -> Callable[..., Any]:
        def resized(self: Any, *args: Any, **kwargs: Any) -> Any:
            storage = self.untyped_storage() if isinstance(self, torch.Tensor) else self.untyped()
            if storage.device.type == "cpu":
                start = storage.data_ptr()
                recorder.host_memory_gone(start, start + storage.nbytes(), storage._cdata)
            return resize(self, *args, **kwargs)

        return resized

    for owner, name in ((torch.Tensor, "resize_"), (torch.Tensor, "resize_as_"), (torch.UntypedStorage, "resize_")):
        replace(stack, owner, name, wrapped(getattr(owner, name)))


def _refused(pretend: bool) -> str | None:
    """Why pages cannot be protected here."""
    if pretend:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        answer, count = ctypes.c_int(0), ctypes.c_int(0)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return "the driver does not say how its devices read the host's memory"
        for device in range(count.value):
            if driver.cuDeviceGetAttribute(ctypes.byref(answer), _USES_HOST_PAGE_TABLES, device):
                return "the driver does not say how its devices read the host's memory"
            if answer.value:
                return f"cuda:{device} reads the host's memory by the host's page tables, so its copies would fail too"
    except (OSError, AttributeError):
        return "the driver does not say how its devices read the host's memory"
    for line in _maps():
        if os.path.basename(line).startswith("libcufile"):
            return "cuFile is loaded, which registers memory of the host's"
    return None


def _maps() -> list[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return [line.split(maxsplit=5)[-1].strip() for line in maps]
    except OSError:
        return []
