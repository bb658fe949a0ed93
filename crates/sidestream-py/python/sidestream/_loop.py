"""``overlap`` for a user's own loop: measures what overlapping its uploads with its step is worth."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from sidestream import _simulate, _tree
from sidestream import _units as units
from sidestream._arguments import items
from sidestream._devices import SIMULATED_TIMES, caps, has_no_times, is_of, name_with_streams, of_torch
from sidestream._prefetch import prefetch
from sidestream._results import Result

_File = str | Path | None
#: Minimum number of batches of a timed loop, and its approximate seconds.
LEAST_BATCHES = 10
SECONDS = 0.15
MOST_BATCHES = 2_000
#: The number where a simulated loop computes values.
LEAST_VALUES = 4
#: The forms of the loop, and how the table names them.
LOOPS = {
    "pageable": "loop with .to()",
    "pinned": "loop, pinned, non_blocking",
    "prefetch": "loop with prefetch",
}
#: The half of a range, as a share of its middle, beyond which a simulated time cannot be told.
TOLD = 0.25
#: The share of the step that its kernels take if they are its limit.
FILLED = 0.9
#: Minimum share of the time for which changing a loop is worth it.
WORTH = 0.05


def measured(
    step: Callable[[Any], object],
    batches: Any,
    rounds: int,
    device: Any,
    host: _File,
    trace: _File,
) -> LoopOverlap:
    """Measure the parts of a loop, and the loop in its three forms, in turn, on a GPU or a simulated one."""
    if batches is None:
        raise TypeError(
            "there are no batches; give some that the loader gave, as in overlap(step, list(islice(loader, "
            "8)))"
        )
    items("batches", batches)
    given = list(islice(batches, 64))
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise ValueError("overlap(step, batches) measures a step of PyTorch, which is not imported here")
    name, simulated = name_with_streams(device), _simulate.entered()
    if name == "auto" and not torch.cuda.is_available():
        name = "sim:h200"
    if simulated is not None and name in ("auto", simulated.device) and host is None:
        return _measured(step, given, rounds, trace)
    if is_of("sim", name):
        if simulated is not None:
            raise ValueError(
                f"device is {name!r}, and a simulation of {simulated.device} is entered; leave out device "
                "and host here"
            )
        return _simulated(step, given, name, host, trace)
    if host is not None or trace is not None:
        raise ValueError('host and trace are for a simulated GPU; give device="sim:h200" too')
    if not torch.cuda.is_available():
        raise ValueError(
            f'device is {name!r}, and PyTorch finds no GPU here; leave out device, or give "sim:h200"'
        )
    with torch.cuda.device(of_torch(None if name == "auto" else name, torch, "overlap(step, batches)")):
        return _measured(step, given, rounds, None)


def _simulated(
    step: Callable[[Any], object], given: list[Any], name: str, host: _File, trace: _File
) -> LoopOverlap:
    """Measure a loop of a program that found no GPU: by shapes, or by values where these are needed."""
    from sidestream._loop_state import on_device

    simulations: list[_simulate.Simulated] = []

    def within(shapes: bool) -> LoopOverlap:
        with _simulate.simulate(name, shapes=shapes, host=host) as made, on_device(step, given, shapes):
            simulations.append(made)
            return _measured(step, given, 1, trace, LEAST_BATCHES if shapes else LEAST_VALUES)

    try:
        return within(True)
    except Exception as error:
        text, is_refused = str(error), type(error).__name__ == "NotSimulated"
        # A program may fail because a value that it asked for is 0.
        asked = simulations and simulations[0].values_asked
        if not ("values" in text if is_refused else asked or "meta tensor" in text.lower()):
            raise
        try:
            found = within(False)
        except NotImplementedError:
            raise type(error)(f"{error}; a model on meta has no values: build it on the CPU") from None
        why = text or type(error).__name__
        return replace(found, notes=(f"computed with values on this processor, as shapes do not do: {why}",))


def _measured(
    step: Callable[[Any], object], given: list[Any], rounds: int, trace: _File, least: int = LEAST_BATCHES
) -> LoopOverlap:
    torch: Any = sys.modules["torch"]
    pageable = [
        _with_tensors(batch, lambda leaf: leaf.clone() if leaf.is_pinned() else leaf) for batch in given
    ]
    pinned = [
        _with_tensors(batch, lambda leaf: leaf if leaf.is_pinned() else leaf.pin_memory()) for batch in given
    ]
    sizes = [sum(leaf.nbytes for leaf in _tree.tensors_of(batch)[0]) for batch in given]
    if not given or not any(sizes):
        raise ValueError("the batches contain no CPU tensors; pass batches as the loader yields them")
    device = torch.device("cuda", torch.cuda.current_device())

    def moved(batch: Any) -> Any:
        return _with_tensors(batch, lambda leaf: leaf.to(device))

    def sent(batch: Any) -> Any:
        return _with_tensors(batch, lambda leaf: leaf.to(device, non_blocking=True))

    def each(batches: list[Any], act: Callable[[Any], object]) -> Callable[[int], None]:
        def form(count: int) -> None:
            for batch in islice(cycle(batches), count):
                act(batch)

        return form

    def prefetched(count: int) -> None:
        with prefetch(list(islice(cycle(pinned), count)), device) as ahead:
            for batch in ahead:
                step(batch)

    forms: dict[str, Callable[[int], None]] = {
        "step": each([moved(batch) for batch in given], step),
        "upload_pinned": each(pinned, sent),
        "upload_pageable": each(pageable, moved),
        "pageable": each(pageable, lambda batch: step(moved(batch))),
        "pinned": each(pinned, lambda batch: step(sent(batch))),
        "prefetch": prefetched,
    }

    simulated = _simulate.entered()

    def now_ns() -> tuple[float, ...]:
        torch.cuda.synchronize(device)
        return (time.perf_counter() * 1e9,) if simulated is None else simulated.now_ns

    def timed(form: Callable[[int], None], count: int) -> tuple[float, ...]:
        start = now_ns()
        form(count)
        return tuple((end - begin) / count for begin, end in zip(start, now_ns(), strict=True))

    counts = {}
    for name, form in forms.items():
        timed(form, min(3, least))
        # A simulated loop takes the same time in each round.
        many = 0.0 if simulated else SECONDS * 1e9 / max(timed(form, 5)[0], 1.0)
        counts[name] = max(least, min(MOST_BATCHES, int(many)))
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in forms}
    for at in range(1 if simulated else rounds):
        for name in list(forms) if at % 2 else list(forms)[::-1]:
            times[name].append(timed(forms[name], counts[name]))
    medians = {
        name: statistics.median(sorted(one)[len(one) // 2] for one in of) for name, of in times.items()
    }
    of_simulated: dict[str, Any] = {}
    if simulated is not None:
        before = simulated.kernels_ns
        forms["step"](least)
        of_simulated = {
            "simulated": simulated.device,
            "host": simulated.host,
            "ranges": {name: (min(of[0]), max(of[0])) for name, of in times.items()},
            "unknown": simulated.unknown,
            "kernels_ns": (simulated.kernels_ns - before) / least,
            # The batches for the step alone are on the device all the time.
            "peak_bytes": torch.cuda.max_memory_allocated() - sum(sizes),
            "memory_bytes": caps(simulated.device).memory_bytes,
            "notes": simulated.notes,
        }
        if trace is not None:
            since = now_ns()[1]
            simulated.keep()
            forms[min(LOOPS, key=lambda form: medians[form])](least)
            torch.cuda.synchronize(device)
            simulated.trace(trace, int(since))
    return LoopOverlap(
        name=getattr(step, "__name__", None) or type(step).__name__,
        device_name=str(torch.cuda.get_device_name(device)),
        batches=len(given),
        batch_bytes=round(statistics.mean(sizes)),
        step_ns=medians["step"],
        upload_ns={"pinned": medians["upload_pinned"], "pageable": medians["upload_pageable"]},
        loop_ns={name: medians[name] for name in LOOPS},
        rounds=rounds,
        **of_simulated,
    )


def _with_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return the batch with its CPU tensors replaced."""
    leaves, shape = _tree.tensors_of(batch)
    return shape.unflatten([change(leaf) if leaf.is_cpu else leaf for leaf in leaves])


