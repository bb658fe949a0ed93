"""Races in a program of PyTorch that runs."""

from __future__ import annotations

import contextlib
import functools
import html
import json
import linecache
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Literal, ParamSpec

from sidestream import _check_fix, _check_plan
from sidestream._arguments import one_of, truth, whole
from sidestream._check_hooks import Steps, hooked, operators_heard
from sidestream._check_host import watched
from sidestream._check_remarks import remarks
from sidestream._check_suppress import Suppression, suppressions
from sidestream._sidestream import RaceError, Recorder, printable

#: What a check may hold in memory: 1 GiB.
MEMORY_BYTES = 1 << 30
#: So many GPUs can be simulated.
MOST_DEVICES = 64


def check(
    *,
    on_race: Literal["report", "raise"] = "report",
    stacks: bool = True,
    memory: int = MEMORY_BYTES,
    suppress: str | os.PathLike[str] | None = None,
    host: bool = True,
    simulate: bool | int = False,
) -> contextlib.AbstractContextManager[CheckedRun]:
    """Find the pairs of accesses of a PyTorch program that nothing orders.

    Inside the block, PyTorch's operators, streams, events and memory, and the host's own uses of tensors that take part
    in asynchronous copies, are heard and judged by CUDA's documented rules: a race is found even where it happens not to
    bite. No waits are added, and results do not change. Threads that start meanwhile are heard as well. docs/python.md
    says what cannot be seen.

    The object that it gives fills while the block runs, and stays valid afterwards.

    ::

        with sidestream.check() as found:
            train_one_epoch()
        print(found)

    Args:
        on_race: ``"report"`` keeps races for the report. ``"raise"`` raises ``RaceError`` from the operator
            that is the second of a race, after it was launched; one that CUDA leaves open does not raise.
        stacks: Whether the places in the program are noted.
        memory: What the check may hold in memory, in bytes. When that is reached the check ends, and
            ``CheckedRun.ended`` says so.
        suppress: A file of findings that are known to be harmless: ``FILE:LINE REASON``, one per line. A race with that
            line in one of its stacks is not reported; a suppression that matches nothing is.
        host: Whether the host's own loads and stores of pinned memory are heard, also those of numpy and other libraries.
            To that end, pages that an asynchronous copy uses are protected until the host has waited for it.
        simulate: Whether the processor stands in for a GPU, so that none is needed; a number says for how many. The
            check hears what it would hear on a GPU.

    Raises:
        RaceError: With ``on_race="raise"``, where a race is found.
        ModuleNotFoundError: PyTorch is not installed.
        RuntimeError: A check is entered inside another one, entered twice, or left on another thread than the one that entered it; or a GPU is to be
            simulated where PyTorch uses one already.
        TypeError: ``stacks`` or ``host`` is neither True nor False, or ``memory`` or ``simulate`` no whole number.
        ValueError: ``on_race`` is neither of the two, ``memory`` is negative, ``simulate`` is negative or more than 64, or a line of
            ``suppress`` is no suppression.
        OSError: The file ``suppress`` cannot be read.
    """
    one_of("on_race", on_race, ("report", "raise"))
    truth("stacks", stacks)
    truth("host", host)
    memory = whole("memory", memory, 0, "a number of bytes")
    simulate = whole("simulate", int(simulate) if isinstance(simulate, bool) else simulate, 0, "True, False, or how many GPUs")
    if simulate > MOST_DEVICES:
        raise ValueError(f"simulate is {simulate}; give at most {MOST_DEVICES} GPUs")
    known = () if suppress is None else suppressions(suppress)
    return checking(on_race == "raise", stacks, memory, suppress=known, host=host, simulate=simulate)


