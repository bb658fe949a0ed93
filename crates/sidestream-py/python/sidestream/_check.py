"""``check``: finds the races of a running PyTorch program."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, ParamSpec

from sidestream import _check_fix, _check_plan
from sidestream._arguments import one_of, truth, whole
from sidestream._check_baseline import Baseline, counted
from sidestream._check_hooks import Steps, hooked, operators_heard
from sidestream._check_host import watched
from sidestream._check_pinned import Pinned
from sidestream._check_suppress import Suppression, suppressions
from sidestream._checked import (
    CheckedRace,
    Found,
    HostAccesses,
    Mend,
    NamedStream,
    Place,
    Remark,
    named,
    parsed,
    place_of,
    plain,
    race_of,
    without,
)
from sidestream._results import Result
from sidestream._sidestream import Recorder, printable

#: Maximum bytes of memory that a check uses by default: 1 GiB.
MEMORY_BYTES = 1 << 30
#: Maximum number of GPUs that can be simulated.
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
    """Find pairs of unordered accesses in a PyTorch program.

    Inside the block the check observes PyTorch's operators, streams, events and memory, Triton and CuPy
    kernel launches, collectives that Python calls, what threads hand over to each other, and the host's own
    loads and stores of pinned memory in asynchronous copies. The check judges these by CUDA's documented
    rules, so it finds a race even if that had no effect in this run, and reports no ordered pair. It adds no
    waits and changes no results. Threads that start inside the block are observed too; earlier work and other
    processes are not. Work on the CPU is not checked: a program that put nothing on a GPU is clean with 0
    ``operations``. Accesses that the check cannot observe are never reported.

    The returned object fills while the block runs, and stays valid afterwards. Each call of ``check`` makes
    one block, which is entered once, and left on the thread that entered it. As a decorator it checks each
    call of the function. One check is entered at a time in a process.

    ::

        with sidestream.check() as found:
            train_one_epoch()
        print(found)

    An ``assert`` in a test shows the report with ``assert found.is_clean, str(found)``.

    Args:
        on_race: ``"report"`` keeps races for the report. ``"raise"`` raises a ``RaceError`` from the operator
            that makes the second access of a race, after its launch; a race that is only a warning does not
            raise.
        stacks: Whether the places in the program are recorded.
        memory: Maximum bytes that the check may use, 1 GiB by default. If they do not suffice, the check ends
            early, and ``CheckedRun.ended`` says so.
        suppress: A file of findings that are known to be harmless: a line ``FILE:LINE REASON`` for each,
            where ``FILE`` is the last components of a path, each in full. A race with that line in one of its
            stacks is not reported.
            ``function:NAME`` and ``kernel:NAME``, a function in a stack and an operator, may be in its place.
            The report names the suppressions that were used, with the number of findings, and those that
            matched nothing.
        host: Whether the host's own loads and stores of pinned memory are observed, including those of NumPy
            and other libraries. For that, pages that an asynchronous copy uses are protected until the host
            has waited for the copy.
        simulate: Whether to simulate a GPU on the CPU, so that none is needed; a number simulates several.
            PyTorch must not have used a GPU in the process before. The same calls are observed as on a GPU.

    Returns:
        A context manager that yields a ``CheckedRun``.

    Raises:
        RaceError: With ``on_race="raise"``, if a race is found.
        ModuleNotFoundError: PyTorch is not installed.
        RuntimeError: A check is entered inside another one, entered twice, or left on another thread than the
            one that entered it; or ``simulate`` is given although PyTorch already uses a GPU.
        TypeError: ``stacks`` or ``host`` is neither True nor False, or ``memory`` or ``simulate`` is not a
            whole number.
        ValueError: ``on_race`` is neither of the two, ``memory`` is negative, ``simulate`` is negative or
            more than 64, or a line of ``suppress`` is not a suppression.
        OSError: The file ``suppress`` cannot be read.
    """
    one_of("on_race", on_race, ("report", "raise"))
    truth("stacks", stacks)
    truth("host", host)
    memory = whole("memory", memory, 0, "a number of bytes")
    simulate = whole(
        "simulate",
        int(simulate) if isinstance(simulate, bool) else simulate,
        0,
        "True, False, or how many GPUs",
    )
    if simulate > MOST_DEVICES:
        raise ValueError(f"simulate is {simulate}; give at most {MOST_DEVICES} GPUs")
    known = () if suppress is None else suppressions(suppress)
    return checking(on_race == "raise", stacks, memory, suppress=known, host=host, simulate=simulate)


class _Once(contextlib.ContextDecorator, contextlib.AbstractContextManager["CheckedRun"]):
    """A block that is entered once. As a decorator it makes a new block for each call."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[CheckedRun]]) -> None:
        self._make = make
        self._block: contextlib.AbstractContextManager[CheckedRun] | None = None

    def _recreate_cm(self) -> _Once:
        return _Once(self._make)

    def __enter__(self) -> CheckedRun:
        if self._block is not None:
            raise RuntimeError(
                "this check was entered before, and each checks one block; call check() again for the "
                "next one"
            )
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
    baseline: Baseline | None = None,
    steps: Steps | None = None,
    host: bool = True,
    simulate: int = 0,
    log: bool = False,
) -> Iterator[CheckedRun]:
    """Check a block, as ``check`` does.

    Args:
        raises: Whether a race raises.
        stacks: As for ``check``.
        memory: As for ``check``.
        pretend: Whether the CPU counts as a GPU, so that operators are observed on a machine without one.
        suppress: Findings that are not reported. With ``raises`` they still raise.
        baseline: Known findings, which are not reported either, and still raise.
        steps: The steps that are checked; by default the whole block.
        host: As for ``check``.
        simulate: Number of GPUs to simulate.
        log: Whether a log is kept, from which a program with one of the races can be extracted. The log may
            take as much memory as the check itself.
    """
    if not _entered.acquire(blocking=False):
        raise RuntimeError(
            "a check is entered already, in this program or by `python -m sidestream.check`; leave it before "
            "the next one"
        )
    try:
        run: CheckedRun | None = None

        def shown(race: str) -> str:
            return "" if run is None else str(race_of(json.loads(race, object_hook=run._placed)))

        with _simulated(simulate) as simulation:
            planned = _check_plan.plan if simulation is None else simulation.plan
            mode = _mode(planned, shown, raises, stacks, memory, pretend)
            if log:
                mode.keep_log(memory)
            try:
                with hooked(mode, steps), mode.pinned.prefetchers_heard(), watched(
                    mode, host, pretend or simulation is not None
                ) as unheard, operators_heard(mode):
                    run = CheckedRun(mode, unheard, suppress, steps, simulation, baseline)
                    yield run
            finally:
                mode.end()
    finally:
        _entered.release()


