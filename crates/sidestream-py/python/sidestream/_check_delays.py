"""Runs a program with a delay at one race, and keeps what its operators compute.

A *hidden* write is the second means beside a delay: right after an access has written, on its stream, its
bytes are saved, overwritten, and restored later: what the first access wrote after a delay, what the second
wrote once the first is complete. Work that is ordered after the access cannot see that; work that is not sees
bytes that are wrong whatever the program's values are.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: An operator, and the text of the innermost line of the program that called it: a fix moves line numbers.
#: Operators of a backward pass are called by no line, and are recognized by their name alone.
Call = tuple[str, str]


@dataclass(frozen=True)
class How:
    """How a run differs from a plain one.

    Attributes:
        first: The call to delay.
        second: The call that it races with.
        waits: Whether the host waits for the device after each operator.
        hides: Whether what the two calls write is hidden for the time of a delay.
        keeps: Whether tensors that the two calls write are kept until the end and compared again: an access
            that comes late shows only there. Kept memory is not reused, so races over reused memory do not
            show.
        by_line: Whether the delay comes when the line is reached, for calls that are not operators or come
            from other threads, instead of right before the operator.
        delays_host: Whether the host is delayed, not the device.
        both: Whether the second call is delayed, too.
        delays: Whether there is a delay at all: without one, a run with ``waits`` shows what the host finds.
        fill: The byte that free memory is filled with before the run.
    """

    first: Call | None = None
    second: Call | None = None
    waits: bool = False
    hides: bool = False
    keeps: bool = False
    by_line: bool = False
    delays_host: bool = False
    both: bool = False
    delays: bool = True
    fill: int = 0xA5

    @property
    def text(self) -> str:
        """What was done, to follow the number of runs."""
        what = "a delay of the host" if self.delays_host else "a delay"
        return f"with {what} before the first access" + (
            " and its bytes hidden until the delay after it was over" if self.hides else ""
        )


class Run:
    """What a run of a program gave.

    Attributes:
        results: The results by key, in the order in which they were made.
        delays: Number of delays.
        overlaps: For each call of the second access: whether the first was complete when the host called it,
            and whether it began on the device before the first was complete.
        gap: The longest time between two operators for which the host waited after a delay, in milliseconds,
            and the two operators.
        error: The exception that ended the program.
        same_stream: Whether both accesses were on one stream.
        is_collective: Whether the first access is a collective.
        second_on_device: Whether the second access was seen on a device: then the host does not read what it
            reads.
        counts: The number of calls of each operator at each line.
        mixed: The calls that more than one thread makes: which result is whose may differ from run to run.
    """

    def __init__(self) -> None:
        self.results: dict[Any, Any] = {}
        self.delays = 0
        self.overlaps: list[tuple[bool, bool]] = []
        self.gap: tuple[float, Call, Call] | None = None
        self.error: str | None = None
        self.same_stream = False
        self.is_collective = False
        self.second_on_device = False
        self.counts: dict[Any, int] = {}
        self.mixed: set[Call] = set()


class DeviceFailed(Exception):
    """The device has failed in a run that does not wait, so that nothing more can run in this process."""


def run(function: Callable[[], Any], how: How, watched: set[Call], delay: Delay, seed: int) -> Run:
    """Run a function once.

    Raises:
        DeviceFailed: A kernel that came too early has failed, as with an index that is out of bounds.
        Exception: Whatever the function raises, if the run waits after each operator.
    """
    import torch

    from sidestream._check_delay_mode import Mode, overwrite_free_memory, traced, wait_for_devices

    seeded(seed)
    overwrite_free_memory(how.fill)
    mode = Mode(how, watched, delay)
    returned: Any = None
    with contextlib.ExitStack() as stack:
        mode.hear(stack)
        try:
            with mode, traced(mode if how.first is not None else None):
                returned = function()
        except torch.cuda.OutOfMemoryError:
            # What is kept here takes memory, too, so this says nothing of the program.
            if how.waits:
                raise
        except Exception as error:
            if how.waits:
                raise
            mode.run.error = f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            mode.is_over = True
    try:
        wait_for_devices()
    except RuntimeError as error:
        if how.waits:
            raise
        raise DeviceFailed(str(error).splitlines()[0]) from None
    mode.end(returned)
    return mode.run


@dataclass(frozen=True)
class Delay:
    """The length of a delay, in milliseconds and in cycles of the device's clock."""

    ms: float
    cycles: int

    @classmethod
    def of(cls, ms: float) -> Delay:
        """Measure the clock by which the device counts."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1000)
        start.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        end.synchronize()
        return cls(ms, int(ms * 10_000_000 / start.elapsed_time(end)))


def seeded(seed: int) -> None:
    """Seed the random numbers of Python, PyTorch and numpy."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
