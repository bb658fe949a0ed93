"""What a simulation does not have is refused by name, at the line that asks for it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

import torch

from sidestream._check_hooks import put

#: Libraries that launch kernels of their own.
_LIBRARIES = {
    "triton": "kernels of Triton run on a GPU only",
    "cupy": "CuPy calls CUDA itself",
    "pycuda": "PyCUDA calls CUDA itself",
    "flash_attn": "its kernels run on a GPU only",
    "apex": "its kernels run on a GPU only",
    "transformer_engine": "its kernels run on a GPU only",
    "xformers": "its kernels run on a GPU only",
}
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep


class NotSimulated(RuntimeError):
    """The program asks for something of a GPU that a simulation does not have."""


class Refusals:
    """What was refused."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def refused(self, what: str) -> NotSimulated:
        """The error to raise; the report has it too."""
        frame = _of_program(sys._getframe(1))
        at = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""
        text = f"not simulated: {what}{at}"
        if text not in self.skipped:
            self.skipped.append(text)
        return NotSimulated(f"{text}; run the check of this part on a GPU")

    def install(self, stack: contextlib.ExitStack) -> None:
        finder = _Finder(self)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        self._distributed(stack)
        self._extensions(stack)

    def _distributed(self, stack: contextlib.ExitStack) -> None:
        import torch.distributed

        if not torch.distributed.is_available():
            return
        start = torch.distributed.init_process_group

        def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
            if backend is None or "nccl" in str(backend).lower():
                raise self.refused('NCCL; backend="gloo" runs on the processor')
            return start(backend, *args, **kwargs)

        put(stack, torch.distributed, "init_process_group", init_process_group)

    def _extensions(self, stack: contextlib.ExitStack) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise self.refused("extensions in C++ or CUDA (torch.utils.cpp_extension)")

        import torch.utils.cpp_extension as extension

        for name in ("load", "load_inline"):
            put(stack, extension, name, refuse)


class _Finder(importlib.abc.MetaPathFinder):
    """Refuses to import libraries that launch kernels of their own, if the program itself asks for them."""

    def __init__(self, refusals: Refusals) -> None:
        self.refusals = refusals

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        why = _LIBRARIES.get(name.partition(".")[0])
        if why is None:
            return None
        asking = _importing(sys._getframe(1))
        if asking is None or asking.f_code.co_filename.startswith(_TORCH):
            return None
        error = self.refusals.refused(f"{name}: {why}")
        raise ModuleNotFoundError(str(error), name=name)


def _importing(frame: FrameType | None) -> FrameType | None:
    """Who imports."""
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame


def _of_program(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        frame.f_code.co_filename.startswith((_OURS, _TORCH, "<frozen")) or frame.f_code.co_filename == contextlib.__file__
    ):
        frame = frame.f_back
    return frame
