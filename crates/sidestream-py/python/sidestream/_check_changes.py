"""Changes of attributes of classes and modules, by which a check observes calls, and which end with it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

#: Changes: the owner, the attribute, and its new value.
Changes = Iterator[tuple[Any, str, Any]]


def put(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a class or module, and restore it at the end."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    if before is missing:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, before)


def around(
    plain: Callable[..., Any],
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """Return a function that calls ``before`` with its arguments, then ``plain``, and then ``after`` with the
    result of ``plain`` and its arguments.
    """

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = plain(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    return call


def wrap(
    stack: contextlib.ExitStack,
    owner: Any,
    name: str,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Observe the calls of a function or method while the stack is open, as ``around`` does."""
    put(stack, owner, name, around(getattr(owner, name), before, after))


class InPlaceOf:
    """Replaces an object whose class cannot be changed, and passes on what it does not define itself."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)
