"""``Diagnosis``: the reasons why a GPU idled, from one trace."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from sidestream import _sidestream
from sidestream._arguments import file_name, whole
from sidestream._results import Told, made
from sidestream._tables import KernelRow, MemoryRow, OperatorRow, RangeRow, Table
from sidestream._unprofiled import Unprofiled

_T = TypeVar("_T")


def diagnose(
    path: str | os.PathLike[str],
    *,
    link_gbps: float | None = None,
    what_if: str | Iterable[str] | None = None,
) -> Diagnosis:
    """Read one trace, as ``sidestream.diagnose`` does, which documents the arguments and the errors."""
    return Diagnosis(*_sidestream.diagnose(file_name("path", path), speed(link_gbps), sets_of(what_if)))


def speed(link_gbps: float | None) -> float | None:
    """Return ``link_gbps`` if it is a number or None. The extension checks the value."""
    if link_gbps is None or (isinstance(link_gbps, (int, float)) and not isinstance(link_gbps, bool)):
        return link_gbps
    raise TypeError(f"link_gbps is {link_gbps!r}; give GB/s as a number, as in 25")


def sets_of(what_if: str | Iterable[str] | None) -> list[str] | None:
    """Return the changes to predict as a list, with one string for each prediction."""
    if what_if is None or what_if == "all":
        return None
    sets = [what_if] if isinstance(what_if, str) else what_if
    sets = list(sets) if isinstance(sets, Iterable) else [sets]
    if not all(isinstance(one, str) for one in sets):
        raise TypeError(
            f'what_if is {what_if!r}; give a string such as "pinned,no-sync", a list of such strings, or '
            '"all"'
        )
    if sets == ["all"]:
        return None
    if "all" in sets:
        raise ValueError(
            'what_if has "all" among others; give "all" alone, which is what is predicted anyway, '
            "or the others"
        )
    return sets


class Diagnosis(Told):
    """The diagnosis of one trace. ``print`` shows it, the worst finding first.

    docs/guide/diagnose.md says what each figure means. Times are whole nanoseconds of the trace. The schema
    of its JSON is ``sidestream.diagnose/2``. It can be pickled, without the tables of ``table``.
    """

    def __init__(
        self,
        as_json: str,
        as_text: str,
        as_html: str,
        in_short: str,
        rank: str,
        tables: _sidestream.Tables | None = None,
    ) -> None:
        """Take the report as JSON, text, HTML and in short form, the digest for comparing ranks, and the
        tables.

        ``diagnose`` makes these.
        """
        self._json = as_json
        self._text = as_text
        self._html = as_html
        self._short = in_short
        self._rank = rank
        self._tables = tables

    def html(self) -> str:
        """Return the report as one HTML page, which loads nothing and can be kept or sent."""
        return self._html

    def _repr_html_(self) -> str:
        # The page is in a frame, so that its style and scripts and those of the notebook do not affect each
        # other.
        page = html.escape(self._html)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" '
            'style="width:100%;height:40em;border:0"></iframe>'
        )

    @cached_property
    def _report(self) -> dict[str, Any]:
        return self.to_dict()

    @property
    def file(self) -> str:
        """Path of the trace that was read."""
        return str(self._report["file"])

    @property
    def rank(self) -> int | None:
        """The rank of the process, if the trace states it; otherwise None."""
        rank: int | None = self._report["source"]["rank"]
        return rank

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings that cost time, the most valuable one first."""
        return self._part("findings", tuple[Finding, ...])

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The activity of each device, and every nanosecond that it was idle, by cause."""
        return self._part("devices", tuple[Device, ...])

    @cached_property
    def steps(self) -> Steps:
        """The number of steps of the program, and their times."""
        return self._part("steps", Steps)

    @cached_property
    def unprofiled(self) -> Unprofiled | None:
        """The time of a step before the profiler started, if ``profile`` timed it and wrote it to the trace;
        otherwise None.
        """
        return None if self._report.get("unprofiled") is None else self._part("unprofiled", Unprofiled)

    @cached_property
    def what_if(self) -> tuple[Prediction, ...]:
        """The predicted gains of changes; empty if the trace cannot be replayed."""
        return self._part("what_if", tuple[Prediction, ...])

    @cached_property
    def replay(self) -> Replay:
        """How well a replay explains the trace, or the reason why there is none."""
        return self._part("replay", Replay)

    @cached_property
    def operators(self) -> tuple[OperatorRow, ...]:
        """Operators, ranges and calls by name, as in ``key_averages`` of PyTorch's profiler: up to a hundred,
        by their self time on devices.
        """
        return self._table("operators", tuple[OperatorRow, ...])

    @cached_property
    def ranges(self) -> tuple[RangeRow, ...]:
        """The ranges that the program named, up to a hundred, each after the range that encloses it."""
        return self._table("ranges", tuple[RangeRow, ...])

    @cached_property
    def kernels(self) -> tuple[KernelRow, ...]:
        """Kernels by name, up to a hundred, the longest first."""
        return self._table("kernels", tuple[KernelRow, ...])

    @cached_property
    def memory(self) -> tuple[MemoryRow, ...]:
        """The memory of devices over time, and what occupied it; empty if the profiler did not record it."""
        return self._table("memory", tuple[MemoryRow, ...])

    def table(
        self, name: str, *, sort: str | None = None, limit: int = 20, by_shape: bool = False
    ) -> Table:
        """Return one table of the trace, sorted and cut as ``sidestream diagnose --table`` does.

        ::

            print(report.table("operators", sort="host-self", limit=10, by_shape=True))

        Args:
            name: ``operators``, as ``key_averages`` of PyTorch's profiler; ``ranges``, ``kernels`` or
                ``memory``.
            sort: The column to sort by, the largest first: ``device``, ``device-self``, ``host``,
                ``host-self``, ``idle``, ``idle-self`` or ``calls``, where the table has it. By default the
                time of devices, or of the host where there is none.
            limit: Maximum number of rows.
            by_shape: Whether operators with inputs of other shapes have separate rows. The profiler records
                shapes with ``record_shapes=True``.

        Raises:
            ValueError: There is no such table, it has no such column or no shapes, or ``limit`` is less than
                1.
            RuntimeError: The diagnosis was unpickled, and a pickle does not have the tables.
        """
        limit = whole("limit", limit, 1, "the maximum number of rows")
        if self._tables is None:
            raise RuntimeError(
                "a diagnosis that was unpickled has no tables to sort; make the table before, or diagnose "
                "the trace again"
            )
        return Table(*self._tables.table(name, sort, limit, by_shape))

    @cached_property
    def warnings(self) -> tuple[TraceWarning, ...]:
        """Warnings that a reader has to know about the trace."""
        return self._part("warnings", tuple[TraceWarning, ...])

    def _part(self, name: str, of: type[_T]) -> _T:
        part: _T = made(of, self._report[name])
        return part

    def _table(self, name: str, of: type[_T]) -> _T:
        part: _T = made(of, self._report["tables"][name])
        return part

    def __repr__(self) -> str:
        codes = ", ".join(finding.code for finding in self.findings)
        return f"<Diagnosis of {self.file}: {codes}>"

    def __getstate__(self) -> dict[str, str | None]:
        # Cached fields are parsed again when they are used.
        texts = ("_json", "_text", "_html", "_short", "_rank")
        return {name: getattr(self, name) for name in texts} | {"_tables": None}


@dataclass(frozen=True)
class Estimate:
    """A time in nanoseconds that is not known exactly.

    Attributes:
        low: The lower bound.
        likely: The likely time.
        high: The upper bound.
    """

    low: int
    likely: int
    high: int


@dataclass(frozen=True)
class Evidence:
    """A place in the trace that shows a finding.

    Attributes:
        what: The kernel, copy or memset. For a gap, the call or named range for which the device was idle, or
            a statement that the trace shows none.
        start_ns: The start of the work or of the gap, on the clock of the trace.
        duration_ns: Its duration.
        offset_ns: Its start, counted from the start of the trace.
        step: The index of its step, starting at 0; None if it is in no step.
        call: The CUDA call that submitted it; None if that is not known.
        operators: The operators around that call or around the gap, the outermost first.
        is_gap: Whether this is a gap, in which the device was idle.
    """

    what: str
    start_ns: int
    duration_ns: int
    offset_ns: int | None = None
    step: int | None = None
    call: str | None = None
    operators: tuple[str, ...] = ()
    is_gap: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing that costs time.

    Attributes:
        code: The kind of finding, as in docs/guide/diagnose.md.
        text: The cause of the lost time, its size, and advice.
        share: The share of the step time that it takes, from 0 to 1. For ``STARTUP``, ``INITIALISATION`` and
            ``PROFILER_OVERHEAD`` the share of the time from the first to the last operation of the device;
            for ``NOTHING_TO_GAIN`` 0.
        saving_ns: The time by which a step would be shorter without it; if nothing is predicted, only
            ``high`` is above 0.
        evidence: Places in the trace that show it.
        floor_ns: The step time below which no change of this kind can go.
        changes: The changes that remove it, in the form that ``what_if`` takes; empty if none was tried.
        is_aside: Whether it is not a cause of idle time: it concerns the trace itself, or holds under a
            condition.
    """

    code: str
    text: str
    share: float
    saving_ns: Estimate
    evidence: tuple[Evidence, ...]
    floor_ns: int = 0
    changes: tuple[str, ...] = ()
    is_aside: bool = False


