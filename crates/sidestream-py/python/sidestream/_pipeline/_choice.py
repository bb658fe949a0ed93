"""Chooses the mode of a pipeline by a measurement. Does not use PyTorch, and reads no
clock.
"""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sidestream._results import Result

#: One stage after another, as in a plain loop.
SERIAL = "serial"
#: Each stage on its own stream.
STREAMS = "streams"
#: Captured stages as CUDA graphs, one after another.
SERIAL_GRAPHS = "serial-graphs"
#: Captured stages as CUDA graphs, each stage on its own stream.
GRAPHS = "graphs"
MODES = (SERIAL, STREAMS, SERIAL_GRAPHS, GRAPHS)

#: Another mode must take less than this share of the serial time to be chosen. With a smaller gain, noise
#: would decide.
BETTER = 0.98
#: Another mode must also be faster in this share of the rounds: on a busy host, medians differ by more than
#: `BETTER`.
MOST_ROUNDS = 0.8
#: A mode that took more than this many times the serial time in a round is not measured again.
HOPELESS = 1.5
#: Minimum number of items and seconds of a segment.
SEGMENT_ITEMS = 10
SEGMENT_SECONDS = 0.05
#: Minimum number of items of a segment if items are slow or the end of a run cuts the segment short. Items
#: are slow if this many take `LONG_SECONDS`.
FEW_ITEMS = 5
LONG_SECONDS = 2.0
#: If the caller leaves more than this many items' time after the last item, it has done other work in
#: between.
PAUSE = 3.0
#: Maximum cost of trying an unknown mode, in items and in seconds, whichever is more: each stream allocates
#: memory, and items may be slower.
TRIAL_ITEMS = 5
TRIAL_SECONDS = 0.05
#: Maximum seconds of such a trial if stages have to be captured for it.
CAPTURE_SECONDS = 1.0


