"""Nested containers, taken apart into their arrays and put together again.

PyTorch has such functions, which need PyTorch. These know dictionaries and other mappings, lists, tuples, named tuples
and dataclasses. What holds no array is passed through as the same object. Lists, tuples and dictionaries are the
extension's; the others are taken apart here.
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
_Opened = tuple[type, Any, list[Any], Callable[[], _Make]]


def flatten(tree: Any, hiding: list[str] | None = None) -> tuple[list[Any], _sidestream.Shape]:
    """Return the tensors and the numpy arrays of numbers of ``tree`` in sequence, and its shape, which does not hold them.

    Args:
        tree: What to take apart. What a mapping of the caller's own class holds is asked for once.
        hiding: Takes the classes of objects that are handed on as they are although they have tensors or arrays as attributes.

    Raises:
        RecursionError: It is nested too deep, or contains itself.
    """
    if hiding is None:
        return _sidestream.flatten(tree, True, _open)
    names = hiding

    def opened(value: Any) -> _Opened | None:
        found = _open(value)
        name = type(value).__qualname__
        if found is None and name not in names and any(map(_leaves.is_array, _attributes(value))):
            names.append(name)
        return found

    return _sidestream.flatten(tree, True, opened)


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
    """Return the class of a container, the names of its values, these, and how to come by what makes one of other values."""
    kind = type(tree)
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


def _packed(tree: Any) -> _Opened:
    """PyTorch's packed sequences, of which one part stays on the host."""
    names = ("data", "sorted_indices", "unsorted_indices")
    kind, sizes = type(tree), tree.batch_sizes
    return kind, names, [getattr(tree, name) for name in names], lambda: lambda values: kind(values[0], sizes, *values[1:])


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
            raise TypeError(f"a copy of {kind.__qualname__} is not one of its own: give it a `__copy__`, or put a dict into the batch")

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
