"""What a pass of an offloaded model consists of, as it was measured, and how long it takes with its copies.

The prediction places layers in memory as ``Ring`` does, and begins a copy once the link is free and the
layers before it in that memory are done.
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
#: How many phases are known, how many passes are remembered, and how many a prediction simulates before.
KNOWN, PAST, BEFORE = 8, 64, 4


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

    #: By which passes are told apart that call the same layers: the shape of the first input, and `trains`.
    key: Any = None
    #: Whether a backward pass is expected.
    trains: bool = False
    is_over: bool = False
    #: The end of the pass before it.
    since: Any = None
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
    #: What lies between the pass before it and its begin.
    idle: float = 0.0

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
        idle = max(-done.ms(done.since), 0.0) if done.since is not None and done.since.query() else 0.0
        return cls([call.layer for call in calls], gaps, held, gradients, done.trains, idle)

    @property
    def own_ms(self) -> float:
        """Its time if no copy is waited for."""
        return sum(self.gaps)


@dataclass
class Phase:
    """Passes with one key that call the same layers in the same order."""

    key: Any = None
    order: list[Layer] = field(default_factory=list)
    passes: int = 0
    #: The last ones, of which one is read later without blocking.
    last: deque[Pass] = field(default_factory=lambda: deque(maxlen=4))
    measured: Pass | None = None
    #: What came before and after the last one.
    before: list[Phase] = field(default_factory=list)
    after: Phase | None = None
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

    def plan(self, room: int, link: float, reading: tuple[float, int]) -> OffloadPlan | None:
        """Return the plan of such a pass between those before and after the last one, as ``planned``."""
        work = self.work()
        if work is None:
            return None
        ahead = [each.work() or work for each in self.before or [self] * BEFORE]
        after = (self.after or self).work() or work
        # With gradients nothing is copied ahead of the next pass.
        if work.trains or ahead[-1].trains:
            ahead = []
        shape, trains = self.key or (None, work.trains)
        name = f"input {list(shape)}" if shape is not None else f"{len(self.order)} calls"
        name += ", gradients" if trains else ""
        works = [*ahead, work, *([] if work.trains else [after])]
        told = {"name": name, "passes": self.passes, "measured_ms": self.pass_ms}
        return planned(works, len(ahead), room, link, reading, **told)


class Phases:
    """The phases of a model, and which one comes next."""

    def __init__(self) -> None:
        self.last = Phase()
        self.known = [self.last]
        self._past: deque[Phase] = deque(maxlen=PAST)

    def add(self, order: list[Layer], done: Pass) -> None:
        """Take a pass that has ended."""
        same = (each for each in self.known if each.key == done.key and each.order == order)
        phase = next(same, None) or Phase(done.key, order)
        # The one that was longest ago is forgotten.
        self.known = [*[each for each in self.known if each is not phase][1 - KNOWN :], phase]
        phase.before = list(self._past)[-BEFORE:]
        self.last.after, self.last = phase, phase
        phase.add(done)
        self._past.append(phase)

    def next(self, key: Any = None, after: Phase | None = None) -> Phase:
        """Return the phase that seems to follow the last one, or another: what followed the longest part of
        the past that is like its end. With a key, one that has it if there is any.
        """
        past = [*self._past, *([after] if after is not None else [])]
        best, length = None, -1
        for at in range(len(past) - 1, 0, -1):
            if key is not None and past[at].key != key:
                continue
            same = 0
            while same < min(at, PAST // 2) and past[at - 1 - same] is past[-1 - same]:
                same += 1
            if same > length:
                best, length = past[at], same
            if same == PAST // 2:
                break
        if best is None and key is not None:
            best = next((each for each in self.known[::-1] if each.key == key), None) or self.next()
        return best or after or self.last

    def begun(self, order: list[Layer]) -> Phase | None:
        """Return the phase that began like this, used last."""
        return next((each for each in self.known[::-1] if each.order[: len(order)] == order), None)


@dataclass(frozen=True)
class OffloadPlan(Pictured):
    """A pass of an offloaded model: what was measured of it, and what is predicted from that. ``print`` shows
    it.

    Attributes:
        name: By what such passes are known: the shape of the first input, and whether gradients are kept.
        passes: How many there were.
        moved_bytes: The bytes that are copied to the device during the pass, without those between passes.
        link_ms: The time of these copies alone.
        own_ms: The time of the pass without its waits for copies.
        predicted_ms: The time of the pass, as simulated.
        measured_ms: The time of the last pass that is complete, or None.
        read_ms: The time of the reads of files during the pass.
        lanes: What ``read`` (of files), ``upload``, ``compute`` and ``gradients`` do during the pass: begins
            and ends.
    """

    name: str
    passes: int
    measured_ms: float | None
    moved_bytes: int
    link_ms: float
    read_ms: float
    own_ms: float
    predicted_ms: float
    lanes: dict[str, tuple[Span, ...]] = field(hash=False)

    @property
    def limit_ms(self) -> float:
        """The least time of the pass: its own work, the copies, or the reads of files."""
        return max(self.link_ms, self.own_ms, self.read_ms)

    @property
    def limited_by(self) -> str:
        """What takes the longest: ``the link``, ``the files``, or ``the rest``."""
        times = {"the rest": self.own_ms, "the link": self.link_ms, "the files": self.read_ms}
        return max(times, key=times.__getitem__)

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
    #: Bytes a millisecond, and of reads from files.
    rate: float
    reading: float
    slabs: int
    uploads: list[tuple[Span, int]] = field(default_factory=list)
    computes: list[Span] = field(default_factory=list)
    gradients: list[Span] = field(default_factory=list)
    reads: list[Span] = field(default_factory=list)
    #: When each copy of a layer that was read was complete.
    _given: list[float] = field(default_factory=list)
    #: For each layer in the ring, its place, when it is there, and when it is done.
    _placed: dict[int, tuple[int, int, float, float]] = field(default_factory=dict)
    _next: int = 0
    now: float = 0.0

    def run(self, work: Work) -> float:
        """Simulate a pass, and return when it begins."""
        self.now += work.idle
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
        return begun[0]

    def _upload(self, layer: Layer) -> None:
        link = self.uploads[-1][0][1] if self.uploads else 0.0
        starts = (self._next, 0, *(place[1] for place in self._placed.values()))
        # The first place that is free once the link is, or else the one that is free first.
        start, begin = min(
            (
                (start, max([link, *(self._placed[key][3] for key in self._over(start, layer))]))
                for start in starts
                if start + layer.size <= self.room
            ),
            key=lambda place: place[1],
        )
        for key in self._over(start, layer):
            del self._placed[key]
        end = self._next = start + layer.size
        is_read = layer.pages is not None and self.reading > 0
        if is_read:
            free = self._given[-self.slabs] if len(self._given) >= self.slabs else 0.0
            since = max([free, *(until for _, until in self.reads[-1:])])
            self.reads.append((since, since + layer.size / self.reading))
            begin = max(begin, self.reads[-1][1])
        there = begin + layer.size / self.rate
        if is_read:
            self._given.append(there)
        self.uploads.append(((begin, there), layer.size))
        self._placed[id(layer)] = (start, end, there, there)

    def _over(self, start: int, layer: Layer) -> list[int]:
        """Return what is where a layer would be."""
        return [key for key, at in self._placed.items() if start < at[1] and at[0] < start + layer.size]

    def _compute(self, ms: float) -> None:
        if ms:
            self.computes.append((self.now, self.now + ms))
        self.now += ms


def planned(
    works: Sequence[Work], at: int, room: int, link: float, reading: tuple[float, int], **told: Any
) -> OffloadPlan:
    """Return the plan of one of some passes that follow each other, with a ring of these bytes, a link of
    these bytes a second, and files of these, that are read into that many slabs.
    """
    lanes, begin, end = _Lanes(room, link / 1e3, reading[0] / 1e3, reading[1]), 0.0, 0.0
    for number, work in enumerate(works):
        began = lanes.run(work)
        begin, end = (began, lanes.now) if number == at else (begin, end)

    def during(spans: Sequence[Span]) -> tuple[Span, ...]:
        """Spans that are in the pass, from its begin."""
        return tuple(
            (max(since, begin) - begin, min(until, end) - begin)
            for since, until in spans
            if min(until, end) - max(since, begin) > 1e-6
        )

    uploads = [(span, size) for span, size in lanes.uploads if begin < span[1] <= end]
    moved = sum(size for _, size in uploads)
    read = during(lanes.reads)
    drawn = {
        **({"read": read} if read else {}),
        "upload": during([span for span, _ in lanes.uploads]),
        "compute": during(lanes.computes),
        **({"gradients": during(lanes.gradients)} if works[at].gradients else {}),
    }
    return OffloadPlan(
        **told,
        moved_bytes=moved,
        link_ms=1e3 * moved / link,
        read_ms=sum(until - since for since, until in read),
        own_ms=works[at].own_ms,
        predicted_ms=end - begin,
        lanes=drawn,
    )


def side_by_side(plans: Sequence[OffloadPlan]) -> str:
    """Return what plans tell: a table, if there are several."""
    if len(plans) < 2:
        return "".join(map(str, plans))
    name = max(len(plan.name) for plan in plans)
    heads = ("passes", "copies", "link", "own", "predicted", "measured", "limited by")
    lines = [f"  {'pass':{name}} {' '.join(f'{head:>10}' for head in heads)}"]
    for plan in plans:
        times = (plan.link_ms, plan.own_ms, plan.predicted_ms, plan.measured_ms)
        told = ("" if ms is None else f"{ms:.4g} ms" for ms in times)
        cells = (plan.passes, _units.size(plan.moved_bytes), *told, plan.limited_by)
        lines.append(f"  {plan.name:{name}} {' '.join(f'{cell:>10}' for cell in cells)}")
    return "\n".join([*lines, *(f"  {plan.name}:\n{plan.timeline()}" for plan in plans)])
