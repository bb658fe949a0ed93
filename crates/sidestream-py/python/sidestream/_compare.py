"""``compare``: measures which of two functions is faster, with an interval for the ratio of their times."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sidestream import _benchmark as benchmark
from sidestream import _units as units
from sidestream._arguments import positive, truth, whole
from sidestream._devices import SIMULATED_TIMES, has_no_times
from sidestream._moves import Moved, moved
from sidestream._results import Result

#: Two functions whose times differ by no more than this are never called different: merely placing memory at
#: other addresses has as much effect.
SAME = 0.005
#: Two functions whose times may differ by more than this are never called equal.
APART = 0.03
#: Numbers of groups after which the interval is computed.
LOOKS = (16, 32, 64, 128, 256)
#: Half the width of an interval, in standard deviations: one interval in 3,000 misses the true ratio, and at
#: most five intervals are computed.
DEVIATIONS = 3.6
#: Approximate nanoseconds of a sample: long compared with the time that its two events take.
SAMPLE_NS = 2_000_000
#: Maximum seconds of measuring, by default.
SECONDS = 5.0


def compare(
    f: Callable[..., object],
    g: Callable[..., object],
    *args: Any,
    warmup: int = 3,
    same_work: bool = True,
    seconds: float = SECONDS,
    device: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Measure ``f(*args)`` and ``g(*args)`` in turn, and return which is faster, with an interval for the
    ratio.

    They are measured in groups of four samples, f, g, g, f, so that both are equally affected if the device
    gets slower or warmer. The interval for the ratio of their times makes no assumption on how times are
    distributed, and misses the truth once in 3,000. Groups are added until the interval decides: the times
    differ by more than 0.5 % (``different``), or by less than 3 % (``equal``). If neither holds when
    ``seconds`` have passed, the verdict is ``unknown``, and ``smallest`` is the difference that would have
    been seen.

    As in ``benchmark`` times are the device's, with the device held back while the host submits a sample.
    Where one of the two waits for the device, or takes the host longer than the device, both are measured
    with the host's time, and ``includes_host`` says so. The results of the functions are not compared.

    Args:
        f: The first function.
        g: The second function.
        args: Their arguments.
        warmup: Number of calls of each before the first sample.
        same_work: Whether to refuse two functions of which one moves more bytes between host and device, or
            waits for the device more often. This is judged by one call of each, from PyTorch's operators and
            its ``synchronize`` calls; other copies are not seen. With False the difference is noted in
            ``unlike``.
        seconds: Maximum seconds of measuring.
        device: As for ``benchmark``.
        kwargs: Arguments by name, as in ``kwargs={"dim": 0}``.

    Returns:
        A ``Comparison``.

    Raises:
        TypeError: ``f`` or ``g`` cannot be called, or an argument has the wrong type.
        ValueError: The two do not do the same work, a figure is out of range, one puts nothing on the device,
            or the device is simulated.
        DeviceError: There is no such device.
        ImportError: A GPU was requested, and PyTorch is not installed.
    """
    for name, fn in (("f", f), ("g", g)):
        if not callable(fn):
            raise TypeError(f"{name} is {fn!r}; give two functions, and their arguments after them")
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
    ):
        raise TypeError(
            f'kwargs is {kwargs!r}; give a dictionary of arguments by their names, as in {{"dim": 0}}'
        )
    truth("same_work", same_work)
    warmup = whole("warmup", warmup, 0, "the number of calls before the first sample")
    seconds = positive("seconds", seconds, "the maximum seconds of measuring")
    cuda = benchmark.gpu(device)
    first, second = (functools.partial(fn, *args, **(kwargs or {})) for fn in (f, g))
    names = _names(f, g)
    for _ in range(warmup):
        first()
        second()
    unlike = _unlike(names, moved(first), moved(second))
    if unlike and same_work:
        raise ValueError(
            f"{unlike}; their times would compare different work: let both do the same, or pass "
            "same_work=False"
        )
    with benchmark.without_collector():
        taken = benchmark.InTurn(cuda, (first, second), (), SAMPLE_NS)
        taken.include_a_slower_host()
        groups: list[tuple[float, float]] = []
        spent_ns = 0.0
        for look in LOOKS:
            while len(groups) < look and spent_ns < 1e9 * seconds:
                four = [taken.sample(which)[0] for which in (0, 1, 1, 0)]
                spent_ns += sum(taken.calls[which] * ns for which, ns in zip((0, 1, 1, 0), four))
                groups.append(((four[0] + four[3]) / 2, (four[1] + four[2]) / 2))
            low, high = interval([other / one for one, other in groups])
            if judged(low, high) is not None or spent_ns >= 1e9 * seconds:
                break
    ratio = benchmark.quantile([other / one for one, other in groups], 0.5)
    verdict = None if has_no_times(taken.device_name) else judged(low, high)
    return Comparison(
        names=names,
        device=taken.device,
        device_name=taken.device_name,
        verdict="unknown" if verdict is None else verdict,
        ratio=ratio,
        interval=(low, high),
        smallest=SAME + (high - low),
        median_ns=(
            benchmark.quantile([one for one, _ in groups], 0.5),
            benchmark.quantile([other for _, other in groups], 0.5),
        ),
        groups=len(groups),
        calls=(taken.calls[0], taken.calls[1]),
        includes_host=taken.includes_host,
        unlike=unlike or None,
    )


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return an interval for the median of the distribution from which the ratios are drawn, which may have
    any shape: the bounds are two of the sorted ratios.

    How many of ``n`` ratios lie below the median is binomial. With fewer ratios than the confidence requires,
    the interval is unbounded.
    """
    ordered = sorted(ratios)
    count = len(ordered)
    below = math.floor(count / 2 - DEVIATIONS * math.sqrt(count) / 2)
    if below < 0:
        return (0.0, math.inf)
    return (ordered[below], ordered[count - 1 - below])


def judged(low: float, high: float) -> str | None:
    """Return the verdict for an interval of the ratio; None where it does not decide."""
    if low > 1 + SAME or high < 1 / (1 + SAME):
        return "different"
    if low > 1 / (1 + APART) and high < 1 + APART:
        return "equal"
    return None


@dataclass(frozen=True)
class Comparison(Result):
    """Which of two functions is faster. ``print`` shows it.

    Attributes:
        names: The names of the functions.
        device: ``cuda:0``, or ``cpu``.
        device_name: The vendor's name of the device.
        verdict: ``different`` (the whole interval lies beyond 0.5 %), ``equal`` (it lies within 3 %), or
            ``unknown``; always ``unknown`` where ``check`` simulates the GPU.
        ratio: The second function's time divided by the first one's, in the median.
        interval: The bounds of the ratio.
        smallest: The smallest difference that would have been seen, as a share of the time.
        median_ns: The time of a call of each function, in nanoseconds.
        groups: Number of groups of four samples.
        calls: Number of calls in a sample of each function.
        includes_host: Whether the times contain the host's: one of the two waits for the device, or takes the
            host longer than the device.
        unlike: How the work of the two differs, where that was allowed; otherwise None.
    """

    names: tuple[str, str]
    device: str
    device_name: str
    verdict: str
    ratio: float
    interval: tuple[float, float]
    smallest: float
    median_ns: tuple[float, float]
    groups: int
    calls: tuple[int, int]
    includes_host: bool
    unlike: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as new dictionaries and lists, of the schema ``sidestream.compare/1``."""
        fields = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }
        low, high = self.interval
        return {
            "schema": "sidestream.compare/1",
            **fields,
            "interval": [low, high if high < math.inf else None],
            "smallest": self.smallest if self.smallest < math.inf else None,
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        one, other = self.names
        quicker, slower, ratio, (low, high) = one, other, self.ratio, self.interval
        if ratio < 1:
            quicker, slower, ratio = other, one, 1 / ratio
            low, high = 1 / high, 1 / low if low else math.inf
        times = f"{slower} takes {ratio:.3f} times as long as {quicker} (from {low:.3f} to {high:.3f} times)"
        if self.verdict == "different":
            yield times
        elif self.verdict == "equal":
            yield f"equal within 3 %: {times}"
        elif has_no_times(self.device_name):
            yield f"cannot tell which is faster: {SIMULATED_TIMES}"
        elif high < math.inf:
            yield (
                f"cannot tell which is faster: {times}; a difference of {100 * self.smallest:.1f} % would "
                "have been seen, and a smaller one with more time (seconds=)"
            )
        else:
            yield (
                f"cannot tell which is faster: the time sufficed for {self.groups} of at least "
                f"{LOOKS[0]} groups; give more (seconds=)"
            )
        where = self.device if self.device == "cpu" else f"{self.device} ({self.device_name})"
        first, second = (units.time(ns) for ns in self.median_ns)
        groups = "1 group" if self.groups == 1 else f"{self.groups} groups"
        yield f"  {one} {first}, {other} {second} in the median on {where}; {groups} of two samples of each"
        if self.includes_host and self.device != "cpu":
            yield (
                "  with the host's time in it: one of them waits for the device, or takes the host longer "
                "than the device"
            )
        if self.unlike is not None:
            yield f"  {self.unlike}"


def _names(f: Any, g: Any) -> tuple[str, str]:
    one, other = (getattr(fn, "__name__", None) or type(fn).__name__ for fn in (f, g))
    return ("f", "g") if one == other else (one, other)


def _unlike(names: tuple[str, str], one: Moved, other: Moved) -> str:
    """Return how the work of the second function differs from that of the first; empty if it does not differ.
    """
    parts = []
    for verb, first, second in (
        ("uploads", one.uploaded, other.uploaded),
        ("downloads", one.downloaded, other.downloaded),
    ):
        if first != second:
            parts.append(f"{names[0]} {verb} {units.size(first)} a call and {names[1]} {units.size(second)}")
    if len(one.waits) != len(other.waits):
        told = [
            f"{len(moved.waits)} times" + (f" ({', '.join(sorted(set(moved.waits)))})" if moved.waits else "")
            for moved in (one, other)
        ]
        parts.append(f"{names[0]} waits for the device {told[0]} a call and {names[1]} {told[1]}")
    return ", and ".join(parts)
