"""Refuses features that a simulation does not have, by name and with the program's line."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

import torch

from sidestream._check_changes import put

#: Libraries that launch their own kernels as soon as they are used.
_LIBRARIES = {
    "cupy": "CuPy calls CUDA itself",
    "pycuda": "PyCUDA calls CUDA itself",
    "flash_attn": "its kernels run on a GPU only",
    "transformer_engine": "its kernels run on a GPU only",
}
#: Parts of other modules that need a GPU: a class of the module, or nothing, its functions, and what they
#: are. To import these modules is allowed: PyTorch itself imports Triton.
_PARTS = {
    "triton.runtime.jit": ("JITFunction", ("run",), "a Triton kernel, which runs only on a GPU"),
    "torch.utils.cpp_extension": (
        "",
        ("load", "load_inline"),
        "an extension in C++ or CUDA (torch.utils.cpp_extension)",
    ),
    "torch._C": (
        "",
        ("_broadcast", "_broadcast_coalesced", "_scatter", "_gather"),
        "torch.nn.parallel, which copies between GPUs without operators",
    ),
}
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep


class NotSimulated(RuntimeError):
    """Raised if the program uses a feature of a GPU that a simulation does not have."""


class Refusals:
    """The refusals of a simulation."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def refused(self, what: str) -> NotSimulated:
        """Return the error to raise, and keep its message for the report."""
        frame = of_program(sys._getframe(1))
        at = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""
        text = f"not simulated: {what}{at}; check this part on a GPU"
        if text not in self.skipped:
            self.skipped.append(text)
        return NotSimulated(text)

    def install(self, stack: contextlib.ExitStack) -> None:
        def refuse(module: ModuleType) -> None:
            of, names, what = _PARTS[module.__name__]
            owner = getattr(module, of) if of else module
            for name in names:
                if hasattr(owner, name):
                    put(stack, owner, name, self._refusing(what))

        finder = _Finder(self, refuse)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        for name in _PARTS:
            if name in sys.modules:
                refuse(sys.modules[name])
        from torch import distributed

        if distributed.is_available():
            self._distributed(stack)

    def _refusing(self, what: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise self.refused(what)

        return refuse

    def _distributed(self, stack: contextlib.ExitStack) -> None:
        from torch import distributed

        start = distributed.init_process_group

        def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
            if backend is None or "nccl" in str(backend).lower():
                raise self.refused('NCCL; backend="gloo" runs on the CPU')
            return start(backend, *args, **kwargs)

        put(stack, distributed, "init_process_group", init_process_group)


class _Finder(importlib.abc.MetaPathFinder):
    """Refuses imports of libraries that launch their own kernels, and replaces the parts of other modules
    that need a GPU once these modules are imported.
    """

    def __init__(self, refusals: Refusals, refuse: Callable[[ModuleType], None]) -> None:
        self.refusals, self.refuse = refusals, refuse

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _LIBRARIES and name not in _PARTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        if why := _LIBRARIES.get(name):
            raise ModuleNotFoundError(str(self.refusals.refused(f"{name}: {why}")), name=name)
        if spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                # An import that began during the simulation may finish after it.
                if self in sys.meta_path:
                    self.refuse(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def of_program(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        frame.f_code.co_filename.startswith((_OURS, _TORCH, "<frozen"))
        or _is_hidden(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame


def _is_hidden(file: str) -> bool:
    return file == contextlib.__file__ or os.sep + "triton" + os.sep in file
