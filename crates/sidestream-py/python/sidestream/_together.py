"""Why GPUs idled, from the traces of one run or of many."""

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


# A path may be a folder, which no type can tell from a file: hence `Any` beside the usual result. A text
# is an iterable of texts, too; the first overload takes it.
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
    """Read a trace and say what costs time in it, and what a change would be worth.

    Runs nothing and needs no GPU. Other threads run meanwhile. A file gives a ``Diagnosis``. A folder
    gives ``Diagnoses``: a diagnosis of each trace in it, and what the ranks of one run say together. So
    does a list of files and folders. ``sidestream.ray.diagnose`` does the same on many processes.

    Args:
        path: The JSON of PyTorch's profiler (``.json``, ``.json.gz``), an export of Nsight Systems
            (``nsys export --type sqlite``), or a trace that Sidestream wrote; a folder of these, or a list.
        link_gbps: How fast copies from and to pinned memory go, in GB/s. By default what the trace
            shows, or a table of devices.
        what_if: Changes to predict: ``pinned``, ``prefetch=N``, ``no-sync``, ``async-output``,
            ``fused=RANGE``, ``graphs``, ``workers=N``, ``more-workers=N``, ``host-work=N``,
            ``second-stream``, ``pipeline=RANGE,RANGE``, ``non-blocking-streams``,
            ``drop-wait=STREAM:STREAM``. One text is one prediction, of the changes in it together, as in
            ``"pinned,no-sync"``; several texts are several predictions. By default, and with ``"all"``, the
            usual ones.

    Raises:
        TraceError: The file is no trace that can be read, or the folder has none. The text says what to
            do. Of several traces, those that cannot be read stand in ``Diagnoses.failed`` instead.
        OSError: The system cannot read the file; ``FileNotFoundError`` where there is none.
        TypeError: ``path`` is no path and no list of them.
        ValueError: ``link_gbps`` is no speed, there is no such change, or the list is empty.
    """
    if isinstance(path, (str, os.PathLike)) and not os.path.isdir(path):
        return _diagnosis.diagnose(path, link_gbps=link_gbps, what_if=what_if)
    wanted = sets_of(what_if)
    return Diagnoses(diagnosis_or_failure(one, link_gbps, wanted) for one in files(path))


