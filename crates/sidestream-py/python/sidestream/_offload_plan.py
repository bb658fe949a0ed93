"""What a pass of an offloaded model consists of, as it was measured, and how long it takes with its copies.

The prediction places layers in memory as ``Ring`` does, and begins a copy once the link is free and the layers
before it in that memory are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sidestream import _units
from sidestream._draw import Pictured

if TYPE_CHECKING:
    from sidestream._offload_weights import Layer

Span = tuple[float, float]


@dataclass
class Call:
    """A layer that is called: the events before and after the wait for its copy, and after its work."""

    layer: Layer
    before: Any
    after: Any
    left: Any = None


@dataclass
class Pass:
    """A pass that happens now. Its calls are kept if it is measured."""

    #: Whether a backward pass is expected.
    trains: bool = False
    is_over: bool = False
    begin: Any = None
    end: Any = None
    calls: list[Call] | None = None
    #: Of each gradient's copy: the event after which it may begin, and the begin and the end of it.
    gradients: list[tuple[Any, Any, Any]] | None = None

    def ms(self, event: Any) -> float:
        """Milliseconds from the begin."""
        return float(self.begin.elapsed_time(event))

    @property
    def took_ms(self) -> float | None:
        """Its time on the device; None if it is not complete."""
        try:
            is_complete = None not in (self.begin, self.end) and self.begin.query() and self.end.query()
            return self.ms(self.end) if is_complete else None
        except RuntimeError:
            return None


@dataclass
class Work:
    """A measured pass, without its waits for copies, in milliseconds."""

    layers: list[Layer]
    #: What comes before the first call, and from each call to the next.
    gaps: list[float]
    #: From the begin of each call until its layer is done.
    held: list[float]
    #: Of each gradient's copy: the call that it follows, how long after, and its time.
    gradients: list[tuple[int, float, float]]
    trains: bool = False

    @classmethod
    def of(cls, done: Pass) -> Work:
        """Return the work of a pass that is complete."""
        calls = done.calls or []
        before = [done.ms(call.before) for call in calls] + [done.ms(done.end)]
        after = [0.0, *(done.ms(call.after) for call in calls)]
        gaps = [max(at - last, 0.0) for last, at in zip(after, before, strict=True)]
        left = [done.ms(call.left) if call.left is not None else at for call, at in zip(calls, before[1:])]
        held = [max(at - begun, 0.0) for begun, at in zip(after[1:], left, strict=True)]
        gradients = []
        for ready, begin, end in done.gradients or ():
            at = sum(begun <= done.ms(ready) for begun in after) - 1
            gradients.append((at, done.ms(ready) - after[at], float(begin.elapsed_time(end))))
        return cls([call.layer for call in calls], gaps, held, gradients, done.trains)

    @property
    def own_ms(self) -> float:
        """Its time if no copy is waited for."""
        return sum(self.gaps)


@dataclass
class Phase:
    """Passes that call the same layers in the same order."""

    order: list[Layer]
    passes: int = 0
    #: The last ones, of which one is read later without blocking.
    last: deque[Pass] = field(default_factory=lambda: deque(maxlen=4))
    measured: Pass | None = None
    _work: Work | None = None

    def add(self, done: Pass) -> None:
        """Take a pass that has ended."""
        self.passes += 1
        self.last.append(done)
        if done.calls and done.is_over and self.measured is None:
            self.measured = done

    def work(self) -> Work | None:
        """What was measured, if that is complete."""
        if self._work is None and self.measured is not None and self.measured.took_ms is not None:
            self._work = Work.of(self.measured)
        return self._work

    @property
    def pass_ms(self) -> float | None:
        """The time of the last pass that is complete."""
        return next((ms for ms in (done.took_ms for done in reversed(self.last)) if ms is not None), None)


@dataclass(frozen=True)
class OffloadPlan(Pictured):
    """A pass of an offloaded model: what was measured of it, and what is predicted from that. ``print`` shows
    it.

    Attributes:
        moved_bytes: The bytes that the pass copies to the device.
        link_ms: The time of these copies alone.
        own_ms: The time of the pass without its waits for copies.
        predicted_ms: The time of the pass, as simulated.
        measured_ms: The time of the last pass that is complete, or None.
        lanes: What ``upload``, ``compute`` and ``gradients`` do during the pass: begins and ends.
    """

    moved_bytes: int
    link_ms: float
    own_ms: float
    predicted_ms: float
    measured_ms: float | None
    lanes: dict[str, tuple[Span, ...]] = field(hash=False)

    @property
    def limit_ms(self) -> float:
        """The least time of the pass: its own work, or the copies."""
        return max(self.link_ms, self.own_ms)

    @property
    def limited_by(self) -> str:
        """What takes the longest: ``the link``, or ``the rest``."""
        return "the link" if self.link_ms > self.own_ms else "the rest"

    def __str__(self) -> str:
        took = "" if self.measured_ms is None else f"; the last one took {self.measured_ms:.4g} ms"
        return (
            f"  a pass copies {_units.size(self.moved_bytes)} in {self.link_ms:.4g} ms, and takes "
            f"{self.own_ms:.4g} ms without its waits for copies: {self.predicted_ms:.4g} ms are predicted, "
            f"limited by {self.limited_by}{took}\n{self.timeline()}"
        )


@dataclass
class _Lanes:
    """Simulates passes that follow each other."""

    room: int
    #: Bytes a millisecond.
    rate: float
    uploads: list[tuple[Span, int]] = field(default_factory=list)
    computes: list[Span] = field(default_factory=list)
    gradients: list[Span] = field(default_factory=list)
    #: For each layer in the ring, its place, when it is there, and when it is done.
    _placed: dict[int, tuple[int, int, float, float]] = field(default_factory=dict)
    _next: int = 0
    now: float = 0.0

    def run(self, work: Work) -> None:
        """Simulate a pass."""
        begun = [self.now]
        self._compute(work.gaps[0])
        for layer, gap, held in zip(work.layers, work.gaps[1:], work.held, strict=True):
            if id(layer) not in self._placed:
                self._upload(layer)
            start, end, there, _ = self._placed[id(layer)]
            self.now = max(self.now, there)
            self._placed[id(layer)] = (start, end, there, self.now + held)
            begun.append(self.now)
            self._compute(gap)
        for at, offset, ms in work.gradients:
            begin = max([begun[at] + offset, *(end for _, end in self.gradients[-1:])])
            self.gradients.append((begin, begin + ms))
            self.now = max(self.now, begin + ms)

    def _upload(self, layer: Layer) -> None:
        start = self._next if self._next + layer.size <= self.room else 0
        end = self._next = start + layer.size
        over = [key for key, place in self._placed.items() if start < place[1] and place[0] < end]
        free = [self._placed.pop(key)[3] for key in over]
        begin = max([0.0, *free, *(until for (_, until), _ in self.uploads[-1:])])
        there = begin + layer.size / self.rate
        self.uploads.append(((begin, there), layer.size))
        self._placed[id(layer)] = (start, end, there, there)

    def _compute(self, ms: float) -> None:
        if ms:
            self.computes.append((self.now, self.now + ms))
        self.now += ms


def planned(
    works: Sequence[Work], at: int, room: int, link: float, measured_ms: float | None
) -> OffloadPlan:
    """Return the plan of one of some passes that follow each other, with a ring of these bytes and a link of
    these bytes a second.
    """
    lanes, begin, end = _Lanes(room, link / 1e3), 0.0, 0.0
    for number, work in enumerate(works):
        begin = lanes.now if number == at else begin
        lanes.run(work)
        end = lanes.now if number == at else end

    def during(spans: Sequence[Span]) -> tuple[Span, ...]:
        """Spans that are in the pass, from its begin."""
        return tuple(
            (max(since, begin) - begin, min(until, end) - begin)
            for since, until in spans
            if min(until, end) - max(since, begin) > 1e-6
        )

    uploads = [(span, size) for span, size in lanes.uploads if begin < span[1] <= end]
    moved = sum(size for _, size in uploads)
    drawn = {
        "upload": during([span for span, _ in lanes.uploads]),
        "compute": during(lanes.computes),
        **({"gradients": during(lanes.gradients)} if works[at].gradients else {}),
    }
    own_ms = works[at].own_ms
    return OffloadPlan(moved, 1e3 * moved / link, own_ms, end - begin, measured_ms, drawn)
