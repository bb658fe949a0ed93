"""``provoke``: runs a function again with a delay on the device before one access of each race, so that a
race that usually does no harm gives wrong bytes.

A race needs its second access to come before its first is complete. One delay on the device, enqueued right
before the first, makes sure of that, and changes no result of a program that orders the two. What is compared
is what the two accesses wrote and what the function returns, with runs in which the host waits for the device
after each operator.
"""

from __future__ import annotations

import contextlib
import linecache
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidestream import _check_fix
from sidestream._arguments import whole
from sidestream._check import check
from sidestream._checked import CheckedRace, Side, plain
from sidestream._results import Result

#: Milliseconds of the delay. A host that enqueues the second access takes microseconds for it.
DELAY_MS = 20.0
#: Runs before the compared ones: the allocator's cache is as it will be from the second on.
_WARM = 2

#: An operator, and the text of the innermost line of the program that called it: a fix moves line numbers.
#: Operators of a backward pass are called by no line, and are recognized by their name alone.
Call = tuple[str, str]


@dataclass(frozen=True)
class Provocation:
    """One race, and what a delay before its first access did.

    Attributes:
        race: The race in one line.
        first: The operator of the first access, and the text of the line that called it.
        second: Likewise of the second access.
        runs: Number of runs with the delay.
        wrong: Number of these runs in which something differed from the runs that wait after each operator.
        wrong_alone: Number of as many runs without a delay in which something differed.
        delays: Number of delays in a run; 0 if the first access is not an operator that can be delayed.
        what: What differed first: the call or the result, its bytes, and the first of them that is wrong;
            None if nothing did.
    """

    race: str
    first: Call
    second: Call
    runs: int
    wrong: int
    wrong_alone: int
    delays: int
    what: str | None

    def __str__(self) -> str:
        if not self.delays:
            what = "not tried: no delay can come right before the first access"
        elif self.what is None:
            what = (
                f"not reached: {self.runs} runs with a delay before the first access gave the right results, "
                "which does not mean that it cannot happen"
            )
        else:
            what = (
                f"wrong in {self.wrong} of {self.runs} runs with a delay before the first access, in "
                f"{self.wrong_alone} of {self.runs} without: {self.what}"
            )
        return f"{self.race}:\n  {what}"


