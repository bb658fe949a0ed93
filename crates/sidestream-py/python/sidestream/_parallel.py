"""``parallel``: branches of a model that run concurrently. Importing this does not import PyTorch."""

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


# This first overload also matches a list that is unpacked with a star.
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
    """Return a module that calls each branch with the same arguments, each on a separate stream, and returns
    the tuple of their results.

    ``left, right = sidestream.parallel(f, g)(x)`` has the values of ``f(x), g(x)``, in forward and backward,
    bit for bit if PyTorch's algorithms are deterministic. The result is an ``nn.Module``. Branches that
    are modules are its submodules, named by their numbers, so ``parameters()``, ``state_dict()``, ``to()``
    and one optimizer for all work as usual. A branch may also be a function, or consist of branches itself.

    **Ordering.** The first branch runs on the current stream, each other one on a side stream that waits for
    the current stream at the start. At the end the current stream waits for all of them; the host does not.
    Backward runs each branch on the stream of its forward pass. Arguments may be nested as for ``fetch``;
    tensors inside objects of other classes are not seen, and need ``record_stream``.

    **Measurement.** Side streams gain time if a branch leaves a part of the GPU idle, and cost time if the
    host is the limit. So with ``mode="auto"`` the first calls are made both ways in turn, in two to five
    segments of each until these agree. A segment has at least ten calls and takes about 50 ms; the device is
    idle at both of its ends. The time of a call ends at the next call, so it includes the backward pass.
    Streams are kept if they take 2 % less in the median, and less in four rounds of five. Calls with
    gradients and calls without are measured separately. ``choice`` has the result, and ``remeasure()`` starts
    over. During a capture nothing is measured, and the branches run on streams unless they were measured to
    be faster one after another.

    **What branches may share.** Branches may share data that they only read. A branch that writes to data of
    another one, such as an argument or the running statistics of a layer in both, races with it. A tensor
    that a branch uses but does not get as an argument, such as one that a closure holds, must live until the
    backward pass is complete. Under ``autocast`` the branches convert a weight at each use, because streams
    would share autocast's cache without a wait.

    Args:
        branches: Modules or functions that take the same arguments.
        mode: ``"auto"``, or ``"serial"`` or ``"streams"``, which measure nothing. On the CPU the branches run
            one after another.

    Returns:
        The module, which has ``choice`` and ``remeasure()``.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: A branch cannot be called.
        ValueError: There is no branch, or ``mode`` is not one of these.
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
