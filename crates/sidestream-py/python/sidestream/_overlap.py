"""What overlapping copies with computing is worth for a job."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sidestream import _sidestream
from sidestream._arguments import whole
from sidestream._devices import name_with_streams
from sidestream._results import Told, made


def overlap(
    device: Any = "auto", *, batch: int | str = "4MiB", count: int = 32, work: int = 4096
) -> Overlap:
    """Run a job of uploads, kernels and downloads in every usual arrangement of streams, and compare.

    This is the command ``sidestream overlap``. On a simulated device nothing runs and no GPU is needed; on a real
    one each time is measured, on streams of its own that wait for nothing else. Other threads run meanwhile.

    Args:
        device: ``"sim:h200"``, ``"sim:a100"``, ``"sim:a10g"``, ``"sim:rtx4090"``, ``"sim:FILE.toml"``; ``"cuda:0"``
            and so on, also as a ``torch.device`` or a number. By default ``"auto"``: the first GPU, or ``"sim:h200"`` where
            there is none.
        batch: The size of a batch, in bytes or as in ``"4MiB"``; units are powers of 1024, also without the ``i``.
        count: How many batches, at most 100,000.
        work: How heavy the kernel is: multiplications and additions for each four bytes, at most 10,000,000. Choose it so that
            the kernel's time in the result is that of your kernel.

    Raises:
        DeviceError: There is no such device, or its file cannot be read.
        TypeError: A figure is no whole number, or the device no name.
        ValueError: A figure is out of range, the batches do not fit, or the device is the processor.
    """
    where = name_with_streams(device)
    size = batch if isinstance(batch, str) else str(whole("batch", batch, 4, 'its bytes, or a text such as "4MiB"'))
    count = whole("count", count, 1, "the number of batches")
    work = whole("work", work, 1, "the multiplications and additions for each four bytes")
    return Overlap(*_sidestream.overlap(where, size, str(count), str(work)))


@dataclass(frozen=True)
class Arrangement:
    """One arrangement of the job, and how it did.

    Attributes:
        layout: ``streams`` (k of them, a batch on each in turn), ``ring`` (a stream for each stage, k slots), or
            ``pipeline`` (the library's, with k slots).
        k: How many streams, or slots.
        time_ns: The time of the whole job.
        share: The limit divided by the time: 1 is all that the device can do.
    """

    layout: str
    k: int
    time_ns: int
    share: float


class Overlap(Told):
    """What each arrangement takes, and whether overlapping is worth it. ``print`` shows it as the command does.

    As JSON it is of the schema ``sidestream.overlap/1``.
    """

    _style = ' style="line-height:1.2"'

    def __init__(self, as_json: str, as_text: str) -> None:
        """Take the result as JSON and as text. ``overlap`` makes these."""
        self._json = as_json
        self._text = as_text

    @cached_property
    def rows(self) -> tuple[Arrangement, ...]:
        """Every arrangement, in the order of the table."""
        rows: tuple[Arrangement, ...] = made(tuple[Arrangement, ...], self.to_dict()["rows"])
        return rows

    @property
    def limit_ns(self) -> int:
        """The time in which the copies, the kernels or the host's calls alone could be done."""
        return int(self.to_dict()["limit_ns"])

    @property
    def verdict(self) -> str:
        """Whether overlapping is worth it, in a sentence or two."""
        return str(self.to_dict()["verdict"])

    def __repr__(self) -> str:
        return f"<Overlap: {self.verdict}>"