@dataclass(frozen=True)
class Provoked(Result):
    """What ``provoke`` found. ``print`` shows each race with its wrong bytes.

    Attributes:
        races: Each race with what its delay did, in the order of the report.
        compared: Number of results that are the same in each run without a race, and were compared.
        varying: Number of results that differ from run to run even if the host waits after each operator.
            They are not compared.
    """

    races: tuple[Provocation, ...] = ()
    compared: int = 0
    varying: int = 0

    @property
    def wrong(self) -> bool:
        """Whether any run gave a wrong result."""
        return any(one.wrong for one in self.races)

    def test(self, function: str) -> str:
        """Return a test for pytest that fails as long as the races can be provoked, on a GPU.

        Args:
            function: The import path of the function, such as ``"train:step"``.
        """
        module, _, name = function.partition(":")
        pairs = ["    " + repr((one.first, one.second)) + "," for one in self.races if one.wrong]
        lines = [
            "import pytest",
            "import sidestream",
            "import torch",
            f"from {module} import {name}",
            "",
            "#: Pairs of operators that raced: each with the line that called it.",
            "PAIRS = [",
            *dict.fromkeys(pairs),
            "]",
            "",
            "",
            '@pytest.mark.skipif(not torch.cuda.is_available(), reason="delays work on a GPU")',
            f"def test_{name}_gives_the_same_bytes_with_a_delay() -> None:",
            f"    provoked = sidestream.provoke({name}, pairs=PAIRS)",
            "    assert not provoked.wrong, provoked",
        ]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the results as new dictionaries and lists, of the schema ``sidestream.provoked/1``."""
        return {"schema": "sidestream.provoked/1", **plain(self)}

    def __str__(self) -> str:
        parts = [str(one) for one in self.races] or ["no race to provoke"]
        if self.varying:
            parts.append(
                f"{self.varying} results differ from run to run without a race and were not compared; "
                f"{self.compared} were"
            )
        return "\n".join(parts)


def provoke(
    function: Callable[[], Any],
    *,
    pairs: Iterable[tuple[Call, Call]] | None = None,
    runs: int = 20,
    delay_ms: float = DELAY_MS,
    seed: int = 0,
) -> Provoked:
    """Run a function with a delay on the GPU before the first access of each race, and compare its results.

    The function is called under ``check`` once, which finds the races; then some times with the host waiting
    for the device after each operator, for the right results; then ``runs`` times for each race with a delay
    before each call of its first access. The random numbers of Python, numpy and PyTorch are seeded before
    each call. The function has to do the same each time: a model that it trains belongs inside it.

    Compared are the results of the operators of both accesses, and the tensors, arrays and numbers that the
    function returns.

    Args:
        function: What to run, without arguments.
        pairs: Pairs of operators to provoke in the place of those that the check finds, as ``first`` and
            ``second`` of an earlier result have them. A test of a fix names those found before it.
        runs: Runs with a delay, for each race.
        delay_ms: Milliseconds of a delay.
        seed: The seed before each call.

    Returns:
        Each race with the number of wrong runs and the first wrong bytes. 0 wrong runs do not mean that a
        race cannot happen.

    Raises:
        RuntimeError: PyTorch finds no GPU, or a check is entered already.
        ValueError: ``runs`` or ``delay_ms`` is not positive.
        TypeError: ``function`` cannot be called.
    """
    import torch

    if not callable(function):
        raise TypeError(f"function is {type(function).__name__}; give one that takes no arguments")
    runs = whole("runs", runs, 1, "a number of runs")
    if not delay_ms > 0:
        raise ValueError(f"delay_ms is {delay_ms}; give milliseconds above 0")
    if not torch.cuda.is_available():
        raise RuntimeError("provoke delays work on a GPU, and PyTorch finds none; check() needs none")
    tried: dict[tuple[Call, Call], str]
    if pairs is None:
        _seed(seed)
        with check() as found:
            function()
        torch.cuda.synchronize()
        tried = raced(found.races)
    elif isinstance(pairs, Mapping):
        tried = dict(pairs)
    else:
        tried = {
            (one, other): f"{one[0]} at `{one[1]}`, then {other[0]} at `{other[1]}`" for one, other in pairs
        }
    if not tried:
        return Provoked()
    return _provoked(function, tried, runs, int(_cycles_per_ms() * delay_ms), seed)


def _provoked(
    function: Callable[[], Any], tried: Mapping[tuple[Call, Call], str], runs: int, cycles: int, seed: int
) -> Provoked:
    """Run the function with delays of this many cycles of the clock, and compare the results."""
    import torch

    watched = {call for pair in tried for call in pair}

    def run(how: _How) -> tuple[dict[Any, Any], int]:
        _seed(seed)
        _poison()
        mode = _mode()(watched, cycles, how)
        with mode, _traced(mode if how.by_line else None):
            returned = function()
        torch.cuda.synchronize()
        mode.end()
        return {**mode.results, **_returned(returned)}, mode.delays

    waits = _How(waits=True, keeps=True)
    for _ in range(_WARM):
        run(waits)
    right, again = run(waits)[0], run(waits)[0]
    steady = {key: value for key, value in right.items() if key in again and _same(value, again[key])}

    def differs(results: dict[Any, Any]) -> Any:
        return next((key for key in steady if key in results and not _same(steady[key], results[key])), None)

    def way(first: Call) -> tuple[_How, int]:
        """Return how a delay gives wrong bytes, or else one that delays, with the number of delays."""
        best = _How(first), 0
        for by_line in (False, True):
            for keeps in (False, True):
                how = _How(first, keeps=keeps, by_line=by_line)
                results, delays = run(how)
                if delays and differs(results) is not None:
                    return how, delays
                best = best if best[1] or not delays else (how, delays)
        return best

    provoked = []
    alone = sum(differs(run(_How(keeps=at % 2 > 0))[0]) is not None for at in range(runs if tried else 0))
    for (first, second), text in tried.items():
        how, delays = way(first)
        wrong, what = 0, None
        for _ in range(runs if delays else 0):
            results, _ = run(how)
            if (key := differs(results)) is not None:
                wrong += 1
                what = what or _difference(key, steady[key], results[key])
        provoked.append(Provocation(text, first, second, runs, wrong, alone, delays, what))
    return Provoked(tuple(provoked), len(steady), len(right) - len(steady))


def raced(races: Sequence[CheckedRace]) -> dict[tuple[Call, Call], str]:
    """Return the pairs of operators of races, each with its text."""
    pairs: dict[tuple[Call, Call], str] = {}
    for race in races:
        text = f"{race._what}, {race.first._short()}, then {race.second._short()}"
        pairs.setdefault((_call(race.first), _call(race.second)), text)
    return pairs


def _seed(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def _call(side: Side) -> Call:
    place = _check_fix.own(side.stack)
    return side.operator, "" if place is None else _check_fix.source(place)


def _line() -> str:
    """Return the innermost line of the program, as text; empty on a thread of the autograd engine."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not _check_fix.is_library(file):
            return linecache.getline(file, frame.f_lineno).strip()
        frame = frame.f_back
    return ""


