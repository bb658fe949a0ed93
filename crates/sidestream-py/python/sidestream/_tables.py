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
        host_ns: How long the host was in them.
        host_self_ns: ``host_ns`` without what was inside them.
        device_ns: How long the work that they launched took on devices, added up.
        device_self_ns: ``device_ns`` without what operators inside them launched.
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
        host_ns: How long the host was in it.
        device_ns: How long the work that it launched took on devices, added up.
        device_ops: Number of kernels, copies and memsets that it launched.
        idle_ns: How long devices were idle because of it.
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
        depth: Number of ranges around it. The range around it is the last row before it with a smaller depth.
        calls: Number of them.
        thread: The number of the thread, where the trace has it.
        total: The times with the ranges inside it.
        own: The times without them.
    """

    name: str
    depth: int
    calls: int
    thread: int | None
    total: RangeTimes
    own: RangeTimes


@dataclass(frozen=True)
class KernelRow:
    """All kernels of one name, and how the longest of them was launched; None where the trace does not say.

    Attributes:
        name: The name.
        calls: Number of them.
        total_ns: How long they took, added up.
        longest_ns: How long the longest took.
        grid: Its blocks, in three dimensions.
        block: The threads of a block, in three dimensions.
        registers: Registers of a thread.
        shared_bytes: Bytes of shared memory of a block.
        occupancy_percent: Occupancy of a multiprocessor's warps in percent, as the profiler estimates it.
        why: What in that launch may limit it; empty where nothing does.
        measure: The counters of Nsight Compute to measure next.
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
    """Memory that was allocated at one place and not freed when the peak was reached.

    Attributes:
        operator: The innermost operator around the allocation that does more than allocate memory.
        range: The innermost range of the program around it.
        pieces: Number of allocations.
        bytes: Bytes of them.
    """

    operator: str | None
    range: str | None
    pieces: int
    bytes: int


@dataclass(frozen=True)
class MemoryRow:
    """The memory of a device over time.

    Attributes:
        device: The number of the GPU; None for memory of the host.
        peak_bytes: The most bytes that were allocated at one time.
        peak_offset_ns: When that was, counted from the start of the trace.
        step: The step that the device was in then, from 0; None where it was in none.
        before_bytes: Bytes of it that were allocated before the trace begins.
        taken: Number of allocations.
        given_back: Number of frees.
        holders: What held the rest at the peak, the largest first.
        points: How much was allocated when: pairs of nanoseconds from the start of the trace and bytes.
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

    def __init__(self, as_json: str, as_text: str) -> None:
        """Take the table as JSON and as text. ``Diagnosis.table`` makes these."""
        self._json = as_json
        self._text = as_text

    @cached_property
    def rows(self) -> tuple[Any, ...]:
        """Its rows: ``OperatorRow``, ``RangeRow``, ``KernelRow`` or ``MemoryRow``."""
        whole = self.to_dict()
        return tuple(made(_ROWS[whole["table"]], row) for row in whole["rows"])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Any:
        return self.rows[at]
