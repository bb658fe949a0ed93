"""The windows of steps that are timed before the profiler starts, and their report. The tests control the
clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path

import pytest
import sidestream
from sidestream._unprofiled import Unprofiled, Windows, least_steps

MS = 1_000_000


class Loop:
    """A loop whose steps take the host a given time, and whose device is behind by a given time whenever the
    host waits for it."""

    def __init__(self, steps_ns: Iterable[int], behind_ns: int = 0) -> None:
        self.now_ns, self.waits = 0, 0
        self._steps_ns, self._behind_ns = iter(steps_ns), behind_ns

    def clock(self) -> int:
        return self.now_ns

    def synchronize(self) -> None:
        self.waits += 1
        self.now_ns += self._behind_ns

    def run(self, windows: Windows, most: int = 100_000) -> int:
        """Run steps until the windows are complete, and return their number."""
        for count in range(1, most + 1):
            self.now_ns += next(self._steps_ns)
            if windows.step():
                return count
        return most


def timed(steps_ns: Iterable[int], *, every: int = 1, steps: int | None = None) -> tuple[Unprofiled, int]:
    loop = Loop(steps_ns)
    windows = Windows(loop.clock, loop.synchronize, every, steps)
    count = loop.run(windows)
    result = windows.result(after_profiler=False)
    assert result is not None
    return result, count


def in_windows(*of: float, size: int = 5, before: int = 2) -> Iterable[int]:
    """Return steps with these milliseconds: two of 10, then a window of each, and the last value forever."""
    windows = chain.from_iterable(repeat(int(ms * MS), size) for ms in of)
    return chain(repeat(10 * MS, before), windows, repeat(int(of[-1] * MS)))


def test_a_steady_loop_is_timed_as_soon_as_two_windows_agree() -> None:
    result, count = timed(in_windows(10))
    # One step to prepare, one window that shows how long a step is, two windows that agree and five that
    # count.
    assert count == 1 + 1 + 7 * 5
    assert result == Unprofiled(10 * MS, 10 * MS, (10 * MS, 10 * MS), 0.0, 0, True, 5, 3, 5, False)


def test_windows_are_dropped_until_two_in_a_row_agree() -> None:
    result, _ = timed(in_windows(20, 15, 12, 11, 10.8, 10))
    # 12 and 11 are 9 % apart, 11 and 10.8 less than 3 %.
    assert (result.dropped, result.median_ns, result.agreed) == (6, 10 * MS, True)
    exactly, _ = timed(in_windows(10, 10.3, 12))
    assert exactly.median_ns == 12 * MS
    beyond, _ = timed(in_windows(10, 10.31, 12))
    assert beyond.dropped == exactly.dropped + 2


def test_a_loop_that_never_agrees_is_taken_as_it_is_and_that_is_said() -> None:
    result, _ = timed(in_windows(*[10, 20] * 20))
    assert (result.agreed, result.dropped, result.taken) == (False, 12, 5)
    assert result.quartiles_ns == (10 * MS, 20 * MS)


def test_quartiles_and_drift_are_of_the_windows_that_count() -> None:
    result, _ = timed(in_windows(10, 10, 10, 10.5, 11, 11.5, 12))
    assert (result.median_ns, result.quartiles_ns) == (11 * MS, (10_500_000, 11_500_000))
    assert result.drift == pytest.approx(1 / 11, abs=1e-4)
    shorter, _ = timed(in_windows(10, 10, 12, 11.5, 11, 10.5, 10))
    assert shorter.drift == pytest.approx(-1 / 11, abs=1e-4)
    # One delayed window is not drift.
    once, _ = timed(in_windows(10, 10, 10, 10, 10, 10, 40, 10))
    assert (once.median_ns, once.mean_ns, once.drift) == (10 * MS, 16 * MS, 0.0)


def test_short_steps_have_longer_windows() -> None:
    result, count = timed(repeat(MS // 10))
    assert result.window_steps == 500 and count == 1 + 1 + 7 * 500
    # A first window with one-time work shows too long a step: the later windows grow.
    result, _ = timed(chain([MS, 400 * MS], repeat(MS)))
    assert result.window_steps == 50 and result.median_ns == MS


def test_a_window_has_all_kinds_of_steps() -> None:
    kinds = [10, 10, 10, 50]
    # If one window has two slow steps and the next has one, the mean shows the difference, but the median
    # does not.
    apart, _ = timed(int(ms * MS) for ms in chain.from_iterable(repeat(kinds)))
    assert (apart.median_ns, apart.mean_ns) == (18 * MS, 19_600_000)
    result, _ = timed((int(ms * MS) for ms in chain.from_iterable(repeat(kinds))), every=4)
    assert (result.window_steps, result.median_ns, result.quartiles_ns) == (4, 20 * MS, (20 * MS, 20 * MS))


@pytest.mark.parametrize(("steps", "every"), [(9, 1), (25, 3), (60, 1), (100, 4), (1000, 7)])
@pytest.mark.parametrize("kinds", [[10], [10, 30], [0.01]])
def test_stated_steps_are_timed_and_no_more(steps: int, every: int, kinds: list[float]) -> None:
    assert steps >= least_steps(every)
    result, count = timed(
        (int(ms * MS) for ms in chain.from_iterable(repeat(kinds))), every=every, steps=steps
    )
    assert count == steps
    assert result.taken >= 5 and result.window_steps % every == 0
    assert 1 + every + (result.dropped - 1 + result.taken) * result.window_steps <= steps


def test_the_devices_are_waited_for_at_the_edges_of_windows_only() -> None:
    # The host is far ahead of its device: the wait costs at most the host's time for its first step.
    loop = Loop(repeat(MS), behind_ns=1_000 * MS)
    windows = Windows(loop.clock, loop.synchronize)
    loop.run(windows)
    result = windows.result(after_profiler=True)
    assert result is not None and result.after_profiler
    assert loop.waits == 1 + result.dropped + result.taken
    assert result.edge_ns == MS // result.window_steps
    # The host is hardly ahead of the device: the wait costs its whole time.
    loop = Loop(repeat(MS), behind_ns=MS // 10)
    windows = Windows(loop.clock, loop.synchronize)
    loop.run(windows)
    result = windows.result(after_profiler=False)
    assert result is not None and result.edge_ns == round(MS // 10 / result.window_steps)


def test_too_few_steps_give_nothing_and_say_how_far_they_came() -> None:
    loop = Loop(repeat(10 * MS))
    windows = Windows(loop.clock, loop.synchronize)
    assert str(windows) == "0 steps, in 0 whole windows of which 0 counted"
    loop.run(windows, most=20)
    assert windows.result(after_profiler=False) is None
    assert str(windows) == "20 steps, about 10.000 ms each, in 4 whole windows of which 1 counted"


def test_a_clock_that_stands_still_breaks_nothing() -> None:
    result, _ = timed(repeat(0))
    assert (result.median_ns, result.drift) == (0, 0.0)


def test_it_is_written_for_the_diagnosis_to_read(traces: Path, tmp_path: Path) -> None:
    import gzip
    import json

    unprofiled, _ = timed(chain(repeat(10 * MS, 2), repeat(673_200)))
    trace = json.loads(gzip.decompress((traces / "mask.before.json.gz").read_bytes()))
    trace["sidestream.unprofiled"] = unprofiled.to_dict()
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    diagnosis = sidestream.diagnose(path)
    assert diagnosis.unprofiled == unprofiled
    assert diagnosis.replay.base == "measured" and diagnosis.replay.unprofiled_ns == 673_200
    assert "measured without the profiler: median 673.2 µs, quartiles 673.2 µs and 673.2 µs" in str(diagnosis)
    assert sidestream.diagnose(traces / "mask.before.json.gz").unprofiled is None