@dataclass(frozen=True)
class StreamLoad:
    """The work on one stream of a device.

    Attributes:
        stream: The number of the stream, where the trace has one.
        context: The number of its CUDA context, where the trace has one.
        gpu_ops: Number of kernels, copies and memsets on it.
        busy_ns: The time in which at least one of them ran.
    """

    stream: int | None
    context: int | None
    gpu_ops: int
    busy_ns: int


@dataclass(frozen=True)
class Device:
    """The activity of a device from its first operation to its last.

    Attributes:
        process: The process that used it, where the trace names one.
        device: The number of the GPU.
        name: The vendor's name of the GPU.
        gpu_ops: Number of kernels, copies and memsets.
        span_ns: The time from the start of the first of them to the end of the last.
        busy_ns: The union of their times: concurrent operations count once.
        idle_ns: The span without ``busy_ns``.
        kernel_ns: The union of the times of kernels.
        host_copy_ns: The time of copies between host and device.
        hidden_copy_ns: The part of these copies during which a kernel ran.
        gaps_10us: Number of gaps between operations of 10 microseconds or more.
        gaps_1ms: Number of gaps of a millisecond or more.
        idle_by_cause: Every idle nanosecond, each under one cause.
        streams: The work on each stream.
        overlap_ns: How long two kinds of work ran at once; for a kind and itself, how long any of it ran.
    """

    process: int | None
    device: int
    name: str
    gpu_ops: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    kernel_ns: int
    host_copy_ns: int
    hidden_copy_ns: int
    gaps_10us: int
    gaps_1ms: int
    idle_by_cause: Mapping[str, int]
    streams: tuple[StreamLoad, ...]
    overlap_ns: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Steps:
    """The steps of a program: from the last GPU operation of one to that of the next.

    Attributes:
        count: Number of steps.
        median_ns: The median; None, as the two quantiles, where there are too few steps.
        by: The method by which the steps were found.
        p10_ns: The time below which a tenth of the steps stay.
        p90_ns: The time below which nine tenths of the steps stay.
        mean_ns: The mean of all steps, which shares and savings refer to.
    """

    count: int
    median_ns: int | None
    by: str
    p10_ns: int | None
    p90_ns: int | None
    mean_ns: int | None = None


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a step with some changes.

    Attributes:
        changes: The changes, applied together.
        step_ns: The time of a step with these changes, without the profiler.
        ratio: The likely time of that step divided by that of the present one, both without the profiler.
    """

    changes: tuple[str, ...]
    step_ns: Estimate
    ratio: float


@dataclass(frozen=True)
class Replay:
    """How well a replay of the trace, as a program in a simulation, reproduces its time.

    Attributes:
        ok: Whether the times agree closely enough for predictions.
        measured_ns: The mean step time of the trace.
        replayed_ns: The mean step time of the replay. Where only the first steps were replayed, it is scaled
            by how much faster or slower these are than all steps.
        median_error: The difference of the two, as a share of the measured one.
        steps: Number of steps that were replayed, the first ones.
        explained_share: The share of the time of these steps that the replay explains, step by step.
        unprofiled_ns: The time of a step without the profiler, which slows down the host; predictions are
            without the profiler, too.
        base: The source of ``unprofiled_ns``: ``measured`` before the profiler started, or ``estimated``
            from the trace.
        why: The reason if there is no replay.
    """

    ok: bool
    measured_ns: int | None = None
    replayed_ns: int | None = None
    median_error: float | None = None
    steps: int | None = None
    explained_share: float | None = None
    unprofiled_ns: int | None = None
    base: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class TraceWarning:
    """A warning that a reader has to know about a trace.

    Attributes:
        code: The kind of warning.
        text: The text of the warning.
    """

    code: str
    text: str
