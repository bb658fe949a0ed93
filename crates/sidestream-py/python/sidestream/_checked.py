"""The findings of a check, built from the recorder's report: races, the calls that fix them, remarks and
streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from types import CodeType
from typing import Any

from sidestream import _check_fix
from sidestream._check_baseline import Baseline, Finding
from sidestream._check_remarks import remarks
from sidestream._check_suppress import Suppression
from sidestream._results import made
from sidestream._sidestream import printable


@dataclass(frozen=True)
class Place:
    """A line of the program.

    Attributes:
        file: The path of the source file.
        line: The line number, starting at 1.
        function: The name of the function that contains the line.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return printable(f"{self.file}:{self.line} in {self.function}")


@dataclass(frozen=True)
class Side:
    """One of the two accesses of a race.

    Attributes:
        operator: The operator or the call, such as ``addmm`` or ``copy_``.
        stream: The name of the stream in the report, or ``host`` for an access of the host.
        thread: The name of the thread that called it.
        stack: Up to eight lines of the program, the innermost first, without PyTorch's lines.
    """

    operator: str
    stream: str
    thread: str
    stack: tuple[Place, ...]

    def __str__(self) -> str:
        return self._at(f" at {self.stack[0].file}:{self.stack[0].line}" if self.stack else "")

    def _short(self) -> str:
        place = _check_fix.own(self.stack)
        if place is None:
            return self._at("")
        source = _check_fix.source(place)
        return self._at(f" at {_check_fix.line(place)}", f": {source}" if source else "")

    def _at(self, at: str, source: str = "") -> str:
        thread = "" if self.thread == "MainThread" else f", thread {self.thread}"
        return printable(f"{self.operator} on {self.stream}{at}{thread}{source}")


@dataclass(frozen=True)
class CheckedRace:
    """Two unordered accesses to the same bytes, at least one of which writes.

    Attributes:
        kind: ``RAW``, ``WAR``, ``WAW``, ``UAF``, ``HOST_RAW`` and the others of docs/guide/check.md.
        text: The meaning of the kind.
        severity: ``error``, or ``warn`` where it is not certain that the race can happen.
        doubt: For ``warn``, the reason why it is not certain.
        workspace: The stream whose cuBLAS workspace the bytes belong to, which graphs captured on it share;
            None for other memory.
        dtype: The type of the tensor, as the second access uses it; None if the memory is not a tensor.
        shape: The shape of that tensor, as the second access uses it.
        bytes: The addresses that the second access touched: first byte, and one past the last.
        first: The access that was called earlier.
        second: The access that was called later.
        freed_between: Whether the memory was freed in between, so that the two use it as two tensors.
        fix: The call that orders them.
        count: Number of pairs at the same two places.
        names: The program's names for the two streams at the second access; None for the host, and if no
            variable there holds the stream.
    """

    kind: str
    text: str
    severity: str
    workspace: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    bytes: tuple[int, int] | None
    first: Side
    second: Side
    freed_between: bool
    fix: str
    count: int
    names: tuple[str | None, str | None] = (None, None)
    doubt: str | None = None
    #: The numbers by which the recorder knows the race, if it is one of the checker.
    _ids: tuple[int, int, int | None] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        lines = [self._head]
        for name, side in (("first", self.first), ("second", self.second)):
            lines.append(f"  {name}: {side}")
            for place in side.stack:
                lines.append(f"      {place}")
                if source := _check_fix.source(place):
                    lines.append(f"        {printable(source)}")
        if self.count > 1:
            lines.append(f"  {self.count:,} pairs of these two places")
        lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


    @property
    def _head(self) -> str:
        head = f"{self._what}: {self.text}"
        return printable(head if self.doubt is None else f"{head} ({self.doubt})")

    @property
    def _what(self) -> str:
        if self.workspace is not None:
            return (
                f"{self.kind} on the cuBLAS workspace of {self.workspace}, on which matrix products were "
                "captured"
            )
        if self.shape is None and self.bytes is not None:
            count = self.bytes[1] - self.bytes[0]
            return f"{self.kind} on " + (
                f"{count:,} bytes from 0x{self.bytes[0]:x}" if count > 1 else f"the byte 0x{self.bytes[0]:x}"
            )
        if self.shape is None:
            return self.kind
        what = f"{self.kind} on {self.dtype}{list(self.shape)}"
        return what if self.bytes is None else f"{what} ({self.bytes[1] - self.bytes[0]:,} bytes)"

    def _short(self) -> str:
        """Return three lines, with the innermost line of the program's own code for each access."""
        return "\n".join(
            (f"  {self._head}", f"    first:  {self.first._short()}", f"    second: {self.second._short()}")
        )


