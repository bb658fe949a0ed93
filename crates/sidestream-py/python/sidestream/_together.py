"""``diagnose``: explains why GPUs idled, from one trace or from those of all ranks of a run."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from sidestream import _diagnosis, _sidestream
from sidestream._arguments import file_name
from sidestream._diagnosis import Diagnosis, sets_of
from sidestream._results import Result, Told, made


# No type distinguishes the path of a folder from that of a file: hence `Any` in addition to the usual result.
# A string is also an iterable of strings; the first overload takes it.
@overload
def diagnose(  # type: ignore[overload-overlap]
    path: str | os.PathLike[str],
    *,
    link_gbps: float | None = None,
    what_if: str | Iterable[str] | None = None,
) -> Diagnosis | Any: ...
@overload
def diagnose(
    path: Iterable[str | os.PathLike[str]],
    *,
    link_gbps: float | None = None,
    what_if: str | Iterable[str] | None = None,
) -> Diagnoses: ...
def diagnose(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    link_gbps: float | None = None,
    what_if: str | Iterable[str] | None = None,
) -> Diagnosis | Diagnoses:
    """Read a trace and return the causes of lost time in it, and the predicted gain of changes.

    Nothing runs, and no GPU is needed. Other threads run meanwhile. A file gives a ``Diagnosis``. A folder,
    or a list of files and folders, gives ``Diagnoses``: a diagnosis of each trace, and a comparison of the
    ranks of one run. A type checker cannot tell a folder from a file; for ``[folder]`` it knows that the
    result is ``Diagnoses``. ``sidestream.ray.diagnose`` does this in many processes.

    Args:
        path: The JSON of PyTorch's profiler (``.json``, ``.json.gz``), an export of Nsight Systems
            (``nsys export --type sqlite``), or a trace that Sidestream wrote; a folder of these, or a list.
        link_gbps: The speed of copies from and to pinned memory, in GB/s. By default it is taken from the
            trace, or from a table of devices.
        what_if: Changes to predict: ``pinned``, ``prefetch=N``, ``no-sync``, ``async-output``,
            ``fused=RANGE``, ``graphs``, ``workers=N``, ``more-workers=N``, ``host-work=N``,
            ``second-stream``, ``pipeline=RANGE,RANGE``, ``non-blocking-streams``,
            ``drop-wait=STREAM:STREAM``. One string is one prediction, of the changes in it together, as in
            ``"pinned,no-sync"``; a list of strings is several predictions. By default, and with ``"all"``,
            the usual ones.

    Raises:
        TraceError: The file is not a trace that can be read, or the folder has none; the message has advice.
            With several traces, those that cannot be read are in ``Diagnoses.failed`` instead.
        OSError: The system cannot read the file; ``FileNotFoundError`` if there is none.
        TypeError: ``path`` is neither a path nor a list of paths.
        ValueError: ``link_gbps`` is not a speed, there is no such change, or the list is empty.
    """
    if isinstance(path, (str, os.PathLike)) and not os.path.isdir(path):
        return _diagnosis.diagnose(path, link_gbps=link_gbps, what_if=what_if)
    wanted = sets_of(what_if)
    return Diagnoses(diagnosis_or_failure(one, link_gbps, wanted) for one in files(path))


def files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the named files, and the traces in the named folders."""
    # Open files and bytes are iterable, too, but are not lists of paths.
    if (
        not isinstance(paths, (str, os.PathLike, Iterable))
        or isinstance(paths, (bytes, bytearray))
        or hasattr(paths, "read")
    ):
        raise TypeError(f"path is {reprlib.repr(paths)}; give a file, a folder, or a list of these")
    named = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not named:
        raise ValueError("no traces were named; give a folder, or a list of files")
    found: list[str] = []
    for path in named:
        file_name("path", path)
        inside = _sidestream.traces(path) if os.path.isdir(path) else [path]
        found.extend(os.fspath(one) for one in inside)
    return found


def diagnosis_or_failure(
    path: str, link_gbps: float | None, what_if: list[str] | None
) -> Diagnosis | FailedTrace:
    """Read a trace. One that cannot be read gives a ``FailedTrace``, so that the others are still read."""
    try:
        return _diagnosis.diagnose(path, link_gbps=link_gbps, what_if=what_if)
    except (_sidestream.TraceError, OSError) as error:
        return FailedTrace(path, str(error), error)


@dataclass(frozen=True)
class RankDigest:
    """The data of a trace for the comparison of ranks, without its own diagnosis: some 32 bytes for each
    exchange of data.

    Attributes:
        file: The path of the trace.
    """

    file: str
    _digest: str = field(repr=False)


