"""``overlap``: measures what overlapping copies with computation is worth for a job."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from sidestream import _sidestream
from sidestream._arguments import positive, truth, whole
from sidestream._devices import name_with_streams
from sidestream._results import Told, made

if TYPE_CHECKING:
    from sidestream._loop import LoopOverlap


@overload
def overlap(
    step: Callable[[Any], object],
    batches: Iterable[Any],
    *,
    device: Any = "auto",
    host: str | Path | None = None,
    rounds: int = 5,
    trace: str | Path | None = None,
) -> LoopOverlap: ...


@overload
def overlap(
    step: Any = None,
    *,
    device: Any = "auto",
    batch: int | str | None = None,
    count: int = 32,
    work: int | None = None,
    kernel_ms: float | None = None,
    upload_ms: float | None = None,
    download_ms: float | None = None,
    download: bool = True,
    streams: int = 4,
) -> Overlap: ...
def overlap(
    step: Any = None,
    batches: Any = None,
    *,
    device: Any = None,
    host: str | Path | None = None,
    batch: int | str | None = None,
    count: int = 32,
    work: int | None = None,
    kernel_ms: float | None = None,
    upload_ms: float | None = None,
    download_ms: float | None = None,
    download: bool = True,
    streams: int = 4,
    rounds: int = 5,
    trace: str | Path | None = None,
) -> Any:
    """Run a job of uploads, kernels and downloads in every usual arrangement of streams, and compare them.

    This is the command ``sidestream overlap``. On a simulated device nothing runs and no GPU is needed. On a
    real device each time is measured, on separate streams that wait for no other work. Other threads run
    meanwhile.

    ``overlap(step, batches)`` measures your own loop on PyTorch's GPU: ``step(batch)`` on batches that are
    already on the device, their uploads from pinned and from pageable memory, and the whole loop in turn with
    ``.to()``, with ``non_blocking`` copies of pinned batches and with ``prefetch``. The step is called some
    hundred times, and trains as it does so.

    On a simulated device, and by default without a GPU, the loop's times are simulated, each with a range,
    and the text says so (``simulate``). Build the model as without a GPU: models, optimizers and tensors that
    the step refers to (in its closure, its arguments and the globals that its code names, and their
    attributes) are on the simulated GPU during the call, and so is a ``torch.device("cpu")`` there.
    Afterwards they are as before, bit for bit, and so is the state of random numbers: the step trains
    nothing. Only shapes are computed, so a model may be larger than this machine, also one on ``meta``; where
    an operator needs values, the loop is measured again with copies of all values.

    Args:
        step: A function of a batch; without ``batches``, a device, as for ``device``.
        batches: With a function, some batches of CPU tensors, which are used again and again; at most 64 are
            taken.
        device: ``"sim:h200"``, ``"sim:a100"`` and so on (``sidestream devices`` lists them),
            ``"sim:FILE.toml"``; ``"cuda:0"`` and so on, also as a ``torch.device`` or a number. By default
            ``"auto"``: the first GPU (with a function PyTorch's current one), or ``"sim:h200"`` if there is
            none.
        host: A ``FILE.torch.json`` of ``sidestream devices --measure -o``, or a device such as
            ``"sim:h100"``, for the host's times of a simulated loop, as for ``simulate``.
        batch: The size of a batch, in bytes or as in ``"4MiB"``; units are powers of 1024, also without the
            ``i``.
        count: Number of batches, at most 100,000.
        work: Work of the kernel: multiplications and additions for each four bytes, at most 10,000,000.
            Choose it so that the kernel's time in the result is that of your kernel.
        kernel_ms: Milliseconds of kernels for a batch of your own job, instead of ``batch`` and ``work``;
            simulated devices only.
        upload_ms: Milliseconds of its upload from pinned memory; by default, and with 0, there is no upload.
        download_ms: Milliseconds of its download; by default, and with 0, there is no download.
        download: Whether the results of ``batch`` and ``work`` are copied back.
        streams: Maximum number of streams of an arrangement, from 4 to 16.
        rounds: Number of times that each loop of ``overlap(step, batches)`` is measured on a GPU.
        trace: A file, for some batches of the best form of a simulated loop, as PyTorch's profiler would
            write it.

    Returns:
        An ``Overlap``, or for a function a ``LoopOverlap``. Both have ``verdict`` and ``limit_ns``.

    Raises:
        DeviceError: There is no such device, its file cannot be read, or for a function there are no measured
            times of it; ``sidestream devices --measure`` makes them.
        TypeError: A figure is not a whole number, ``device`` is not a name, or an argument belongs to the
            other kind of call.
        ValueError: A figure is out of range, the batches do not fit, or the device is the CPU or is not here.
        RuntimeError: The simulation does not have what the step uses, or PyTorch has begun to use a GPU in
            this process.
    """
    if callable(step) and not (batches is None and isinstance(step, type)):
        from sidestream._loop import measured

        if any(each is not None for each in (batch, work, kernel_ms, upload_ms, download_ms)):
            raise TypeError("batch, work and milliseconds are of a job without a function; leave them out")
        rounds = whole("rounds", rounds, 1, "how often each loop is measured")
        return measured(step, batches, rounds, "auto" if device is None else device, host, trace)
    if batches is not None:
        raise TypeError(
            "batches belong to a function: overlap(step, batches); for a device give batch, the size of one"
        )
    if host is not None or trace is not None:
        raise TypeError("host and trace belong to a function: overlap(step, batches, host=…); leave them out")
    if step is not None and device is not None:
        raise TypeError(f"the device is given twice, as {step!r} and {device!r}; give it once")
    where = name_with_streams(next((each for each in (step, device) if each is not None), "auto"))
    options = [("count", str(whole("count", count, 1, "the number of batches")))]
    if batch is not None:
        if not isinstance(batch, str):
            batch = str(whole("batch", batch, 4, 'its bytes, or a string such as "4MiB"'))
        options.append(("batch", batch))
    if work is not None:
        work = whole("work", work, 1, "the multiplications and additions per four bytes")
        options.append(("work", str(work)))
    for name, ms in (("kernel-ms", kernel_ms), ("upload-ms", upload_ms), ("download-ms", download_ms)):
        if ms is not None and (ms != 0 or name == "kernel-ms" or isinstance(ms, bool)):
            options.append((name, repr(positive(name.replace("-", "_"), ms, "the milliseconds of a batch"))))
    if not truth("download", download):
        options.append(("no-download", ""))
    if streams != 4:
        options.append(("streams", str(whole("streams", streams, 4, "the most streams to compare"))))
    try:
        return Overlap(*_sidestream.said("overlap", where, options))
    except ValueError as error:
        # The command's text has its options, such as --upload-ms.
        text = re.sub("--(kernel|upload|download)-ms", r"\1_ms", str(error))
        raise ValueError(text) from None


@dataclass(frozen=True)
class Arrangement:
    """One arrangement of the job, and its time.

    Attributes:
        layout: ``streams`` (k streams, which take the batches in turn), ``ring`` (a stream for each stage,
            and k slots), or ``pipeline`` (the library's, with k slots).
        k: Number of streams, or of slots.
        time_ns: The time of the whole job, in nanoseconds.
        share: The limit divided by the time; 1 is the best that the device can do.
        gb_per_s: The bytes that the job copies, up and down, divided by its time; None if only times are
            known.
    """

    layout: str
    k: int
    time_ns: int
    share: float
    gb_per_s: float | None = None


class Overlap(Told):
    """The time of each arrangement, and whether overlapping is worth it. ``print`` shows it as the command
    does.

    The schema of its JSON is ``sidestream.overlap/1``.
    """

    _style = ' style="line-height:1.2"'

    @cached_property
    def rows(self) -> tuple[Arrangement, ...]:
        """Every arrangement, in the order of the table."""
        rows: tuple[Arrangement, ...] = made(tuple[Arrangement, ...], self.to_dict()["rows"])
        return rows

    @property
    def limit_ns(self) -> int:
        """Minimum time of the job, in nanoseconds: the longest of the copies, the kernels and the host's
        calls alone.
        """
        return int(self.to_dict()["limit_ns"])

    @property
    def verdict(self) -> str:
        """Whether overlapping is worth it, in a sentence or two."""
        return str(self.to_dict()["verdict"])

    def _repr_html_(self) -> str:
        from sidestream._draw import bars

        names = {
            "streams": "{} streams",
            "ring": "stream per stage, {} slots",
            "pipeline": "pipeline, {} slots",
        }
        rows = [
            (
                "1 stream" if (row.layout, row.k) == ("streams", 1) else names[row.layout].format(row.k),
                float(row.time_ns),
            )
            for row in self.rows
        ]
        text = str(self)
        drawn = bars(rows, self.limit_ns, [text.split("\n")[0], self.verdict])
        return (
            f"{drawn}<details><summary>as text</summary><pre{self._style}>{html.escape(text)}</pre></details>"
        )

    def __repr__(self) -> str:
        return f"<Overlap: {self.verdict}>"