_entered = threading.Lock()


def _simulated(count: int) -> contextlib.AbstractContextManager[Any]:
    """Return the context manager of the simulated GPUs, or None if the check simulates none."""
    if not count:
        return contextlib.nullcontext()
    try:
        from sidestream._simulated import simulated
    except ImportError as error:
        raise ModuleNotFoundError("check needs PyTorch, which is not installed; pip install torch") from error
    return simulated(count)


def _mode(
    planned: Callable[[Any], Any],
    shown: Callable[[str], str],
    raises: bool,
    stacks: bool,
    memory: int,
    pretend: bool,
) -> Any:
    """Return the recorder, as a dispatch mode of PyTorch."""
    try:
        import torch
    except ImportError as error:
        raise ModuleNotFoundError("check needs PyTorch, which is not installed; pip install torch") from error
    from torch.utils._python_dispatch import TorchDispatchMode

    global _Mode
    if _Mode is None:

        class Mode(Recorder, TorchDispatchMode):  # type: ignore[misc]
            supports_higher_order_operators = True

            def __init__(self, *_: Any) -> None:
                TorchDispatchMode.__init__(self)

            @classmethod
            def ignore_compile_internals(cls) -> bool:
                # The compiled program runs under the mode, which then observes it.
                return True

        _Mode = Mode
    cuda = not pretend and torch.cuda.is_available()
    hidden = _check_fix.hidden()
    itself: list[Any] = []
    mode = _Mode(
        {
            "planner": _check_plan.planner(planned, itself),
            "shown": shown,
            "called": _check_fix.namer(hidden),
            "current_stream": torch._C._cuda_getCurrentRawStream if cuda else None,
            "current_device": torch._C._cuda_getDevice if cuda else None,
            "thread_name": lambda: threading.current_thread().name,
            "plain": [torch.Tensor, torch.nn.Parameter],
            "no_dispatch": torch._C._disabled_torch_dispatch_impl,
        },
        {
            "code": torch.autograd.graph._engine_run_backward.__code__,
            "node": getattr(torch._C, "_current_autograd_node", None),
        },
        memory,
        raises,
        (hidden, _check_fix.LIBRARIES, _check_fix.PACKAGE) if stacks else None,
        pretend,
    )
    mode.pinned = Pinned(mode)
    itself.append(weakref.ref(mode))
    return mode


