"""Transfers PyTorch's per-thread state to another thread."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Any

#: The device types that have a separate autocast.
_KINDS = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "ipu", "xla")


class Modes:
    """The modes of the thread that creates this object, for the thread that enters it.

    These are grad mode, inference mode, autocast, and function modes (``TorchFunctionMode``), which include
    ``with torch.device(…)`` and ``torch.set_default_device``. Modes that observe operators
    (``TorchDispatchMode``) are not transferred: they count or change what runs in their thread, and may not
    be safe in two threads.
    """

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        # A module may lack attributes while it is being imported.
        self._torch: Any = torch if hasattr(torch, "is_inference_mode_enabled") else None
        self._entered = contextlib.ExitStack()
        if self._torch is None:
            return
        self._is_inference = self._torch.is_inference_mode_enabled()
        self._has_grad = self._torch.is_grad_enabled()
        self._autocasts = _autocasts(self._torch)
        self._functions = _function_modes(self._torch)

    def __enter__(self) -> None:
        torch = self._torch
        if torch is None:
            return
        enter = self._entered.enter_context
        if self._is_inference:
            enter(torch.inference_mode())
        elif not self._has_grad:
            enter(torch.no_grad())
        for kind, dtype, caches in self._autocasts:
            enter(torch.autocast(kind, dtype=dtype, enabled=True, cache_enabled=caches))
        for mode in self._functions:
            # Pushed instead of entered by `with`: the mode has been entered in its own thread, and may be
            # enterable only once.
            torch._C._push_on_torch_function_stack(mode)
            self._entered.callback(torch._C._pop_torch_function_stack)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.close()


def _autocasts(torch: Any) -> list[tuple[str, Any, bool]]:
    """Return each autocast that is enabled: its device type, its dtype, and whether it caches conversions.
    """
    caches = torch.is_autocast_cache_enabled()
    if not hasattr(torch, "get_autocast_dtype"):
        # For PyTorch before 2.4.
        older = []
        if torch.is_autocast_enabled():
            older.append(("cuda", torch.get_autocast_gpu_dtype(), caches))
        if torch.is_autocast_cpu_enabled():
            older.append(("cpu", torch.get_autocast_cpu_dtype(), caches))
        return older
    found = []
    for kind in _KINDS:
        # A build of PyTorch may lack a device type.
        with contextlib.suppress(RuntimeError):
            if torch.is_autocast_enabled(kind):
                found.append((kind, torch.get_autocast_dtype(kind), caches))
    return found


def _function_modes(torch: Any) -> list[Any]:
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    can_push = hasattr(torch._C, "_push_on_torch_function_stack") and hasattr(
        torch._C, "_pop_torch_function_stack"
    )
    return list(stack()) if stack is not None and can_push else []
