"""Takes nested containers apart into their arrays and rebuilds them, without PyTorch, whose own functions do
the same. This module supports dictionaries and other mappings, lists, tuples, named tuples and dataclasses.
An object without arrays is passed through. The extension takes lists, tuples and dictionaries apart; the code
here handles the others.
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
#: The class, names, values and maker of a container. The values are None for an object that is rebuilt as a
#: whole.
_Opened = tuple[type, Any, list[Any] | None, Callable[[], _Make]]

#: Depth, and number of objects, up to which an object is searched for tensors.
_DEPTH, _MOST = 3, 100


class Objects:
    """Handles the objects of a batch that are not containers. If batches go to a PyTorch GPU, an object with
    tensors is moved by its ``to`` method if it has one. Other objects are passed through.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        #: Whether objects of a class are moved, by class. Other classes are examined in the first batch only.
        self._known: dict[type, bool] = {}
        self.is_first = True
        #: Classes of objects that stay on the host although they have tensors or arrays.
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
        # The object's `to` takes only a device.
        moved = value.to(device)
    # A `to` method that works in place may return None.
    return value if moved is None else moved


def _has_tensors(value: Any) -> bool:
    """Return whether an object holds PyTorch tensors, directly or in its attributes."""
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
    """Return the tensors and the NumPy arrays of numbers in ``tree`` in order, and its structure, which does
    not hold them.

    Args:
        tree: The container to take apart. Each value of a mapping of the caller's own class is read once.
        objects: Handles objects that are not containers; by default they are passed through.

    Raises:
        RecursionError: ``tree`` is nested too deep, or contains itself.
    """
    return _sidestream.flatten(tree, True, _open if objects is None else objects.open)


def _attributes(value: Any) -> list[Any]:
    """Return the attributes of an object without calling a method of its class, which might do anything."""
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
    """Return the tensors in ``tree`` and its structure, which holds everything else, including NumPy arrays.
    """
    return _sidestream.flatten(tree, False, _open)


def _open(tree: Any) -> _Opened | None:
    """Return the class of a container, the names of its values, the values, and a function that returns its
    maker. The maker builds a container of this kind from other values.
    """
    kind = type(tree)
    if kind.__module__.startswith("tensordict"):
        # These classes have the methods of a mapping, but indexing them selects from their batch dimension.
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
        # A field that is set later may not exist yet.
        names = [field.name for field in dataclasses.fields(tree) if hasattr(tree, field.name)]
        return kind, names, [getattr(tree, name) for name in names], lambda: _dataclass(tree, names)
    return None


def _tensor_dict(tree: Any) -> _Opened:
    """Open a ``TensorDict``, whose tensors share a batch size. It cannot hold arrays that are not tensors;
    with such arrays it becomes a `dict`.
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
    """Open a PyTorch packed sequence, one part of which stays on the host."""
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
    # A copy keeps the other data of the class, such as the default of a defaultdict. The copy's items are
    # cleared, so that it does not keep the arrays alive.
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
        # This works for frozen dataclasses too, whose `__init__` may take arguments other than the fields.
        object.__setattr__(empty, name, None)

    def make(values: list[Any]) -> Any:
        made = copy.copy(empty)
        for name, value in zip(names, values):
            object.__setattr__(made, name, value)
        return made

    return make
