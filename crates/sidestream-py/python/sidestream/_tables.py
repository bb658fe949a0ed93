"""The tables of a trace: operators, ranges, kernels, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sidestream._results import Told, made


@dataclass(frozen=True)
class OperatorRow:
    """All operators, ranges, steps or calls of one name, as ``key_averages`` of PyTorch's profiler has them.

    Attributes:
        name: Its name.
        kind: ``operator``, ``range``, ``step`` or ``call``.
        calls: How many.
        host_ns: How long the host was in it.
        host_self_ns: The same without what was inside it.
        device_ns: How long what was launched in it took on devices, one after the other.
        device_self_ns: The same without what operators inside it launched.
        shapes: The shapes of its inputs, in a table ``by_shape`` of a trace that has them.
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
    """Times that are given out to ranges.

    Attributes:
        host_ns: How long the host was in it.
        device_ns: How long what was launched in it took on devices, one after the other.
        device_ops: How many kernels, copies and memsets that is.
        idle_ns: How long devices did nothing for it.
    """

    host_ns: int
    device_ns: int
    device_ops: int
    idle_ns: int


@dataclass(frozen=True)
class RangeRow:
    """All ranges of one name inside of the same ranges of one thread: ``record_function``, NVTX.

    Attributes:
        name: Its name.
        depth: How many ranges are around it. The one around it is the last row before it with a smaller
            depth.
        calls: How many.
        thread: The thread, where the trace has its number.
        total: What it has with the ranges inside it.
        own: What it has without them.
    """

    name: str
    depth: int
    calls: int
    thread: int | None
    total: RangeTimes
    own: RangeTimes


@dataclass(frozen=True)
class KernelRow:
    """All kernels of one name, and how the longest of them was launched; none where the trace does not say.

    Attributes:
        name: Its name.
        calls: How many.
        total_ns: How long they took, one after the other.
        longest_ns: How long the longest took.
        grid: Its blocks, in three dimensions.
        block: The threads of a block, in three dimensions.
        registers: The registers that a thread takes.
        shared_bytes: The shared memory that a block takes.
        occupancy_percent: How much of the warps that fit on a multiprocessor were there,
            as the profiler estimates it.
        why: What in that launch may hold it back; empty where nothing does.
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
    """Memory that was taken at one place and not given back when most was taken.

    Attributes:
        operator: The innermost operator around it that does more than take memory.
        range: The innermost range of the program around it.
        pieces: How many pieces.
        bytes: How much.
    """

    operator: str | None
    range: str | None
    pieces: int
    bytes: int


@dataclass(frozen=True)
class MemoryRow:
    """The memory of a device over time.

    Attributes:
        device: The number of the GPU; none for memory of the host.
        peak_bytes: The most that was taken at one time.
        peak_offset_ns: When that was, counted from the start of the trace.
        step: The step that the device was in then, from 0, where it was in one.
        before_bytes: How much of it was taken before the trace begins.
        taken: How often memory was taken.
        given_back: How often it was given back.
        holders: Who held the rest, the largest first.
        points: How much was taken when: pairs of nanoseconds from the start of the trace and bytes.
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