def files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the files that were named, and those of the folders that were."""
    # An open file is iterable, too, and so are bytes.
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
    """Read a trace; one that cannot be read does not keep the others from being looked at."""
    try:
        return _diagnosis.diagnose(path, link_gbps=link_gbps, what_if=what_if)
    except (_sidestream.TraceError, OSError) as error:
        return FailedTrace(path, str(error), error)


@dataclass(frozen=True)
class RankDigest:
    """What a trace says of its rank among the others, without what it says alone: some 24 bytes an exchange
    of data.

    Attributes:
        file: Its path.
    """

    file: str
    _digest: str = field(repr=False)


def digest_or_failure(path: str) -> RankDigest | FailedTrace:
    """Read a trace for what it says of its rank among the others."""
    try:
        return RankDigest(path, _sidestream.digest(path))
    except (_sidestream.TraceError, OSError) as error:
        return FailedTrace(path, str(error), error)


@dataclass(frozen=True)
class FailedTrace:
    """A trace about which nothing can be said.

    Attributes:
        file: Its path.
        why: What is wrong with it, or with the process that looked at it, and what to do.
        error: The exception, to be raised or looked into.
    """

    file: str
    why: str
    error: Exception = field(compare=False, repr=False)


#: Of more traces than these, those of ranks are not shown one by one.
_MOST_SHORT = 8


def _digest(one: Diagnosis | RankDigest) -> str:
    return one._rank if isinstance(one, Diagnosis) else one._digest


class Diagnoses(Result):
    """What is said about several traces. ``print`` shows it: each in short, then the ranks together.

    Attributes:
        reports: A diagnosis of each trace that could be read, in the order of the traces.
        failed: The traces that could not be read, and why.
        ranks: The ranks of one run together; None where no two traces state which of the same run they are.
    """

    reports: tuple[Diagnosis, ...]
    failed: tuple[FailedTrace, ...]
    ranks: Ranks | None

    def __init__(self, results: Iterable[Diagnosis | RankDigest | FailedTrace]) -> None:
        """Take what was said about each trace. ``diagnose`` makes these."""
        results = list(results)
        self._count = len(results)
        self.reports = tuple(one for one in results if isinstance(one, Diagnosis))
        self.failed = tuple(one for one in results if isinstance(one, FailedTrace))
        digests = [_digest(one) for one in results if not isinstance(one, FailedTrace)]
        together = _sidestream.ranks(digests, f"{len(digests)} traces")
        self.ranks = None if together is None else _ranks(*together)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as new dictionaries and lists: ``schema``, ``reports``, ``failed`` and
        ``ranks``.
        """
        return {
            "schema": "sidestream.diagnoses/1",
            "reports": [report.to_dict() for report in self.reports],
            "failed": [{"file": one.file, "error": one.why} for one in self.failed],
            "ranks": self.ranks and self.ranks.to_dict(),
        }

    @cached_property
    def _text(self) -> str:
        # As the command does: what a rank says alone is long, and much the same as what the others say.
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
    """What the devices of a rank did in a step, in nanoseconds: each figure is the median of its own, and the
    mean of the devices.

    Attributes:
        count: How many steps there were; 0 if the figures are of the whole trace.
        time_ns: The step.
        p10_ns: The time that a tenth of the steps stays below.
        p90_ns: The time that nine tenths stay below.
        busy_ns: The union of kernels, copies and memsets.
        idle_ns: What of the step is none of that; as a median of its own it need not be the difference of the
            two.
        kernel_ns: The union of kernels.
        copy_ns: Copies from and to the host.
        exposed_copy_ns: What of them no kernel ran through.
        communication_ns: Exchange of data between devices.
        exposed_communication_ns: What of it no kernel ran through that computes.
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
        file: Its trace.
        step: What its devices did in a step.
        idle_by_cause: Idle time of a step.
        waits_ns: How long it waits for others in a step, in exchanges of data.
        late_ns: How long it is waited for in a step, by the one that waits longest each time.
        pairs_ns: What of ``waits_ns`` is in sends and receives: the bubbles of a pipeline.
        parts: What a step has of its own, in the mean: ``compute``, ``copies``, ``loader``, ``host``,
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
    """The rank that makes the step of all of them longer.

    Attributes:
        rank: Its number.
        cause: What its step has most of beyond that of the others: ``compute``, ``copies``, ``loader``,
            ``host`` or ``other``.
        cause_ns: How much more.
        name: What stands for it, where the trace names anything, such as a range of the host's.
        excess_ns: How much longer its own work in a step is than the median of those that it is compared
            with.
        compared: How many these are.
        is_alike: Whether they exchange the same as it does; else they are all others.
        step_ns: A step, as all ranks were run again.
        predicted_ns: The same, were this rank as fast as that median.
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
        name: What they are called by their description, where they have one.
        is_known: Whether the traces say between whom their exchanges are.
        count: How many there are.
        size: How many ranks each has, where that is known.
        missing: How many of their ranks have no trace.
        exchanges: How many exchanges were joined.
        is_numbered: Whether by their numbers; else by their order.
        waits_ns: How long a rank waits in them in a step, in the mean.
        most: Who waits most.
        most_ns: How long, in a step.
        last: Who is waited for most.
        last_ns: How long, in a step.
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
        operation: What PyTorch calls it.
        group: Its process group.
        seq: Its number there, where the traces have one.
        elements: How many go in.
        last: The rank that came last, of those that have traces.
        waited: The rank that waited longest.
        waited_ns: How long.
        all_ns: How long all together.
        offset_ns: When it was over, from the first exchange of all.
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

    As JSON they are of the schema ``sidestream.diagnose.ranks/2``.

    Attributes:
        world: How many ran together, where the traces say it.
        ranks: Each rank that has a trace, by number.
        slowest: The number of the rank with the longest step.
        spread: How far the longest and the shortest step are apart, as a part of the median one.
        straggler: The number of the rank that makes the step longer, if one alone does.
        slow: The same with its cause and what it costs.
        waiting: The numbers of those that wait, the longest first.
        groups: The process groups, those in which ranks wait longest first.
        worst: The ten exchanges with the longest waits.
        clock_error_ns: How far apart the ends of a collective are once the clocks are aligned, in the median.
        missing: Ranks without a trace, as first and last of each stretch.
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
        """Return them as one page for a browser: who waited in which exchange, and the ten worst. It loads
        nothing.
        """
        return self._html


def _ranks(as_json: str, as_text: str, as_html: str) -> Ranks:
    texts = {"_json": as_json, "_text": as_text, "_html": as_html}
    ranks: Ranks = made(Ranks, {**json.loads(as_json), **texts})
    return ranks
