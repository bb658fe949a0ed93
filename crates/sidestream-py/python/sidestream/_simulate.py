"""``simulate``: PyTorch programs on a GPU that this machine does not have, with the times that they would
take.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidestream._arguments import truth
from sidestream._devices import is_of, name_with_streams
from sidestream._sidestream import DeviceError

_TABLES = Path(__file__).parent / "_simulated" / "tables"
#: The share of the device's time from which an operator that is not known is named.
_NAMED = 0.01


#: The simulation that is entered, and its times.
_entered: list[Simulated] = []


def entered() -> Simulated | None:
    """Return the simulation with times that is entered."""
    return _entered[-1] if _entered else None


class Simulated:
    """A simulated GPU, and the times of what runs on it."""

    def __init__(self, device: str, host: str, timing: Any, asked: dict[str, None]) -> None:
        #: The name of the device, such as ``sim:h200``, and the processor whose times the host takes.
        self.device, self.host = device, host
        self._timing, self._asked = timing, asked

    @property
    def now_ns(self) -> tuple[int, int, int]:
        """The virtual time of the calling thread, ns: the earliest, the likely and the latest."""
        now: tuple[int, int, int] = self._timing.now_ns()
        return now

    @property
    def kernels_ns(self) -> float:
        """The likely time of all kernels so far, one after the other, ns."""
        total: float = self._timing.device_ns
        return total

    @property
    def unknown(self) -> tuple[str, ...]:
        """Operators that no measured class resembles, and that take 1 % or more of the device's time by their
        bytes. Their time may be off by a factor of 2, or more; of linear algebra by much more, so that it is
        always named.
        """
        timing = self._timing
        least = _NAMED * timing.device_ns
        return tuple(sorted(name for name, ns in timing.unknown.items() if ns >= least or "linalg_" in name))

    @property
    def values_asked(self) -> tuple[str, ...]:
        """The first lines of the program, as ``FILE:LINE``, that asked for values where tensors have none."""
        return tuple(self._asked)

    @property
    def notes(self) -> tuple[str, ...]:
        """What else to know about how the times came about, in sentences."""
        notes = []
        if self._asked:
            lines = ", ".join(self._asked)
            notes.append(f"tensors have shapes only, so the values that the program asks for are 0 ({lines})")
        if self._timing.fusion.has_run:
            notes.append(
                "nothing was compiled: the times of compiled code are estimated by joining its operators"
            )
        return tuple(notes)

    @property
    def has_run(self) -> bool:
        """Whether a stream was used."""
        return bool(self._timing._lanes)

    def ahead(self, depth: int) -> Any:
        """Return what puts the uploads of a prefetcher on the timeline."""
        from sidestream._simulated.timing import Ahead

        return Ahead(self._timing, depth)

    def keep(self) -> None:
        """Keep what runs from now on for ``trace``."""
        self._timing.timeline.keep(True)

    def trace(self, path: str | Path, since_ns: int = 0) -> None:
        """Write what began after a virtual time as PyTorch's profiler would, for ``diagnose`` and Perfetto.

        Raises:
            OSError: The file cannot be written.
        """
        timing = self._timing
        low, likely, high = (ns or 1 for ns in self.now_ns)
        about = (
            f"with a host as {self.host}: times may be {100 - 100 * low / likely:.0f} % shorter or "
            f"{100 * high / likely - 100:.0f} % longer, and the host's own work, such as loading data, takes "
            "none"
        )
        if self.unknown:
            about += f"; the times of {', '.join(self.unknown)} are guessed from their bytes"
        about = "; ".join((about, *self.notes))
        if not str(path).endswith(".gz"):
            timing.timeline.trace(str(path), since_ns, about)
            return
        with tempfile.NamedTemporaryFile() as plain, gzip.open(path, "wb", 1) as packed:
            timing.timeline.trace(plain.name, since_ns, about)
            shutil.copyfileobj(plain, packed)


@contextlib.contextmanager
def simulate(
    device: Any = "sim:h200", *, shapes: bool = False, host: str | Path | None = None
) -> Iterator[Simulated]:
    """While this is entered, PyTorch finds a GPU, and operators, copies and waits take the time that they
    would take on it.

    The operators run on the processor, on the calling thread and on threads that start while this is entered.
    ``torch.cuda.Event.elapsed_time``, ``time.perf_counter`` and ``overlap(step, batches)`` give the simulated
    device's time: for each operator that of its class and size, measured on such a device by ``sidestream
    devices --measure``, and on its host what issuing the operator takes. Other work of the host, such as
    decoding images, takes no time, and neither does waiting for another thread.

    Args:
        device: ``"sim:h100"``, ``"sim:h200"``, or ``"sim:FILE.toml"`` with ``FILE.torch.json`` beside it:
            ``sidestream devices --measure -o FILE.toml`` writes both on a GPU.
        shapes: Whether tensors on the device have shapes and no values. Then nothing is computed, and a model
            may be larger than this machine. Values that the program asks for are 0; an operator whose result
            has as many elements as values say, such as ``nonzero``, is an error.
        host: A ``FILE.torch.json`` of that command, or a device such as ``"sim:h100"``, for the host's times;
            by default the device's own. The built-in devices were measured on different hosts: compare GPUs
            with one host.

    Raises:
        DeviceError: There is no such device, or there are no tables of it.
        RuntimeError: The process already uses a real GPU.
    """
    name = name_with_streams(device)
    if not is_of("sim", name):
        raise DeviceError(f'device is {name!r}; give "sim:h200", or another simulated device')
    truth("shapes", shapes)
    from sidestream._check_changes import put
    from sidestream._check_hooks import on_threads
    from sidestream._simulated import simulated
    from sidestream._simulated.costs import Costs
    from sidestream._simulated.timing import Mode, Timing, timed

    tables = _read(tables_of(name))
    named = host is not None and str(host).startswith("sim:")
    of_host = tables if host is None else _read(tables_of(str(host)) if named else Path(host))
    costs = Costs(tables, of_host)
    with simulated(1, shapes=shapes, name=f"{tables['device']}, simulated") as simulation:
        timing = Timing(simulation.streams, name, costs, not shapes)
        simulation.streams.timing = simulation.operators.timing = timing
        one = Simulated(name, str(of_host.get("host", host)), timing, simulation.operators.values_asked)
        with timed(timing), Mode(simulation.plan) as mode, _profiled(one), contextlib.ExitStack() as stack:
            on_threads(mode, stack)
            put(stack, Mode, "entered", mode)
            _entered.append(one)
            try:
                yield one
            finally:
                _entered.pop()


@contextlib.contextmanager
def _profiled(simulated: Simulated) -> Iterator[None]:
    """While this is entered, PyTorch's profiler and the ranges of programs record the timeline."""
    import torch

    from sidestream._check_changes import put

    timing = simulated._timing
    timeline = timing.timeline

    def begun(self: Any) -> Any:
        timeline.range(timing.thread(), self.name)
        return self

    def started(self: Any) -> None:
        self.kept, self.began_ns = timeline.keep(True), simulated.now_ns[1]

    def exported(self: Any, path: str) -> None:
        simulated.trace(path, self.began_ns)
        timeline.keep(self.kept)

    profiler, named = torch.profiler._KinetoProfile, torch.autograd.profiler.record_function
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (named, "__enter__", begun),
            (named, "__exit__", lambda *_: timeline.range(timing.thread(), "")),
            (profiler, "prepare_trace", lambda self: None),
            (profiler, "start_trace", started),
            (profiler, "stop_trace", lambda self: torch.cuda.synchronize()),
            (profiler, "export_chrome_trace", exported),
        ):
            put(stack, owner, name, value)
        yield


