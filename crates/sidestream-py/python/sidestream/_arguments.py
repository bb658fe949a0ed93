"""Checks of arguments. Each error names the argument, its value, and what to give instead."""

from __future__ import annotations

import math
import os
import re
import reprlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any

#: Powers of 1000, or of 1024 before an i.
_PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def whole(name: str, value: Any, least: int, give: str) -> int:
    """Return a whole number that is at least ``least``.

    Raises:
        TypeError: The value is not a whole number.
        ValueError: The value is less than ``least``.
    """
    text = f"{name} is {value!r}; give {give}, {least} or more"
    # NumPy integers are accepted. True is an integer in Python, but is a mistake here.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(text)
    number: int = value.__index__()
    if number < least:
        raise ValueError(text)
    return number


def positive(name: str, value: Any, give: str) -> float:
    """Return a finite number above 0.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is not above 0, or is infinite.
    """
    text = f"{name} is {value!r}; give {give}, more than 0, or leave it out"
    if isinstance(value, (bool, str)):
        raise TypeError(text)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(text) from None
    if not 0 < number < math.inf:
        raise ValueError(text)
    return number


def size_bytes(name: str, value: Any) -> int:
    """Return a number of bytes that is given as one, or as text such as ``"2 GiB"`` or ``"1.5 GB"``.

    Raises:
        TypeError: It is neither.
        ValueError: It is not above 0, or the text is not a size.
    """
    text = f'{name} is {value!r}; give bytes, or a text such as "2 GiB" or "1.5 GB"'
    if isinstance(value, bool) or not (isinstance(value, str) or hasattr(value, "__index__")):
        raise TypeError(text)
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?\s*", value, re.IGNORECASE)
        if found is None:
            raise ValueError(text)
        number = int(float(found[1]) * (1024 if found[3] else 1000) ** _PREFIXES[found[2].lower()])
    else:
        number = value.__index__()
    if number <= 0:
        raise ValueError(text)
    return number


def items(name: str, value: Any) -> None:
    """Refuse a value that cannot be iterated over, or whose items are probably not meant: a single tensor,
    whose rows would be the items, a string, a dictionary, or a model.

    Raises:
        TypeError: The value is one of these.
    """
    kind = type(value)
    if hasattr(value, "__dlpack__"):
        raise TypeError(
            f"{name} is one {kind.__name__} of shape {tuple(value.shape)}; give [{name}] if it is one item, "
            f"or iter({name}) if its rows are"
        )
    if isinstance(value, (str, bytes)):
        raise TypeError(
            f"{name} is the text {reprlib.repr(value)}, whose characters would be the items; give what they "
            "come from, such as a DataLoader"
        )
    if isinstance(value, Mapping):
        raise TypeError(
            f"{name} is one {kind.__name__}, whose keys would be the items; give [{name}] if it is one item, "
            f"or iter({name}.values())"
        )
    module: Any = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    own = getattr(kind, "__iter__", None)
    # A user's own module may be a source of batches.
    if (
        module is not None
        and isinstance(value, module)
        and getattr(own, "__module__", "torch.").startswith("torch.")
    ):
        raise TypeError(
            f"{name} is a PyTorch model, {kind.__name__}; give what its batches come from, such as a "
            "DataLoader"
        )
    if own is None and not hasattr(value, "__getitem__"):
        raise TypeError(
            f"{name} is {reprlib.repr(value)}; give something to iterate over, such as a DataLoader or a list"
            " of items"
        )


def warn_of_samples(value: Any, stacklevel: int) -> None:
    """Warn if a data set is given where batches are expected."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(value, data.Dataset) and not isinstance(value, data.IterableDataset):
        kind = type(value).__name__
        warnings.warn(
            f"loader is a {kind}, which gives one sample at a time and in one order; give DataLoader(dataset,"
            " batch_size=…), or with batch_size=None if its samples are batches",
            stacklevel=stacklevel + 1,
        )


def truth(name: str, value: Any) -> bool:
    """Return the value, which must be True or False.

    Raises:
        TypeError: It is something else.
    """
    if value is not True and value is not False:
        raise TypeError(f"{name} is {value!r}; give True or False")
    return value


def file_name(name: str, value: Any) -> Any:
    """Return the value, which must name a file: a string or a path.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} is {reprlib.repr(value)}; give the name of a file, as a string or a path")
    return value


def one_of(name: str, value: Any, names: tuple[str, ...]) -> None:
    """Refuse a value that is not one of these names.

    Raises:
        ValueError: The value is none of the names.
    """
    if value not in names:
        *most, last = (f'"{one}"' for one in names)
        raise ValueError(f"{name} is {value!r}; give {', '.join(most)} or {last}")
