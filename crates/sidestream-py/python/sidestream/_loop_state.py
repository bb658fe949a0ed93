"""Replaces what a step refers to for a while, by the same on a simulated GPU: without a GPU it is on the CPU.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import operator
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from sidestream import _tree

#: Containers with more items, such as data sets, are left as they are.
MOST_ITEMS = 10_000
_PLAIN = (str, bytes, int, float, complex, type(None))
_OF_TORCH = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
#: Objects whose tensors stay on the host.
_DATA = (torch.utils.data.Dataset, torch.utils.data.DataLoader, types.ModuleType)


@contextlib.contextmanager
def on_device(step: Any, batches: Iterable[Any], shapes: bool) -> Iterator[None]:
    """While this is entered in a simulation, each tensor that a step refers to is replaced by one on the GPU,
    and a CPU that it refers to by a name by this GPU. Nothing is written to the tensors themselves. At the
    end all else is as before too: optimizers, modes, names, containers and the state of random numbers.

    A step refers to what is in its closure, its arguments and the global names of its code; to attributes and
    items of these; and to what the program's own functions among these refer to.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(torch.set_rng_state, torch.get_rng_state())
        undo.callback(random.setstate, random.getstate())
        if (numpy := sys.modules.get("numpy")) is not None:
            undo.callback(numpy.random.set_state, numpy.random.get_state())
        reached = _Reached(undo, shapes, (leaf for batch in batches for leaf in _tree.tensors_of(batch)[0]))
        reached.look(step)
        # Not before all is known: a tensor is replaced by the same one everywhere.
        for change in reached.changes:
            change()
        yield