@dataclass(frozen=True)
class Mend:
    """A call that fixes races, once it is inserted at its place.

    Attributes:
        call: The call, with the program's names of the streams at that line, or with those of the report
            where the program has none.
        kind: ``wait``, ``sync``, ``record_stream``, or ``other``.
        place: The line of the program before which to insert the call; for ``record_stream`` the line that
            uses the tensor, after which to insert it.
        first: The race whose second access the call must precede, as an index into ``CheckedRun.races``.
        races: All races that it fixes, as such indices, the most telling first.
    """

    call: str
    kind: str
    place: Place | None
    first: int
    races: tuple[int, ...]

    def _line(self, races: Sequence[CheckedRace]) -> str:
        many = len(self.races)
        what = f"by `{self.call}`" if many == 1 else f"these {many} by one `{self.call}`"
        if self.place is None:
            return what
        at = _check_fix.line(self.place)
        if self.kind == "record_stream":
            return f"{what} after {at}, where x is {_check_fix.used(races[self.first])}"
        if _check_fix.is_within(races[self.first].first.stack, self.place):
            return f"{what} within {at}, between the two accesses: split the statement"
        return f"{what} before {at}"


@dataclass(frozen=True)
class Remark:
    """A call that races with nothing but does not have the intended effect.

    Attributes:
        code: The kind of remark, as in docs/guide/check.md.
        text: What the call does, and what to do instead.
        stack: The stack of the call, the innermost line first.
    """

    code: str
    text: str
    stack: tuple[Place, ...]

    def __str__(self) -> str:
        place = _check_fix.own(self.stack)
        at = "" if place is None else f" ({place.file}:{place.line})"
        return printable(f"{self.code}: {self.text}{at}")


@dataclass(frozen=True)
class NamedStream:
    """A stream with its name in the report.

    Attributes:
        name: The name, as in ``Side.stream``: the program's name for the stream if that was seen and is
            unique; otherwise ``stream1`` and so on.
        device: The number of its GPU.
        handle: The handle, as in ``torch.cuda.Stream.cuda_stream``.
    """

    name: str
    device: int
    handle: int


@dataclass(frozen=True)
class HostAccesses:
    """How much of the pinned memory in asynchronous copies was watched for host loads and stores made outside
    operators.

    Attributes:
        copies: Number of asynchronous copies of pinned memory.
        bytes: Number of bytes that they copied.
        guarded_bytes: Bytes watched for stores and, in downloads, also for loads. An access is reported with
            its exact bytes and its source line.
        compared_bytes: Bytes whose contents were compared after the host had waited. Stores are found, but
            not their source lines.
        unwatched_bytes: The rest, for which no access is found.
        lost: Number of accesses that were noticed and not recorded, since too many came at once.
        problem: Why nothing is watched, or no longer; None where memory is watched.
        refused: Where a system call failed with ``EFAULT`` while memory was protected, in a way that the
            check does not open pages for; None where that was not seen.
    """

    copies: int
    bytes: int
    guarded_bytes: int
    compared_bytes: int
    unwatched_bytes: int
    lost: int
    problem: str | None
    refused: tuple[Place, ...] | None = None

    def __str__(self) -> str:
        parts = []
        if self.compared_bytes or self.unwatched_bytes:
            watched = (
                (self.guarded_bytes, "watched for the host's loads and stores"),
                (self.compared_bytes, "watched for stores of other values alone, so that no load is found"),
                (self.unwatched_bytes, "not watched, so that neither is found"),
            )
            shares = [f"{100 * part / self.bytes:.1f} % {how}" for part, how in watched if part]
            parts.append(
                f"of {self.bytes:,} bytes of pinned memory in asynchronous copies: {', '.join(shares)}"
            )
        if self.lost:
            parts.append(
                f"{self.lost:,} further host accesses were noticed and not kept: too many came at once"
            )
        if self.problem is not None:
            parts.append(
                f"host loads and stores outside operators are not observed: {self.problem}"
            )
        if self.refused is not None:
            at = printable(f" at {self.refused[0].file}:{self.refused[0].line}") if self.refused else ""
            parts.append(
                f"a system call failed with EFAULT{at} while memory of copies was protected; if it was meant"
                " to use that memory, it succeeds without the check, or with `--no-host` or "
                "`check(host=False)`"
            )
        return "\n".join(parts)


@dataclass(frozen=True)
class Found:
    races: tuple[CheckedRace, ...]
    lints: tuple[Remark, ...]
    operations: int
    ended: str | None
    streams: tuple[NamedStream, ...] = field(default=())
    mends: tuple[Mend, ...] = field(default=())
    #: Each suppression with the number of findings that it left out, and the number of all these findings.
    suppressed: tuple[tuple[Suppression, int], ...] = field(default=())
    left_out: int = 0
    known: tuple[Finding, ...] = field(default=())
    host: HostAccesses = field(default=HostAccesses(0, 0, 0, 0, 0, 0, None))


def parsed(value: Mapping[str, Any], simulated: bool = False) -> Found:
    races = tuple(map(race_of, value["races"]))
    lints = _lints(made(tuple[Remark, ...], value["lints"]))
    return Found(
        races=races,
        lints=(*lints, *starmap(Remark, remarks(value, simulated))),
        operations=value["operations"],
        ended=value["ended"],
        streams=made(tuple[NamedStream, ...], value["streams"]),
        mends=_mends(value["mends"], races),
        host=made(HostAccesses, value["host"]),
    )


