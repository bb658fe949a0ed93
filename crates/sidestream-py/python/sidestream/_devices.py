"""Names of devices, and the PyTorch CUDA device that a name refers to.

An argument that is neither a string, a number nor a ``torch.device`` is a ``TypeError``; a device that a
function does not run on is a ``ValueError``; a string that names no device, or a device that cannot be
opened, is a ``DeviceError``.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

from sidestream._sidestream import SIMULATED, DeviceError, caps as _caps

#: The form of a name, whether or not such a device exists. The driver has at most a few dozen devices.
_NAME = re.compile(
    rf"auto|cpu(:[0-9]{{1,4}})?|cuda(:(0|[1-9][0-9]{{0,3}}))?|sim:({'|'.join(SIMULATED)}|.*\.toml)", re.DOTALL
)


def device_name(device: Any) -> str:
    """Return the name of a device. A string is returned unchanged; 1 and ``torch.device("cuda:1")`` give
    ``"cuda:1"``.

    Raises:
        TypeError: The argument names no device.
        DeviceError: There is no device of this name.
    """
    if isinstance(device, str):
        name = device
    elif isinstance(getattr(device, "type", None), str) and hasattr(device, "index"):
        name = str(device)
    elif (number := _number(device)) is not None:
        name = f"cuda:{number}"
    else:
        raise TypeError(
            f'device is {device!r}; give a name such as "cuda", "cuda:1" or "sim:h200", a torch.device, or a'
            " number"
        )
    if not _NAME.fullmatch(name):
        raise DeviceError(
            f"device is {name!r}, which names no device; there are NVIDIA's GPUs, as cuda, cuda:0, cuda:1 and"
            f" so on, simulated ones as {', '.join(f'sim:{one}' for one in SIMULATED)} and sim:FILE.toml, "
            "auto for whichever of these exists, and cpu: no other accelerators"
        )
    return "cpu" if is_of("cpu", name) else name


#: What times measured on a device of a simulation by ``check`` are.
SIMULATED_TIMES = "times are the processor's: the simulated GPU has none"


def has_no_times(device_name: str) -> bool:
    """Return whether the GPU of this name is one that ``check`` simulates, by its name as PyTorch has it."""
    return "(simulated)" in device_name


@dataclass(frozen=True)
class Caps:
    """What a device can do.

    Attributes:
        device: The name of the device, such as ``cuda:0`` or ``sim:h200``.
        memory_bytes: Bytes of its memory.
        memory_bytes_per_s: Peak bandwidth of its memory, in bytes per second.
        flops_per_s: Peak of multiplications and additions in single precision, per second.
        link_bytes_per_s: Bandwidth of one direction of its link to the host, in bytes per second.
        priorities: The most urgent and the least urgent priority of a stream; lower is more urgent.
    """

    device: str
    memory_bytes: int
    memory_bytes_per_s: float
    flops_per_s: float
    link_bytes_per_s: float
    priorities: tuple[int, int]


def caps(device: Any = "cuda") -> Caps:
    """Return what a device can do, as reported by its driver, or by the file that describes a simulated
    device.

    Args:
        device: As for ``Stream``.

    Raises:
        DeviceError: The device cannot be opened.
        TypeError: ``device`` names no device.
        ValueError: ``device`` is the CPU.
    """
    return Caps(*_caps(name_with_streams(device)))


def _number(device: Any) -> int | None:
    # True is a number in Python, but is a mistake here.
    if isinstance(device, bool):
        return None
    try:
        return operator.index(device)
    except TypeError:
        return None


def name_with_streams(device: Any) -> str:
    """Return the name of a device that is not the CPU.

    Raises:
        TypeError: The argument names no device.
        ValueError: The argument is the CPU.
        DeviceError: There is no device of this name.
    """
    name = device_name(device)
    if name == "cpu":
        raise ValueError('the CPU has no streams; give "cuda", or "sim:h200" for a simulated GPU')
    return name


def is_of(kind: str, name: str) -> bool:
    """Return whether the device of this name is of a kind: ``cuda``, ``cpu`` or ``sim``."""
    return name.split(":")[0] == kind


def on_torch(name: str, user: str) -> None:
    """Refuse a device that is neither a CUDA device nor the CPU; ``user`` needs a PyTorch device.

    Raises:
        ValueError: The device is simulated, or ``"auto"``.
    """
    if not (is_of("cuda", name) or name == "cpu"):
        raise ValueError(f'device is {name!r}; {user} runs on "cuda", "cuda:1" and so on, or on "cpu"')


def of_torch(device: Any, torch: Any, user: str) -> Any:
    """Return a CUDA device as a ``torch.device`` with its number, or None for the CPU.

    Args:
        device: The argument of the caller. None means PyTorch's current CUDA device, or the CPU if there is
            none.
        torch: PyTorch.
        user: What is to run there, for the error message: ``"a pipeline"``.

    Raises:
        TypeError: ``device`` names no device.
        ValueError: The device is simulated, or ``"auto"``.
        DeviceError: There is no such CUDA device.
    """
    there = torch.cuda.is_available()
    name = ("cuda" if there else "cpu") if device is None else device_name(device)
    if name == "cpu":
        return None
    on_torch(name, user)
    if not there:
        raise DeviceError(f'device is {name!r}, and PyTorch finds no CUDA device here; give device="cpu"')
    if name == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    number = int(name.removeprefix("cuda:"))
    count = torch.cuda.device_count()
    if number >= count:
        raise DeviceError(
            f'device is {name!r}; PyTorch finds {", ".join(f"cuda:{one}" for one in range(count))} here'
        )
    return torch.device("cuda", number)
