"""Races in a program of PyTorch that runs."""

from __future__ import annotations

import contextlib
import html
import json
import linecache
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any, Literal

from sidestream import _check_plan
from sidestream._arguments import one_of, truth, whole
from sidestream._check_hooks import hooked
from sidestream._sidestream import RaceError, Recorder

#: What a check may hold in memory: 1 GiB.
MEMORY_BYTES = 1 << 30
#: So many GPUs can be simulated.
MOST_DEVICES = 64


def check(
    *,
    on_race: Literal["report", "raise"] = "report",
    stacks: bool = True,
    memory: int = MEMORY_BYTES,
    simulate: bool | int = False,
) -> contextlib.AbstractContextManager[CheckedRun]:
    """Find every pair of accesses of a program of PyTorch that nothing orders.

    While it is entered, the operators of PyTorch, its streams, events and memory, and the host's own uses of
    tensors that take part in asynchronous copies are heard and judged by CUDA's documented rules: a race is found
    even where it happens not to bite. Nothing is made to wait that did not wait before, and results do not
    change. Threads that start meanwhile are heard as well. docs/python.md says what cannot be seen.

    The object that it gives fills while the block runs, and stays.

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
        simulate: Whether the processor runs what is for a GPU, which then need not be there; a number says how many
            GPUs there are. What the check hears is what it would hear on a GPU.

    Raises:
        RaceError: With ``on_race="raise"``, where a race is found.
        ModuleNotFoundError: PyTorch is not installed.
        RuntimeError: A check is entered inside another one, or a GPU is to be simulated where PyTorch uses one already.
        TypeError: ``stacks`` is neither True nor False, or ``memory`` or ``simulate`` no whole number.
        ValueError: ``on_race`` is neither of the two, ``memory`` is negative, or ``simulate`` is, or more than 64.
    """
    one_of("on_race", on_race, ("report", "raise"))
    truth("stacks", stacks)
    memory = whole("memory", memory, 0, "a number of bytes")
    simulate = whole("simulate", int(simulate) if isinstance(simulate, bool) else simulate, 0, "True, False, or how many GPUs")
    if simulate > MOST_DEVICES:
        raise ValueError(f"simulate is {simulate}; give at most {MOST_DEVICES} GPUs")
    return checking(on_race == "raise", stacks, memory, simulate=simulate)


@contextlib.contextmanager
def checking(
    raises: bool = False, stacks: bool = True, memory: int = MEMORY_BYTES, pretend: bool = False, simulate: int = 0
) -> Iterator[CheckedRun]:
    """Check a block, as ``check`` does.

    Args:
        raises: Whether a race raises.
        stacks: As of ``check``.
        memory: As of ``check``.
        pretend: Whether the processor stands for a GPU, so that operators are heard where there is none.
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
            run = CheckedRun(mode, simulation)
            try:
                with hooked(mode), mode:
                    yield run
            finally:
                mode.stop()
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

        _Mode = Mode
    cuda = not pretend and torch.cuda.is_available()
    hidden = [os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<frozen"]
    hidden += [contextlib.__file__, threading.__file__]
    return _Mode(
        planned,
        shown,
        lambda: threading.current_thread().name,
        [torch.Tensor, torch.nn.Parameter],
        torch._C._disabled_torch_dispatch_impl,
        memory,
        raises,
        hidden if stacks else None,
        torch._C._cuda_getCurrentRawStream if cuda else None,
        torch._C._cuda_getDevice if cuda else None,
        pretend,
    )


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
        return f"{self.file}:{self.line} in {self.function}"


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
        return f"{self.operator} on {self.stream}{at}{thread}"


@dataclass(frozen=True)
class CheckedRace:
    """Two accesses to the same bytes, one of them writing, that nothing orders.

    Attributes:
        kind: ``RAW``, ``WAR``, ``WAW``, ``UAF``, ``HOST_RAW`` and the others of docs/checking.md.
        text: What the kind means.
        severity: ``error``, or ``warn`` where CUDA leaves open whether it can happen.
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

    def __str__(self) -> str:
        what = ""
        if self.shape is not None:
            what = f" on {self.dtype}{list(self.shape)}"
            if self.bytes is not None:
                what += f" ({self.bytes[1] - self.bytes[0]:,} bytes)"
        if self.workspace is not None:
            what = f" on the workspace of cuBLAS for {self.workspace}, on which products of matrices were captured"
        lines = [f"{self.kind}{what}: {self.text}"]
        if self.severity == "warn":
            lines[0] += " (CUDA leaves open whether the call waits)"
        for name, side in (("first", self.first), ("second", self.second)):
            lines.append(f"  {name}: {side}")
            for place in side.stack:
                lines.append(f"      {place}")
                source = linecache.getline(place.file, place.line).strip()
                if source:
                    lines.append(f"        {source}")
        if self.count > 1:
            lines.append(f"  {self.count:,} pairs of these two places")
        lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


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
        at = f" ({self.stack[0].file}:{self.stack[0].line})" if self.stack else ""
        return f"{self.code}: {self.text}{at}"


