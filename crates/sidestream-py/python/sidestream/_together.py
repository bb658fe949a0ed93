"""``diagnose``: why GPUs idled, from one trace or from those of all ranks of a run."""

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


# No type can tell the path of a folder from that of a file: hence `Any` beside the usual result. A string is
# also an iterable of strings; the first overload takes it.
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
    """Read a trace and return what costs time in it, and what a change would be worth.

    Nothing runs, and no GPU is needed. Other threads run meanwhile. A file gives a ``Diagnosis``. A folder,
    or a list of files and folders, gives ``Diagnoses``: a diagnosis of each trace, and what the ranks of one
    run show together. A type checker cannot tell a folder from a file; for ``[folder]`` it knows that the
    result is ``Diagnoses``. ``sidestream.ray.diagnose`` does this in many processes.

    Args:
        path: The JSON of PyTorch's profiler (``.json``, ``.json.gz``), an export of Nsight Systems
            (``nsys export --type sqlite``), or a trace that Sidestream wrote; a folder of these, or a list.
        link_gbps: The speed of copies from and to pinned memory, in GB/s. By default what the trace shows, or
            a table of devices.
        what_if: Changes to predict: ``pinned``, ``prefetch=N``, ``no-sync``, ``async-output``,
            ``fused=RANGE``, ``graphs``, ``workers=N``, ``more-workers=N``, ``host-work=N``,
            ``second-stream``, ``pipeline=RANGE,RANGE``, ``non-blocking-streams``,
            ``drop-wait=STREAM:STREAM``. One string is one prediction, of the changes in it together, as in
            ``"pinned,no-sync"``; a list of strings is several predictions. By default, and with ``"all"``,
            the usual ones.

    Raises:
        TraceError: The file is not a trace that can be read, or the folder has none; the text says what to
            do. With several traces, those that cannot be read are in ``Diagnoses.failed`` instead.
        OSError: The system cannot read the file; ``FileNotFoundError`` where there is none.
        TypeError: ``path`` is neither a path nor a list of paths.
        ValueError: ``link_gbps`` is not a speed, there is no such change, or the list is empty.
    """
    if isinstance(path, (str, os.PathLike)) and not os.path.isdir(path):
        return _diagnosis.diagnose(path, link_gbps=link_gbps, what_if=what_if)
    wanted = sets_of(what_if)
    return Diagnoses(diagnosis_or_failure(one, link_gbps, wanted) for one in files(path))


