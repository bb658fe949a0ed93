"""Nested containers, taken apart into their arrays and put together again.

PyTorch has such functions, which need PyTorch. These know dictionaries and other mappings, lists, tuples,
named tuples and dataclasses. What holds no array is passed through as the same object. Lists, tuples and
dictionaries are the extension's; the others are taken apart here.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import types
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from sidestream import _leaves, _sidestream

_Make = Callable[[list[Any]], Any]
#: Of a container. Without values it is an object, which is made anew as a whole where it comes out.
_Opened = tuple[type, Any, list[Any] | None, Callable[[], _Make]]

#: How deep, and at how many objects, it is looked for tensors.
_DEPTH, _MOST = 3, 100


class Objects:
    """What becomes of the objects of a batch that are no containers.

    Where batches go to a GPU of PyTorch, one with tensors and a method ``to`` is asked to move. Others are
    handed on as they are.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        #: Which classes move. Of others that is asked in the first batch.
        self._known: dict[type, bool] = {}
        self.is_first = True
        #: Classes of objects that stay although they have tensors or arrays.
        self.staying: list[str] = []

    def open(self, value: Any) -> _Opened | None:
        found = _open(value)
        if found is not None:
            return found
        kind = type(value)
        moves = self._known.get(kind)
        if moves is None and self.is_first:
            moves = self._moves(value, kind)
        if not moves:
            return None
        device = self._device
        return kind, None, None, lambda: lambda _: _moved(value, device)

    def _moves(self, value: Any, kind: type) -> bool:
        if self._device is not None and callable(getattr(value, "to", None)) and _has_tensors(value):
            self._known[kind] = True
            return True
        name = kind.__qualname__
        if name not in self.staying and any(map(_leaves.is_array, _attributes(value))):
            self.staying.append(name)
        return False


def _moved(value: Any, device: Any) -> Any:
    try:
        moved = value.to(device, non_blocking=True)
    except TypeError:
        # It knows of devices only.
        moved = value.to(device)
    # One that moves in its place may return nothing.
    return value if moved is None else moved


def _has_tensors(value: Any) -> bool:
    """Tell whether an object holds tensors of PyTorch, itself or in what it has."""
    left = [(value, 0)]
    for _ in range(_MOST):
        if not left:
            return False
        at, depth = left.pop()
        if _leaves.is_tensor(at):
            return True
        if depth < _DEPTH:
            inside = (
                list(at.values())
                if type(at) is dict
                else at if type(at) in (list, tuple) else _attributes(at)
            )
            left += [(each, depth + 1) for each in inside[:_MOST]]
    return False


def flatten(tree: Any, objects: Objects | None = None) -> tuple[list[Any], _sidestream.Shape]:
    """Return the tensors and the numpy arrays of numbers of ``tree`` in sequence, and its shape, which does
    not hold them.

    Args:
        tree: What to take apart. What a mapping of the caller's own class holds is asked for once.
        objects: What becomes of objects that are no containers; without it they are handed on as they are.

    Raises:
        RecursionError: It is nested too deep, or contains itself.
    """
    return _sidestream.flatten(tree, True, _open if objects is None else objects.open)


def _attributes(value: Any) -> list[Any]:
    """What an object has, without a call of a method of its own, which may do anything."""
    if isinstance(value, type):
        return []
    own: list[Any] = []
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if name == "__dict__" and isinstance(member, types.GetSetDescriptorType):
                own += list(member.__get__(value).values())
            elif isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):
                    own.append(member.__get__(value))
    return own


def tensors_of(tree: Any) -> tuple[list[Any], _sidestream.Shape]:
    """Do the same for tensors alone: numpy's arrays stay where they are."""
    return _sidestream.flatten(tree, False, _open)


def _open(tree: Any) -> _Opened | None:
    """Return the class of a container, the names of its values, these, and how to come by what makes one of
    other values.
    """
    kind = type(tree)
    if kind.__module__.startswith("tensordict"):
        # Mappings by their methods, which index their batch.
        return _tensor_dict(tree) if kind.__name__ == "TensorDict" else None
    if isinstance(tree, Mapping):
        names: Any = list(tree)
        return kind, names, [tree[name] for name in names], lambda: _mapping(tree, names)
    if isinstance(tree, (list, tuple)):
        if hasattr(kind, "_fields"):
            if kind.__name__ == "PackedSequence":
                return _packed(tree)
            return kind, kind._fields, list(tree), lambda: kind._make
        return kind, None, list(tree), lambda: kind
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        # A field that is set later may not be there yet.
        names = [field.name for field in dataclasses.fields(tree) if hasattr(tree, field.name)]
        return kind, names, [getattr(tree, name) for name in names], lambda: _dataclass(tree, names)
    return None


def _tensor_dict(tree: Any) -> _Opened:
    """A dictionary of tensors that share a batch size. Arrays that are no tensors it cannot hold: those stand
    in a `dict`.
    """
    kind, size = type(tree), tree.batch_size
    keys = list(tree.keys())
    names = list(tree.names) if any(tree.names) else None
    has_device, is_locked = tree.device is not None, tree.is_locked

    def make(values: list[Any]) -> Any:
        if any(type(value).__name__ == "DeviceArray" or type(value) is dict for value in values):
            return dict(zip(keys, values))
        device = (
            next((value.device for value in values if hasattr(value, "device")), None) if has_device else None
        )
        made = kind(dict(zip(keys, values)), batch_size=size, names=names, device=device)
        return made.lock_() if is_locked else made

    return kind, keys, [tree.get(key) for key in keys], lambda: make


def _packed(tree: Any) -> _Opened:
    """PyTorch's packed sequences, of which one part stays on the host."""
    names = ("data", "sorted_indices", "unsorted_indices")
    kind, sizes = type(tree), tree.batch_sizes
    return (
        kind,
        names,
        [getattr(tree, name) for name in names],
        lambda: lambda values: kind(values[0], sizes, *values[1:]),
    )


def _mapping(tree: Mapping[Any, Any], names: list[Any]) -> _Make:
    kind = type(tree)
    if not isinstance(tree, MutableMapping):
        return lambda values: kind(zip(names, values))  # type: ignore[call-arg]
    # A copy has what the class keeps beside its items, such as the default of a defaultdict. It may not keep
    # the arrays alive, which are still in it.
    empty = copy.copy(tree)
    for name in names:
        value = tree[name]
        empty[name] = None
        if tree[name] is not value:
            tree[name] = value
            raise TypeError(
                f"a copy of {kind.__qualname__} is not independent of it; give it a `__copy__`, or put a dict"
                " into the batch"
            )

    def make(values: list[Any]) -> Any:
        made = copy.copy(empty)
        for name, value in zip(names, values):
            made[name] = value
        return made

    return make


def _dataclass(tree: Any, names: list[str]) -> _Make:
    empty = copy.copy(tree)
    for name in names:
        # Frozen ones too; their __init__ may want other arguments than the fields.
        object.__setattr__(empty, name, None)

    def make(values: list[Any]) -> Any:
        made = copy.copy(empty)
        for name, value in zip(names, values):
            object.__setattr__(made, name, value)
        return made

    return make
