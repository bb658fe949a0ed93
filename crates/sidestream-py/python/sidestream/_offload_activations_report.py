"""What `offload_activations` tells: what stays on the device, what moves when, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sidestream._draw import Pictured
from sidestream._offload_activations_plan import Link, Outcome, Trace, predict
from sidestream._units import size as bytes_text

#: How many moves a report shows.
_SHOWN = 8


@dataclass(frozen=True)
class Move:
    """A tensor that moves, and the milliseconds of the step at which its copies begin and end."""

    bytes: int
    out_begins_ms: float
    out_ends_ms: float
    back_begins_ms: float | None = None
    back_ends_ms: float | None = None

    def __str__(self) -> str:
        back = "not needed again"
        if self.back_begins_ms is not None:
            back = f"back from {self.back_begins_ms:.4g} to {self.back_ends_ms:.4g} ms"
        out = f"out from {self.out_begins_ms:.4g} to {self.out_ends_ms:.4g} ms"
        return f"{bytes_text(self.bytes)}: {out}, {back}"


@dataclass(frozen=True)
class ActivationsReport(Pictured):
    """What ``offload_activations`` keeps and moves. ``print`` shows it.

    Times are from the first tensor that is saved to the last that is needed.

    Attributes:
        budget: The bytes that were given, or None.
        all_bytes: The most bytes of saved activations on the device at once, if all stay.
        kept_bytes: The most bytes of them on the device at once, with these moves.
        moves: What moves, in the order in which it leaves.
        storages: How many tensors autograd saves, each storage once, besides those that existed before.
        pinned_bytes: The bytes of host memory that are pinned.
        link: The measured rates of copies, or None if nothing is planned yet.
        compute_ms: The computation of the step alone.
        forward_ms: The part of it up to the first tensor that is needed.
        out_ms: The copies to the host.
        back_ms: The copies to the device.
        predicted_ms: The step with these moves, as simulated.
        measured_ms: The last step that followed the plan, or None.
        lanes: What ``download``, ``compute`` and ``upload`` do during the predicted step: begins and ends, in
            milliseconds. ``timeline()`` and ``svg()`` draw it.
        recompute_ms: What computing again what moves would take: its share of the forward pass by bytes.
    """

    budget: int | None
    all_bytes: int = 0
    kept_bytes: int = 0
    moves: tuple[Move, ...] = ()
    storages: int = 0
    pinned_bytes: int = 0
    link: Link | None = None
    compute_ms: float = 0
    forward_ms: float = 0
    out_ms: float = 0
    back_ms: float = 0
    predicted_ms: float = 0
    measured_ms: float | None = None
    recompute_ms: float = 0
    lanes: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict, hash=False)

    @property
    def moved_bytes(self) -> int:
        """The bytes that move to the host in a step."""
        return sum(move.bytes for move in self.moves)

    @property
    def limit_ms(self) -> float:
        """The least time of the step with these moves: what leaves does so beside the forward pass, and
        returns beside backward.
        """
        backward_ms = max(self.compute_ms - self.forward_ms, self.back_ms)
        return min(max(self.forward_ms, self.out_ms) + backward_ms, self.predicted_ms)

    def __str__(self) -> str:
        if self.link is None:
            return "nothing is planned yet: two steps in the same order are measured first"
        budget = "" if self.budget is None else f" of a budget of {bytes_text(self.budget)}"
        measured = "" if self.measured_ms is None else f", measured {self.measured_ms:.4g} ms"
        over = max(round(self.predicted_ms - self.compute_ms, 3), 0.0)
        lines = [
            f"on the device: {bytes_text(self.kept_bytes)} of saved activations at most{budget}; "
            f"{bytes_text(self.all_bytes)} if all stayed",
            f"moves: {len(self.moves)} of {self.storages} tensors, {bytes_text(self.moved_bytes)} a step; "
            f"{bytes_text(self.pinned_bytes)} of host memory are pinned",
            *(f"  {move}" for move in self.moves[:_SHOWN]),
            *([f"  and {len(self.moves) - _SHOWN} more"] if len(self.moves) > _SHOWN else ()),
            f"link: {self.link}",
            f"limit: {self.limit_ms:.4g} ms; the forward pass computes {self.forward_ms:.4g} ms and copies "
            f"{self.out_ms:.4g} ms, backward computes {self.compute_ms - self.forward_ms:.4g} ms and copies "
            f"{self.back_ms:.4g} ms",
            f"step: {self.predicted_ms:.4g} ms predicted{measured}; moving costs {over:.4g} ms, computing "
            f"the same activations again would cost about {self.recompute_ms:.4g} ms",
        ]
        return "\n".join([*lines, self.timeline()])


def told(
    budget: int | None, trace: Trace, outcome: Outcome, link: Link, pinned: int, measured: float | None
) -> ActivationsReport:
    """Return the report on an outcome."""
    moves = [
        Move(outcome.moved[one], *(1e3 * at for at in times))
        for one, times in sorted(outcome.copies.items(), key=lambda copy: copy[1])
    ]
    copies = outcome.copies.values()
    spans = {
        "download": [(at[0], at[1]) for at in copies],
        "compute": outcome.computes,
        "upload": [(at[2], at[3]) for at in copies if len(at) > 2],
    }
    share = sum(outcome.moved.values()) / max(1, sum(trace.sizes))
    return ActivationsReport(
        budget,
        all_bytes=predict(trace, math.inf, link).peak,
        kept_bytes=outcome.peak,
        moves=tuple(moves),
        storages=len(trace.sizes),
        pinned_bytes=pinned,
        link=link,
        compute_ms=1e3 * trace.compute,
        forward_ms=1e3 * trace.forward,
        out_ms=1e3 * outcome.busy(0),
        back_ms=1e3 * outcome.busy(2),
        predicted_ms=1e3 * outcome.step,
        measured_ms=measured,
        recompute_ms=1e3 * trace.forward * share,
        lanes={
            name: tuple((1e3 * begin, 1e3 * end) for begin, end in sorted(each))
            for name, each in spans.items()
        },
    )
