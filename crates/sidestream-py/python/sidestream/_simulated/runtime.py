"""The CUDA runtime functions that PyTorch offers: the object that ``torch.cuda.cudart()`` returns."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from sidestream._simulated.allocator import DeviceAllocator
from sidestream._simulated.streams import Streams


class CudaError(enum.IntEnum):
    """The error codes of the runtime."""

    success = 0
    invalidValue = 1
    hostMemoryAlreadyRegistered = 712
    hostMemoryNotRegistered = 713


class Runtime:
    """Registers memory that the program pins in place, and has other functions of the runtime."""

    cudaError = CudaError

    def __init__(
        self, streams: Streams, allocators: list[DeviceAllocator], refused: Callable[[str], Exception]
    ) -> None:
        self._streams, self._allocators, self._refused = streams, allocators, refused
        self._registered: dict[int, int] = {}

    def is_registered(self, address: int, end: int) -> bool:
        """Return whether one call registered all of these bytes."""
        return any(start <= address and end <= start + size for start, size in self._registered.items())

    def cudaHostRegister(self, address: int, size: int, flags: int) -> CudaError:
        if address <= 0 or size <= 0:
            return CudaError.invalidValue
        if any(
            start < address + size and address < start + length for start, length in self._registered.items()
        ):
            return CudaError.hostMemoryAlreadyRegistered
        self._registered[address] = size
        return CudaError.success

    def cudaHostUnregister(self, address: int) -> CudaError:
        known = self._registered.pop(address, None)
        return CudaError.hostMemoryNotRegistered if known is None else CudaError.success

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return self._allocators[self._streams.index_of(device)].free_and_total_bytes()

    def cudaGetErrorString(self, error: Any) -> str:
        return CudaError(error).name

    def cudaProfilerStart(self) -> CudaError:
        return CudaError.success

    def cudaProfilerStop(self) -> CudaError:
        return CudaError.success

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refused(f"torch.cuda.cudart().{name}")