class _Once(contextlib.ContextDecorator, contextlib.AbstractContextManager["CheckedRun"]):
    """A block that is entered once. As a decorator it is made anew for each call."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[CheckedRun]]) -> None:
        self._make = make
        self._block: contextlib.AbstractContextManager[CheckedRun] | None = None

    def _recreate_cm(self) -> _Once:
        return _Once(self._make)

    def __enter__(self) -> CheckedRun:
        if self._block is not None:
            raise RuntimeError("this check was entered before, and each checks one block; call check() again for the next one")
        block = self._make()
        found = block.__enter__()
        self._block = block
        return found

    def __exit__(self, *error: Any) -> bool | None:
        if self._block is None:
            raise RuntimeError("this check was not entered; use it in a `with` statement")
        return self._block.__exit__(*error)


_Given = ParamSpec("_Given")


def _once(block: Callable[_Given, contextlib.AbstractContextManager[CheckedRun]]) -> Callable[_Given, _Once]:
    @functools.wraps(block)
    def made(*arguments: _Given.args, **options: _Given.kwargs) -> _Once:
        return _Once(lambda: block(*arguments, **options))

    return made


@_once
@contextlib.contextmanager
def checking(
    raises: bool = False,
    stacks: bool = True,
    memory: int = MEMORY_BYTES,
    pretend: bool = False,
    *,
    suppress: tuple[Suppression, ...] = (),
    steps: Steps | None = None,
    host: bool = True,
    simulate: int = 0,
    log: bool = False,
) -> Iterator[CheckedRun]:
    """Check a block, as ``check`` does.

    Args:
        raises: Whether a race raises.
        stacks: As of ``check``.
        memory: As of ``check``.
        pretend: Whether the processor stands for a GPU, so that operators are heard where there is none.
        suppress: What is not reported. With ``raises`` it is raised all the same.
        steps: Which steps are checked; all of the block without.
        host: As of ``check``.
        log: Whether a log is kept, of which one race can be cut out. It takes as much memory as the check may.
    """
    if not _entered.acquire(blocking=False):
        raise RuntimeError("a check is entered already, in this program or by `python -m sidestream.check`; leave it before the next one")
    try:
        run: CheckedRun | None = None

        def shown(race: str) -> str:
            return "" if run is None else str(_race(json.loads(race), run._places))

        with _simulated(simulate) as simulation:
            planned = _check_plan.plan if simulation is None else simulation.plan
            mode = _mode(planned, shown, raises, stacks, memory, pretend)
            if log:
                mode.keep_log(memory)
            try:
                with hooked(mode, steps), watched(mode, host, pretend or simulation is not None) as unheard, operators_heard(mode):
                    run = CheckedRun(mode, unheard, suppress, steps, simulation)
                    yield run
            finally:
                mode.end()
    finally:
        _entered.release()


_entered = threading.Lock()


def _simulated(count: int) -> contextlib.AbstractContextManager[Any]:
    """The simulated GPUs, if there are to be any."""
    if not count:
        return contextlib.nullcontext()
    try:
        from sidestream._simulated import simulated
    except ImportError as error:
        raise ModuleNotFoundError("check hears PyTorch, which is not installed; pip install torch") from error
    return simulated(count)


def _mode(planned: Callable[[Any], Any], shown: Callable[[str], str], raises: bool, stacks: bool, memory: int, pretend: bool) -> Any:
    """The recorder, as PyTorch's mode."""
    try:
        import torch
    except ImportError as error:
        raise ModuleNotFoundError("check hears PyTorch, which is not installed; pip install torch") from error
    from torch.utils._python_dispatch import TorchDispatchMode

    global _Mode
    if _Mode is None:

        class Mode(Recorder, TorchDispatchMode):  # type: ignore[misc]
            supports_higher_order_operators = True

            def __init__(self, *_: Any) -> None:
                TorchDispatchMode.__init__(self)

            @classmethod
            def ignore_compile_internals(cls) -> bool:
                # What was compiled is what runs, and is heard then.
                return True

        _Mode = Mode
    cuda = not pretend and torch.cuda.is_available()
    hidden = [os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<frozen"]
    hidden += [contextlib.__file__, threading.__file__]
    # What torch.compile writes is nobody's line.
    hidden.append(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "torchinductor_"))
    itself: list[Any] = []
    mode = _Mode(
        _check_plan.planner(planned, itself),
        shown,
        _check_fix.namer(hidden),
        lambda: threading.current_thread().name,
        {"code": torch.autograd.graph._engine_run_backward.__code__, "node": getattr(torch._C, "_current_autograd_node", None)},
        [torch.Tensor, torch.nn.Parameter],
        torch._C._disabled_torch_dispatch_impl,
        memory,
        raises,
        (hidden, _check_fix.LIBRARIES) if stacks else None,
        torch._C._cuda_getCurrentRawStream if cuda else None,
        torch._C._cuda_getDevice if cuda else None,
        pretend,
    )
    itself.append(weakref.ref(mode))
    return mode


