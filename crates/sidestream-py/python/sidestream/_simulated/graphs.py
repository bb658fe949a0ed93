"""Captured graphs: each replay repeats the captured calls on the same tensors. A GPU runs nothing during a
capture. Here the operators do run, since later calls need their shapes and addresses; their changes to
earlier memory are undone at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from sidestream._simulated.allocator import DeviceAllocator
from sidestream._simulated.streams import Streams
from sidestream._simulated.tensor import memory_of, tensors_in


class Capture:
    """The calls between the begin and the end of a capture."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        #: What a replay does on the timeline, with a stream of each.
        self.launches: list[tuple[int, Callable[[int], None]]] = []
        self._fresh: set[int] = set()
        self._before: dict[int, tuple[Any, Any]] = {}

    def begins(self, written: list[Any]) -> None:
        """Before an operator runs, save the earlier memory that it will write."""
        for tensor in written:
            storage = torch._C.TensorBase.untyped_storage(tensor)
            key = storage._cdata
            if key not in self._fresh and key not in self._before:
                self._before[key] = (storage, _bytes(storage).clone())

    def ends(self, run: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        for tensor in tensors_in(result):
            key = torch._C.TensorBase.untyped_storage(tensor)._cdata
            if key not in self._before:
                self._fresh.add(key)
        self.calls.append((run, _kept(args), _kept(kwargs), _kept(result)))

    def put_back(self) -> None:
        for storage, before in self._before.values():
            _bytes(storage).copy_(before)
        self._before.clear()


def _bytes(storage: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _kept(value: Any) -> Any:
    """Return tensors with the same memory, without their autograd graph."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), value)


def _copied(made: Any, kept: Any) -> None:
    """Copy new results into the memory of the results of the capture."""
    for new, old in zip(tensors_in(made), tensors_in(kept), strict=False):
        if new.shape == old.shape and memory_of(new) is not memory_of(old):
            old.copy_(new)


def graph_class(streams: Streams, allocators: list[DeviceAllocator]) -> type:
    """Return the replacement for ``torch.cuda.CUDAGraph``."""

    class CUDAGraph:
        """A graph of a simulated GPU."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._calls: list[Any] | None = None
            self._launches: list[Any] = []
            self._pool: Any = None
            self._device, self._is_of_all = 0, False
            # Kernels that `torch.cuda.graph` has annotated (PyTorch 2.15): none on a simulated GPU.
            self._recorded_exec_ids: set[int] = set()

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **options: Any) -> None:
            # Options of later PyTorch versions have no effect on the order.
            if streams.captures:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            self._device = streams.here.device
            if not streams.current(self._device):
                raise RuntimeError(
                    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok "
                    "to replay them on the default stream.)"
                )
            self._pool = pool if pool is not None else (0, streams.now())
            allocators[self._device].pool = self._pool[1]
            streams.here.capture = Capture()
            self._is_of_all = capture_error_mode == "global"
            streams.captures += 1
            streams.captures_of_all += self._is_of_all

        def capture_end(self) -> None:
            capture, streams.here.capture = streams.here.capture, None
            if capture is None:
                raise RuntimeError("capture_end called without a capture under way")
            allocators[self._device].pool = 0
            streams.captures -= 1
            streams.captures_of_all -= self._is_of_all
            self._calls = capture.calls
            origin = streams.current(self._device)
            self._launches = [(stream if stream != origin else 0, act) for stream, act in capture.launches]
            with _disable_current_modes():
                capture.put_back()

        def instantiate(self) -> None:
            pass

        def replay(self) -> None:
            if self._calls is None:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            stream = streams.current(self._device)
            streams.busy.add((self._device, stream))
            if streams.timing is not None:
                streams.timing.replayed(self._launches, stream)
            with _disable_current_modes(), torch.no_grad():
                for run, args, kwargs, kept in self._calls:
                    _copied(run(*args, **kwargs), kept)

        def reset(self) -> None:
            self._calls = None

        def pool(self) -> Any:
            return self._pool

        def enable_debug_mode(self) -> None:
            pass

        def debug_dump(self, debug_path: str) -> None:
            raise RuntimeError("a graph of a simulated GPU cannot be dumped")

        def raw_cuda_graph(self) -> int:
            raise RuntimeError("a graph of a simulated GPU has no handle")

    return CUDAGraph