def digest_or_failure(path: str) -> RankDigest | FailedTrace:
    """Read the data of a trace for the comparison of ranks."""
    try:
        return RankDigest(path, _sidestream.digest(path))
    except (_sidestream.TraceError, OSError) as error:
        return FailedTrace(path, str(error), error)


@dataclass(frozen=True)
class FailedTrace:
    """A trace that could not be diagnosed.

    Attributes:
        file: The path of the trace.
        why: The problem of the trace, or of the process that read it, with advice.
        error: The exception.
    """

    file: str
    why: str
    error: Exception = field(compare=False, repr=False)


#: Maximum number of traces of ranks that are shown one by one.
_MOST_SHORT = 8


def _digest(one: Diagnosis | RankDigest) -> str:
    return one._rank if isinstance(one, Diagnosis) else one._digest


class Diagnoses(Result):
    """The diagnoses of several traces. ``print`` shows up to eight of them, those of ranks in short, then the
    ranks together.

    Attributes:
        reports: The ``Diagnosis`` of each trace that could be read, in the order of the traces.
        failed: The traces that could not be read, and why. The other traces are still read.
        ranks: The ranks of one run together; None unless at least two traces state their ranks in the same
            run.
    """

    reports: tuple[Diagnosis, ...]
    failed: tuple[FailedTrace, ...]
    ranks: Ranks | None

    def __init__(self, results: Iterable[Diagnosis | RankDigest | FailedTrace]) -> None:
        """Take the result for each trace. ``diagnose`` makes these."""
        results = list(results)
        self._count = len(results)
        self.reports = tuple(one for one in results if isinstance(one, Diagnosis))
        self.failed = tuple(one for one in results if isinstance(one, FailedTrace))
        digests = [_digest(one) for one in results if not isinstance(one, FailedTrace)]
        together = _sidestream.ranks(digests, f"{len(digests)} traces")
        self.ranks = None if together is None else _ranks(*together)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as new dictionaries and lists, of the schema ``sidestream.diagnoses/1``:
        ``reports``, ``failed`` and ``ranks``.
        """
        return {
            "schema": "sidestream.diagnoses/1",
            "reports": [report.to_dict() for report in self.reports],
            "failed": [{"file": one.file, "error": one.why} for one in self.failed],
            "ranks": self.ranks and self.ranks.to_dict(),
        }

    @cached_property
    def _text(self) -> str:
        # As in the command's output: the diagnosis of one rank is long, and much like those of the others.
        shown = (
            self.reports if self._count <= _MOST_SHORT else [one for one in self.reports if one.rank is None]
        )
        parts = [one._short if self._count > 1 and one.rank is not None else str(one) for one in shown]
        parts += [f"failed: {one.file}: {one.why.removeprefix(f'{one.file}: ')}" for one in self.failed]
        if self.ranks is not None:
            parts.append(str(self.ranks))
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<Diagnoses of {len(self.reports)} traces{failed}>"


@dataclass(frozen=True)
class RankStep:
    """The activity of a rank's devices in a step, in nanoseconds: each figure is a median over the steps, and
    the mean over the devices.

    Attributes:
        count: Number of steps; 0 if the figures are of the whole trace.
        time_ns: The time of the step.
        p10_ns: The time below which a tenth of the steps stay.
        p90_ns: The time below which nine tenths of the steps stay.
        busy_ns: The union of the times of kernels, copies and memsets.
        idle_ns: The rest of the step. This is a median too, so it may differ from ``time_ns`` minus
            ``busy_ns``.
        kernel_ns: The union of the times of kernels.
        copy_ns: The time of copies between host and device.
        exposed_copy_ns: The part of these copies during which no kernel ran.
        communication_ns: The time of data exchanges between devices.
        exposed_communication_ns: The part of these exchanges during which no computing kernel ran.
    """

    count: int
    time_ns: int
    p10_ns: int
    p90_ns: int
    busy_ns: int
    idle_ns: int
    kernel_ns: int
    copy_ns: int
    exposed_copy_ns: int
    communication_ns: int
    exposed_communication_ns: int


@dataclass(frozen=True)
class Rank:
    """One rank of a run.

    Attributes:
        rank: The number of the rank.
        file: The path of its trace.
        step: The activity of its devices in a step.
        idle_by_cause: Idle nanoseconds of a step, by cause.
        waits_ns: The time per step that it waits for other ranks, in exchanges of data.
        late_ns: The time per step that other ranks wait for it: in each exchange, the longest wait counts.
        pairs_ns: The part of ``waits_ns`` in sends and receives: the bubbles of a pipeline.
        parts: The mean time per step of the rank's own work: ``compute``, ``copies``, ``loader``, ``host``,
            ``other``.
    """

    rank: int
    file: str
    step: RankStep
    idle_by_cause: Mapping[str, int]
    waits_ns: int
    late_ns: int
    pairs_ns: int
    parts: Mapping[str, int]


@dataclass(frozen=True)
class SlowRank:
    """The rank that makes the step of all ranks longer.

    Attributes:
        rank: The number of the rank.
        cause: The part of its step with the largest excess over the other ranks: ``compute``, ``copies``,
            ``loader``, ``host`` or ``other``.
        cause_ns: This excess.
        name: The name of that part in the trace, if there is one, such as a range of the host.
        excess_ns: The time by which its own work in a step exceeds the median of the ranks that it is
            compared with.
        compared: Number of these ranks.
        is_alike: Whether these ranks exchange the same data as this one; otherwise all other ranks are
            compared.
        step_ns: The time of a step in a replay of all ranks.
        predicted_ns: The time of that step if this rank were as fast as the median.
        slowed_ns: The time in a step by which kernels of the compared ranks were slower beside exchanges that
            waited, which the predicted step does not have.
    """

    rank: int
    cause: str
    cause_ns: int
    name: str | None
    excess_ns: int
    compared: int
    is_alike: bool
    step_ns: int
    predicted_ns: int
    slowed_ns: int


@dataclass(frozen=True)
class RankGroups:
    """The process groups of one description and size.

    Attributes:
        name: Their description, if they have one.
        is_known: Whether the traces state the ranks of each group.
        count: Number of groups.
        size: Number of ranks in each group, if that is known.
        missing: Number of their ranks that have no trace.
        exchanges: Number of exchanges that were matched between ranks.
        is_numbered: Whether the exchanges were matched by their numbers; otherwise by their order.
        waits_ns: The mean time per step that a rank waits in these groups.
        most: The rank that waits most.
        most_ns: The time per step that this rank waits.
        last: The rank for which the others wait most.
        last_ns: The time per step that others wait for this rank.
    """

    name: str
    is_known: bool
    count: int
    size: int | None
    missing: int
    exchanges: int
    is_numbered: bool
    waits_ns: int
    most: int
    most_ns: int
    last: int
    last_ns: int


@dataclass(frozen=True)
class LongWait:
    """An exchange of data in which a rank waited long.

    Attributes:
        operation: PyTorch's name for the operation.
        group: The process group.
        seq: The number of the exchange in the group, if the traces have one.
        elements: Number of input elements.
        last: The last rank to arrive, of those that have traces.
        waited: The rank that waited longest.
        waited_ns: The time that this rank waited.
        all_ns: The total time that all ranks waited.
        offset_ns: The time at which the exchange was complete, counted from the first exchange.
    """

    operation: str
    group: str
    seq: int | None
    elements: int
    last: int
    waited: int
    waited_ns: int
    all_ns: int
    offset_ns: int


@dataclass(frozen=True)
class Ranks(Told):
    """The ranks of one run. ``print`` shows them as a table.

    The schema of their JSON is ``sidestream.diagnose.ranks/2``.

    Attributes:
        world: Number of ranks in the run, if the traces state it.
        ranks: Each rank that has a trace, by number.
        slowest: The number of the rank with the longest step.
        spread: The difference of the longest and the shortest step, as a share of the median one.
        straggler: The number of the rank that makes the step longer, if a single one does; otherwise None.
        slow: That rank, with the cause and its cost; None if there is none.
        waiting: The numbers of the ranks that wait, the longest first.
        groups: The process groups, those in which ranks wait longest first.
        worst: The ten exchanges with the longest waits.
        clock_error_ns: The difference of the ends of a collective once the clocks are aligned, in the median.
        missing: Ranks without a trace, as the first and the last of each range.
        doubled: Ranks with several traces.
        warnings: Warnings that a reader has to know.
    """

    world: int | None
    ranks: tuple[Rank, ...]
    slowest: int
    spread: float
    straggler: int | None
    slow: SlowRank | None
    waiting: tuple[int, ...]
    groups: tuple[RankGroups, ...]
    worst: tuple[LongWait, ...]
    clock_error_ns: int | None
    missing: tuple[tuple[int, int], ...]
    doubled: tuple[int, ...]
    warnings: tuple[str, ...]
    _json: str = field(repr=False)
    _text: str = field(repr=False)
    _html: str = field(repr=False)
    _style = ' style="line-height:1.2"'

    def __str__(self) -> str:
        return self._text

    def html(self) -> str:
        """Return the ranks as one HTML page with a heat map: the wait of each rank in each exchange, and the
        ten worst waits. The page loads nothing.
        """
        return self._html


def _ranks(as_json: str, as_text: str, as_html: str) -> Ranks:
    texts = {"_json": as_json, "_text": as_text, "_html": as_html}
    ranks: Ranks = made(Ranks, {**json.loads(as_json), **texts})
    return ranks