def files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the named files, and the traces in the named folders."""
    # An open file and bytes are iterable, too.
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
    """What a trace contributes to comparing the ranks, without its own diagnosis: some 24 bytes for each
    exchange of data.

    Attributes:
        file: The path of the trace.
    """

    file: str
    _digest: str = field(repr=False)


def digest_or_failure(path: str) -> RankDigest | FailedTrace:
    """Read a trace for what it contributes to comparing the ranks."""
    try:
        return RankDigest(path, _sidestream.digest(path))
    except (_sidestream.TraceError, OSError) as error:
        return FailedTrace(path, str(error), error)


@dataclass(frozen=True)
class FailedTrace:
    """A trace that could not be diagnosed.

    Attributes:
        file: The path of the trace.
        why: What is wrong with it, or with the process that read it, and what to do.
        error: The exception.
    """

    file: str
    why: str
    error: Exception = field(compare=False, repr=False)


#: Most traces of which those of ranks are shown one by one.
_MOST_SHORT = 8


def _digest(one: Diagnosis | RankDigest) -> str:
    return one._rank if isinstance(one, Diagnosis) else one._digest


class Diagnoses(Result):
    """The diagnoses of several traces. ``print`` shows up to eight of them, those of ranks in short, then the
    ranks together.

    Attributes:
        reports: A ``Diagnosis`` of each trace that could be read, in the order of the traces.
        failed: The traces that could not be read, and why. They do not keep the rest from being read.
        ranks: The ranks of one run together; None where no two traces state which rank of the same run they
            are.
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
        # As the command does: the diagnosis of one rank is long, and much like those of the others.
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
    """What the devices of a rank did in a step, in nanoseconds: each figure is a median over the steps, and
    the mean of the devices.

    Attributes:
        count: Number of steps; 0 if the figures are of the whole trace.
        time_ns: The step.
        p10_ns: The time that a tenth of the steps stays below.
        p90_ns: The time that nine tenths stay below.
        busy_ns: The union of the times of kernels, copies and memsets.
        idle_ns: The rest of the step. As a median itself it need not be the difference of the two.
        kernel_ns: The union of the times of kernels.
        copy_ns: Copies from and to the host.
        exposed_copy_ns: The part of them during which no kernel ran.
        communication_ns: Exchange of data between devices.
        exposed_communication_ns: The part of it during which no kernel ran that computes.
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
        rank: Its number.
        file: The path of its trace.
        step: What its devices did in a step.
        idle_by_cause: Idle nanoseconds of a step, by cause.
        waits_ns: How long it waits for other ranks in a step, in exchanges of data.
        late_ns: How long it is waited for in a step, each time by the rank that waits longest.
        pairs_ns: The part of ``waits_ns`` in sends and receives: the bubbles of a pipeline.
        parts: The rank's own work in a step, in the mean: ``compute``, ``copies``, ``loader``, ``host``,
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
        rank: Its number.
        cause: The part of its step that exceeds that of the others most: ``compute``, ``copies``, ``loader``,
            ``host`` or ``other``.
        cause_ns: By how much.
        name: What that part is in the trace, where the trace names it, such as a range of the host's.
        excess_ns: How much longer its own work in a step is than the median of the ranks that it is compared
            with.
        compared: Number of these ranks.
        is_alike: Whether they exchange the same data as it does; otherwise they are all other ranks.
        step_ns: A step in a replay of all ranks.
        predicted_ns: That step if this rank were as fast as the median.
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


@dataclass(frozen=True)
class RankGroups:
    """The process groups of one description and size.

    Attributes:
        name: Their description, where they have one.
        is_known: Whether the traces say which ranks exchange data.
        count: Number of groups.
        size: Number of ranks in each, where that is known.
        missing: Number of their ranks that have no trace.
        exchanges: Number of exchanges that were matched between ranks.
        is_numbered: Whether they were matched by their numbers; otherwise by their order.
        waits_ns: How long a rank waits in them in a step, in the mean.
        most: The rank that waits most.
        most_ns: How long it waits in a step.
        last: The rank that is waited for most.
        last_ns: How long it is waited for in a step.
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
        operation: PyTorch's name of the operation.
        group: The process group.
        seq: The number of the exchange in the group, where the traces have one.
        elements: Number of input elements.
        last: The rank that came last, of those that have traces.
        waited: The rank that waited longest.
        waited_ns: How long it waited.
        all_ns: How long all ranks waited, added up.
        offset_ns: When the exchange was complete, counted from the first exchange.
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
        world: Number of ranks in the run, where the traces say it.
        ranks: Each rank that has a trace, by number.
        slowest: The number of the rank with the longest step.
        spread: The difference of the longest and the shortest step, as a share of the median one.
        straggler: The number of the rank that makes the step longer, if a single one does; otherwise None.
        slow: That rank, with the cause and what it costs; None where there is none.
        waiting: The numbers of the ranks that wait, the longest first.
        groups: The process groups, those in which ranks wait longest first.
        worst: The ten exchanges with the longest waits.
        clock_error_ns: The difference of the ends of a collective once the clocks are aligned, in the median.
        missing: Ranks without a trace, as the first and the last of each range.
        doubled: Ranks with several traces.
        warnings: What a reader has to know.
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
        """Return the ranks as one HTML page with a heat map: who waited in which exchange, and the ten worst.
        It loads nothing.
        """
        return self._html


def _ranks(as_json: str, as_text: str, as_html: str) -> Ranks:
    texts = {"_json": as_json, "_text": as_text, "_html": as_html}
    ranks: Ranks = made(Ranks, {**json.loads(as_json), **texts})
    return ranks
