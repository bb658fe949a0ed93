"""Captured stages: a CUDA graph for each slot, with the buffers of that slot."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sidestream._tree import tensors_of


class CaptureFailed(Exception):
    """Raised if a stage could not be captured; the message has the reason."""


class Buffers:
    """The tensors of one slot that have the same addresses for every item."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._tensors: dict[int, Any] = {}
        self._addresses: set[int] = set()

    def add(self, *tensors: Any) -> None:
        """Add tensors, which then live as long as this object."""
        for tensor in tensors:
            self._tensors[id(tensor)] = tensor
            self._addresses.add(_address(tensor))

    def has(self, tensor: Any) -> bool:
        """Return whether this tensor object is one of the buffers."""
        return id(tensor) in self._tensors

    def share_memory_with(self, tensor: Any) -> bool:
        """Return whether a tensor shares memory with one of the buffers."""
        return _address(tensor) in self._addresses


class Captured:
    """A stage as a graph that reads and writes the buffers of one slot. This class adds no waits: the caller
    orders the replays and the other uses of the buffers.
    """

    def __init__(self, call: Callable[[Any], Any], value: Any, buffers: Buffers, device: int) -> None:
        """Capture the stage for values like this one, on the current stream. The device must be idle.

        Args:
            call: The stage.
            value: The stage's input. Slot buffers in it are read in place; other tensors are
                copied into new buffers.
            buffers: The slot's buffers. New buffers, and the outputs, are added.
            device: The number of the device.

        Raises:
            CaptureFailed: The stage does something that a graph cannot contain. It can still be called.
        """
        leaves, self._shape = tensors_of(value)
        if self._shape.has_objects:
            raise CaptureFailed(
                "it is given an object that may hold tensors, and a replay would use those of the capture"
            )
        # Buffers that are created in inference mode could not be written outside that mode.
        with torch.inference_mode(False):
            self._inputs = [leaf if buffers.has(leaf) else leaf.detach().clone() for leaf in leaves]
        torch.cuda.current_stream(device).synchronize()
        # The input, if it consists of the buffers only and thus needs no check.
        self._value = value if leaves and all(map(buffers.has, leaves)) else None
        given = self._shape.unflatten(self._inputs)
        # A separate memory pool, since other graphs are replayed concurrently.
        self._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        with _no_collection():
            self.output = self._capture(call, given, device)
        leaves, shape = tensors_of(self.output)
        if shape.has_objects:
            raise CaptureFailed(
                "it returns an object that may hold tensors, which later items would overwrite"
            )
        buffers.add(*self._inputs, *leaves)

    def takes(self, value: Any) -> bool:
        """Copy a value into the buffers, on the current stream. Return False, without copying, if its shape
        differs.
        """
        if value is self._value and value is not None:
            return True
        leaves, shape = tensors_of(value)
        if not shape.is_same(self._shape):
            return False
        if any(
            one.shape != other.shape or one.dtype != other.dtype
            for one, other in zip(leaves, self._inputs, strict=True)
        ):
            return False
        for leaf, buffer in zip(leaves, self._inputs, strict=True):
            if leaf is not buffer:
                buffer.copy_(leaf, non_blocking=True)
        return True

    def replay(self) -> None:
        """Run the stage on the current stream."""
        self._graph.replay()

    def _capture(self, call: Callable[[Any], Any], value: Any, device: int) -> Any:
        # In the mode "global", an allocation by any other thread, such as one that pins the loader's batches,
        # would end the capture.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            output = call(value)
        except BaseException as error:
            with contextlib.suppress(RuntimeError):
                self._end(device)
            if isinstance(error, Exception):
                raise CaptureFailed(_first_line(error)) from error
            raise
        try:
            self._end(device)
        except RuntimeError as error:
            raise CaptureFailed(_first_line(error)) from error
        return output

    def _end(self, device: int) -> None:
        try:
            with warnings.catch_warnings():
                # A stage that returns its input gives an empty graph, which is not a mistake.
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
                self._graph.capture_end()
        except RuntimeError:
            _recover(device, self._pool)
            raise


def _address(tensor: Any) -> int:
    # All views share the start of the storage.
    start: int = tensor.untyped_storage().data_ptr()
    return start


@contextlib.contextmanager
def noting_synchronizations() -> Iterator[list[str]]:
    """Collect PyTorch's warnings about calls that block the host until the device is done. A graph cannot
    contain such calls.
    """
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        text = str(warning.message)
        if "synchronizing CUDA operation" in text:
            found.append(
                f"{warning.filename}:{warning.lineno}: it makes the host wait for the device, which a graph "
                "cannot hold"
            )
        elif "set_sync_debug_mode" not in text and "synchronization debug mode" not in text.lower():
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    # A garbage collection during a capture could free memory or graphs, which is not allowed then.
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _recover(device: int, pool: Any) -> None:
    # A failed capture leaves PyTorch's allocator and random generator in the state of a capture, in which
    # memory is not freed and random numbers are refused. The first two calls end the use of the pool as a
    # successful capture does, and a small successful capture resets the generator.
    for end in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
        with contextlib.suppress(RuntimeError):
            end(device, pool)
    with contextlib.suppress(RuntimeError):
        probe = torch.zeros(1, device=f"cuda:{device}")
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            probe.add_(1)
        finally:
            graph.capture_end()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