class _Reached:
    """What a step refers to, and its replacements."""

    def __init__(self, undo: contextlib.ExitStack, shapes: bool, leave: Iterable[Any]) -> None:
        self._undo, self._shapes = undo, shapes
        #: What was looked at, by its number, which no other object gets while this is kept.
        self._seen = {id(each): each for each in leave}
        #: The replacements of tensors by their numbers. Those to leave are their own.
        self._made = dict(self._seen)
        #: Numbers of tensors that are on the host in a program with a GPU too.
        self._staying: set[int] = set()
        self.changes: list[Callable[[], Any]] = []

    def look(self, at: Any) -> None:
        left = [at]
        while left:
            value = left.pop()
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value
                left += self._parts(value)

    def _parts(self, value: Any) -> Iterable[Any]:
        if isinstance(value, torch.Tensor):
            return value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)
        if isinstance(value, (dict, list, set, collections.deque)):
            return self._items(value) if len(value) <= MOST_ITEMS else ()
        if isinstance(value, (tuple, frozenset)):
            return value if len(value) <= MOST_ITEMS else ()
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        if isinstance(value, functools.partial):
            part, state = value.__setstate__, (value.keywords, vars(value))  # type: ignore[attr-defined]
            self._replace(value.args, lambda args: part((value.func, args, *state)))
            return value.func, value.args, value.keywords
        if isinstance(value, torch.Generator):
            self._undo.callback(value.set_state, value.get_state())
            return ()
        if isinstance(value, type):
            is_own = _is_own(value.__module__)
            return self._names(vars(value), vars(value), functools.partial(setattr, value)) if is_own else ()
        if isinstance(value, _DATA) or not (
            _is_own(type(value).__module__) or isinstance(value, _OF_TORCH) or _tree.has_tensors(value)
        ):
            return ()
        if isinstance(value, torch.optim.Optimizer):
            self._stay(value)
        return [getattr(value, "__dict__", None), *_tree.attributes(value), *type(value).__mro__]

    def _stay(self, optimizer: Any) -> None:
        """Note the rates and the counts of steps that an optimizer keeps on the host."""
        for group in optimizer.param_groups:
            host = [group]
            if not (group.get("fused") or group.get("capturable")):
                host += [optimizer.state.get(parameter, {}) for parameter in group["params"]]
            values = (each for of in host for each in of.values() if isinstance(each, torch.Tensor))
            self._staying.update(id(each) for each in values if not each.dim())

    def _items(self, value: Any) -> list[Any]:
        def items() -> list[Any]:
            return [each for pair in value.items() for each in pair] if is_dict else list(value)

        def put(new: list[Any]) -> None:
            now = items()
            if len(now) != len(new) or not all(map(operator.is_, now, new)):
                value.clear()
                fill = value.update if hasattr(value, "update") else value.extend
                fill(zip(new[::2], new[1::2], strict=True) if is_dict else new)

        is_dict = isinstance(value, dict)
        before = items()
        self._undo.callback(put, before)
        self.changes.append(lambda: put([self._other(each) for each in before]))
        return before

    def _of_function(self, function: types.FunctionType) -> list[Any]:
        parts: list[Any] = [vars(function), function.__kwdefaults__]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # The cell is empty.
                parts.append(cell.cell_contents)
                self._replace(parts[-1], functools.partial(setattr, cell, "cell_contents"))
        space = function.__globals__
        if _is_own(space.get("__name__")):
            parts.append(function.__defaults__)
            self._replace(parts[-1], functools.partial(setattr, function, "__defaults__"))
            names = set(_names(function.__code__))
            modules = [each for name in names if isinstance(each := space.get(name), types.ModuleType)]
            for each in (space, *(vars(module) for module in modules if _is_own(module.__name__))):
                parts += self._names(each, names, each.__setitem__)
        return parts

    def _names(self, space: Any, names: Iterable[str], put: Callable[[str, Any], Any]) -> list[Any]:
        """Look at names of a module or a class."""
        held = {name: space[name] for name in names if name in space and not name.startswith("__")}
        for name in names:
            if name in held:
                self._replace(held[name], functools.partial(put, name), functools.partial(space.get, name))
            elif name not in space:
                self._undo.callback(space.pop, name, None)
        return [getattr(value, "__func__", getattr(value, "fget", value)) for value in held.values()]

    def _replace(self, value: Any, put: Callable[[Any], Any], get: Callable[[], Any] = lambda: None) -> None:
        self._undo.callback(lambda: get() is value or put(value))
        self.changes.append(lambda: (other := self._other(value)) is value or put(other))

    def _other(self, value: Any) -> Any:
        """Return what replaces a value: itself, if nothing does."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._made:
                self._made[id(value)] = self._tensor(value)
            return self._made[id(value)]
        if isinstance(value, tuple):
            others = [self._other(each) for each in value]
            if all(map(operator.is_, value, others)):
                return value
            return value._make(others) if hasattr(value, "_make") else tuple(others)
        if type(value) is torch.device and value.type == "cpu":
            return torch.device("cuda")
        return "cuda" if type(value) is str and value == "cpu" else value

    def _tensor(self, tensor: Any) -> Any:
        if tensor.layout is not torch.strided or tensor.is_pinned():
            return tensor
        data = tensor.detach()
        if id(tensor) in self._staying:
            data = data.clone()
        else:
            data = torch.empty_like(data, device="cuda") if self._shapes else data.to("cuda")
        made = torch.Tensor._make_subclass(type(tensor), data, tensor.requires_grad)
        vars(made).update(vars(tensor))
        if tensor.is_leaf and tensor.grad is not None:
            made.grad = self._other(tensor.grad)
        for hook in (tensor._backward_hooks or {}).values():
            made.register_hook(hook)
        for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
            made.register_post_accumulate_grad_hook(hook)
        return made


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


@functools.lru_cache
def _is_own(module: str | None) -> bool:
    """Return whether a module is of the program itself, and not of an installed package."""
    root, of = str(module).split(".")[0], sys.modules.get(str(module))
    is_installed = {"site-packages", "dist-packages"} & set(Path(getattr(of, "__file__", None) or "").parts)
    return not (is_installed or root in sys.stdlib_module_names or root in ("torch", "sidestream"))