_Mode: Any = None


@dataclass(frozen=True)
class Place:
    """A line of the program.

    Attributes:
        file: The file of the source.
        line: The line, from 1.
        function: The function that the line is in.
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
        stream: Where it ran: the name of a stream in the report, or ``host``.
        thread: The thread that called it.
        stack: Where it was called, the innermost line first, without PyTorch's own.
    """

    operator: str
    stream: str
    thread: str
    stack: tuple[Place, ...]

    def __str__(self) -> str:
        thread = "" if self.thread == "MainThread" else f", thread {self.thread}"
        at = f" at {self.stack[0].file}:{self.stack[0].line}" if self.stack else ""
        return printable(f"{self.operator} on {self.stream}{at}{thread}")

    def _short(self) -> str:
        thread = "" if self.thread == "MainThread" else f", thread {self.thread}"
        place = _check_fix.own(self.stack)
        if place is None:
            return printable(f"{self.operator} on {self.stream}{thread}")
        source = linecache.getline(place.file, place.line).strip()
        at = f"{_check_fix.shown(place.file)}:{place.line}"
        return printable(f"{self.operator} on {self.stream} at {at}{thread}" + (f": {source}" if source else ""))


@dataclass(frozen=True)
class CheckedRace:
    """Two accesses to the same bytes, one of them writing, that nothing orders.

    Attributes:
        kind: ``RAW``, ``WAR``, ``WAW``, ``UAF``, ``HOST_RAW`` and the others of docs/checking.md.
        text: What the kind means.
        severity: ``error``, or ``warn`` where it is not certain that it can happen.
        doubt: With ``warn``, why it is not.
        workspace: The stream, where the bytes are the workspace that cuBLAS has for it and graphs that were captured
            on it share.
        dtype: The type of the tensor as the second access knows it; none where it was none's.
        shape: Its shape, likewise.
        bytes: The addresses that the second access touched: first byte, and one past the last.
        first: The access called earlier.
        second: The access called later.
        freed_between: Whether the memory was freed in between, so that the two know it as two tensors.
        fix: The call that orders them.
        count: How many pairs of the same two places there were.
        names: What the program calls the two streams where the second access is called; none for the host, and where no
            variable of that place holds the stream.
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

    def __str__(self) -> str:
        lines = [self._head]
        for name, side in (("first", self.first), ("second", self.second)):
            lines.append(f"  {name}: {side}")
            for place in side.stack:
                lines.append(f"      {place}")
                source = linecache.getline(place.file, place.line).strip()
                if source:
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
            return f"{self.kind} on the workspace of cuBLAS for {self.workspace}, on which products of matrices were captured"
        if self.shape is None and self.bytes is not None:
            count = self.bytes[1] - self.bytes[0]
            return f"{self.kind} on " + (f"{count:,} bytes from 0x{self.bytes[0]:x}" if count > 1 else f"the byte 0x{self.bytes[0]:x}")
        if self.shape is None:
            return self.kind
        what = f"{self.kind} on {self.dtype}{list(self.shape)}"
        return what if self.bytes is None else f"{what} ({self.bytes[1] - self.bytes[0]:,} bytes)"

    def _short(self) -> str:
        """In three lines, each side by the innermost line of the program's own."""
        return "\n".join((f"  {self._head}", f"    first:  {self.first._short()}", f"    second: {self.second._short()}"))