@dataclass(frozen=True)
class Choice(Result):
    """The mode in which a pipeline, or the branches of ``parallel``, run, and why. ``print`` shows it.

    Attributes:
        mode: ``serial``, ``streams``, ``serial-graphs`` or ``graphs``.
        measured: Whether the mode was chosen by a measurement. During the measurement it is False, and
            ``mode`` is the one that items run in now.
        reason: Why this mode, in a sentence.
        seconds_per_item: For each mode, the seconds per item: the median of the measured segments.
        segments: For each mode, the number of measured segments.
        notes: Further facts: captures that failed, items that ran in another way, an earlier measurement that
            was reused.
    """

    mode: str
    measured: bool
    reason: str
    seconds_per_item: Mapping[str, float]
    segments: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as new dictionaries and lists, of the schema ``sidestream.pipeline/1``."""
        return {"schema": "sidestream.pipeline/1", **asdict(self), "notes": list(self.notes)}

    def __str__(self) -> str:
        lines = [f"{self.mode}: {self.reason}"]
        for mode, seconds in self.seconds_per_item.items():
            mark = "*" if mode == self.mode else " "
            lines.append(
                f"{mark} {mode:<13} {_duration(seconds):>9} an item  {1 / seconds:9.1f} items/s  "
                f"({self.segments[mode]} segments)"
            )
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def _repr_html_(self) -> str:
        rows = [
            [f"{'* ' * (mode == self.mode)}{mode}", _duration(s), f"{1 / s:.1f}", str(self.segments[mode])]
            for mode, s in self.seconds_per_item.items()
        ]
        table = html_table(["mode", "an item", "items/s", "segments"], rows) if rows else ""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        listed = f"<ul>{notes}</ul>" if notes else ""
        return f"<div><p><b>{html.escape(self.mode)}</b>: {html.escape(self.reason)}</p>{table}{listed}</div>"


class Chooser:
    """Measures modes in alternating segments until it is known for each whether it is faster than serial, and
    keeps the fastest.

    The caller announces each item before it is issued (``due``). At the beginning and end of a segment, the
    caller synchronizes the device and passes the time (``advance``). So the duration of a segment is the wall
    time of its items between two moments at which the device is idle.

    A run that begins before the serial time is known may be limited: the measurement then costs less than a
    given share of the serial time of the run. The run begins serially, and a mode is tried once the run can
    afford the cost of a trial. Until then items run in the best known mode, and the host waits for nothing.
    """

    def __init__(
        self,
        modes: tuple[str, ...],
        segments: int,
        settle: int,
        *,
        least: int = SEGMENT_ITEMS,
        share: float | None = None,
    ) -> None:
        """Measure at most ``segments`` segments of each mode, each of at least ``least`` items. Before the
        first segment of a mode, ``settle`` items run that do not count. ``share`` is the share of the first
        run that the measurement may cost.
        """
        self.modes = modes
        self.mode = modes[0]
        self.measuring = len(modes) > 1
        self._segments = segments
        self._settle = settle
        self._least = least
        self._share = share
        # For every round: the seconds per item by mode.
        self._rounds: list[dict[str, float]] = []
        self._turn: list[str] = []
        # Modes that have run before in this pipeline.
        self._settled: set[str] = set()
        # Number of items that run before the segment begins, that were issued in it, and that belong to it.
        # The last is None if their time is not known.
        self._left = 0
        self._items = 0
        self._goal: int | None = None
        # Time at which the segment began; None before.
        self._start: float | None = None
        # Time at which the last item of the segment was announced.
        self._latest = 0.0
        # Items and seconds of runs that were too short for a segment.
        self._short = (0, 0.0)
        # Whether this run is limited, its number of items so far and in total, and the cost of measuring so
        # far, in seconds.
        self._is_limited = share is not None
        self._issued, self._length, self._lost = 0, 0, 0.0
        # For each mode, the cost of turns that were broken off.
        self._cost_of: dict[str, float] = {}
        # Time at which the turn of the mode began, number of items issued before it, serial seconds per item,
        # and the cost at which the turn is broken off.
        self._turned, self._before, self._plain, self._most = 0.0, 0, 0.0, math.inf
        # Number of issued items at which the next turn begins; until then the best known mode runs.
        self._until: int | None = None
        if self.measuring:
            self._next(None)

    @property
    def times(self) -> dict[str, list[float]]:
        """The seconds per item of every segment, by mode."""
        return {mode: [times[mode] for times in self._rounds if mode in times] for mode in self.modes}

    @property
    def is_timing(self) -> bool:
        """Whether a segment has begun and not ended."""
        return self.measuring and self._start is not None

    def begin_run(self, length: int = 0) -> None:
        """Restart the current segment, since the time between two runs belongs to no segment.

        Args:
            length: Number of items in the run, if that is known.
        """
        self._items, self._start, self._most = 0, None, math.inf
        self._issued, self._length, self._lost = 0, length, 0.0
        self._is_limited = self._share is not None and not self.times.get(SERIAL)
        if self._until is not None and not self._is_limited:
            self._resume(None)

    def settle_anew(self) -> None:
        """Forget which modes have run before, because another pipeline continues this measurement."""
        self._settled = set()
        self._left = self._settle

    def due(self, now: float) -> bool:
        """Called before an item is issued. Return True if a segment begins or ends here or another mode has
        its turn. Otherwise count the item.
        """
        if self._until is not None:
            if self._issued >= self._until:
                return True
        elif self._cost(now) > self._most:
            return True
        elif self._start is None:
            if not self._left:
                return True
            self._left -= 1
        else:
            self._latest = now
            # If the host is far ahead of the device, the host's clock does not show the duration of the
            # segment.
            if self._items >= (self._goal or FEW_ITEMS) or (
                self._items >= self._least and now - self._start >= SEGMENT_SECONDS
            ):
                return True
            self._items += 1
        self._issued += 1
        return False

    def advance(self, now: float) -> None:
        """Begin or end a segment, or change the mode. Call this after ``due`` has returned True, when the
        device is idle; then call ``due`` again for the same item.
        """
        if self._until is not None:
            self._lost -= (self._issued - self._before) * self._gain()
            self._resume(now)
        elif self._cost(now) > self._most and self._items < FEW_ITEMS:
            self._cost_of[self.mode] = self._cost(now)
            self._turn.insert(0, self.mode)
            self._next(now)
        elif self._start is None:
            self._settled.add(self.mode)
            self._items, self._start = 0, now
        elif self._goal is None and self._items < self._enough(self._taken(now)):
            # This segment only showed how many items a segment needs.
            self._goal = self._enough(self._taken(now))
            self._items, self._start = 0, now
        else:
            self._rounds[-1][self.mode] = self._taken(now)
            self._next(now)

    def end_run(self, now: float, left: float | None = None) -> None:
        """End a run, which may have cut a segment short.

        Args:
            now: The time at which the device was idle after the last item.
            left: The time at which the caller left the run, if it did. If a long pause came before that, the
                segment is dropped, since the pause does not belong to the items.
        """
        if self._start is None or not self._items:
            return
        if left is not None and left - self._latest > PAUSE * (self._latest - self._start) / self._items:
            self._items, self._start = 0, None
            return
        items, seconds = self._short
        self._short = (items + self._items, seconds + now - self._start)
        self._items, self._start = 0, None
        if self._short[0] >= FEW_ITEMS:
            self._rounds[-1][self.mode] = self._taken(now)
            self._next(None)

    def drop(self, mode: str, now: float | None = None) -> None:
        """Stop measuring a mode, because it is equivalent to another one. Without ``now`` its cost is not
        counted.
        """
        self.modes = tuple(one for one in self.modes if one != mode)
        self._rounds = [{one: s for one, s in times.items() if one != mode} for times in self._rounds]
        self._turn = [one for one in self._turn if one != mode]
        is_waiting = self._until is not None and not self._turn
        if self.measuring and (self.mode == mode or len(self.modes) < 2 or is_waiting):
            self._until = None
            self._next(now)

    def medians(self) -> dict[str, float]:
        """Return the median seconds per item of each measured mode."""
        return {mode: statistics.median(times) for mode, times in self.times.items() if times}

    def reason(self) -> str:
        """Return the reason why this mode runs."""
        medians = self.medians()
        if self._until is not None:
            most = f"{100 * (self._share or 0):.0f} %"
            return f"being measured; to try {self._turn[0]} could cost this run more than {most} by now"
        if self.measuring:
            done = sum(len(times) for times in self.times.values())
            return f"being measured; {done} of at most {self._segments * len(self.modes)} segments are done"
        serial, best = medians.get(SERIAL), min(medians, key=lambda mode: medians[mode], default=SERIAL)
        if serial is None or len(medians) < 2:
            return "there is no other way to run it"
        if self.mode != SERIAL:
            return f"the fastest of those measured, {serial / medians[self.mode]:.2f} times as fast as serial"
        if best == SERIAL:
            return "none of the others was faster"
        faster = f"{best} was {100 * (1 - medians[best] / serial):.1f} % faster"
        ratios = self._ratios(best)
        if medians[best] < BETTER * serial:
            return f"{faster} in the median, but in only {_wins(ratios)} of {len(ratios)} rounds"
        return f"{faster}, which is too little to tell from noise"

    def choice(self, mode: str, reason: str, notes: Iterable[str]) -> Choice:
        """Return the times so far, with the mode that runs now and the reason for it."""
        medians = self.medians()
        return Choice(
            mode=mode,
            measured=bool(medians) and not self.measuring,
            reason=reason,
            seconds_per_item=medians,
            segments={one: len(times) for one, times in self.times.items() if times},
            notes=tuple(notes),
        )

    def _pairs(self, mode: str) -> list[tuple[float, float]]:
        """Return the time of a mode and the serial time for every round that has both."""
        return [(times[mode], times[SERIAL]) for times in self._rounds if mode in times and SERIAL in times]

    def _ratios(self, mode: str) -> list[float]:
        """Return the time of a mode divided by the serial time, for each round that has both."""
        return [taken / serial for taken, serial in self._pairs(mode)]

    def _is_clear(self, mode: str) -> bool:
        """Return whether the rounds show that a mode is faster than serial, or that it is not: the mean of
        the ratios is farther from the threshold than the spread of the ratios and of their times. The fewer
        rounds there are, the larger this distance must be.
        """
        ratios = self._ratios(mode)
        if len(ratios) < 2:
            return bool(ratios) and ratios[0] > HOPELESS
        own, serial = zip(*self._pairs(mode))
        width = 2 * max(map(_spread, (ratios, own, serial))) / (len(ratios) - 1)
        return abs(statistics.fmean(ratios) - BETTER) > width

    def _serial(self) -> float:
        return self.medians().get(SERIAL, 0.0)

    def _gain(self) -> float:
        """Return the seconds per item that this mode saves, compared with serial."""
        return self._serial() - self.medians()[self.mode]

    def _best(self, is_last: bool) -> str:
        """Return the fastest mode, or serial if none is clearly faster. Before the last round, only modes
        with a clear result count.
        """
        medians = self.medians()
        for mode in sorted(medians, key=lambda mode: medians[mode]):
            ratios = self._ratios(mode)
            is_faster = medians[mode] < BETTER * self._serial() and _wins(ratios) >= MOST_ROUNDS * len(ratios)
            if ratios and is_faster and (is_last or self._is_clear(mode)):
                return mode
        return SERIAL if SERIAL in self.modes else self.modes[0]

    def _price(self, mode: str) -> float:
        """Return the maximum cost of a turn of a mode for the run, in seconds more than serially."""
        serial, taken = self._serial(), self.medians().get(mode)
        if mode == SERIAL:
            return 0.0
        if taken is not None:
            return (2 + self._enough(taken)) * max(taken - serial, 0.0)
        captures = mode in (SERIAL_GRAPHS, GRAPHS) and not self._settled & {SERIAL_GRAPHS, GRAPHS}
        price = max(TRIAL_ITEMS * serial, CAPTURE_SECONDS if captures else TRIAL_SECONDS)
        # A turn that was broken off got at most half way, and had half of the budget.
        return max(price, 4 * self._cost_of.get(mode, 0.0))

    def _budget(self) -> float:
        """Return the seconds that measuring may still cost this run."""
        if not self._is_limited or self._share is None:
            return math.inf
        return self._share * max(self._issued, self._length) * self._serial() - self._lost

    def _cost(self, now: float) -> float:
        """Return how many seconds longer the items of this turn took than serially. While the device is busy,
        the host's clock shows less than that.
        """
        return now - self._turned - (self._issued - self._before) * self._plain

    def _wait(self, short: float) -> None:
        """Run items in the best known mode until ``short`` more seconds may be spent."""
        self.mode = self._best(is_last=False)
        # Each item that takes less time adds to the budget, and so does each item beyond the announced
        # number.
        gain, more = self._gain(), (self._share or 0.0) * self._serial()
        known = max(self._issued, self._length)
        items = (short + gain * self._issued + more * known) / max(gain + more, 1e-9)
        if gain > 0:
            items = min(items, self._issued + short / gain)
        self._until, self._before, self._most = math.ceil(items), self._issued, math.inf

    def _enough(self, seconds: float) -> int:
        """Return the number of items that a segment needs if an item takes ``seconds``."""
        if FEW_ITEMS * seconds >= LONG_SECONDS:
            return FEW_ITEMS
        return max(self._least, math.ceil(SEGMENT_SECONDS / seconds))

    def _taken(self, now: float) -> float:
        """Return the seconds per item of the segment, including runs that were cut short."""
        items, seconds = self._short
        if self._start is not None:
            items, seconds = items + self._items, seconds + now - self._start
        # The divisor and the result must not be 0: the clock may not have advanced.
        return max(seconds / max(items, 1), 1e-9)

    def _resume(self, now: float | None) -> None:
        self._until = None
        if SERIAL in self._rounds[-1]:
            # Serial is measured again, next to the mode that is compared with it.
            self._turn.insert(0, SERIAL)
        self._next(now)

    def _next(self, now: float | None) -> None:
        if now is not None and self._most < math.inf:
            self._lost += self._cost(now)
        self._items, self._start, self._short, self._most = 0, None, (0, 0.0), math.inf
        if len(self.modes) < 2 or (not self._turn and not self._new_round()):
            self.measuring = False
            self.mode = self._best(is_last=True)
            return
        budget, price = self._budget(), self._price(self._turn[0])
        if price > budget:
            self._wait(price - budget)
            return
        before, self.mode = self.mode, self._turn.pop(0)
        # After the first turn, two items are enough to settle: memory and caches are still those of another
        # mode.
        self._left = self._settle
        if self.mode in self._settled:
            self._left = 0 if self.mode == before else 2
        seconds = self.medians().get(self.mode, self._serial())
        self._goal = self._enough(seconds) if seconds else None
        self._turned, self._before, self._plain = now or 0.0, self._issued, self._serial()
        if now is not None and self.mode != SERIAL:
            # The later items of the turn may cost the other half.
            self._most = budget / 2

    def _new_round(self) -> bool:
        others = [mode for mode in self.modes if mode != SERIAL and not self._is_clear(mode)]
        if len(self._rounds) == self._segments or not others:
            return False
        self._rounds.append({})
        # Serial is always measured: all others are compared with it.
        self._turn = [SERIAL, *others]
        # Every other round is reversed, so that a steady drift affects all modes equally.
        if len(self._rounds) % 2 == 0:
            self._turn.reverse()
        return True


def _wins(ratios: list[float]) -> int:
    return sum(ratio < 1 for ratio in ratios)


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.fmean(values)


def html_table(head: list[str], rows: list[list[str]]) -> str:
    """Return an HTML table for a notebook."""

    def row(kind: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    return f"<table>{row('th', head)}{''.join(row('td', cells) for cells in rows)}</table>"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
