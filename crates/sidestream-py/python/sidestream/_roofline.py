"""``roofline``: computes the minimum time of work on a device, without running it."""

from __future__ import annotations

from typing import Any

from sidestream import _sidestream
from sidestream._arguments import positive
from sidestream._devices import name_with_streams
from sidestream._leaves import name_of
from sidestream._results import Told


def roofline(
    flops: float | str,
    bytes: float | str,
    dtype: Any = "fp32",
    device: Any = "auto",
    *,
    measured_ms: float | None = None,
) -> RooflineEstimate:
    """Return the minimum time of work on a device, and whether arithmetic or memory sets it.

    This is the command ``sidestream roofline``. Nothing runs: the peaks are those of the file that describes
    the device, with tensor cores if they support the type, and without sparsity. Name a simulated device for
    a GPU that you do not have.

    Args:
        flops: Multiplications and additions: a number, or a string such as ``"3 TFLOP"``.
        bytes: Bytes of device memory to read and write: a number, or a string such as ``"1.2 GB"`` (powers of
            1000) or ``"50 GiB"`` (powers of 1024).
        dtype: ``"fp64"``, ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"``, ``"fp8"``, ``"int8"``, or a
            ``torch.dtype`` of these.
        device: As for ``overlap``; a GPU needs a description.
        measured_ms: The measured time in milliseconds, for the share that was reached.

    Raises:
        DeviceError: There is no such device, or no description of it.
        TypeError: A figure is neither a number nor a string, or ``device`` is not a name.
        ValueError: A figure is not above 0 or has an unknown unit, or the type is unknown or has no peak on
            the device.
    """
    options = [("flops", _figure("flops", flops)), ("bytes", _figure("bytes", bytes))]
    options.append(("dtype", name_of(dtype)))
    if measured_ms is not None:
        options.append(("measured-ms", repr(positive("measured_ms", measured_ms, "what it took"))))
    return RooflineEstimate(*_sidestream.said("roofline", name_with_streams(device), options))


def _figure(name: str, value: float | str) -> str:
    # An empty string would be an option without a value, so it becomes a space.
    return value or " " if isinstance(value, str) else repr(positive(name, value, "how many there are"))


class RooflineEstimate(Told):
    """The minimum time of work on a device. ``print`` shows it.

    The schema of its JSON is ``sidestream.roofline/1``.
    """

    @property
    def floor_ns(self) -> float:
        """The minimum time, in nanoseconds."""
        return float(self.to_dict()["floor_ns"])

    @property
    def bound(self) -> str:
        """The limit that sets the time: ``memory`` or ``arithmetic``."""
        return str(self.to_dict()["bound"])

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return float(self.to_dict()["intensity"])

    @property
    def ridge(self) -> float:
        """The intensity at which the limit of the device changes from memory to arithmetic."""
        return float(self.to_dict()["ridge"])

    def __repr__(self) -> str:
        return f"<RooflineEstimate: {self.floor_ns / 1e6:.4g} ms by {self.bound}>"
