"""Nested containers, taken apart into their arrays and put together again.

PyTorch has such functions, which need PyTorch. These know dictionaries and other mappings, lists, tuples, named tuples
and dataclasses. What holds no array is passed through as the same object.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

#: Stands for an array that was taken out.
_LEAF = object()


class _Node:
    """A container that holds arrays somewhere."""

    __slots__ = ("children", "kind", "make", "names")

    def __init__(self, kind: type, make: Callable[[list[Any]], Any], names: Any, children: list[Any]) -> None:
        self.kind = kind
        self.make = make
        # The keys of a mapping, the names of fields, or None where children have numbers.
        self.names = names
        self.children = children


class _Same:
    """Something without arrays, which is handed on as it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def flatten(tree: Any, is_leaf: Callable[[Any], bool]) -> tuple[list[Any], Any]:
    """Return the arrays of ``tree`` in sequence, and its shape, which does not hold them."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, is_leaf)


def unflatten(shape: Any, leaves: Iterator[Any]) -> Any:
    """Put other arrays into the places of those that ``flatten`` has taken."""
    if shape is _LEAF:
        return next(leaves)
    if type(shape) is _Same:
        return shape.value
    return shape.make([unflatten(child, leaves) for child in shape.children])


def same(one: Any, other: Any) -> bool:
    """Tell whether two shapes are equal: the same containers, and equal values where there is no array.

    Values that cannot be compared count as different.
    """
    if type(one) is not type(other):
        return False
    if type(one) is _Same:
        try:
            return one.value is other.value or bool(one.value == other.value)
        except Exception:
            # The comparison is the user's code.
            return False
    if type(one) is _Node:
        return (
            one.kind is other.kind
            and len(one.children) == len(other.children)
            and one.names == other.names
            and all(map(same, one.children, other.children))
        )
    return True


def path_of(shape: Any, index: int) -> str:
    """Return where the array with this number stands, as it is written in Python: ``['image'][1]``."""
    for at, path in enumerate(_paths(shape, "")):
        if at == index:
            return path
    return ""


def _flatten(tree: Any, leaves: list[Any], is_leaf: Callable[[Any], bool]) -> Any:
    if is_leaf(tree):
        leaves.append(tree)
        return _LEAF
    known = len(leaves)
    kind = type(tree)
    make: Callable[[list[Any]], Any]
    if isinstance(tree, Mapping):
        names = list(tree)
        children = [_flatten(tree[name], leaves, is_leaf) for name in names]
        if len(leaves) == known:
            return _Same(tree)
        return _Node(kind, _mapping(tree, names), names, children)
    if isinstance(tree, (list, tuple)):
        children = [_flatten(value, leaves, is_leaf) for value in tree]
        if len(leaves) == known:
            return _Same(tree)
        if kind is list:
            make = list
        elif hasattr(kind, "_fields"):
            return _Node(kind, lambda values: kind(*values), kind._fields, children)
        else:
            make = kind
        return _Node(kind, make, None, children)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        children = [_flatten(getattr(tree, name), leaves, is_leaf) for name in names]
        if len(leaves) == known:
            return _Same(tree)
        return _Node(kind, _dataclass(tree, names), names, children)
    return _Same(tree)


def _mapping(tree: Mapping[Any, Any], names: list[Any]) -> Callable[[list[Any]], Any]:
    kind = type(tree)
    if kind is dict:
        return lambda values: dict(zip(names, values))
    if not isinstance(tree, MutableMapping):
        return lambda values: kind(zip(names, values))  # type: ignore[call-arg]
    # A copy has what the class keeps beside its items, such as the default of a defaultdict. It may not keep
    # the arrays alive, which are still in it.
    empty = copy.copy(tree)
    for name in names:
        empty[name] = None

    def make(values: list[Any]) -> Any:
        made = copy.copy(empty)
        for name, value in zip(names, values):
            made[name] = value
        return made

    return make


def _dataclass(tree: Any, names: list[str]) -> Callable[[list[Any]], Any]:
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


def _paths(shape: Any, path: str) -> Iterator[str]:
    if shape is _LEAF:
        yield path
    elif type(shape) is _Node:
        for at, child in enumerate(shape.children):
            if shape.names is None:
                key = f"[{at}]"
            elif issubclass(shape.kind, Mapping):
                key = f"[{shape.names[at]!r}]"
            else:
                key = f".{shape.names[at]}"
            yield from _paths(child, path + key)