@dataclass(frozen=True)
class LoopOverlap(Result):
    """What overlapping uploads with a step is worth. ``print`` shows it.

    Attributes:
        name: The name of the step.
        device_name: The vendor's name of the GPU.
        batches: Number of batches that were given.
        batch_bytes: Mean number of bytes of a batch.
        step_ns: Time of the step alone, on a batch that is on the device.
        upload_ns: Time of the upload of a batch alone, from ``pinned`` and from ``pageable`` memory.
        loop_ns: Time for a batch in the whole loop: with ``.to()`` of ``pageable`` batches, with
            ``non_blocking`` copies of ``pinned`` ones, and with ``prefetch``.
        rounds: How often each was measured, in turn. All times are medians, in nanoseconds.
        simulated: The name of the simulated device, such as ``sim:h200``; it and what follows are None or
            empty for a GPU.
        host: The processor whose times the simulated host has.
        ranges: The least and the most that each time may be: of the ``step``, of ``upload_pinned`` and
            ``upload_pageable``, and of the three loops.
        unknown: Operators that take 1 % or more of the time of the kernels and are not known.
        kernels_ns: The time of the step's kernels, one after the other.
        peak_bytes: Bytes of device memory in use at the peak, and ``memory_bytes`` those of the device.
        memory_bytes: See there.
        notes: What else to know about how the times came about.
    """

    name: str
    device_name: str
    batches: int
    batch_bytes: int
    step_ns: float
    upload_ns: Mapping[str, float]
    loop_ns: Mapping[str, float]
    rounds: int
    simulated: str | None = None
    host: str | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    kernels_ns: float | None = None
    peak_bytes: int | None = None
    memory_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def limit_ns(self) -> float:
        """Minimum time of a batch, in nanoseconds: that of the step or of the upload from pinned memory,
        whichever is longer.
        """
        return max(self.step_ns, self.upload_ns["pinned"])

    @property
    def gb_per_s(self) -> dict[str, float]:
        """The bytes of a batch divided by its time, for each form of the loop."""
        return {form: self.batch_bytes / ns for form, ns in self.loop_ns.items()}

    @property
    def limited_by(self) -> str:
        """What sets the limit: ``uploads`` or ``step``; of a simulated step, ``kernels``, or ``host`` if the
        device waits for the host during 10 % of it or more.
        """
        if self.step_ns < self.upload_ns["pinned"]:
            return "uploads"
        if self.kernels_ns is None:
            return "step"
        return "kernels" if self.kernels_ns >= FILLED * self.step_ns else "host"

    @property
    def gains(self) -> tuple[float, float, float]:
        """How many times as fast the best form of the loop is as that with ``.to()``: at the least, likely
        and at the most, where all times of the device and the host are as low, likely or high as they may be.
        """

        def gain(of: Mapping[str, float]) -> float:
            return of["pageable"] / min(of["pinned"], of["prefetch"])

        ends = [{name: ends[at] for name, ends in self.ranges.items()} for at in (0, 1) if self.ranges]
        likely, *others = map(gain, (self.loop_ns, *ends))
        return min(likely, *others, likely), likely, max(likely, *others, likely)

    def _is_told(self, name: str) -> bool:
        low, high = self.ranges.get(name, (0.0, 0.0))
        return high - low <= TOLD * (high + low)

    @property
    def verdict(self) -> str:
        """Whether the loop is worth changing, in some sentences; for a simulated GPU also how sure that is.
        """
        if has_no_times(self.device_name):
            return f"No verdict: {SIMULATED_TIMES}."
        return self._likely() if self.simulated is None else self._how_sure()

    def _how_sure(self) -> str:
        (low, _, high), text = self.gains, self._likely()
        bar = 1 / (1 - WORTH)
        loop = f"the loop becomes {low:.2f} to {high:.2f} times as fast"
        names = {"step": "step alone", **LOOPS}
        untold = [text for name, text in names.items() if not self._is_told(name)]
        if low < bar <= high:
            text = f"Cannot be told: {loop}." if untold else f"{text} This is not sure: {loop}."
        else:
            text += f" By the ranges of the times {loop}."
        if self.limited_by == "host" and self.kernels_ns:
            text += (
                f" The kernels take {units.time(self.kernels_ns)} of the step, and the GPU waits for the host"
                " in the remaining time, which fewer and larger operators, a CUDA graph or larger batches "
                "would shorten."
            )
        if untold:
            text += f" Not told to {100 * TOLD:.0f} %: {'; '.join(untold)}."
        if self.unknown:
            text += f" Not known are the times of {', '.join(self.unknown)}."
        if self.peak_bytes and self.memory_bytes and self.peak_bytes > self.memory_bytes:
            text = (
                f"Does not fit: the loop needs {units.size(self.peak_bytes)} of the device's "
                f"{units.size(self.memory_bytes)}. If it did: {text}"
            )
        return text

    def _likely(self) -> str:
        before, pinned, ahead = (self.loop_ns[form] for form in ("pageable", "pinned", "prefetch"))
        by = "the step" if self.step_ns >= self.upload_ns["pinned"] else "the uploads"
        best = min(pinned, ahead)
        if best > (1 - WORTH) * before:
            return (
                f"Do not bother: no form of the loop takes {100 * WORTH:.0f} % less time, as {by} "
                f"take{'s' if by == 'the step' else ''} nearly all of it."
            )
        if ahead <= (1 - 0.02) * pinned or ahead <= pinned and ahead < (1 - WORTH) * before:
            text = f"Worth it: with prefetch the loop is {before / ahead:.2f} times as fast."
        else:
            text = (
                f"Worth it: pinned memory alone makes the loop {before / pinned:.2f} times as fast; prefetch "
                "adds nothing here."
            )
        if by == "the uploads":
            text += (
                " The remaining time is set by the uploads: a smaller dtype or a transform on the device "
                "would gain more."
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as new dictionaries, of the schema ``sidestream.overlap.loop/1``."""
        return {
            "schema": "sidestream.overlap.loop/1",
            **asdict(self),
            "limit_ns": self.limit_ns,
            "limited_by": self.limited_by,
            "gains": self.gains,
            "gb_per_s": self.gb_per_s,
            "verdict": self.verdict,
        }

    def _time(self, name: str, ns: float) -> str:
        """Return a time as text, and its range."""
        if not self.ranges:
            return f"{units.time(ns):>10}"
        low, high = map(units.time, self.ranges[name])
        return f"{units.time(ns) if self._is_told(name) else 'cannot be told':>14}  ({low} to {high})"

    def __str__(self) -> str:
        best = min(self.loop_ns, key=lambda form: self.loop_ns[form])
        how = f"medians of {self.rounds} rounds, a batch each"
        if self.simulated is not None:
            how = f"simulated times of a batch, with {self.host} as the host"
        lines = [f"{self.name} on {self.device_name}: batches of {units.size(self.batch_bytes)}, {how}"]
        lines.append(f"  {'step alone':<28} {self._time('step', self.step_ns)}")
        for memory, ns in self.upload_ns.items():
            shown = self._time(f"upload_{memory}", ns)
            lines.append(f"  {f'upload alone, {memory}':<28} {shown}   {self.batch_bytes / ns:.1f} GB/s")
        for form, ns in self.loop_ns.items():
            mark = "  <- best" if form == best else ""
            lines.append(
                f"  {LOOPS[form]:<28} {self._time(form, ns)}   {100 * self.limit_ns / ns:.1f} % of the "
                f"limit, {self.gb_per_s[form]:.1f} GB/s{mark}"
            )
        if self.peak_bytes is not None and self.memory_bytes is not None:
            used, there = units.size(self.peak_bytes), units.size(self.memory_bytes)
            lines.append(f"  {'device memory at the peak':<28} {used:>10} of {there}")
        return "\n".join([*lines, *self.notes, self.verdict])

    def _repr_html_(self) -> str:
        from sidestream._draw import bars

        rows = [("step alone", self.step_ns)]
        rows += [(f"upload alone, {memory}", ns) for memory, ns in self.upload_ns.items()]
        rows += [(f"loop: {form}", ns) for form, ns in self.loop_ns.items()]
        return bars(rows, self.limit_ns, [str(self).split("\n")[0], *self.notes, self.verdict])