@dataclass(frozen=True)
class Mend:
    """A call that mends races: all that it orders once it stands where it says.

    Attributes:
        call: The call, by what the program calls the streams at that line, or by their names in the report where it has none.
        kind: ``wait``, ``sync``, ``record_stream``, or ``other``.
        place: The line of the program that it belongs in front of; with ``record_stream`` the line that uses the tensor,
            behind which it belongs.
        first: The race that it has to come before, by its place in ``CheckedRun.races``.
        races: All that it mends, likewise, the most telling first.
    """

    call: str
    kind: str
    place: Place | None
    first: int
    races: tuple[int, ...]

    def _line(self) -> str:
        many = len(self.races)
        what = f"by `{self.call}`" if many == 1 else f"these {many} by one `{self.call}`"
        if self.place is None:
            return what
        at = f"{_check_fix.shown(self.place.file)}:{self.place.line}"
        if self.kind == "record_stream":
            return f"{what} behind {at}, where x is the tensor that is used there"
        return f"{what} before {at}"


@dataclass(frozen=True)
class Remark:
    """A call that races with nothing and does not do what it seems to.

    Attributes:
        code: The kind of remark, as in docs/checking.md.
        text: What the call does, and what to do instead.
        stack: Where it was called, the innermost line first.
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
    """A stream by its name in the report.

    Attributes:
        name: The name, as the sides of a race have it: what the program calls the stream, where that was heard and no other is
            called so.
        device: The number of its GPU.
        handle: The handle, as in ``torch.cuda.Stream.cuda_stream``.
    """

    name: str
    device: int
    handle: int


@dataclass(frozen=True)
class HostAccesses:
    """How much of the pinned memory in asynchronous copies was watched for loads and stores of the host that no operator makes.

    Attributes:
        copies: How many asynchronous copies of pinned memory there were.
        bytes: How many bytes they copied.
        guarded_bytes: Of those, how many were watched for stores, in downloads for loads as well, to the byte and with the line.
        compared_bytes: How many were compared when the host had waited: stores to them are found, without the line.
        unwatched_bytes: The rest, of which nothing is known.
        lost: How many accesses were noticed and not kept, since too many came at once.
        problem: Why nothing is watched, or nothing any more; none where it is.
        refused: Where a system call failed with ``EFAULT`` while memory was protected, by a way that the check does not open pages for; none where
            that was not seen.
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
        if self.bytes:
            watched = (
                (self.guarded_bytes, "watched for the host's loads and stores"),
                (self.compared_bytes, "watched for stores alone"),
                (self.unwatched_bytes, "not watched"),
            )
            shares = [f"{100 * part / self.bytes:.1f} % {how}" for part, how in watched if part]
            parts.append(f"of {self.bytes:,} bytes of pinned memory in asynchronous copies: {', '.join(shares)}")
        if self.lost:
            parts.append(f"{self.lost:,} further accesses of the host were noticed and not kept: too many came at once")
        if self.problem is not None:
            parts.append(f"loads and stores of the host by other means than operators are not heard: {self.problem}")
        if self.refused is not None:
            at = printable(f" at {self.refused[0].file}:{self.refused[0].line}") if self.refused else ""
            parts.append(
                f"a system call failed with EFAULT{at} while memory of copies was protected; if it was to use that memory, it succeeds without the check, "
                "or with `--no-host` and `check(host=False)`"
            )
        return "\n".join(parts)


@dataclass(frozen=True)
class _Found:
    races: tuple[CheckedRace, ...]
    lints: tuple[Remark, ...]
    operations: int
    ended: str | None
    streams: tuple[NamedStream, ...] = field(default=())
    mends: tuple[Mend, ...] = field(default=())
    suppressed: tuple[Suppression, ...] = field(default=())
    host: HostAccesses = field(default=HostAccesses(0, 0, 0, 0, 0, 0, None))


