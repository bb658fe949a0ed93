"""Which mode a pipeline runs in, and the measurement that decides it. Knows nothing of PyTorch, and reads no
clock.
"""

from __future__ import annotations

import html
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidestream._results import Result

#: One stage after the other, as a plain loop does.
SERIAL = "serial"
#: Each stage on a stream of its own.
STREAMS = "streams"
#: Captured stages as CUDA graphs, one after the other.
SERIAL_GRAPHS = "serial-graphs"
#: Captured stages as CUDA graphs, each stage on a stream of its own.
GRAPHS = "graphs"
MODES = (SERIAL, STREAMS, SERIAL_GRAPHS, GRAPHS)

#: Another mode has to take less than this part of the serial time. Below that, noise would decide.
BETTER = 0.98
#: And it has to take less in this part of the rounds: where a busy host decides, medians differ by more than
#: that.
MOST_ROUNDS = 0.8
#: A mode that takes more than this many times the best one's is not measured any further.
HOPELESS = 1.25
#: A segment has at least so many items, and takes at least so long.
SEGMENT_ITEMS = 10
SEGMENT_SECONDS = 0.05
#: With slow items, or where the end of a run cuts it short, fewer items make a segment, too.
FEW_ITEMS = 5
LONG_SECONDS = 2.0
#: A caller that went away so many items' time after the last one has done something else in between.
PAUSE = 3.0


