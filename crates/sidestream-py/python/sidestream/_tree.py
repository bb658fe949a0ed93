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

    __slots__ = ("children", "keys", "make")

    def __init__(self, make: Callable[[list[Any]], Any], keys: list[str], children: list[Any]) -> None:
        self.make = make
        self.keys = keys
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
        return _Node(_mapping(tree, names), [f"[{name!r}]" for name in names], children)
    if isinstance(tree, (list, tuple)):
        children = [_flatten(value, leaves, is_leaf) for value in tree]
        if len(leaves) == known:
            return _Same(tree)
        if kind is list:
            make = list
        elif hasattr(kind, "_fields"):
            return _Node(lambda values: kind(*values), [f".{name}" for name in kind._fields], children)
        else:
            make = kind
        return _Node(make, [f"[{at}]" for at in range(len(children))], children)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        children = [_flatten(getattr(tree, name), leaves, is_leaf) for name in names]
        if len(leaves) == known:
            return _Same(tree)
        return _Node(_dataclass(tree, names), [f".{name}" for name in names], children)
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
        for key, child in zip(shape.keys, shape.children):
            yield from _paths(child, path + key)
