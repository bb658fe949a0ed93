"""What every function says of an argument that means nothing: its name, what it is, and what to give instead."""

from __future__ import annotations

import math
import os
import reprlib
from typing import Any


def whole(name: str, value: Any, least: int, give: str) -> int:
    """Return a whole number that is at least so much.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is less.
    """
    text = f"{name} is {value!r}; give {give}, {least} or more"
    # Numbers of numpy are such, too. True is one to Python, and a mistake here.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(text)
    number: int = value.__index__()
    if number < least:
        raise ValueError(text)
    return number


def positive(name: str, value: Any, give: str) -> float:
    """Return a number above 0 that is not infinite.

    Raises:
        TypeError: It is no number.
        ValueError: It is not above 0, or infinite.
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


def whole_item(name: str, value: Any) -> None:
    """Refuse one tensor or array where items are asked for: to iterate over it gives its rows, which is seldom meant.

    Raises:
        TypeError: It is a tensor or an array.
    """
    if hasattr(value, "__dlpack__"):
        raise TypeError(
            f"{name} is one {type(value).__name__} of shape {tuple(value.shape)}; give [{name}] if it is one item, or "
            f"iter({name}) if its rows are"
        )


def truth(name: str, value: Any) -> bool:
    """Return True or False, which the value is.

    Raises:
        TypeError: It is something else.
    """
    if value is not True and value is not False:
        raise TypeError(f"{name} is {value!r}; give True or False")
    return value


def file_name(name: str, value: Any) -> Any:
    """Return what names a file: a text or a path.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} is {reprlib.repr(value)}; give the name of a file, as a text or a path")
    return value


def one_of(name: str, value: Any, names: tuple[str, ...]) -> None:
    """Refuse a value that is none of these names.

    Raises:
        ValueError: It is none of them.
    """
    if value not in names:
        *most, last = (f'"{one}"' for one in names)
        raise ValueError(f"{name} is {value!r}; give {', '.join(most)} or {last}")
