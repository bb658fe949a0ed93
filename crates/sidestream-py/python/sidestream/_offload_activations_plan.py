"""Decides which saved activations leave the device, and predicts the step, from what was measured.

What is on the device follows from the order of a step and a bound alone (`Pager`), so that the prediction
(`predict`) and the run take the same decisions. If a tensor needs room, the tensor that is needed last
leaves, as in L. A. Belady's rule of 1966. What has left returns in the order of use, as soon as there is
room.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from sidestream._units import size as bytes_text

#: The share by which moving may lengthen the step without counting as a cost: less than steps differ.
FREE = 1.01


class Item:
    """A storage that autograd saved."""

    def __init__(self, number: int, size: int, movable: bool, need: float) -> None:
        #: When it is needed next; only the order counts.
        self.number, self.size, self.movable, self.need, self.is_here = number, size, movable, need, False


class Pager:
    """What is on the device, within a bound of bytes. Items that die leave by themselves (``gone``)."""

    def __init__(self, bound: float, is_hard: bool = True) -> None:
        self.bound, self.is_hard, self.live, self.peak = bound, is_hard, 0, 0
        # Of weak references, since the graph of autograd alone keeps an item.
        self.here: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.away: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def admit(self, item: Any, in_use: Collection[int], drop: Callable[[Any], None]) -> None:
        """Make room for an item, and count it as being on the device.

        Raises:
            MemoryError: All that could leave has left, the item does not fit, and the bound is hard.
        """
        while self.live + item.size > self.bound:
            others = [one for one in self.here.values() if one.movable and one.number not in in_use]
            if not others and not self.is_hard:
                break
            if not others:
                missing = int(self.live + item.size - self.bound)
                raise MemoryError(
                    f"the activations that are needed at once exceed the budget of "
                    f"{bytes_text(int(self.bound))} by {bytes_text(missing)}; give offload_activations a "
                    f"budget of {int(self.bound) + missing} bytes or more"
                )
            last = max(others, key=lambda one: (one.need, -one.number))
            drop(last)
            self.gone(last)
            self.away[last.number] = self.here.pop(last.number)
        self.away.pop(item.number, None)
        self.here[item.number] = item
        item.is_here = True
        self.live += item.size
        self.peak = max(self.peak, self.live)

    def gone(self, item: Any) -> None:
        """Count an item as no longer on the device."""
        if item.is_here:
            item.is_here = False
            self.live -= item.size

    def next_back(self) -> Any:
        """Return the item that is to return next, if there is room for it now."""
        away = [one for one in self.away.values() if one.need < math.inf]
        first = min(away, key=lambda one: (one.need, -one.number), default=None)
        return first if first is not None and self.live + first.size <= self.bound else None


@dataclass
class Link:
    """Bytes a second between host and device: of a copy alone, and of both directions at once."""

    out: float
    back: float
    out_both: float
    back_both: float

    def __str__(self) -> str:
        out, back, out_both, back_both = (f"{rate / 1e9:.3g}" for rate in vars(self).values())
        return f"{out} GB/s out, {back} GB/s back; both at once {out_both} and {back_both} GB/s"


@dataclass
class Trace:
    """The order of a step: at each position, a storage is saved or needed."""

    sizes: list[int] = field(default_factory=list)
    movable: list[bool] = field(default_factory=list)
    #: For each position, the storage, whether it is needed, and the node of autograd that needs it.
    at: list[tuple[int, bool, int]] = field(default_factory=list)
    #: For each storage, the number of positions before which it was freed.
    died: dict[int, int] = field(default_factory=dict)
    #: The seconds of computation before each position.
    gaps: list[float] = field(default_factory=list)

    def uses(self) -> list[list[int]]:
        """Return the positions at which each storage is needed."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for position, (number, is_use, _) in enumerate(self.at):
            if is_use and number >= 0:
                found[number].append(position)
        return found

    @property
    def compute(self) -> float:
        return sum(self.gaps)

    @property
    def forward(self) -> float:
        """The seconds up to the last storage that is saved before one is needed."""
        first = next((position for position, one in enumerate(self.at) if one[1]), len(self.at))
        return sum(self.gaps[:first])