class CheckedRun:
    """What a check found. ``print`` shows it with the repair of each race."""

    def __init__(
        self,
        recorder: Any,
        unheard: Sequence[str] = (),
        suppress: tuple[Suppression, ...] = (),
        steps: Steps | None = None,
        simulation: Any = None,
    ) -> None:
        self._recorder = recorder
        self._unheard = unheard
        self._suppress = suppress
        self._steps = steps
        self._simulation = simulation

    @property
    def races(self) -> tuple[CheckedRace, ...]:
        """The races, those of equal places once."""
        return self._found.races

    @property
    def mends(self) -> tuple[Mend, ...]:
        """The calls that mend the races, in the order in which they stand in the program; one does for several."""
        return self._found.mends

    def patch(self) -> str:
        """The calls as a unified diff of the program's files, for ``patch -p0``. Nothing is written.

        What cannot be placed safely is in front of it, a line each that starts with ``#``, and says why.
        """
        return _check_fix.patch(self.mends, self.races)

    @property
    def lints(self) -> tuple[Remark, ...]:
        """What is worth hearing though nothing races for it."""
        return self._found.lints

    @property
    def suppressed(self) -> tuple[Suppression, ...]:
        """The suppressions that something was found for."""
        return self._found.suppressed

    @property
    def operations(self) -> int:
        """How many operators, copies and host accesses were checked."""
        return self._found.operations

    @property
    def ended(self) -> str | None:
        """Why the check ended before the block did, if it did: the report is about what came before."""
        return self._found.ended

    @property
    def streams(self) -> tuple[NamedStream, ...]:
        """The streams, by their names in the report."""
        return self._found.streams

    @property
    def host(self) -> HostAccesses:
        """What was heard of the host's own loads and stores."""
        host = self._found.host
        return replace(host, problem=self._unheard[0]) if self._unheard else host

    @property
    def skipped(self) -> tuple[str, ...]:
        """What the program asked of a simulated GPU and did not get, each with its line; nothing on a real one."""
        return () if self._simulation is None else self._simulation.skipped

    @property
    def is_clean(self) -> bool:
        """Whether there is no race and the check did not end early. Warnings do not count. True where nothing ran on a GPU: see ``operations``."""
        return self.ended is None and not any(race.severity == "error" for race in self.races)

    @property
    def _found(self) -> _Found:
        recorded = self._recorder.report()
        if recorded != self._last[0]:
            self._last = (recorded, _without(_parsed(json.loads(recorded), self._places), self._suppress))
        return self._last[1]

    @functools.cached_property
    def _last(self) -> tuple[str, _Found]:
        return ("", _Found((), (), 0, None))

    def _places(self, stack: int) -> tuple[Place, ...]:
        return tuple(_place(code, at) for code, at in self._recorder.frames(stack))

    def to_dict(self) -> dict[str, Any]:
        """All fields, as values of JSON."""
        return {
            "schema": "sidestream.checked/1",
            "races": [_value(race) for race in self.races],
            "mends": [_value(mend) for mend in self.mends],
            "lints": [_value(lint) for lint in self.lints],
            "suppressed": [_value(one) for one in self.suppressed],
            "operations": self.operations,
            "ended": self.ended,
            "streams": [_value(stream) for stream in self.streams],
            "host": _value(self.host),
            "skipped": list(self.skipped),
        }

    def json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        return self.text()

    def text(self, unused: bool = True) -> str:
        """The report. ``unused`` says whether suppressions that nothing was found for are named."""
        found = self._found
        count = len(found.races)
        certain = sum(race.severity == "error" for race in found.races)
        races = "no race" if certain == 0 else "1 race" if certain == 1 else f"{certain} races"
        if certain < count:
            races += " and 1 warning" if count - certain == 1 else f" and {count - certain} warnings"
        operations = "1 operation" if found.operations == 1 else f"{found.operations:,} operations"
        parts = [f"{races} in {operations}"]
        if self._simulation is not None:
            devices = len(self._simulation.devices)
            parts[0] += " on a simulated GPU" if devices == 1 else f" on {devices} simulated GPUs"
        if self._steps is not None and self._steps.made <= self._steps.first and not found.operations:
            parts[0] += f": nothing was checked, since the program made {self._steps.made} step" + ("" if self._steps.made == 1 else "s")
        elif not found.operations and found.ended is None:
            parts[0] += ": nothing was checked, since nothing ran on a GPU"
            if self._simulation is None:
                parts[0] += "; where there is none, `--simulate` and `check(simulate=True)` have a simulated one"
        if found.mends:
            parts[0] += f"; {len(found.mends)} calls mend them" if len(found.mends) > 1 else f"; one call mends {'it' if count == 1 else 'them'}"
        mended = {at for mend in found.mends for at in mend.races}
        for mend in found.mends:
            # Operators of one line that do the same are told once.
            shown = dict.fromkeys(found.races[at]._short() for at in mend.races)
            lines = [mend._line(), *list(shown)[:_SHOWN]]
            if len(shown) > _SHOWN:
                lines.append(f"  and {len(shown) - _SHOWN} more, which `races` and the report as JSON list")
            if fix := next((found.races[at].fix for at in mend.races if found.races[at].workspace is not None), None):
                lines.append(f"  or: {fix}")
            parts.append("\n".join(lines))
        parts += [str(race) for at, race in enumerate(found.races) if at not in mended]
        parts += [str(lint) for lint in found.lints]
        if found.races and (streams := _streams(found.races, found.streams)):
            parts.append("streams: " + ", ".join(streams))
        if found.suppressed:
            parts.append("suppressed: " + ", ".join(str(one) for one in found.suppressed))
        # A run that checked nothing, or not all, says nothing of what is not there.
        left = [one for one in self._suppress if one not in found.suppressed]
        if unused and left and found.operations and found.ended is None:
            parts.append("nothing was found for these suppressions; take them out: " + ", ".join(str(one) for one in left))
        if found.operations and (host := str(self.host)):
            parts.append(host)
        parts += map(printable, self.skipped)
        if found.ended is not None:
            parts.append(printable(found.ended))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        races, operations = len(self.races), self.operations
        return f"<CheckedRun: {races} race{'s' * (races != 1)} in {operations} operation{'s' * (operations != 1)}>"

    def _repr_html_(self) -> str:
        return f'<pre style="white-space:pre-wrap">{html.escape(str(self))}</pre>'


