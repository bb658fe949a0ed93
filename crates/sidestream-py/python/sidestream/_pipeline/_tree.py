"""The tensors in nested tuples, lists and dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Stands in a shape for a leaf.
LEAF = None


def flatten(value: Any, leaf: type | tuple[type, ...], leaves: list[Any]) -> Any:
    """Append the leaves to a list, and return the shape of what is around them.

    Shapes are tuples, and equal for values that differ only in their leaves. What is neither a leaf nor a tuple, list or
    dictionary is part of the shape.
    """
    if isinstance(value, leaf):
        leaves.append(value)
        return LEAF
    kind = type(value)
    if isinstance(value, (tuple, list)):
        return (kind, tuple([flatten(one, leaf, leaves) for one in value]))
    if isinstance(value, dict):
        return (kind, tuple([flatten(one, leaf, leaves) for one in value.values()]), tuple(value))
    return (None, value)


def unflatten(shape: Any, leaves: Iterator[Any]) -> Any:
    """Put leaves into a shape, in the order in which ``flatten`` found them."""
    if shape is LEAF:
        return next(leaves)
    kind = shape[0]
    if kind is None:
        return shape[1]
    parts = [unflatten(part, leaves) for part in shape[1]]
    if len(shape) == 3:
        entries = dict(zip(shape[2], parts, strict=True))
        return entries if kind is dict else kind(entries)
    if hasattr(kind, "_fields"):
        return kind(*parts)
    return parts if kind is list else kind(parts)


def same(one: Any, other: Any) -> bool:
    """Whether two shapes are equal. Values of unknown types in them may refuse to be compared; such are not equal."""
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - the comparison is the user's code.
        return False
