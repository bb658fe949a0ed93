"""``provoke``: runs a function again with a delay on the device before one access of each race, so that a
race that usually does no harm gives wrong bytes.

A race needs its second access to come before its first is complete. One delay on the device, enqueued right
before the first, makes sure of that, and changes no result of a program that orders the two. What is compared
is what each operator computes and what the function returns, with runs in which the host waits for the device
after each operator.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidestream import _check_fix, _check_reduce
from sidestream._arguments import whole
from sidestream._check import CheckedRun, checking
from sidestream._check_delays import Call, Delay, DeviceFailed, How, Run, run, seeded
from sidestream._checked import CheckedRace, Side, plain
from sidestream._results import Result
from sidestream._sidestream import explored as _explored

#: Milliseconds of the delay. A host that enqueues the second access takes microseconds for it.
DELAY_MS = 20.0
#: Maximum number of schedules of a simulated GPU.
_MOST_SCHEDULES = 10_000
_FAILED = "a GPU that failed runs nothing more in this process; what is missing was not tried"
#: Runs before the compared ones: the allocator's cache is as it will be from the second on.
_WARM = 2


@dataclass(frozen=True)
class Provocation:
    """One race, and what a delay before its first access did.

    Attributes:
        race: The race in one line.
        first: The operator of the first access, and the text of the line that called it.
        second: Likewise of the second access.
        runs: Number of runs with the delay.
        wrong: Number of these runs in which something differed from the runs that wait after each operator.
        wrong_alone: Number of as many runs without a delay in which something differed; None if that was not
            tried: what the host finds, and hidden writes, show only with a delay.
        delays: Number of delays in a run; 0 if the first access is not an operator that can be delayed.
        how: What was done in each run.
        what: What differed first: the call or the result, its bytes, and the first of them that is wrong;
            None if nothing did.
        why: Why no run was wrong, as far as the runs show it; None if one was.
        simulated: Whether the runs are legal schedules of the shortest program with the race, on a simulated
            GPU. Its memory is marked by what wrote it last, so this shows what an order can do, not that the
            program's values differ.
    """

    race: str
    first: Call
    second: Call
    runs: int
    wrong: int
    wrong_alone: int | None
    delays: int
    what: str | None
    how: str | None = How().text
    why: str | None = None
    simulated: bool = False

    def __str__(self) -> str:
        if self.simulated:
            what = (
                "its shortest program, with marked memory, finds other bytes than in order in "
                f"{self.wrong:,} of {self.runs:,} legal schedules of a simulated GPU"
            )
            if self.why is not None:
                what = f"not run on a simulated GPU: {self.why}"
        elif not self.delays:
            what = "not tried: no delay can come right before the first access"
        elif self.what is None:
            why = self.why or f"{self.runs} runs {self.how} gave the right results"
            what = f"not reached: {why}. That does not mean that it cannot happen"
        else:
            alone = "not tried" if self.wrong_alone is None else f"in {self.wrong_alone} of {self.runs}"
            what = f"wrong in {self.wrong} of {self.runs} runs {self.how}, {alone} without: {self.what}"
        return f"{self.race}:\n  {what}"


@dataclass(frozen=True)
class Provoked(Result):
    """What ``provoke`` found. ``print`` shows each race with its wrong bytes.

    Attributes:
        races: Each race with what its delay did, in the order of the report. Of a search: the operators whose
            delay gave wrong results.
        compared: Number of results that are the same in each run without a race, and were compared.
        varying: Number of results that differ from run to run even if the host waits after each operator.
            They are not compared.
        searched: Of a search: the number of operators that were delayed, and of all that ran; else None.
        failed: Why the runs ended early, if they did.
    """

    races: tuple[Provocation, ...] = ()
    compared: int = 0
    varying: int = 0
    searched: tuple[int, int] | None = None
    failed: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether any run gave a wrong result."""
        return any(one.wrong or one.wrong_alone for one in self.races)

    def test(self, function: str) -> str:
        """Return a test for pytest that fails as long as the races can be provoked, on a GPU.

        Args:
            function: The import path of the function, such as ``"train:step"``.

        Raises:
            ValueError: No race gave wrong results on a GPU, or ``function`` is not such a path.
        """
        module, _, name = function.partition(":")
        if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f'function is {function!r}; give a module and a function, such as "train:step"')
        if not any(one.wrong and not one.simulated for one in self.races):
            raise ValueError("no race gave wrong results on a GPU, so a test would show nothing")
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
            "    # A line that was changed is no longer delayed: then the pairs have to be found anew.",
            "    assert all(race.delays for race in provoked.races), provoked",
            "    assert not provoked.wrong, provoked",
        ]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the results as new dictionaries and lists, of the schema ``sidestream.provoked/1``."""
        return {"schema": "sidestream.provoked/1", **plain(self)}

    def __str__(self) -> str:
        parts = [str(one) for one in self.races]
        if self.searched is not None:
            tried, count = self.searched
            parts.append(
                f"a search, no proof: {tried} of {count} operators were delayed in turn, and the delay of "
                f"{len(self.races) or 'none'} gave wrong results"
            )
        if self.varying:
            parts.append(
                f"{self.varying} results differ from run to run without a race and were not compared; "
                f"{self.compared} were"
            )
        if self.failed is not None:
            parts.append(self.failed)
        return "\n".join(parts or ["no race to provoke"])


def provoke(
    function: Callable[[], Any],
    *,
    pairs: Iterable[tuple[Call, Call]] | None = None,
    runs: int = 20,
    delay_ms: float = DELAY_MS,
    seed: int = 0,
    search_s: float = 0.0,
    simulate: bool = False,
) -> Provoked:
    """Run a function with a delay on the GPU before the first access of each race, and compare its results.

    The function is called under ``check`` once, which finds the races; then some times with the host waiting
    for the device after each operator, for the right results; then for each race some times to find a delay
    that shows it, and ``runs`` times with that delay before each call of its first access. The random numbers
    of Python, numpy and PyTorch are seeded before each call. The function has to do the same each time: a
    model that it trains belongs inside it.

    Compared is what each operator computes, on the program's own threads, too, and the tensors, arrays and
    numbers that the function returns. If a delay alone changes nothing, what the two accesses write is also
    hidden: it is saved, overwritten and, after another delay, restored, on the stream of the access and
    before any work that is ordered after it.

    Args:
        function: What to run, without arguments.
        pairs: Pairs of operators to provoke in the place of those that the check finds, as ``first`` and
            ``second`` of an earlier result have them. A test of a fix names those found before it.
        runs: Runs with a delay, for each race.
        delay_ms: Milliseconds of a delay.
        seed: The seed before each call.
        search_s: Seconds for a search: where the check finds no race, each operator is delayed in turn.
        simulate: Whether to simulate the GPU, so that none is needed: then each race is reduced to the
            shortest program that has it, which runs under up to 10,000 schedules that CUDA's rules allow.
            The other arguments have no effect.

    Returns:
        Each race with the number of wrong runs and the first wrong bytes. 0 wrong runs do not mean that a
        race cannot happen.

    Raises:
        RuntimeError: PyTorch finds no GPU and none is simulated, or a check is entered already.
        ValueError: ``runs`` or ``delay_ms`` is not positive, or ``search_s`` is negative.
        TypeError: ``function`` cannot be called.
    """
    import torch

    if not callable(function):
        raise TypeError(f"function is {type(function).__name__}; give one that takes no arguments")
    runs = whole("runs", runs, 1, "a number of runs")
    if not delay_ms > 0:
        raise ValueError(f"delay_ms is {delay_ms}; give milliseconds above 0")
    if not search_s >= 0:
        raise ValueError(f"search_s is {search_s}; give seconds, 0 or more")
    if simulate:
        with checking(simulate=1, log=True) as found:
            function()
        return explored(found)
    if not torch.cuda.is_available():
        raise RuntimeError("provoke needs a GPU, and PyTorch finds none; with simulate=True it needs none")
    tried: dict[tuple[Call, Call], str]
    # The pairs of a test may be in order by now.
    is_racy = pairs is None or isinstance(pairs, Mapping)
    if pairs is None:
        seeded(seed)
        with checking() as found:
            function()
        torch.cuda.synchronize()
        tried = raced(found.races)
    elif isinstance(pairs, Mapping):
        tried = dict(pairs)
    else:
        tried = {
            (one, other): f"{one[0]} at `{one[1]}`, then {other[0]} at `{other[1]}`" for one, other in pairs
        }
    if not tried and not search_s:
        return Provoked()
    runner = _Runner(function, tried, runs, Delay.of(delay_ms), seed, is_racy)
    return runner.search(search_s) if not tried else runner.provoked()


class _Runner:
    """Runs a function with delays, and compares its results."""

    def __init__(
        self,
        function: Callable[[], Any],
        tried: Mapping[tuple[Call, Call], str],
        runs: int,
        delay: Delay,
        seed: int,
        is_racy: bool,
    ) -> None:
        self.is_racy = is_racy
        self.function, self.tried, self.runs, self.delay, self.seed = function, tried, runs, delay, seed
        self.watched = {call for pair in tried for call in pair}
        waits = How(waits=True, keeps=True, delays=False)
        for _ in range(_WARM):
            self.run(waits)
        right = self.run(waits)
        self.right, self.counts = right.results, right.counts
        # What depends on memory that the program has not written differs with its contents.
        again = self.run(dataclasses.replace(waits, fill=0x5A)).results
        self.steady = {
            key: value for key, value in self.right.items() if key in again and _same(value, again[key])
        }
        self.compared = len(self.steady)
        self.varying = len(self.right) - self.compared

    def run(self, how: How) -> Run:
        return run(self.function, how, self.watched, self.delay, self.seed)

    def difference(self, ran: Run) -> str | None:
        """Return what is wrong first in a run; of several at once, one whose bytes are known."""
        if ran.error is not None:
            return f"the program ended with {ran.error}"
        hidden = [key for key, count in ran.results.items() if key[-1] == "hidden" and int(count)]
        wrong = (
            key
            for key, value in self.steady.items()
            if key in ran.results
            and not _same(value, ran.results[key])
            # Of such calls it is not known which result belongs to which.
            and key[:2] not in ran.mixed
            and ran.counts.get(key[:2]) == self.counts.get(key[:2])
        )
        first = next(wrong, None)
        if first is not None:
            told = first if first[-1] != "sum" else next((key for key in wrong if key[-1] != "sum"), first)
            return _difference(told, self.steady[told], ran.results[told])
        if hidden:
            return f"{_whose(hidden[0])} was overwritten by another access during the delay behind it"
        return None

    def provoked(self) -> Provoked:
        provoked: list[Provocation] = []
        failed = None
        alone: int | None = None
        for (first, second), text in self.tried.items():
            try:
                if alone is None:
                    alone = self.alone()
                provoked.append(self.pair(text, first, second, alone))
            except DeviceFailed as error:
                what, failed = f"the device failed: {error}", _FAILED
                by = (0, 1) if alone is None else (1, 0)
                provoked.append(Provocation(text, first, second, 1, *by, 1, what))
                break
        return Provoked(tuple(provoked), self.compared, self.varying, failed=failed)

    def alone(self) -> int:
        """Return the number of wrong runs without a delay."""
        return sum(self.difference(self.run(How(keeps=at % 2 > 0))) is not None for at in range(self.runs))

    def pair(self, text: str, first: Call, second: Call, alone: int) -> Provocation:
        steady = self.steady
        found = self.control(first, second)
        self.steady = {**self.steady, **found}
        try:
            how, trial = self.way(first, second)
            wrong, shows_alone = self.repeated(how) if trial.delays else ([], True)
            why = None if wrong or not trial.delays else self.why(how)
        finally:
            self.steady = steady
        without = alone if shows_alone or not wrong else None
        what = wrong[0] if wrong else None
        return Provocation(
            text, first, second, self.runs, len(wrong), without, trial.delays, what, how.text, why
        )

    def repeated(self, how: How) -> tuple[list[str], bool]:
        """Return what is wrong first in each wrong run, and whether any shows it without a delay, too:
        what the host finds and hidden writes show only with one.
        """
        wrong, shows_alone = [], False
        for _ in range(self.runs):
            ran = self.run(how)
            what = self.difference(ran)
            if what is not None:
                wrong.append(what)
                ran.results = {k: v for k, v in ran.results.items() if k[-1] not in ("host", "hidden")}
                shows_alone = shows_alone or self.difference(ran) is not None
        return wrong, shows_alone

    def control(self, first: Call, second: Call) -> dict[Any, Any]:
        """Run with the delays and with waits, which no race survives: what differs there is not compared for
        this pair. Return what the host finds at the second call, as far as it is the second access.
        """
        held: list[dict[Any, Any]] = []
        for by_line, fill in ((True, 0xA5), (True, 0x5A), (False, 0xA5)):
            how = How(first, second, waits=True, hides=not by_line, keeps=True, by_line=by_line, fill=fill)
            ran = self.run(how)
            self.steady = {
                key: value
                for key, value in self.steady.items()
                if key not in ran.results or _same(value, ran.results[key])
            }
            if by_line and not ran.second_on_device:
                held.append({key: value for key, value in ran.results.items() if key[-1] == "host"})
        both = held[0].items() if len(held) == 2 else ()
        return {key: value for key, value in both if key in held[1] and _same(value, held[1][key])}

    def way(self, first: Call, second: Call) -> tuple[How, Run]:
        """Return how a delay gives wrong bytes, or else one that delays, with a run."""
        best: tuple[How, Run] | None = None
        for delays_host, hides, by_line, keeps in itertools.product((False, True), repeat=4):
            how = How(first, second, hides=hides, keeps=keeps, by_line=by_line, delays_host=delays_host)
            ran = self.run(how)
            if ran.delays and self.difference(ran) is not None:
                return how, ran
            if best is None or (ran.delays and not best[1].delays):
                best = how, ran
        assert best is not None
        return best

    def why(self, how: How) -> str | None:
        """Return what kept the second access from coming early, if delays before both confirm it."""
        how = dataclasses.replace(how, hides=False, delays_host=False)
        one, both = self.run(how), self.run(dataclasses.replace(how, both=True))
        pairs = one.overlaps
        if one.is_collective:
            return "a collective runs on a stream of its library, and these runs do not measure its time"
        if not pairs or not both.overlaps:
            return None
        if any(began for _, began in pairs):
            ran = sum(began for _, began in pairs)
            return (
                f"the second access began before the first was complete in {ran} of {len(pairs)} cases, and "
                f"no compared byte differed"
            )
        if all(complete for complete, _ in (*pairs, *both.overlaps)):
            text = "the host called the second access only after the first was complete"
            if one.gap is not None and one.gap[0] > self.delay.ms / 2:
                _, before, after = one.gap
                text += f"; it waited between {_shown(before)} and {_shown(after)}"
            return f"{text}, with a delay before both, too"
        if one.same_stream and both.same_stream:
            return "both accesses were on one stream, in the order of their calls"
        if not any(began for _, began in both.overlaps):
            by = (
                "a queue or an engine that their streams share"
                if self.is_racy
                else "a wait, a queue or an engine"
            )
            return (
                "the device began the second access only after the first was complete, with a delay before "
                f"both, too: {by} orders them here"
            )
        return None

    def search(self, seconds: float) -> Provoked:
        """Delay each operator in turn, for so many seconds."""
        calls = list(dict.fromkeys(key[:2] for key in self.right if key[:2] != ("result", "")))
        found: list[Provocation] = []
        show_alone: list[bool] = []
        tried, until, failed = 0, time.monotonic() + seconds, None
        try:
            for call in calls:
                if time.monotonic() >= until:
                    break
                tried += 1
                for how in (How(call), How(call, keeps=True), How(call, hides=True)):
                    if self.difference(self.run(how)) is None:
                        continue
                    self.control(call, ("", ""))
                    wrong, shows_alone = self.repeated(how)
                    if wrong:
                        what, count = f"a delay of {_shown(call)}", len(wrong)
                        show_alone.append(shows_alone)
                        found.append(
                            Provocation(what, call, ("", ""), self.runs, count, None, 1, wrong[0], how.text)
                        )
                    break
            alone = self.alone() if any(show_alone) else None
            shown = zip(found, show_alone, strict=True)
            found = [dataclasses.replace(one, wrong_alone=alone if shows else None) for one, shows in shown]
        except DeviceFailed as error:
            failed = f"with a delay of {_shown(call)} the device failed: {error}"
        return Provoked(tuple(found), self.compared, self.varying, (tried, len(calls)), failed)


def _shown(call: Call) -> str:
    return call[0] + (f" at `{call[1]}`" if call[1] else "")


def explored(found: CheckedRun) -> Provoked:
    """Run the shortest program with each race of a simulated run, which kept a log, under many schedules."""
    races = []
    for race in {raced([race]).popitem(): race for race in reversed(found.races)}.values():
        ((first, second), text), why = raced([race]).popitem(), None
        try:
            schedules, wrong = _explored(_check_reduce.reduced(found, race, "race")[0], _MOST_SCHEDULES)
        except (RuntimeError, ValueError) as error:
            schedules, wrong, why = 0, 0, str(error)
        races.append(
            Provocation(text, first, second, schedules, wrong, None, 0, None, None, why, simulated=True)
        )
    return Provoked(tuple(reversed(races)))


def raced(races: Sequence[CheckedRace]) -> dict[tuple[Call, Call], str]:
    """Return the pairs of operators of races, each with its text."""
    pairs: dict[tuple[Call, Call], str] = {}
    for race in races:
        text = f"{race._what}, {race.first._short()}, then {race.second._short()}"
        pairs.setdefault((_call(race.first), _call(race.second)), text)
    return pairs


def _call(side: Side) -> Call:
    place = _check_fix.own(side.stack)
    return side.operator, "" if place is None else _check_fix.source(place)


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.cpu().contiguous().flatten().view(torch.uint8)


def _same(one: Any, other: Any) -> bool:
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.numel() == 0 or bool(torch.equal(_bytes(one), _bytes(other)))


def _whose(key: Any) -> str:
    name, line, count, at = key[:4]
    if name == "result" and not line:
        return f"value {at} of what the function returns"
    whose = f"result {at} of call {count} of {_shown((name, line))}"
    return whose + {"end": ", read again at the end,", "host": ", as the host finds it,"}.get(key[-1], "")


def _difference(key: Any, right: Any, wrong: Any) -> str:
    whose = _whose(key)
    if key[-1] == "sum":
        return f"{whose} differs in its sum"
    if wrong.shape != right.shape:
        return f"{whose} has another shape"
    one, other = _bytes(right), _bytes(wrong)
    off = (one != other).nonzero().flatten()
    first = int(off[0])
    return (
        f"{whose} differs in {len(off):,} of {len(one):,} bytes, first at byte {first:,}: "
        f"0x{int(other[first]):02x} instead of 0x{int(one[first]):02x}"
    )