#: So many races of one call are shown.
_SHOWN = 4


def _parsed(value: Mapping[str, Any], places: Any) -> _Found:
    races = tuple(_race(race, places) for race in value["races"])
    return _Found(
        races=races,
        lints=(*_lints(value["lints"], places), *(Remark(*said) for said in remarks(value, places))),
        operations=value["operations"],
        ended=value["ended"],
        streams=tuple(NamedStream(**stream) for stream in value["streams"]),
        mends=_mends(value["mends"], places, races),
        host=_host(value["host"], places),
    )


def _host(value: Mapping[str, Any], places: Any) -> HostAccesses:
    refused = value["refused"]
    return HostAccesses(**{**value, "refused": None if refused is None else places(refused)})


def _without(found: _Found, suppress: tuple[Suppression, ...]) -> _Found:
    """What is left of it."""
    if not suppress:
        return found
    used: dict[Suppression, None] = {}

    def is_out(*stacks: tuple[Place, ...]) -> bool:
        those = [one for one in suppress if any(one.is_of(stack) for stack in stacks)]
        used.update(dict.fromkeys(those))
        return bool(those)

    left = [at for at, race in enumerate(found.races) if not is_out(race.first.stack, race.second.stack)]
    now = {at: number for number, at in enumerate(left)}
    mends = []
    for mend in found.mends:
        races = tuple(now[at] for at in mend.races if at in now)
        # Without the first the call may stand further behind; before the first it is right all the same.
        if races:
            mends.append(replace(mend, races=races, first=now.get(mend.first, min(races))))
    return replace(
        found,
        races=tuple(found.races[at] for at in left),
        mends=tuple(mends),
        lints=tuple(lint for lint in found.lints if not is_out(lint.stack)),
        suppressed=tuple(used),
    )


