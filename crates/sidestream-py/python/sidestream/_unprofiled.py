"""Measures the time of a step without the profiler: windows of steps are timed before the profiler starts.

A trace does not show what the profiler adds to a step. So the same loop is timed first. The host waits for
the devices only at the edges of a window; inside the window it runs ahead of them as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import mean, median, quantiles
from typing import Any

#: The key under which the times are written to the trace. `sidestream diagnose` reads it.
KEY = "sidestream.unprofiled"
#: Maximum relative difference of two windows that agree.
AGREE = 0.03
#: Minimum number of windows that are taken once two have agreed.
TAKEN = 5
#: Maximum number of windows that are dropped while no two agree; after that, windows are taken anyway.
MOST_DROPPED = 12
#: Minimum duration of a window, which is long compared with the wait at its edges.
WINDOW_NS = 50_000_000
#: Bounds for the number of steps in a window.
LEAST_STEPS, MOST_STEPS = 5, 1_000
#: Number of steps that are timed if several ranks run together, which must start their profilers at the same
#: step.
TOGETHER = 100


@dataclass(frozen=True)
class Unprofiled:
    """The time of a step before the profiler started.

    Attributes:
        median_ns: The median of the windows, in nanoseconds for each step.
        mean_ns: The mean of the windows. It is far from the median if windows differ in their number of slow
            steps, or one of them was delayed.
        quartiles_ns: The first and the third quartile.
        drift: The time by which a step was longer in the second half of the windows than in the first, as a
            share of the median; below 0 if it was shorter. Over 0.05 the diagnosis gives the step as a range.
        edge_ns: Maximum time by which the measured step may be too long, since the host waited for the
            devices at the edges of the windows.
        agreed: Whether two windows in a row were within 3 % of each other before any was taken.
        window_steps: Number of steps in a window.
        dropped: Number of windows before those that were taken, including the two that agreed.
        taken: Number of windows that were taken.
        after_profiler: Whether ``profile`` had run before in this process: parts of PyTorch's profiler may
            have stayed and slow down a step.
    """

    median_ns: int
    mean_ns: int
    quartiles_ns: tuple[int, int]
    drift: float
    edge_ns: int
    agreed: bool
    window_steps: int
    dropped: int
    taken: int
    after_profiler: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a new dictionary of JSON values."""
        return asdict(self) | {"quartiles_ns": list(self.quartiles_ns)}


def least_steps(every: int) -> int:
    """Return the minimum number of steps that can be timed, with windows of ``every`` steps."""
    # The first step, a window that shows the length of a step, two windows that agree, and those that are
    # taken.
    return 1 + (1 + 2 + TAKEN) * every


class Windows:
    """Times windows of steps. The first step belongs to no window, since programs initialize in it.

    Args:
        clock: Returns the time in nanoseconds.
        synchronize: Waits for the devices.
        every: The number of steps in a window is a multiple of this.
        steps: Total number of steps to time; by default as few as are needed.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        synchronize: Callable[[], None],
        every: int = 1,
        steps: int | None = None,
    ) -> None:
        self._clock, self._synchronize = clock, synchronize
        self._every, self._steps = every, steps
        # The first window only shows the length of a step.
        self._size, self._is_sized = every, False
        self._count = self._inside = self._dropped = 0
        self._began_ns = self._first_ns = 0
        self._last_ns: float | None = None
        self._has_agreed = self._takes = self._is_over = False
        self._taken: list[tuple[float, float]] = []

    def step(self) -> bool:
        """Record the end of a step, and return whether it was the last one to time."""
        self._count += 1
        if self._count == 1:
            self._synchronize()
            self._began_ns = self._clock()
        elif not self._is_over:
            self._inside += 1
            if self._inside == 1:
                self._first_ns = self._clock() - self._began_ns
            if self._inside == self._size:
                self._close()
        return self._is_over and (self._steps is None or self._count >= self._steps)

    def _close(self) -> None:
        before_ns = self._clock()
        self._synchronize()
        now_ns = self._clock()
        step_ns = (now_ns - self._began_ns) / self._size
        # Without the wait the host would have continued at once, and the devices would have continued as soon
        # as the host had submitted work, which takes no longer than the host's first step. So the window is
        # too long by at most the smaller of the two times.
        edge_ns = min(now_ns - before_ns, self._first_ns) / self._size
        self._inside, self._began_ns = 0, now_ns
        if self._takes:
            self._taken.append((step_ns, edge_ns))
            self._is_over = len(self._taken) >= TAKEN and (self._steps is None or not self._has_room(1))
            return
        self._dropped += 1
        last_ns, self._last_ns = self._last_ns, step_ns
        if self._is_sized and last_ns is not None and abs(step_ns - last_ns) <= AGREE * min(step_ns, last_ns):
            self._has_agreed = self._takes = True
        elif self._is_sized and (self._dropped >= MOST_DROPPED or not self._has_room(TAKEN + 1)):
            self._takes = True
        else:
            self._resize(step_ns)

    def _has_room(self, windows: int) -> bool:
        """Return whether this many more windows fit into the steps to time, if their number was given."""
        return self._steps is None or self._steps - self._count >= windows * self._size

    def _resize(self, step_ns: float) -> None:
        """Adapt the size of the windows to the time of a step. Windows of different sizes are not compared.
        """
        steps = min(max(int(WINDOW_NS / max(step_ns, 1)), LEAST_STEPS), MOST_STEPS)
        if self._steps is not None:
            steps = min(steps, (self._steps - self._count) // (2 + TAKEN))
        wanted = max(steps // self._every, 1) * self._every
        # Once windows have been sized, their size changes only if it at least doubles.
        if not self._is_sized or wanted >= 2 * self._size:
            self._size, self._last_ns, self._is_sized = wanted, None, True

    def result(self, after_profiler: bool) -> Unprofiled | None:
        """Return the time of a step, or None if too few windows were taken."""
        if len(self._taken) < TAKEN:
            return None
        steps = [step_ns for step_ns, _ in self._taken]
        middle = median(steps)
        first, _, third = quantiles(steps, n=4, method="inclusive")
        # The middle window is in both halves, so that a single window gives no drift.
        half = (len(steps) + 1) // 2
        drift = (median(steps[-half:]) - median(steps[:half])) / middle if middle > 0 else 0.0
        return Unprofiled(
            median_ns=round(middle),
            mean_ns=round(mean(steps)),
            quartiles_ns=(round(first), round(third)),
            drift=round(drift, 4),
            edge_ns=round(median(edge_ns for _, edge_ns in self._taken)),
            agreed=self._has_agreed,
            window_steps=self._size,
            dropped=self._dropped,
            taken=len(steps),
            after_profiler=after_profiler,
        )

    def least(self) -> int:
        """Return the number of steps that are timed, as far as known: the minimum until a window has shown
        the length of a step.
        """
        if self._steps is not None:
            return self._steps
        size = self._size if self._is_sized else max(LEAST_STEPS // self._every, 1) * self._every
        # The first step, and a window that shows the length of a step.
        return 1 + self._every + (2 + TAKEN) * size

    def __str__(self) -> str:
        """Return the progress of the timing."""
        known = [step_ns for step_ns, _ in self._taken] or [ns for ns in [self._last_ns] if ns is not None]
        each = f", about {median(known) / 1e6:.3f} ms each" if known else ""
        windows = self._dropped + len(self._taken)
        return f"{self._count} steps{each}, in {windows} whole windows of which {len(self._taken)} counted"