def _cycles_per_ms() -> float:
    """Measure the clock by which the delay counts."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    start.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    return float(10_000_000 / start.elapsed_time(end))


@dataclass(frozen=True)
class _How:
    """How a run differs from a plain one.

    Attributes:
        before: The call to delay.
        waits: Whether the host waits for the device after each operator.
        keeps: Whether a tensor that a watched operator changes in place is kept until the end and compared
            again: an access that comes late shows only there. Kept memory is not reused, so races over reused
            memory do not show.
        by_line: Whether the delay is enqueued when the line is reached, for calls that are not operators or
            come from other threads, instead of right before the operator.
    """

    before: Call | None = None
    waits: bool = False
    keeps: bool = False
    by_line: bool = False


_Mode: Any = None


def _mode() -> Any:
    """Return the class that delays one call and keeps the results of some."""
    global _Mode
    if _Mode is not None:
        return _Mode
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, watched: set[Call], cycles: int, how: _How) -> None:
            super().__init__()
            self.watched, self.cycles, self.how = watched, cycles, how
            self.results: dict[Any, Any] = {}
            self.late: list[tuple[Any, Any]] = []
            self.counts: dict[Call, int] = {}
            self.delays = 0

        def delay(self) -> None:
            torch.cuda._sleep(self.cycles)
            self.delays += 1

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            call: Call = name, _line()
            if not call[1]:
                # On a thread of the autograd engine; the report has the line that called `backward`.
                call = next((one for one in self.watched if one[0] == name), call)
            if call == self.how.before and not self.how.by_line:
                self.delay()
            out = func(*args, **(kwargs or {}))
            if call in self.watched:
                self._keep(call, out, func._schema.is_mutable)
            if self.how.waits and not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
            return out

        def _keep(self, call: Call, out: Any, in_place: bool) -> None:
            count = self.counts[call] = self.counts.get(call, 0) + 1
            for at, tensor in enumerate(_tensors(out)):
                key = (*call, count, at)
                # A copy into pinned memory may be in flight: the host must not read it now.
                if not tensor.is_cuda and tensor.is_pinned():
                    self.late.append((key, tensor))
                    continue
                with _apart():
                    self.results[key] = tensor.detach().clone()
                if in_place and self.how.keeps:
                    self.late.append(((*key, "end"), tensor))

        def end(self) -> None:
            for key, tensor in self.late:
                self.results[key] = tensor.detach().clone()

    _Mode = Mode
    return Mode


@contextlib.contextmanager
def _traced(mode: Any) -> Iterator[None]:
    """Delay the current stream where the program reaches the line of the call, on any of its threads."""
    if mode is None:
        yield
        return
    line = mode.how.before[1]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            if linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() == line:
                mode.delay()
        elif _check_fix.is_library(frame.f_code.co_filename) or frame.f_code.co_filename == __file__:
            return None
        return trace

    # A debugger or a measurement of coverage traces too.
    before, before_threads = sys.gettrace(), threading.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before_threads)


class _Raw:
    """Bytes of the device, in the form in which PyTorch takes them over without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _poison() -> None:
    """Overwrite the free memory of PyTorch's caches. What an earlier run left there would be the right bytes
    for an access that comes too early.
    """
    import torch

    torch.cuda.synchronize()
    if hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache()
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                raw = _Raw(block.get("address", address), block["size"])
                torch.as_tensor(raw, device=f"cuda:{segment['device']}").fill_(0xA5)
            address += block["size"]
    torch.cuda.synchronize()


def _tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _returned(value: Any) -> dict[Any, Any]:
    """Return copies of the tensors, arrays and numbers in what a function returned."""
    import torch
    from torch.utils import _pytree

    numpy = sys.modules.get("numpy")
    found: dict[Any, Any] = {}
    for at, leaf in enumerate(_pytree.tree_leaves(value)):
        if isinstance(leaf, (bool, int, float)) or (
            numpy and isinstance(leaf, (numpy.ndarray, numpy.generic))
        ):
            leaf = torch.as_tensor(leaf)
        if isinstance(leaf, torch.Tensor):
            found["result", "", 1, at] = leaf.detach().clone()
    return found


#: Memory for kept results: taken from the program's own, it would change which memory is used again.
_pool: Any = None


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    global _pool
    import torch

    if not hasattr(torch.cuda, "use_mem_pool") or torch.cuda.is_current_stream_capturing():
        yield
        return
    if _pool is None:
        _pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(_pool):
        yield


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.cpu().contiguous().flatten().view(torch.uint8)


def _same(one: Any, other: Any) -> bool:
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.numel() == 0 or bool(torch.equal(_bytes(one), _bytes(other)))


def _difference(key: Any, right: Any, wrong: Any) -> str:
    name, line, count, at = key[:4]
    whose = (
        f"value {at} of what the function returns"
        if name == "result" and not line
        else (
            f"result {at} of call {count} of {name}"
            + (f" at `{line}`" if line else "")
            + (", read again at the end," if len(key) > 4 else "")
        )
    )
    if wrong.shape != right.shape:
        return f"{whose} has another shape"
    one, other = _bytes(right), _bytes(wrong)
    off = (one != other).nonzero().flatten()
    first = int(off[0])
    return (
        f"{whose} differs in {len(off):,} of {len(one):,} bytes, first at byte {first:,}: "
        f"0x{int(other[first]):02x} instead of 0x{int(one[first]):02x}"
    )