@dataclass(frozen=True)
class NamedStream:
    """A stream by its name in the report.

    Attributes:
        name: The name, as the sides of a race have it.
        device: The number of its GPU.
        handle: The handle, as in ``torch.cuda.Stream.cuda_stream``.
    """

    name: str
    device: int
    handle: int


@dataclass(frozen=True)
class _Found:
    races: tuple[CheckedRace, ...]
    lints: tuple[Remark, ...]
    operations: int
    ended: str | None
    streams: tuple[NamedStream, ...] = field(default=())


class CheckedRun:
    """What a check found. ``print`` shows it with the repair of each race."""

    def __init__(self, recorder: Any, simulation: Any = None) -> None:
        self._recorder, self._simulation = recorder, simulation

    @property
    def races(self) -> tuple[CheckedRace, ...]:
        """The races, those of equal places once."""
        return self._found.races

    @property
    def lints(self) -> tuple[Remark, ...]:
        """What is worth hearing though nothing races for it."""
        return self._found.lints

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
    def skipped(self) -> tuple[str, ...]:
        """What the program asked of a simulated GPU and did not get, each with its line; nothing on a real one."""
        return () if self._simulation is None else self._simulation.skipped

    @property
    def is_clean(self) -> bool:
        """Whether there is no race and the check did not end early. Races that CUDA leaves open do not count."""
        return self.ended is None and not any(race.severity == "error" for race in self.races)

    @property
    def _found(self) -> _Found:
        recorded = self._recorder.report()
        if recorded != self._last[0]:
            self._last = (recorded, _parsed(json.loads(recorded), self._places))
        return self._last[1]

    @cached_property
    def _last(self) -> tuple[str, _Found]:
        return ("", _Found((), (), 0, None))

    def _places(self, stack: int) -> tuple[Place, ...]:
        return tuple(_place(code, at) for code, at in self._recorder.frames(stack))

    def to_dict(self) -> dict[str, Any]:
        """All fields, as values of JSON."""
        return {
            "races": [_value(race) for race in self.races],
            "lints": [_value(lint) for lint in self.lints],
            "operations": self.operations,
            "ended": self.ended,
            "streams": [_value(stream) for stream in self.streams],
            "skipped": list(self.skipped),
        }

    def json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        found = self._found
        count = len(found.races)
        races = "no race" if count == 0 else "1 race" if count == 1 else f"{count} races"
        parts = [f"{races} in {found.operations:,} operations"]
        if not found.operations and found.ended is None:
            parts[0] += ": nothing was checked, since nothing ran on a GPU"
        parts += [str(race) for race in found.races]
        parts += [str(lint) for lint in found.lints]
        named = [stream for stream in found.streams if stream.handle > 2]
        if found.races and named:
            parts.append(
                "streams: "
                + ", ".join(f"{s.name} = 0x{s.handle:x} on cuda:{s.device}" for s in named)
            )
        parts += self.skipped
        if found.ended is not None:
            parts.append(found.ended)
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return f"<CheckedRun: {len(self.races)} races in {self.operations} operations>"

    def _repr_html_(self) -> str:
        return f'<pre style="white-space:pre-wrap">{html.escape(str(self))}</pre>'


def _parsed(value: Mapping[str, Any], places: Any) -> _Found:
    return _Found(
        races=tuple(_race(race, places) for race in value["races"]),
        lints=tuple(
            Remark(lint["code"], lint["text"], places(lint["at"]["stack"]) if lint["at"] else ())
            for lint in value["lints"]
        ),
        operations=value["operations"],
        ended=value["ended"],
        streams=tuple(NamedStream(**stream) for stream in value["streams"]),
    )


def _race(value: Mapping[str, Any], places: Any) -> CheckedRace:
    first, second = _side(value["first"], places), _side(value["second"], places)
    shape, touched = value["shape"], value["bytes"]
    fix: str = value["fix"]
    for name, side in (("{first}", first), ("{second}", second)):
        at = f" at {side.stack[0].file}:{side.stack[0].line}" if side.stack else ""
        fix = fix.replace(name, f"{side.operator}{at}")
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
