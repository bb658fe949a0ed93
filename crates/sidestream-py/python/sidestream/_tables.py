"""The tables of a trace: operators, ranges, kernels, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sidestream._results import Told, made


@dataclass(frozen=True)
class OperatorRow:
    """All operators, ranges, steps or calls of one name, as in ``key_averages`` of PyTorch's profiler.

    Attributes:
        name: The name.
        kind: ``operator``, ``range``, ``step`` or ``call``.
        calls: Number of them.
        host_ns: Time that the host spent in them.
        host_self_ns: ``host_ns`` without the time of operators and calls inside them.
        device_ns: Total device time of the work that they launched.
        device_self_ns: ``device_ns`` without the work that operators inside them launched.
        shapes: The shapes of their inputs, in a table ``by_shape`` of a trace that has them.
    """

    name: str
    kind: str
    calls: int
    host_ns: int
    host_self_ns: int
    device_ns: int
    device_self_ns: int
    shapes: str | None = None


@dataclass(frozen=True)
class RangeTimes:
    """The times of a range.

    Attributes:
        host_ns: Time that the host spent in it.
        device_ns: Total device time of the work that it launched.
        device_ops: Number of kernels, copies and memsets that it launched.
        idle_ns: Time that devices were idle because of it.
    """

    host_ns: int
    device_ns: int
    device_ops: int
    idle_ns: int


@dataclass(frozen=True)
class RangeRow:
    """All ranges (``record_function``, NVTX) of one name inside the same ranges of one thread.

    Attributes:
        name: The name.
        depth: Number of ranges that enclose it. The innermost of them is the last previous row with a smaller
            depth.
        calls: Number of them.
        thread: The number of the thread, if the trace has it.
        total: The times including the ranges inside it.
        own: The times without the ranges inside it.
    """

    name: str
    depth: int
    calls: int
    thread: int | None
    total: RangeTimes
    own: RangeTimes


@dataclass(frozen=True)
class KernelRow:
    """All kernels of one name, and the launch of the longest one. Fields that the trace does not have are
    None.

    Attributes:
        name: The name.
        calls: Number of them.
        total_ns: Total time of the kernels.
        longest_ns: Time of the longest kernel.
        grid: The grid of the longest kernel: its thread blocks, in three dimensions.
        block: The threads of a block, in three dimensions.
        registers: Registers of a thread.
        shared_bytes: Bytes of shared memory of a block.
        occupancy_percent: Occupancy of a multiprocessor's warps in percent, as the profiler estimates it.
        why: Properties of that launch that may limit the kernel; empty if none do.
        measure: The Nsight Compute counters to measure next.
    """

    name: str
    calls: int
    total_ns: int
    longest_ns: int | None
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    registers: int | None
    shared_bytes: int | None
    occupancy_percent: int | None
    why: tuple[str, ...] | None = None
    measure: str | None = None


@dataclass(frozen=True)
class MemoryHolder:
    """Memory that was allocated at one place and was still allocated at the peak.

    Attributes:
        operator: The innermost operator around the allocation that does more than allocate memory.
        range: The innermost range of the program around it.
        pieces: Number of allocations.
        bytes: Total bytes of these allocations.
    """

    operator: str | None
    range: str | None
    pieces: int
    bytes: int


@dataclass(frozen=True)
class MemoryRow:
    """The memory of a device over time.

    Attributes:
        device: The number of the GPU; None for host memory.
        peak_bytes: Maximum bytes that were allocated at one time.
        peak_offset_ns: Time of the peak, counted from the start of the trace.
        step: Index of the device's step at the peak, starting at 0; None outside all steps.
        before_bytes: Bytes of the peak that were allocated before the trace begins.
        taken: Number of allocations.
        given_back: Number of frees.
        holders: The places that allocated the rest of the peak, the largest first.
        points: The allocated bytes over time: pairs of nanoseconds from the start of the trace and bytes.
    """

    device: int | None
    peak_bytes: int
    peak_offset_ns: int
    step: int | None
    before_bytes: int
    taken: int
    given_back: int
    holders: tuple[MemoryHolder, ...]
    points: tuple[tuple[int, int], ...]


#: The rows of each table.
_ROWS = {"operators": OperatorRow, "ranges": RangeRow, "kernels": KernelRow, "memory": MemoryRow}


class Table(Told):
    """One table of a trace, sorted and cut. ``print`` shows it as ``sidestream diagnose --table`` does, and a
    loop over it gives its rows.

    The schema of its JSON is ``sidestream.diagnose.table/1``.
    """

    @cached_property
    def rows(self) -> tuple[Any, ...]:
        """The rows: ``OperatorRow``, ``RangeRow``, ``KernelRow`` or ``MemoryRow``."""
        whole = self.to_dict()
        return tuple(made(_ROWS[whole["table"]], row) for row in whole["rows"])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Any:
        return self.rows[at]
