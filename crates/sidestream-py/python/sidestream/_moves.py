"""Counts the bytes that a call copies between host and device, and its waits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sidestream._check_changes import wrap
from sidestream._check_plan import WAITS, decomposed, is_composite

@dataclass
class Moved:
    """The copies and waits of one call."""

    uploaded: int = 0
    downloaded: int = 0
    #: For each wait, the operator or call by which the host waited.
    waits: list[str] = field(default_factory=list)


def moved(call: Callable[[], object]) -> Moved:
    """Make a call once, and return the copies and waits of its operators and of its `synchronize` calls.
    Without PyTorch the result is empty.
    """
    found = Moved()
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        call()
        return found
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if is_composite(func):
                return decomposed(func, self, args, kwargs or {})
            result = func(*args, **(kwargs or {}))
            _note(found, func.overloadpacket._qualified_op_name, args, kwargs or {}, result)
            return result

    with contextlib.ExitStack() as stack:
        for owner, name in (
            (torch.cuda, "synchronize"),
            (torch.cuda.Stream, "synchronize"),
            (torch.cuda.Event, "synchronize"),
        ):
            wrap(stack, owner, name, lambda *_, name=name, **__: found.waits.append(name))
        stack.enter_context(Mode())
        call()
    return found


def _note(found: Moved, name: str, args: Any, kwargs: Any, result: Any) -> None:
    if name in WAITS:
        if args and getattr(args[0], "is_cuda", False):
            found.waits.append({"aten::_local_scalar_dense": "item"}.get(name, name.removeprefix("aten::")))
        if name == "aten::_local_scalar_dense" and args[0].is_cuda:
            found.downloaded += args[0].nbytes
        return
    if name == "aten::copy_":
        target, source, is_async = (
            args[0],
            args[1],
            bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")),
        )
    elif name == "aten::_to_copy":
        target, source, is_async = result, args[0], bool(kwargs.get("non_blocking"))
    else:
        return
    if target.is_cuda == source.is_cuda:
        return
    if target.is_cuda:
        found.uploaded += target.nbytes
    else:
        found.downloaded += target.nbytes
        if not is_async:
            found.waits.append("a download")