_Mode: Any = None


class CheckedRun(Result):
    """The findings of a check. ``print`` shows the calls that fix the races, and each race with both lines.
    """

    _style = ' style="white-space:pre-wrap"'

    def __init__(
        self,
        recorder: Any,
        unheard: Sequence[str] = (),
        suppress: tuple[Suppression, ...] = (),
        steps: Steps | None = None,
        simulation: Any = None,
        baseline: Baseline | None = None,
    ) -> None:
        self._recorder = recorder
        self._unheard = unheard
        self._suppress = suppress
        self._steps = steps
        self._simulation = simulation
        self._baseline = baseline

    @property
    def races(self) -> tuple[CheckedRace, ...]:
        """The races. Races at the same two places are listed once."""
        return self._found.races

    @property
    def mends(self) -> tuple[Mend, ...]:
        """The calls that fix the races, in source order. One call may fix several."""
        return self._found.mends

    def patch(self) -> str:
        """Return the calls as a unified diff of the program's files, for ``patch -p0``. No file is written.

        A call that cannot be placed safely comes first, as a line that begins with ``# not placed`` and says
        why. A superfluous wait only costs overlap, but read the patch before you apply it.
        """
        return _check_fix.patch(self.mends, self.races)

    @property
    def lints(self) -> tuple[Remark, ...]:
        """Remarks on calls that race with nothing but do not have the intended effect. Remarks do not make a
        run unclean.
        """
        return self._found.lints

    @property
    def suppressed(self) -> tuple[Suppression, ...]:
        """The suppressions that matched a finding."""
        return tuple(dict.fromkeys(one for one, findings in self._found.suppressed if findings))

    @property
    def known(self) -> int:
        """Number of findings that are left out because the baseline has them."""
        return len(self._found.known)

    @property
    def operations(self) -> int:
        """Number of operators, copies and host accesses that were checked."""
        return self._found.operations

    @property
    def ended(self) -> str | None:
        """The reason if the check ended before the block did: the report covers only the time before.
        Otherwise None.
        """
        return self._found.ended

    @property
    def streams(self) -> tuple[NamedStream, ...]:
        """The streams, with the names that the report gives them."""
        return self._found.streams

    @property
    def host(self) -> HostAccesses:
        """The share of the pinned memory in copies that was watched for the host's own loads and stores."""
        host = self._found.host
        return replace(host, problem=self._unheard[0]) if self._unheard else host

    @property
    def skipped(self) -> tuple[str, ...]:
        """Features that the program requested of a simulated GPU and did not get, each with its line; empty
        on a real GPU.
        """
        return () if self._simulation is None else self._simulation.skipped

    @property
    def is_clean(self) -> bool:
        """Whether no race is certain and the check did not end early. Warnings do not count. Also True if
        nothing ran on a GPU: ``operations`` is 0 then.
        """
        return self.ended is None and not any(race.severity == "error" for race in self.races)

    @property
    def _found(self) -> Found:
        recorded = self._recorder.report()
        if recorded != self._last[0]:
            value = json.loads(recorded, object_hook=self._placed)
            found = parsed(value, self._simulation is not None)
            self._last = (recorded, without(found, self._suppress, self._baseline))
        return self._last[1]

    @functools.cached_property
    def _last(self) -> tuple[str, Found]:
        return ("", Found((), (), 0, None))

    def _placed(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return an object of the recorder's report with the places of its stack in place of their number."""
        for name in ("stack", "refused"):
            if isinstance(value.get(name), int):
                value[name] = self._places(value[name])
        return value

    def _places(self, stack: int) -> tuple[Place, ...]:
        return tuple(place_of(code, at) for code, at in self._recorder.frames(stack))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as new dictionaries and lists, of the schema ``sidestream.checked/1``."""
        return {
            "schema": "sidestream.checked/1",
            **{name: plain(getattr(self, name)) for name in _PARTS},
            "suppressed": [
                {"place": one._place, "reason": one.reason, "findings": findings}
                for one, findings in self._found.suppressed
            ],
            "skipped": list(self.skipped),
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, unused: bool = True) -> str:
        """Return the report as text. ``unused`` says whether suppressions that matched nothing are named."""
        found = self._found
        count = len(found.races)
        certain = sum(race.severity == "error" for race in found.races)
        races = "no race" if certain == 0 else "1 race" if certain == 1 else f"{certain} races"
        if found.left_out and not certain:
            races += f" besides {found.left_out} suppressed finding{'s' * (found.left_out != 1)}"
        if certain < count:
            races += " and 1 warning" if count - certain == 1 else f" and {count - certain} warnings"
        operations = "1 operation" if found.operations == 1 else f"{found.operations:,} operations"
        if self._steps is not None:
            operations += f" of {self._steps.shown}"
        if self._simulation is not None:
            devices = self._simulation.streams.count
            operations += " on a simulated GPU" if devices == 1 else f" on {devices} simulated GPUs"
        parts = [f"{races} in {operations}"]
        if found.ended is not None:
            parts = [f"the check ended early, with {races} until then; the program made {operations}"]
        if self._steps is not None and self._steps.made <= self._steps.first and not found.operations:
            parts[0] += f": nothing was checked, since the program made {self._steps.made} step" + (
                "" if self._steps.made == 1 else "s"
            )
        elif not found.operations and found.ended is None:
            parts[0] += ": nothing was checked, since nothing ran on a GPU"
            if self._simulation is None:
                parts[
                    0
                ] += "; where there is none, `--simulate` and `check(simulate=True)` have a simulated one"
        if found.mends:
            parts[0] += (
                f"; {len(found.mends)} calls fix them"
                if len(found.mends) > 1
                else f"; one call fixes {'it' if count == 1 else 'them'}"
            )
        mended = {at for mend in found.mends for at in mend.races}
        for mend in found.mends:
            # Operators of one line whose races look alike are shown once.
            shown = dict.fromkeys(found.races[at]._short() for at in mend.races)
            lines = [mend._line(found.races), *list(shown)[:_SHOWN]]
            if more := len(mend.races) - min(len(shown), _SHOWN):
                same = "" if len(shown) > _SHOWN else " of the same lines"
                lines.append(f"  and {more} more{same}, listed in `races` and in the JSON report")
            if fix := next(
                (found.races[at].fix for at in mend.races if found.races[at].workspace is not None), None
            ):
                lines.append(f"  or: {fix}")
            parts.append("\n".join(lines))
        parts += [str(race) for at, race in enumerate(found.races) if at not in mended]
        parts += [str(lint) for lint in found.lints]
        if found.races and (streams := named(found.races, found.streams)):
            parts.append("streams: " + ", ".join(streams))
        if found.left_out:
            used = ((one, findings) for one, findings in found.suppressed if findings)
            parts.append("\n".join(f"suppressed: {counted(findings)}: {one}" for one, findings in used))
        if found.known:
            parts.append(f"left out as known: {counted(len(found.known))}")
        # A run that checked nothing, or not to its end, cannot tell what is unused.
        if unused and found.operations and found.ended is None:
            if left := [one._entry for one, findings in found.suppressed if not findings]:
                parts.append(
                    "these suppressions matched nothing; correct or remove them: names and path components "
                    f"match whole: {', '.join(left)}"
                )
            if self._baseline is not None and (gone := self._baseline.known - set(found.known)):
                parts.append(self._baseline.shown(len(gone)))
        if found.operations and (host := str(self.host)):
            parts.append(host)
        parts += map(printable, self.skipped)
        if found.ended is not None:
            parts.append(printable(found.ended))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        races, operations = len(self.races), self.operations
        return (
            f"<CheckedRun: {races} race{'s' * (races != 1)} in {operations} "
            f"operation{'s' * (operations != 1)}>"
        )


#: The parts of the report as data.
_PARTS = ("races", "mends", "lints", "known", "operations", "ended", "streams", "host")
#: Maximum number of races that are shown for one call.
_SHOWN = 4
