"""A GPU for PyTorch's CPU build, on the stand-in driver: tensors in pinned memory that report a device.

The host can read and write them, and the driver's kernels can access them. PyTorch operators on them run on
the CPU immediately; work that the package itself submits to the driver runs there, on the current stream.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import sidestream
import torch


class Double:
    """Replaces the parts of ``torch.cuda`` that ``sidestream.fetch`` uses."""

    def __init__(self) -> None:
        self.current = sidestream.Stream("cuda:0", name="current")
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.is_capturing = False
        #: Size in bytes of each allocation of device memory, by address.
        self._device: dict[int, int] = {}
        #: The addresses of host allocations, so that a test can tell which memory is reused.
        self.pages: list[int] = []
        here: Any = ctypes.c_void_p()
        assert self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(here), 0) == 0
        assert self._driver.cuCtxSetCurrent(here) == 0
        self._empty = torch.empty
        like: Any = torch.empty_like
        kinds: Any = torch.Tensor
        cuda: Any = torch.cuda
        core: Any = torch._C
        kinds.is_cuda = property(
            lambda tensor: any(at <= tensor.data_ptr() < at + size for at, size in self._device.items())
        )
        kinds.get_device = lambda tensor: 0
        cuda.is_current_stream_capturing = lambda: self.is_capturing
        core._cuda_getCurrentRawStream = lambda device: self.current.cuda_stream

        def empty(*size: Any, pin_memory: bool = False, **how: Any) -> Any:
            return self._pinned(torch.Size(size), how["dtype"]) if pin_memory else self._empty(*size, **how)

        def empty_like(other: Any, pin_memory: bool = False, **how: Any) -> Any:
            return self._pinned(other.shape, other.dtype) if pin_memory else like(other, **how)

        torch.empty, torch.empty_like = empty, empty_like

        class Stream:
            stream_id = device_index = device_type = 0

            def __init__(self, device: int) -> None:
                pass

        cuda.Stream = Stream

    def on_device(self, values: Any) -> Any:
        """Return a copy of a tensor that reports a device."""
        made = self._memory(values.shape, values.dtype)
        self._device[made.data_ptr()] = values.nbytes
        return made.copy_(values)

    def _pinned(self, shape: Any, dtype: Any) -> Any:
        made = self._memory(shape, dtype)
        self.pages.append(made.data_ptr())
        return made

    def _memory(self, shape: Any, dtype: Any) -> Any:
        size = max(1, shape.numel()) * dtype.itemsize
        at = ctypes.c_void_p()
        assert self._driver.cuMemHostAlloc(ctypes.byref(at), ctypes.c_size_t(size), 0) == 0
        assert at.value is not None
        return torch.frombuffer((ctypes.c_char * size).from_address(at.value), dtype=dtype)[
            : shape.numel()
        ].view(shape)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Make another stream the current one."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before
