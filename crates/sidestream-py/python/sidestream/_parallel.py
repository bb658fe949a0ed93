"""Branches of a model side by side: what users call, which does not need PyTorch to be imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from sidestream._arguments import one_of

if TYPE_CHECKING:
    from sidestream._branches import Parallel

First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")
Result = TypeVar("Result")
Mode = Literal["auto", "serial", "streams"]


# The first is that of a list with a star, too.
@overload
def parallel(
    first: Callable[..., Result],
    second: Callable[..., Result],
    third: Callable[..., Result],
    fourth: Callable[..., Result],
    /,
    *more: Callable[..., Result],
    mode: Mode = "auto",
) -> Parallel[tuple[Result, ...]]: ...
@overload
def parallel(first: Callable[..., First], /, *, mode: Mode = "auto") -> Parallel[tuple[First]]: ...
@overload
def parallel(
    first: Callable[..., First], second: Callable[..., Second], /, *, mode: Mode = "auto"
) -> Parallel[tuple[First, Second]]: ...


@overload
def parallel(
    first: Callable[..., First],
    second: Callable[..., Second],
    third: Callable[..., Third],
    /,
    *,
    mode: Mode = "auto",
) -> Parallel[tuple[First, Second, Third]]: ...


def parallel(*branches: Any, mode: Mode = "auto") -> Parallel[Any]:
    """Return a module that gives its arguments to each branch, each on a stream of its own, and returns the
    tuple of their results.

    ``left, right = sidestream.parallel(f, g)(x)`` is ``f(x), g(x)``, with the same values. The branches'
    streams wait for the current one, and that waits for all of them; the host waits for nothing. Autograd
    goes through it: backward runs each branch on the stream of its forward pass. It is an ``nn.Module`` with
    the branches that are modules in it, by their numbers, so one optimizer has the parameters of all, and
    ``state_dict``, ``to`` and the rest work.

    Streams gain where a branch leaves a part of the GPU idle, and cost time where the host is late anyway. So
    with ``mode="auto"`` the first calls are measured both ways in turn, by the time from one standstill of
    the device to another, with all that comes between two calls, such as the backward pass: ten calls and
    about 50 ms at a time, two to five times each, until these agree. The streams are kept where that takes
    2 % less in the median, and less in four rounds of five. ``choice`` says what was found. Calls with
    gradients and without them are measured apart.

    What branches may share: what they read. A branch that writes to what another uses, such as the arguments,
    or a layer with running statistics in both of them, races with it. What a branch uses beside its
    arguments, such as a tensor that a closure holds, has to live until the backward pass is over.

    Args:
        branches: Modules or functions of the same arguments.
        mode: ``"auto"``; ``"serial"`` or ``"streams"`` is not measured. On the processor the branches run one
            after the other.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: A branch cannot be called.
        ValueError: There is no branch, or no such mode.
    """
    one_of("mode", mode, ("auto", "serial", "streams"))
    if not branches:
        raise ValueError(
            "there is no branch; give functions or modules of the same arguments, as in parallel(f, g)(x)"
        )
    for at, branch in enumerate(branches):
        if not callable(branch):
            hint = (
                "; give the branches one by one, as in parallel(*branches)"
                if isinstance(branch, (list, tuple))
                else ""
            )
            raise TypeError(f"branch {at} is {type(branch).__name__}, which cannot be called{hint}")
    try:
        from sidestream._branches import Parallel
    except ImportError as error:
        raise ImportError("parallel needs PyTorch, which is not installed; pip install torch") from error
    return Parallel(branches, mode)