@dataclass(frozen=True)
class Choice(Result):
    """How a pipeline runs, and why. ``print`` shows it.

    Attributes:
        mode: ``serial``, ``streams``, ``serial-graphs`` or ``graphs``.
        measured: Whether it was measured. While it is being measured, ``mode`` is the one that items run in
            now.
        reason: Why, in a sentence.
        seconds_per_item: The median of the segments that were measured, in seconds an item, by mode.
        segments: How many segments of each mode were measured.
        notes: What else a reader has to know: captures that failed, items that ran otherwise.
    """

    mode: str
    measured: bool
    reason: str
    seconds_per_item: Mapping[str, float]
    segments: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as new dictionaries and lists, of the schema ``sidestream.pipeline/1``."""
        return {
            "schema": "sidestream.pipeline/1",
            "mode": self.mode,
            "measured": self.measured,
            "reason": self.reason,
            "seconds_per_item": dict(self.seconds_per_item),
            "segments": dict(self.segments),
            "notes": list(self.notes),
        }

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
        rows = "".join(
            f"<tr><td>{'<b>' if mode == self.mode else ''}{html.escape(mode)}"
            f"{'</b>' if mode == self.mode else ''}</td>"
            f"<td>{_duration(seconds)}</td><td>{1 / seconds:.1f}</td><td>{self.segments[mode]}</td></tr>"
            for mode, seconds in self.seconds_per_item.items()
        )
        table = (
            f"<table><tr><th>mode</th><th>an item</th><th>items/s</th><th>segments</th></tr>{rows}</table>"
            if rows
            else ""
        )
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        listed = f"<ul>{notes}</ul>" if notes else ""
        return f"<div><p><b>{html.escape(self.mode)}</b>: {html.escape(self.reason)}</p>{table}{listed}</div>"


class Chooser:
    """Measures modes in segments that alternate, and keeps the fastest.

    The caller tells it of each item before it is issued (``due``), and where a segment begins or ends, waits
    for the device and says what time it is then (``advance``). So a segment is the wall time of its items
    from one standstill to the next.
    """

    def __init__(self, modes: tuple[str, ...], segments: int, settle: int) -> None:
        """Measure ``segments`` of each mode. Before the first of each, ``settle`` items run that do not
        count.
        """
        self.modes = modes
        self.mode = modes[0]
        self.times: dict[str, list[float]] = {mode: [] for mode in modes}
        self.measuring = len(modes) > 1
        self._segments = segments
        self._settle = settle
        self._turn: list[str] = []
        self._round = 0
        # How many items run before the segment begins, and how many of the segment were issued.
        self._left = 0
        self._items = 0
        # When the segment began. None before.
        self._start: float | None = None
        # When the last item of the segment came.
        self._latest = 0.0
        # The items and seconds of runs that were too short to make a segment.
        self._short = (0, 0.0)
        if self.measuring:
            self._next()

    def begin_run(self) -> None:
        """Begin the current segment anew: the device stands still, and the time between two runs is
        nobody's.
        """
        self._items, self._start = 0, None

    def due(self, now: float) -> bool:
        """Say, before an item is issued, whether the segment begins or ends here; count the item
        otherwise.
        """
        if self._start is None:
            if not self._left:
                return True
            self._left -= 1
            return False
        self._latest = now
        seconds = now - self._start
        if (self._items >= SEGMENT_ITEMS and seconds >= SEGMENT_SECONDS) or (
            self._items >= FEW_ITEMS and seconds >= LONG_SECONDS
        ):
            return True
        self._items += 1
        return False

    def advance(self, now: float) -> None:
        """Take the time of a standstill where ``due`` said so, and go on. Ask ``due`` again for the same
        item.
        """
        if self._start is None:
            self._items, self._start = 0, now
        else:
            self._keep(now)
            self._next()

    def end_run(self, now: float, left: float | None = None) -> None:
        """Take the time of the standstill behind the last item of a run, which may have cut a segment short.

        Args:
            now: The time of the standstill.
            left: When the caller went away, where it did. A pause before that is nobody's time, so it drops
                the segment.
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
            self._keep(now)
            self._next()

    def drop(self, mode: str) -> None:
        """Measure a mode no further, since it turned out to be no other than another one."""
        self.modes = tuple(one for one in self.modes if one != mode)
        self.times.pop(mode, None)
        self._turn = [one for one in self._turn if one != mode]
        if self.measuring and (self.mode == mode or len(self.modes) < 2):
            self._next()

    def medians(self) -> dict[str, float]:
        """Return the seconds an item by mode, of those that were measured."""
        return {mode: statistics.median(times) for mode, times in self.times.items() if times}

    def reason(self) -> str:
        """Say why the mode is what it is."""
        medians = self.medians()
        if self.measuring:
            done = sum(len(times) for times in self.times.values())
            return f"being measured; {done} of about {self._segments * len(self.modes)} segments are done"
        serial, best = medians.get(SERIAL), min(medians, key=lambda mode: medians[mode], default=SERIAL)
        if serial is None or len(medians) < 2:
            return "there is no other way to run it"
        if self.mode != SERIAL:
            return f"the fastest of those measured, {serial / medians[self.mode]:.2f} times as fast as serial"
        if best == SERIAL:
            return "none of the others was faster"
        faster = f"{best} was {100 * (1 - medians[best] / serial):.1f} % faster"
        wins, rounds = self._wins(best)
        if medians[best] < BETTER * serial:
            return f"{faster} in the median, but in only {wins} of {rounds} rounds"
        return f"{faster}, which is too little to tell from noise"

    def _best(self) -> str:
        """Name the fastest mode, or serial if none is clearly faster."""
        medians = self.medians()
        by_speed = sorted(medians, key=lambda mode: medians[mode])
        if SERIAL not in medians:
            return by_speed[0] if by_speed else SERIAL
        for mode in by_speed:
            wins, rounds = self._wins(mode)
            if medians[mode] < BETTER * medians[SERIAL] and wins >= MOST_ROUNDS * rounds:
                return mode
        return SERIAL

    def _wins(self, mode: str) -> tuple[int, int]:
        """Say in how many rounds a mode took less time than serial, of how many."""
        pairs = list(zip(self.times[mode], self.times[SERIAL]))
        return sum(own < serial for own, serial in pairs), len(pairs)

    def _keep(self, now: float) -> None:
        items, seconds = self._short
        if self._start is not None:
            items, seconds = items + self._items, seconds + now - self._start
        if items:
            self.times[self.mode].append(seconds / items)

    def _next(self) -> None:
        self._items, self._start, self._short = 0, None, (0, 0.0)
        if not self._turn and not self._new_round():
            self.measuring = False
            self.mode = self._best()
            return
        self.mode = self._turn.pop(0)
        # After the first time two are enough: memory and caches are those of another mode.
        self._left = 2 if self.times[self.mode] else self._settle

    def _new_round(self) -> bool:
        medians = self.medians()
        if self._round == self._segments or len(self.modes) < 2:
            return False
        self._round += 1
        best = min(medians.values(), default=0.0)
        # The serial time stays: all others are compared with it.
        # One segment may be an accident.
        hopeful = [
            mode
            for mode in self.modes
            if mode == SERIAL or len(self.times[mode]) < 2 or medians[mode] <= HOPELESS * best
        ]
        # Every other round goes backwards, so that a steady drift hits all alike.
        self._turn = hopeful if self._round % 2 else hopeful[::-1]
        return len(hopeful) > 1


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
