"""What the functions take as a device, and the CUDA device of PyTorch that is meant.

Whatever names no device is a ``TypeError``, a device that a function does not run on a ``ValueError``, and one that
is not there, or cannot be opened, a ``DeviceError``.
"""

from __future__ import annotations

from typing import Any

from sidestream._sidestream import DeviceError


def device_name(device: Any) -> str:
    """Return the name of a device: a text as it is, ``"cuda:1"`` for 1 and for such a ``torch.device``.

    Raises:
        TypeError: It names no device.
    """
    if isinstance(device, str):
        name = device
    # True is a number to Python, and a mistake here.
    elif hasattr(device, "__index__") and not isinstance(device, bool):
        name = f"cuda:{device.__index__()}"
    elif isinstance(getattr(device, "type", None), str) and hasattr(device, "index"):
        name = str(device)
    else:
        raise TypeError(
            f'device is {device!r}; give a name such as "cuda", "cuda:1" or "sim:h200", a torch.device, or a number'
        )
    return "cpu" if is_of("cpu", name) else name


def is_of(kind: str, name: str) -> bool:
    """Say whether the device of this name is one of this kind: ``cuda``, ``cpu``, ``sim``."""
    return name.split(":")[0] == kind


def of_torch(device: Any, torch: Any, user: str) -> Any:
    """Return a CUDA device as a ``torch.device`` with its number, or None for the processor.

    Args:
        device: What a caller gave. None is PyTorch's current CUDA device, or the processor where there is none.
        torch: PyTorch.
        user: What is to run there, for the text of an error: ``"a pipeline"``.

    Raises:
        TypeError: It names no device.
        ValueError: It is neither a CUDA device nor the processor.
        DeviceError: There is no such CUDA device.
    """
    there = torch.cuda.is_available()
    name = ("cuda" if there else "cpu") if device is None else device_name(device)
    if name == "cpu":
        return None
    if not is_of("cuda", name):
        raise ValueError(f'device is {name!r}; {user} runs on "cuda", "cuda:1" and so on, or on "cpu"')
    if not there:
        raise DeviceError(f'device is {name!r}, and PyTorch finds no CUDA device here; give device="cpu"')
    if name == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    number = name.removeprefix("cuda:")
    count = torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= count:
        raise DeviceError(f'device is {name!r}; PyTorch finds {", ".join(f"cuda:{one}" for one in range(count))} here')
    return torch.device("cuda", int(number))
