"""``overlap`` for a user's own loop: measures what overlapping its uploads with its step is worth."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any

from sidestream import _simulate, _tree
from sidestream import _units as units
from sidestream._arguments import items
from sidestream._devices import SIMULATED_TIMES, has_no_times
from sidestream._prefetch import prefetch
from sidestream._results import Result

#: Minimum number of batches of a timed loop, and its approximate seconds.
LEAST_BATCHES = 10
SECONDS = 0.15
MOST_BATCHES = 2_000
#: Minimum share of the time for which changing a loop is worth it.
WORTH = 0.05


def measured(step: Callable[[Any], object], batches: Any, rounds: int) -> LoopOverlap:
    """Measure the parts of a loop, and the loop in its three forms, in turn."""
    if batches is None:
        raise TypeError(
            "there are no batches; give some that the loader gave, as in overlap(step, list(islice(loader, "
            "8)))"
        )
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise ValueError(
            'overlap(step, batches) measures on a PyTorch GPU, and there is none here; overlap("sim:h200",'
            " kernel_ms=…, upload_ms=…) predicts from times that you know"
        )
    items("batches", batches)
    given = list(islice(batches, 64))
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
        timed(form, 3)
        # A simulated loop takes the same time in each round.
        many = 0.0 if simulated else SECONDS * 1e9 / max(timed(form, 5)[0], 1.0)
        counts[name] = max(LEAST_BATCHES, min(MOST_BATCHES, int(many)))
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in forms}
    for at in range(1 if simulated else rounds):
        for name in list(forms) if at % 2 else list(forms)[::-1]:
            times[name].append(timed(forms[name], counts[name]))
    medians = {name: statistics.median(sorted(one)[len(one) // 2] for one in of) for name, of in times.items()}
    return LoopOverlap(
        name=getattr(step, "__name__", None) or type(step).__name__,
        device_name=str(torch.cuda.get_device_name(device)),
        batches=len(given),
        batch_bytes=round(statistics.mean(sizes)),
        step_ns=medians["step"],
        upload_ns={"pinned": medians["upload_pinned"], "pageable": medians["upload_pageable"]},
        loop_ns={name: medians[name] for name in ("pageable", "pinned", "prefetch")},
        rounds=rounds,
        ranges={name: (min(of[0]), max(of[0])) for name, of in times.items()} if simulated else {},
        unknown=simulated.unknown if simulated else (),
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
        ranges: On a simulated GPU the least and the most that each time may be: of the ``step``, of
            ``upload_pinned`` and ``upload_pageable``, and of the three loops.
        unknown: On a simulated GPU the operators that take a share of the time and are not known.
    """

    name: str
    device_name: str
    batches: int
    batch_bytes: int
    step_ns: float
    upload_ns: Mapping[str, float]
    loop_ns: Mapping[str, float]
    rounds: int
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

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
    def verdict(self) -> str:
        """Whether the loop is worth changing, in a sentence or two."""
        if has_no_times(self.device_name):
            return f"No verdict: {SIMULATED_TIMES}."
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
            "gb_per_s": self.gb_per_s,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        best = min(self.loop_ns, key=lambda form: self.loop_ns[form])
        lines = [
            (
                f"{self.name} on {self.device_name}: batches of {units.size(self.batch_bytes)}, medians of "
                f"{self.rounds} rounds, a batch each"
            ),
            f"  {'step alone':<28} {units.time(self.step_ns):>10}",
        ]
        for memory, ns in self.upload_ns.items():
            lines.append(
                f"  {f'upload alone, {memory}':<28} {units.time(ns):>10}   {self.batch_bytes / ns:.1f} GB/s"
            )
        names = {
            "pageable": "loop with .to()",
            "pinned": "loop, pinned, non_blocking",
            "prefetch": "loop with prefetch",
        }
        for form, ns in self.loop_ns.items():
            mark = "  <- best" if form == best else ""
            lines.append(
                f"  {names[form]:<28} {units.time(ns):>10}   {100 * self.limit_ns / ns:.1f} % of the "
                f"limit, {self.gb_per_s[form]:.1f} GB/s{mark}"
            )
        return "\n".join([*lines, self.verdict])

    def _repr_html_(self) -> str:
        from sidestream._draw import bars

        rows = [("step alone", self.step_ns)]
        rows += [(f"upload alone, {memory}", ns) for memory, ns in self.upload_ns.items()]
        rows += [(f"loop: {form}", ns) for form, ns in self.loop_ns.items()]
        return bars(rows, self.limit_ns, [str(self).split("\n")[0], self.verdict])