def without(found: Found, suppress: tuple[Suppression, ...], baseline: Baseline | None = None) -> Found:
    """Return the findings that are neither suppressed nor in the baseline."""
    if not suppress and (baseline is None or not baseline.known):
        return found
    counts = [0] * len(suppress)
    left_out = 0
    known: dict[Finding, None] = {}

    def is_out(of: CheckedRace | Remark) -> bool:
        nonlocal left_out
        sides: list[tuple[str | None, tuple[Place, ...]]]
        if isinstance(of, Remark):
            sides = [(None, of.stack)]
        else:
            sides = [(side.operator, side.stack) for side in (of.first, of.second)]
        those = [at for at, one in enumerate(suppress) if any(one.is_of(*side) for side in sides)]
        for at in those:
            counts[at] += 1
        left_out += bool(those)
        if those or baseline is None:
            return bool(those)
        finding = baseline.remark(of) if isinstance(of, Remark) else baseline.race(of)
        if finding in baseline.known:
            known[finding] = None
        return finding in baseline.known

    left = [at for at, race in enumerate(found.races) if not is_out(race)]
    now = {at: number for number, at in enumerate(left)}
    mends = []
    for mend in found.mends:
        races = tuple(now[at] for at in mend.races if at in now)
        # If the first race is suppressed, a later place would do; the place before the first race is still
        # right.
        if races:
            mends.append(replace(mend, races=races, first=now.get(mend.first, min(races))))
    lints = tuple(lint for lint in found.lints if not is_out(lint))
    return replace(
        found,
        races=tuple(found.races[at] for at in left),
        mends=tuple(mends),
        lints=lints,
        suppressed=tuple(zip(suppress, counts, strict=True)),
        left_out=left_out,
        known=tuple(known),
    )


def named(races: tuple[CheckedRace, ...], streams: tuple[NamedStream, ...]) -> list[str]:
    """Return for each name of the report the stream that it means, if a name in it is not the program's own.
    If the program has another name for a stream where a race was found, that name is added.
    """
    own = {"host", *(name for race in races for name in race.names)}
    sides = (side.stream for race in races for side in (race.first, race.second))
    if all(name in own or name.startswith("default") for name in sides):
        return []
    known: dict[str, str] = {}
    for race in races:
        for name, side in zip(race.names, (race.first, race.second), strict=True):
            if name is not None and not name.startswith("torch.") and name != side.stream:
                known.setdefault(side.stream, f"`{name}`, ")
    shown = []
    for stream in streams:
        if stream.handle > 2:
            shown.append(
                f"{stream.name} = {known.get(stream.name, '')}0x{stream.handle:x} on cuda:{stream.device}"
            )
        elif stream.handle < 2 and not stream.name.startswith("default"):
            shown.append(f"{stream.name} = the default stream of cuda:{stream.device}")
    return shown


def _lints(remarks: Iterable[Remark]) -> Iterable[Remark]:
    """Return the remarks, one for each line."""
    lints: dict[tuple[str, Any], Remark] = {}
    for number, remark in enumerate(remarks):
        at = (remark.stack[0].file, remark.stack[0].line) if remark.stack else number
        lints.setdefault((remark.code, at), remark)
    return lints.values()


def _mends(values: list[Mapping[str, Any]], races: tuple[CheckedRace, ...]) -> tuple[Mend, ...]:
    """Return the calls with the names that are valid at their lines, one for each line: a loop may run
    several operators at a line, or create new streams in each step. ``record_stream`` is one for each tensor:
    the same tensor in another step has the same races.
    """
    mends: dict[tuple[str, Place | int, int | None], Mend] = {}
    for number, value in enumerate(values):
        place = _check_fix.own(value["stack"])
        call = _check_fix.call_by(races[value["first"]].names, value["kind"]) or value["call"]
        mend = Mend(call, value["kind"], place, value["first"], tuple(value["races"]))
        at = (mend.call, place or number, min(mend.races) if mend.kind == "record_stream" else None)
        known = mends.setdefault(at, mend)
        if known is not mend:
            mends[at] = replace(
                known, races=(*known.races, *(race for race in mend.races if race not in known.races))
            )
    return tuple(mends.values())


def race_of(value: Mapping[str, Any]) -> CheckedRace:
    race: CheckedRace = made(CheckedRace, value)
    fix = race.fix
    for name, side in (("{first}", race.first), ("{second}", race.second)):
        at = f" at {side.stack[0].file}:{side.stack[0].line}" if side.stack else ""
        fix = fix.replace(name, printable(f"{side.operator}{at}"))
    return replace(race, fix=fix)


def place_of(code: CodeType, at: int) -> Place:
    lines = [line for start, end, line in code.co_lines() if start <= at < end and line]
    return Place(code.co_filename, lines[0] if lines else code.co_firstlineno, code.co_name)


def plain(thing: Any) -> Any:
    """Return a dataclass and its contents as JSON values."""
    if hasattr(thing, "__dataclass_fields__"):
        names = (name for name in thing.__dataclass_fields__ if not name.startswith("_"))
        return {name: plain(getattr(thing, name)) for name in names}
    if isinstance(thing, tuple):
        return [plain(each) for each in thing]
    return thing
