"""``benchmark``: measures the device's time of a function, and the host's time to submit it."""

from __future__ import annotations

import functools
import gc
import html
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sidestream import _far_off, _sidestream, _simulate
from sidestream import _units as units
from sidestream._arguments import positive, whole
from sidestream._devices import SIMULATED_TIMES, device_name, has_no_times, of_torch, on_torch
from sidestream._leaves import name_of
from sidestream._results import Result
from sidestream._system import preemptions as _preemptions

#: Approximate nanoseconds of a sample: long compared with the time that its two events take.
SAMPLE_NS = 1_000_000
#: Maximum number of calls in a sample. The driver queues about a thousand launches before it blocks the host,
#: and a call may make several.
MOST_CALLS = 200
MOST_CALLS_ON_HOST = 100_000
#: Maximum nanoseconds for which the device is held back while the host submits a sample.
LONGEST_HOLD_NS = 200_000_000
#: Maximum number of attempts to find out whether a function waits for the device, on a machine that is busy
#: with other work.
MOST_TRIES = 20
#: The noun in error messages for the code that is measured.
RUNS = "a Python function"
#: Minimum nanoseconds between two events around a kernel.
LEAST_NS = 500


def benchmark(
    fn: Callable[..., object],
    *args: Any,
    warmup: int = 3,
    repeat: int = 20,
    flops: float | None = None,
    bytes: float | None = None,
    peak_flops: float | None = None,
    dtype: Any = "fp32",
    device: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Benchmark:
    """Measure ``fn(*args, **kwargs)``: the device's time by events, and the host's time to submit it.

    The work of ``fn`` must run on PyTorch's current stream, or the current stream must wait for it: work on a
    side stream that is never joined is not measured. Short calls are made several times in a sample. While
    the host submits a sample, the device is held back, so that the device's time does not contain the host's.
    If ``fn`` itself waits for the device (``.item()``), the device is not held back, and ``includes_host``
    says that its time contains the host's. If a call takes the host longer than the device,
    ``is_launch_bound`` is True, and the host is the part to shorten. Between two samples the host waits for
    one event; nothing else is synchronized.

    On the CPU both are one time, measured by the host's clock.

    If less than half of the roofline is reached, ``fn`` is called once more under PyTorch's profiler, and
    ``far_off`` has possible causes in the launch of its longest kernel: too few blocks, a last round of
    blocks that is nearly empty, or few warps because of registers or shared memory.

    Args:
        fn: The function. Its result is dropped.
        args: The arguments of ``fn``.
        warmup: Number of calls before the first sample.
        repeat: Number of samples.
        flops: Multiplications and additions of one call, for the share of the roofline.
        bytes: Bytes of device memory that one call must read and write, for the share of the roofline.
        peak_flops: Maximum number of multiplications and additions per second of the device, instead of the
            peak for ``dtype`` in its profile (``sidestream devices --sources``).
        dtype: The type of the numbers, for that peak: ``"fp32"``, and with tensor cores ``"tf32"``,
            ``"bf16"``, ``"fp16"`` and others, or a ``torch.dtype``. Matrix products of float32 run as
            ``"tf32"`` if PyTorch allows it.
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``, a ``torch.device`` or the number of a GPU. By default
            PyTorch's current device if PyTorch is imported and has CUDA, otherwise the CPU.
        kwargs: Arguments of ``fn`` by name, as in ``kwargs={"dim": 0}``, since ``benchmark`` has named
            arguments itself.

    Returns:
        A ``Benchmark``, whose ``median_ns`` and ``host_ns`` are the times of one call in nanoseconds.

    Raises:
        TypeError: ``fn`` cannot be called, an argument is not a number, or ``kwargs`` is not a mapping with
            strings as keys.
        ValueError: ``fn`` put nothing on the current stream or takes no time that can be measured, a figure
            is out of range, ``peak_flops`` is given without ``flops``, or the device is simulated or
            ``"auto"``.
        DeviceError: There is no such device.
        ImportError: A GPU was requested, and PyTorch is not installed.
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; give the function to measure, and its arguments after it")
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
    ):
        raise TypeError(
            f'kwargs is {kwargs!r}; give a dictionary of arguments by their names, as in {{"dim": 0}}'
        )
    repeat = whole("repeat", repeat, 1, "the number of samples")
    warmup = whole("warmup", warmup, 0, "the number of calls before the first sample")
    flops, bytes, peak_flops = (
        None if amount is None else positive(name, amount, "how many there are")
        for name, amount in (("flops", flops), ("bytes", bytes), ("peak_flops", peak_flops))
    )
    if peak_flops is not None and flops is None:
        raise ValueError(
            "peak_flops says nothing without flops; give the multiplications and additions of one call as "
            "flops"
        )
    cuda = gpu(device)
    call = functools.partial(fn, **kwargs) if kwargs else fn
    for _ in range(warmup):
        call(*args)
    with without_collector():
        turns = InTurn(cuda, (call,), args, SAMPLE_NS)
        samples, host_samples = zip(*(turns.sample(0) for _ in range(repeat)))
        turns.refuse_nothing(0, samples)
    name = getattr(fn, "__name__", None) or type(fn).__name__
    device_name = turns.device_name
    is_simulated = has_no_times(device_name)
    known_as = device_name.removesuffix(", simulated")
    roofline = None if is_simulated else _roofline(known_as, samples, flops, bytes, peak_flops, dtype)
    far_off: tuple[str, ...] = ()
    is_measured = cuda is not None and _simulate.entered() is None
    if is_measured and roofline is not None and roofline.share < _far_off.FAR:
        torch: Any = sys.modules["torch"]
        with torch.cuda.device(cuda):
            far_off = _far_off.asked(torch, call, args)
    return Benchmark(
        name=name,
        device=turns.device,
        device_name=device_name,
        calls=turns.calls[0],
        samples_ns=samples,
        host_samples_ns=host_samples,
        includes_host=turns.includes_host,
        roofline=roofline,
        roofline_unknown=(
            SIMULATED_TIMES if is_simulated else _why_no_roofline(known_as, roofline, flops, bytes, dtype)
        ),
        far_off=far_off,
    )


@dataclass(frozen=True)
class Roofline:
    """The minimum time that the device needs for the stated work, and the share of this limit that was
    reached.

    Attributes:
        floor_ns: The minimum time of a call, in nanoseconds.
        bound: The limit that sets it: ``memory`` or ``arithmetic``.
        share: The minimum time divided by the median; 1 is the best that the device can do.
        peak_flops_per_s: Peak of multiplications and additions per second; None if it is not known.
        peak_bytes_per_s: Peak bandwidth of device memory, in bytes per second; None if it is not known.
        intensity: Operations per byte; None if only one of the two was stated.
        ridge: The minimum intensity at which arithmetic is the limit; None if a peak is not known.
        dtype: The number type of the peak; None if the peak was given.
    """

    floor_ns: float
    bound: str
    share: float
    peak_flops_per_s: float | None
    peak_bytes_per_s: float | None
    intensity: float | None
    ridge: float | None
    dtype: str | None


@dataclass(frozen=True)
class Benchmark(Result):
    """The times of a function. ``print`` shows them.

    Attributes:
        name: The name of the function.
        device: ``cuda:0``, or ``cpu``.
        device_name: The vendor's name for the device.
        calls: Number of calls in a sample.
        samples_ns: The device's time of one call, for each sample, in nanoseconds.
        host_samples_ns: The host's time to submit one call, for each sample, in nanoseconds.
        includes_host: Whether the device's time contains the host's: the function waits for the device,
            submits more than the driver queues, or takes the host too long to hold the device back.
        roofline: The minimum time for the stated work, if the device's peaks are known.
        roofline_unknown: The reason if there is no roofline although work was stated; or where ``check``
            simulates the GPU, that the times are not those of a GPU.
        far_off: If less than half of the roofline was reached, sentences on the launch of the longest
            kernel, from one call under PyTorch's profiler.
    """

    name: str
    device: str
    device_name: str
    calls: int
    samples_ns: tuple[float, ...]
    host_samples_ns: tuple[float, ...]
    includes_host: bool
    roofline: Roofline | None
    roofline_unknown: str | None
    far_off: tuple[str, ...] = ()

    @property
    def median_ns(self) -> float:
        """The median of the samples: the device's time of one call, in nanoseconds."""
        return quantile(self.samples_ns, 0.5)

    @property
    def quartiles_ns(self) -> tuple[float, float]:
        """The first and the third quartile of the samples, in nanoseconds."""
        return (quantile(self.samples_ns, 0.25), quantile(self.samples_ns, 0.75))

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.samples_ns)

    @property
    def host_ns(self) -> float:
        """The median of the host's time to submit a call, in nanoseconds."""
        return quantile(self.host_samples_ns, 0.5)

    @property
    def is_launch_bound(self) -> bool:
        """Whether the host takes longer to submit a call than the device to run it."""
        has_times = self.device != "cpu" and not has_no_times(self.device_name)
        return has_times and not self.includes_host and self.host_ns > self.median_ns

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as new dictionaries and lists, of the schema ``sidestream.benchmark/1``."""
        low, high = self.quartiles_ns
        return {
            "schema": "sidestream.benchmark/1",
            "name": self.name,
            "device": self.device,
            "device_name": self.device_name,
            "count": self.count,
            "calls": self.calls,
            "median_ns": self.median_ns,
            "quartiles_ns": [low, high],
            "host_ns": self.host_ns,
            "is_launch_bound": self.is_launch_bound,
            "includes_host": self.includes_host,
            "roofline": None if self.roofline is None else asdict(self.roofline),
            "roofline_unknown": self.roofline_unknown,
            "far_off": list(self.far_off),
            "samples_ns": list(self.samples_ns),
            "host_samples_ns": list(self.host_samples_ns),
        }

    def __str__(self) -> str:
        low, high = self.quartiles_ns
        where = self.device if self.device == "cpu" else f"{self.device} ({self.device_name})"
        calls = "a call each" if self.calls == 1 else f"{self.calls} calls each"
        lines = [
            f"{self.name} on {where}: {units.time(self.median_ns)} in the median, half of {self.count} "
            f"samples from {units.time(low)} to {units.time(high)}, {calls}"
        ]
        lines.extend(self._notes())
        return "\n".join(lines)

    def _notes(self) -> Iterator[str]:
        if self.includes_host:
            yield (
                "the device was not held back, because the function waits for it or is long: its time "
                f"contains the host's, which is {units.time(self.host_ns)} a call"
            )
        elif self.is_launch_bound:
            yield (
                f"the host takes {units.time(self.host_ns)} to submit a call, longer than the device to do "
                "it: a CUDA graph, or more work a call, would gain more than faster kernels"
            )
        elif self.device != "cpu":
            yield f"the host takes {units.time(self.host_ns)} to submit a call"
        roofline = self.roofline
        if roofline is not None:
            yield (
                f"at least {units.time(roofline.floor_ns)} by {roofline.bound}, {100 * roofline.share:.0f} % "
                "reached"
            )
            if roofline.intensity is not None and roofline.ridge is not None:
                yield (
                    f"{roofline.intensity:.1f} operations per byte; at {roofline.ridge:.1f} or more, "
                    "arithmetic is the limit"
                    + (f" in {roofline.dtype}" if roofline.dtype else "")
                )
            if roofline.share > 1.05 and roofline.bound == "arithmetic":
                yield (
                    f"more than {roofline.dtype or 'the given peak'} allows: give dtype= or peak_flops= of "
                    "the arithmetic that ran, or count again"
                )
            elif roofline.share > 1.05:
                yield "more than the memory allows: fewer bytes move than stated, or they stay in the cache"
        yield from self.far_off
        if self.roofline_unknown is not None:
            yield self.roofline_unknown

    def _repr_html_(self) -> str:
        top = max(self.samples_ns)
        width = 4 * self.count
        bars = "".join(
            f'<rect x="{4 * at}" y="{40 - 40 * ns / top:.1f}" width="3" height="{40 * ns / top:.1f}"/>'
            for at, ns in enumerate(self.samples_ns)
        )
        lines = "<br>".join(html.escape(line) for line in str(self).split("\n"))
        return (
            f'<div>{lines}<br><svg width="{width}" height="40" fill="currentColor" '
            f'role="img">{bars}</svg></div>'
        )


def gpu(device: Any) -> Any:
    """Return the GPU to measure on as a ``torch.device``, or None for the CPU."""
    if device is None and "torch" not in sys.modules:
        return None
    name = None if device is None else device_name(device)
    if name == "cpu":
        return None
    if name is not None:
        on_torch(name, RUNS)
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"to measure on {name}, PyTorch is needed, which is not installed; pip install torch"
        ) from error
    return of_torch(device, torch, RUNS)


def _is_nothing(fn: Callable[..., object], args: tuple[Any, ...]) -> bool:
    """Return whether a call takes as long as a call of an empty function.

    Both are measured in turn, so that a CPU that is slow for a while is slow for both, and each measurement
    is so brief that some are not interrupted.
    """
    calls, rounds = 500, 40
    pairs = [(_submitted_ns(fn, args, calls), _submitted_ns(_nothing, args, calls)) for _ in range(rounds)]
    return min(of_fn for of_fn, _ in pairs) < 1.5 * min(of_nothing for _, of_nothing in pairs)


def _waits(
    stopwatch: _Stopwatch, fn: Callable[..., object], args: tuple[Any, ...], calls: int, hold: float
) -> bool:
    """Return whether a function waits for the device: if so, the device has started each time, however long
    it was held back.
    """
    alone = 0
    for _ in range(MOST_TRIES):
        before = _preemptions()
        stopwatch.take(fn, args, calls, hold)
        if not stopwatch.was_let_go:
            return False
        # A preempted thread is late even if the function does not wait.
        alone += _preemptions() == before
        if alone == 3:
            break
    return True


class _Stopwatch:
    """Measures times on the current stream of the current device."""

    def __init__(self, torch: Any) -> None:
        """Measure how long the device sleeps for one cycle."""
        self._cuda = torch.cuda
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cycles_per_ns = 0.0
        #: Whether the device had started the last sample when all of it was submitted.
        self.was_let_go = False
        cycles = 2_000_000
        for _ in range(2):  # The first one loads the kernel.
            elapsed, _ = self.take(torch.cuda._sleep, (cycles,), 1, 0)
            self._cycles_per_ns = cycles / elapsed

    def take(
        self, fn: Callable[..., object], args: tuple[Any, ...], calls: int, hold_ns: float
    ) -> tuple[float, float]:
        """Return the nanoseconds of the device and of the host for ``calls`` calls, with the device held back
        for ``hold_ns``.
        """
        if hold_ns > 0:
            self._cuda._sleep(int(hold_ns * self._cycles_per_ns))
        self._start.record()
        host = _submitted_ns(fn, args, calls)
        self.was_let_go = self._start.query()
        self._end.record()
        self._end.synchronize()
        return (self._start.elapsed_time(self._end) * 1e6, float(host))


def _hold(host_ns: float) -> float:
    """Return the nanoseconds to hold the device back for a sample that takes the host ``host_ns``; 0 if they
    would be too many.
    """
    hold = 2 * host_ns + 50_000
    return hold if hold <= LONGEST_HOLD_NS else 0


def _submitted_ns(fn: Callable[..., object], args: tuple[Any, ...], calls: int) -> int:
    each = range(calls)
    start = time.perf_counter_ns()
    for _ in each:
        fn(*args)
    return time.perf_counter_ns() - start


class InTurn:
    """Samples of one or several functions, in an order that the caller chooses."""

    def __init__(
        self,
        device: Any,
        functions: Sequence[Callable[..., object]],
        args: tuple[Any, ...],
        sample_ns: int,
    ) -> None:
        """Determine the number of calls of each function in a sample, and whether the device can be held back
        while they are submitted.

        Args:
            device: A GPU, or None for the CPU.
            functions: The functions to measure.
            args: The arguments of each function.
            sample_ns: Approximate nanoseconds of a sample.
        """
        self._functions, self._args, self._gpu = functions, args, device
        self._stopwatch: _Stopwatch | None = None
        self.device, self.device_name, self.includes_host = "cpu", "the CPU", False
        if device is None:
            shortest = [min(_submitted_ns(fn, args, 1) for _ in range(3)) for fn in functions]
            self.calls = tuple(_fitting(one, MOST_CALLS_ON_HOST, sample_ns) for one in shortest)
            return
        import torch

        self._within = torch.cuda.device
        with self._within(device):
            stopwatch = self._stopwatch = _Stopwatch(torch)
            self.device, self.device_name = str(device), str(torch.cuda.get_device_name(device))
            self._nothing_ns = min(stopwatch.take(_nothing, args, 1, 100_000)[0] for _ in range(3))
            alone = [min(stopwatch.take(fn, args, 1, 0) for _ in range(3)) for fn in functions]
            self.calls = tuple(_fitting(elapsed, MOST_CALLS, sample_ns) for elapsed, _ in alone)
            self._holds = [_hold(host * calls) for (_, host), calls in zip(alone, self.calls)]
            self.includes_host = not all(
                hold > 0 and not _waits(stopwatch, fn, args, calls, hold)
                for fn, calls, hold in zip(functions, self.calls, self._holds)
            )

    def include_a_slower_host(self) -> None:
        """Do not hold the device back if the host takes longer than the device for one of the functions.

        Raises:
            ValueError: One of the functions submits no work to the device.
        """
        if self._gpu is None or self.includes_host:
            return
        shortest = [min(self.sample(which) for _ in range(3)) for which in range(len(self._functions))]
        for which, (elapsed, _) in enumerate(shortest):
            self.refuse_nothing(which, (elapsed,))
        self.includes_host = any(host > elapsed for elapsed, host in shortest)

    def refuse_nothing(self, which: int, samples: Sequence[float]) -> None:
        """Raise a ``ValueError`` if a function takes no time, as these samples show."""
        fn, calls = self._functions[which], self.calls[which]
        if self._gpu is None:
            # An empty call takes some ten nanoseconds; only a call of less than a microsecond is compared
            # with an empty one.
            if calls > 1_000 and _is_nothing(fn, self._args):
                raise ValueError(
                    f"a call of {fn!r} takes {units.time(min(samples))} on the CPU, no more than an empty "
                    "call; give it more to do"
                )
        elif not self.includes_host and quantile(samples, 0.5) * calls < self._nothing_ns + LEAST_NS:
            # Use the name of the function, without the arguments that were bound to it.
            fn = getattr(fn, "func", fn)
            raise ValueError(
                f"{calls} calls of {fn!r} took no time on the current stream of {self.device}; if the work "
                'runs on the CPU, give device="cpu"; if it runs on another stream, let the current one wait '
                "for that"
            )

    def sample(self, which: int) -> tuple[float, float]:
        """Return the nanoseconds of the device and of the host for a call of a function, as means of a
        sample.
        """
        fn, calls = self._functions[which], self.calls[which]
        if self._stopwatch is None:
            host = _submitted_ns(fn, self._args, calls) / calls
            return host, host
        with self._within(self._gpu):
            hold = 0.0 if self.includes_host else self._holds[which]
            elapsed, taken = self._stopwatch.take(fn, self._args, calls, hold)
        return elapsed / calls, taken / calls


def _nothing(*_: object) -> None: ...


def _fitting(one_ns: float, most: int, sample_ns: int) -> int:
    return max(1, min(most, int(sample_ns / max(one_ns, 1.0))))


@contextmanager
def without_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _roofline(
    device_name: str,
    samples: Sequence[float],
    flops: float | None,
    bytes: float | None,
    peak_flops: float | None,
    dtype: Any,
) -> Roofline | None:
    name = name_of(dtype)
    known = _sidestream.peaks(device_name, name) or (None, None)
    bytes_per_s = known[1] or (_sidestream.peaks(device_name, "fp32") or (None, None))[1]
    flops_per_s = peak_flops or known[0]
    if not (flops or bytes) or (flops and flops_per_s is None) or (bytes and bytes_per_s is None):
        return None
    arithmetic = 1e9 * flops / flops_per_s if flops and flops_per_s else 0.0
    memory = 1e9 * bytes / bytes_per_s if bytes and bytes_per_s else 0.0
    floor = max(arithmetic, memory)
    return Roofline(
        floor_ns=floor,
        bound="arithmetic" if arithmetic > memory else "memory",
        share=floor / quantile(samples, 0.5),
        peak_flops_per_s=flops_per_s,
        peak_bytes_per_s=bytes_per_s,
        intensity=flops / bytes if flops and bytes else None,
        ridge=flops_per_s / bytes_per_s if flops_per_s and bytes_per_s else None,
        dtype=None if peak_flops else name,
    )


def _why_no_roofline(
    device_name: str,
    roofline: Roofline | None,
    flops: float | None,
    bytes: float | None,
    dtype: Any,
) -> str | None:
    if roofline is not None or (flops is None and bytes is None):
        return None
    if _sidestream.peaks(device_name, "fp32") is not None:
        return (
            f"share of the roofline unknown: the description of {device_name} has no peak in "
            f"{name_of(dtype)}; give peak_flops="
        )
    return (
        f"share of the roofline unknown: there are no figures for {device_name}; `sidestream devices` "
        "lists the known devices"
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed, interpolated between two of them."""
    # Importing the module `statistics` would double the time of `import sidestream`.
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