def tables_of(name: str) -> Path:
    """Return the file of the times of operators on a simulated device.

    Raises:
        DeviceError: There is none.
    """
    kind = name.removeprefix("sim:")
    path = Path(kind).with_suffix(".torch.json") if kind.endswith(".toml") else _TABLES / f"{kind}.json"
    if not path.exists():
        there = ", ".join(sorted(f"sim:{each.stem}" for each in _TABLES.glob("*.json")))
        raise DeviceError(
            f"there are no times of PyTorch's operators for {name} ({path} does not exist): there are those "
            f"of {there}; `sidestream devices --measure -o FILE.toml` makes them on a GPU"
        )
    return path


def _read(path: Path) -> dict[str, Any]:
    """Return what a file of ``devices --measure`` has, as far as ``Costs`` uses it."""
    from sidestream._simulated.costs import Curve

    try:
        tables: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for part in ("kernels", "calls") if path.parent != _TABLES else ():
            expected = json.loads((_TABLES / "h200.json").read_text(encoding="utf-8"))[part]
            if missing := sorted(expected.keys() - tables[part].keys()):
                raise ValueError(f"{part} lack {missing[0]!r}; measure again with this version")
        for row in tables["kernels"].values():
            Curve(row["axes"], row["ns"]).ns(*(1.0 for _ in row["axes"]))
        sum(float(ns) for row in tables["calls"].values() for ns in row.values())
        _ = tables["device"], tables["host"], *map(float, tables["link"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DeviceError(f"{path} is no file of `sidestream devices --measure`: {error}") from None
    return tables