@dataclass
class Outcome:
    """A bound, what it makes leave, and how long the step takes then."""

    bound: float
    #: The bytes of each storage that leaves, and the seconds at which its copies begin and end: to the host
    #: and, unless it is not needed again, back.
    moved: dict[int, int]
    copies: dict[int, list[float]]
    peak: int
    step: float
    #: When the device computes.
    computes: list[tuple[float, float]]

    def busy(self, first: int) -> float:
        """Return the seconds of the copies to the host (0), or of those back (2)."""
        return sum(at[first + 1] - at[first] for at in self.copies.values() if len(at) > first)


def next_use(uses: list[int], position: int) -> float:
    """Return the first position after this one at which a storage is needed."""
    return next((one for one in uses if one > position), math.inf)


def actions(trace: Trace, bound: float) -> tuple[list[tuple[int, str, int]], int]:
    """Return what happens at each position (``drop``, ``fetch`` or ``wait``) within a bound, and the peak.
    """
    uses, pager, done = trace.uses(), Pager(bound), list[tuple[int, str, int]]()
    items: dict[int, Item] = {}
    deaths: dict[int, list[int]] = {}
    for number, position in trace.died.items():
        deaths.setdefault(position, []).append(number)
    node, in_use = -1, set[int]()
    for position, (number, is_use, by) in enumerate(trace.at):
        for dead in deaths.get(position, ()):
            if item := items.pop(dead, None):
                pager.gone(item)

        def drop(item: Item, position: int = position) -> None:
            done.append((position, "drop", item.number))

        if number < 0:
            continue
        if not is_use:
            if number not in items:
                need = next_use(uses[number], position)
                items[number] = Item(number, trace.sizes[number], trace.movable[number], need)
                pager.admit(items[number], (), drop)
            continue
        if by != node:
            node, in_use = by, set()
        in_use.add(number)
        if (item := items.get(number)) is None:
            continue
        if number in pager.away:
            pager.admit(item, in_use, drop)
            done.append((position, "fetch", number))
        done.append((position, "wait", number))
        item.need = next_use(uses[number], position)
        while other := pager.next_back():
            pager.admit(other, (), drop)
            done.append((position, "fetch", other.number))
    return done, pager.peak


def predict(trace: Trace, bound: float, link: Link) -> Outcome:
    """Return the outcome of a bound, by simulating the computation and the two queues of copies.

    Raises:
        MemoryError: The bound is too small for the step.
    """
    acts, peak = actions(trace, bound)
    moved = {number: trace.sizes[number] for _, what, number in acts if what == "drop"}
    by_position: dict[int, list[tuple[str, int]]] = {}
    for position, what, number in acts:
        by_position.setdefault(position, []).append((what, number))
    now = out_free = back_free = 0.0
    copies: dict[int, list[float]] = {}
    computes: list[tuple[float, float]] = []
    for position, (number, is_use, _) in enumerate(trace.at):
        since = computes.pop()[0] if computes and computes[-1][1] == now else now
        now += trace.gaps[position]
        computes.append((since, now))
        for what, other in by_position.get(position, ()):
            at = copies.get(other, [])
            if what == "fetch":
                start = max(now, back_free, at[1])
                back_free = start + moved[other] / (link.back_both if out_free > start else link.back)
                at[2:] = start, back_free
            else:
                now = max([now, *at[1 if what == "drop" else 3 :][:1]])
        if not is_use and number in moved and number not in copies:
            start = max(now, out_free)
            out_free = start + moved[number] / (link.out_both if back_free > start else link.out)
            copies[number] = [start, out_free]
    return Outcome(bound, moved, copies, peak, now, computes)


def choose(trace: Trace, link: Link, budget: int | None) -> Outcome:
    """Return the outcome of the budget; without one, that of the smallest bound that costs no time."""
    best = predict(trace, math.inf, link)
    if budget is not None:
        return best if best.peak <= budget else predict(trace, budget, link)
    low, high, most = 0.0, float(best.peak), FREE * best.step
    while high - low > max(best.peak / 256, 1 << 20):
        middle = (low + high) / 2
        try:
            outcome = predict(trace, middle, link)
        except MemoryError:
            outcome = None
        if outcome is not None and outcome.step <= most:
            best, high = outcome, middle
        else:
            low = middle
    return best