def _streams(races: tuple[CheckedRace, ...], streams: tuple[NamedStream, ...]) -> list[str]:
    """Which streams the names stand for; what the program calls one where a race was found, if it calls others so, too."""
    known: dict[str, str] = {}
    for race in races:
        for name, side in zip(race.names, (race.first, race.second), strict=True):
            if name is not None and not name.startswith("torch.") and name != side.stream:
                known.setdefault(side.stream, f"`{name}`, ")
    shown = []
    for stream in streams:
        if stream.handle > 2:
            shown.append(f"{stream.name} = {known.get(stream.name, '')}0x{stream.handle:x} on cuda:{stream.device}")
        elif stream.handle < 2 and not stream.name.startswith("default"):
            shown.append(f"{stream.name} = the default stream of cuda:{stream.device}")
    return shown


def _lints(values: list[Mapping[str, Any]], places: Any) -> tuple[Remark, ...]:
    """The remarks, those on one line once."""
    lints: dict[tuple[str, Any], Remark] = {}
    for number, value in enumerate(values):
        stack = places(value["at"]["stack"]) if value["at"] else ()
        at = (stack[0].file, stack[0].line) if stack else number
        lints.setdefault((value["code"], at), Remark(value["code"], value["text"], stack))
    return tuple(lints.values())


def _mends(values: list[Mapping[str, Any]], places: Any, races: tuple[CheckedRace, ...]) -> tuple[Mend, ...]:
    """The calls by the names that hold there, those of one line once: a loop has several operators there, or makes its streams anew."""
    mends: dict[tuple[str, Place | int], Mend] = {}
    for number, value in enumerate(values):
        place = None if value["at"] is None else _check_fix.own(places(value["at"]))
        call = _check_fix.call_by(races[value["first"]].names, value["kind"]) or value["call"]
        mend = Mend(call, value["kind"], place, value["first"], tuple(value["races"]))
        at = (mend.call, place or number)
        known = mends.setdefault(at, mend)
        if known is not mend:
            mends[at] = replace(known, races=(*known.races, *(race for race in mend.races if race not in known.races)))
    return tuple(mends.values())


def _race(value: Mapping[str, Any], places: Any) -> CheckedRace:
    first, second = _side(value["first"], places), _side(value["second"], places)
    shape, touched = value["shape"], value["bytes"]
    fix: str = value["fix"]
    for name, side in (("{first}", first), ("{second}", second)):
        at = f" at {side.stack[0].file}:{side.stack[0].line}" if side.stack else ""
        fix = fix.replace(name, printable(f"{side.operator}{at}"))
    return CheckedRace(
        kind=value["kind"],
        text=value["text"],
        severity=value["severity"],
        workspace=value["workspace"],
        dtype=value["dtype"],
        shape=None if shape is None else tuple(shape),
        bytes=None if touched is None else (touched[0], touched[1]),
        first=first,
        second=second,
        freed_between=value["freed_between"],
        fix=fix,
        count=value["count"],
        names=tuple(value["names"] or (None, None)),
        doubt=value["doubt"],
    )


def _side(value: Mapping[str, Any], places: Any) -> Side:
    return Side(
        operator=value["operator"] or "",
        stream=value["stream"],
        thread=value["thread"] or "",
        stack=places(value["stack"]),
    )


def _place(code: CodeType, at: int) -> Place:
    lines = [line for start, end, line in code.co_lines() if start <= at < end and line]
    return Place(code.co_filename, lines[0] if lines else code.co_firstlineno, code.co_name)


def _value(thing: Any) -> Any:
    """A dataclass and what is in it, as values of JSON."""
    if hasattr(thing, "__dataclass_fields__"):
        return {name: _value(getattr(thing, name)) for name in thing.__dataclass_fields__}
    if isinstance(thing, tuple):
        return [_value(each) for each in thing]
    return thing
