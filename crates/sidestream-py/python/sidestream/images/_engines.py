"""A GPU's hardware JPEG engines, which decode some of a loader's pictures into device memory."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidestream._sidestream import DeviceError, ImageEngines
from sidestream.images._augment import tell

if TYPE_CHECKING:
    import torch
    from sidestream.images._loader import Batch

#: More urgent than the training: short kernels convert colours after the engines, and the next batch waits
#: for these kernels.
_PRIORITY = -1

#: The stream of each GPU's engines. The engines reuse their memory in each call, so all calls must be ordered
#: by one stream.
_streams: dict[int, torch.cuda.Stream] = {}


#: The environment variable from which CUDA reads, when it starts, the number of connections to a device, and
#: its maximum.
_CONNECTIONS, _MOST_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS", "32"
#: `CUDA_ERROR_NOT_INITIALIZED`.
_NOT_INITIALIZED = 3


def connect() -> None:
    """Make CUDA open as many connections to the device as possible, unless the environment sets their number.

    nvJPEG has two streams per engine, and the training has some. CUDA makes eight connections by default. If
    there are more streams, some share a connection, and a picture waits for unrelated kernels of a step.
    During training steps an H200 then decoded a third less.
    """
    import torch

    if _CONNECTIONS in os.environ or getattr(torch.cuda, "is_simulated", False):
        return
    if not _has_started():
        os.environ[_CONNECTIONS] = _MOST_CONNECTIONS
    else:
        text = (
            'decode="gpu": CUDA has started with 8 connections to the device, '
            "and the engines alone have more streams: pictures may wait behind kernels "
            "of the training, during which an H200 decoded a third less; "
            f"set {_CONNECTIONS}={_MOST_CONNECTIONS} in the environment of the program, "
            "or make the Loader before anything "
            "starts CUDA, as torch.cuda.is_available() does"
        )
        warnings.warn(text, stacklevel=3)


def _has_started() -> bool:
    """Return whether CUDA has been initialized in this process, even if only to count devices."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    context = ctypes.c_void_p()
    # This is the one call that answers without initializing CUDA.
    code: int = driver.cuCtxGetCurrent(ctypes.byref(context))
    return code != _NOT_INITIALIZED


@dataclass
class OnDevice:
    """The pixels of a batch, and an event after the work that writes them."""

    pixels: torch.Tensor
    ready: Any

    def take(self) -> torch.Tensor:
        """Return the pixels, for work on the current stream."""
        import torch

        current = torch.cuda.current_stream(self.pixels.device)
        current.wait_event(self.ready)
        self.pixels.record_stream(current)
        return self.pixels


class Engines:
    """The JPEG engines of the named GPU, or their replacement if a check simulates the GPU.

    Raises:
        DeviceError: The GPU has no engines, or nvJPEG cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        import torch

        self._device = torch.device(name)
        #: The batch whose slab the device may still read.
        self._read: Batch | None = None
        self._address: Any = torch.Tensor.data_ptr
        with torch.cuda.device(self._device):
            if getattr(torch.cuda, "is_simulated", False):
                self._address = torch._C.TensorBase.data_ptr
                self._engines, self._stream = (
                    ImageEngines(None, []),
                    torch.cuda.Stream(self._device, _PRIORITY),
                )
                return
            ordinal = self._device.index or 0
            self._engines = _opened(ordinal, torch.version.cuda)
            if ordinal not in _streams:
                _streams[ordinal] = torch.cuda.Stream(self._device, _PRIORITY)
            self._stream = _streams[ordinal]

    def put(self, batch: Batch) -> OnDevice | str:
        """Upload the pictures that the CPU decoded, and let the engines decode the rest. Return the pixels,
        or the reason why the engines refused the batch.
        """
        import torch

        start, end, size_bytes, many = batch.parts
        slab, uploaded, why = batch.slab, end - start, None
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            pixels = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
            # The engines write immediately: they are not ordered after pending work of the stream on this
            # memory.
            self.wait()
            self._read = batch
            if uploaded:
                pixels[:uploaded].copy_(slab[start:end], non_blocking=True)
            if many:
                why = batch.decode_by(self._engines, self._address(pixels), self._stream.cuda_stream)
                tell(
                    "sidestream.images.Loader",
                    [(slab[:start], True, False, None), (pixels[uploaded:], False, True, None)],
                )
            ready = self._stream.record_event()
        if why is not None:
            self.wait()
            return why
        return OnDevice(pixels, ready)

    def wait(self) -> None:
        """Block until all work of the stream is complete. The thread sleeps meanwhile."""
        import torch

        behind = torch.cuda.Event(blocking=True)
        behind.record(self._stream)
        behind.synchronize()
        self._read = None


def _opened(ordinal: int, cuda: str | None) -> ImageEngines:
    """Open the engines of a GPU, with nvJPEG from the system or from a wheel. Among wheels, the one for
    PyTorch's CUDA version is tried first.
    """
    package = importlib.util.find_spec("nvidia")
    folders = list(package.submodule_search_locations or []) if package is not None else []
    files = [file for folder in folders for file in Path(folder).glob("*/lib/libnvjpeg.so.*")]
    files.sort(
        key=lambda file: (file.name.endswith(f".{(cuda or '').split('.')[0]}"), file.name), reverse=True
    )
    try:
        return ImageEngines(ordinal, [str(file) for file in files])
    except DeviceError as error:
        where = (
            ""
            if files
            else f"; none is in nvidia/*/lib of {', '.join(folders) or 'the installed packages'} either"
        )
        raise DeviceError(f'decode="gpu": {error}{where}') from None
