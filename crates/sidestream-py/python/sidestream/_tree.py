"""Takes nested containers apart into their arrays and rebuilds them, without PyTorch, whose own functions do
the same. This module supports dictionaries and other mappings, lists, tuples, named tuples and dataclasses.
An object without arrays is passed through.

A batch is taken apart once and rebuilt once. For small batches this is much of the host's cost of an
iteration, so lists, tuples and dictionaries come first and are recognized by their classes alone.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any

from sidestream import _leaves

_Make = Callable[[list[Any]], Any]
#: The class, names, values and maker of a container. The values are None for an object that is rebuilt as a
#: whole.
_Opened = tuple[type, Any, list[Any] | None, Callable[[], _Make]]

#: The maximum nesting depth: far deeper than any batch, and less than the interpreter's limit.
_DEEPEST = 200
#: The place of an array in a structure.
_ARRAY: Any = object()
#: Classes of common values in a batch that are neither arrays nor containers.
_PLAIN = frozenset({int, str, bytes, float, bool, type(None)})
#: PyTorch's class of plain tensors, once one was seen. A program may import PyTorch at any time.
_tensors: set[type] = set()


class _Container(tuple[type, Any, _Make | None, list[Any]]):
    """A container in a structure: its class, the names of its parts, the function that builds it, and the
    parts. These are containers, places of arrays, and values without arrays. A list, tuple or dictionary has
    no function, since its class builds it.
    """

    __slots__ = ()


class _Whole(tuple[_Make]):
    """An object that is not taken apart, and the function that makes its replacement."""

    __slots__ = ()


class Shape:
    """The structure of a container without its arrays. The structure keeps no array alive."""

    __slots__ = ("_count", "_tree", "has_objects")

    def __init__(self, tree: Any, count: int, has_objects: bool) -> None:
        self._tree, self._count = tree, count
        #: Whether there is an object that cannot be inspected: it may hold arrays.
        self.has_objects = has_objects

    def unflatten(self, leaves: list[Any]) -> Any:
        """Put other arrays in the places of those that were taken out."""
        if len(leaves) != self._count:
            more = len(leaves) - self._count
            count = f"{more} more" if more > 0 else "fewer"
            raise ValueError(f"there are {count} arrays than places for them")
        return _made(self._tree, iter(leaves))

    def is_same(self, other: Shape) -> bool:
        """Return whether both structures have equal containers, and equal values apart from the arrays.
        Values that cannot be compared count as different.
        """
        return _is_same(self._tree, other._tree)

    def path_of(self, index: int) -> str:
        """Return the path to the array with this index, as a Python expression; empty if there is none."""
        return next(islice(_paths(self._tree, ""), index, None), "")


#: The structure of a single array.
_ONE = Shape(_ARRAY, 1, False)


@functools.lru_cache(256)
def _row(kind: type, count: int) -> Shape:
    """Return the structure of a tuple or a list of arrays, which most batches are."""
    return Shape(_Container((kind, None, None, [_ARRAY] * count)), count, False)


def _made(tree: Any, leaves: Iterator[Any]) -> Any:
    if type(tree) is not _Container:
        return next(leaves) if tree is _ARRAY else tree[0]([]) if type(tree) is _Whole else tree
    kind, names, make, parts = tree
    values = []
    # Not a comprehension, which costs more than this loop before Python 3.12.
    for part in parts:
        values.append(next(leaves) if part is _ARRAY else _made(part, leaves))
    if make is None:
        return kind(values if names is None else zip(names, values))
    try:
        return make(values)
    except Exception as error:
        raise TypeError(
            f"a {kind.__name__} cannot be rebuilt with other arrays in it ({error}); give the arrays in a "
            "dict, a list or a tuple"
        ) from error


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not _Container or type(other) is not _Container:
        return type(one) is not _Whole and _is_equal(one, other)
    (kind, names, _, parts), (other_kind, other_names, _, others) = one, other
    return (
        kind is other_kind
        and _is_equal(names, other_names)
        and len(parts) == len(others)
        and all(map(_is_same, parts, others))
    )


def _is_equal(one: Any, other: Any) -> bool:
    # The comparison is the user's code.
    with contextlib.suppress(Exception):
        return one is other or bool(one == other)
    return False


def _paths(tree: Any, path: str) -> Iterator[str]:
    """Return the path to each array."""
    if tree is _ARRAY:
        yield path
    elif type(tree) is _Container:
        kind, names, _, parts = tree
        for at, part in enumerate(parts):
            if names is None:
                key = f"[{at}]"
            else:
                key = f"[{names[at]!r}]" if issubclass(kind, Mapping) else f".{names[at]}"
            yield from _paths(part, path + key)


def _apart(tree: Any, arrays: bool, open: Callable[[Any], _Opened | None]) -> tuple[list[Any], Shape]:
    kind: Any = type(tree)
    if kind in _tensors:
        return [tree], _ONE
    if (kind is tuple or kind is list) and tree and _tensors.issuperset(map(type, tree)):
        return list(tree), _row(kind, len(tree))
    leaves: list[Any] = []
    unknown: list[type] = []
    structure = _structure(tree, 0, leaves, unknown, arrays, open)
    return leaves, Shape(structure, len(leaves), bool(unknown))


def _structure(
    tree: Any,
    depth: int,
    leaves: list[Any],
    unknown: list[type],
    arrays: bool,
    open: Callable[[Any], _Opened | None],
) -> Any:
    """Append the arrays of a part of a tree to ``leaves``, with those of NumPy if ``arrays``, and the classes
    of objects that cannot be inspected to ``unknown``. Return the structure of the part.
    """
    if depth == _DEEPEST:
        raise RecursionError(f"the batch is nested more than {_DEEPEST} levels deep, or contains itself")
    kind, names, make, values = type(tree), None, None, tree
    if kind is dict:
        # Copied first: code that inspects a value may change the dictionary.
        names, values = list(tree), list(tree.values())
    elif kind is tuple or kind is list:
        values = list(tree)
    elif kind in _PLAIN:
        return tree
    elif _is_leaf(tree, arrays):
        leaves.append(tree)
        return _ARRAY
    else:
        opened = open(tree)
        if opened is None or opened[2] is None:
            unknown.append(kind)
            return tree if opened is None else _Whole((opened[3](),))
        kind, names, values, make = opened
    before = len(leaves)
    parts = []
    for value in values:
        if type(value) in _tensors:
            leaves.append(value)
            parts.append(_ARRAY)
        elif type(value) in _PLAIN:
            parts.append(value)
        else:
            parts.append(_structure(value, depth + 1, leaves, unknown, arrays, open))
    # Without arrays it stays the object that it is.
    return tree if len(leaves) == before else _Container((kind, names, make and make(), parts))


def _is_leaf(value: Any, arrays: bool) -> bool:
    if _leaves.is_tensor(value):
        if type(value) is sys.modules["torch"].Tensor:
            _tensors.add(type(value))
        return True
    # Arrays of strings, dates and objects are not arrays of numbers.
    return arrays and _leaves.is_numpy(value) and value.dtype.kind in "biufc"


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
        if self._device is not None and callable(getattr(value, "to", None)) and has_tensors(value):
            self._known[kind] = True
            return True
        name = kind.__qualname__
        if name not in self.staying and any(map(_leaves.is_array, attributes(value))):
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


def has_tensors(value: Any) -> bool:
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
                else at if type(at) in (list, tuple) else attributes(at)
            )
            left += [(each, depth + 1) for each in inside[:_MOST]]
    return False


def flatten(tree: Any, objects: Objects | None = None) -> tuple[list[Any], Shape]:
    """Return the tensors and the NumPy arrays of numbers in ``tree`` in order, and its structure, which does
    not hold them.

    Args:
        tree: The container to take apart. Each value of a mapping of the caller's own class is read once.
        objects: Handles objects that are not containers; by default they are passed through.

    Raises:
        RecursionError: ``tree`` is nested too deep, or contains itself.
    """
    return _apart(tree, True, _open if objects is None else objects.open)


def attributes(value: Any) -> list[Any]:
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


def tensors_of(tree: Any) -> tuple[list[Any], Shape]:
    """Return the tensors in ``tree`` and its structure, which holds everything else, including NumPy arrays.
    """
    return _apart(tree, False, _open)


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
