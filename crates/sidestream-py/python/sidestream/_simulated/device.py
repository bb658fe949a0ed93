"""Replacements for queries of ``torch.cuda`` and ``torch.accelerator`` on a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from sidestream._simulated.allocator import CAPACITY_BYTES, DeviceAllocator
from sidestream._simulated.streams import CUDA, Streams

#: The properties of the simulated GPU, as ``torch.cuda.get_device_properties`` returns them.
PROPERTIES: dict[str, Any] = {
    "name": "NVIDIA H200 (simulated)",
    "major": 9,
    "minor": 0,
    "total_memory": CAPACITY_BYTES,
    "multi_processor_count": 132,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "L2_cache_size": 60 << 20,
    "gcnArchName": "",
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "pci_bus_id": 0,
    "pci_device_id": 0,
    "pci_domain_id": 0,
    "clock_rate": 1_980_000,
    "memory_clock_rate": 3_201_000,
    "memory_bus_width": 6144,
}


def _statistics(allocator: DeviceAllocator) -> dict[str, Any]:
    """Return the value of ``torch.cuda.memory_stats`` for a device."""

    def of(current: int, peak: int) -> dict[str, dict[str, int]]:
        values = {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
        return {"all": values, "small_pool": dict.fromkeys(values, 0), "large_pool": values}

    in_use = of(allocator.bytes, allocator.peak_bytes)
    segments = of(allocator.reserved_bytes(), allocator.reserved_peak_bytes)
    every = dict.fromkeys(("allocated_bytes", "active_bytes", "requested_bytes"), in_use)
    every |= {"reserved_bytes": segments, "inactive_split_bytes": of(0, 0)}
    every |= dict.fromkeys(("allocation", "active", "segment", "inactive_split"), of(0, 0))
    counts = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    whole = dict.fromkeys(
        ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"), 0
    )
    return {
        **every,
        **whole,
        "oversize_allocations": counts,
        "oversize_segments": counts,
        "max_split_size": -1,
    }


def of_core(streams: Streams, allocators: list[DeviceAllocator]) -> dict[str, Any]:
    """Return the replacements for functions of ``torch._C``, on which all of ``torch.cuda`` is built."""
    here, index_of = streams.here, streams.index_of

    def exchange(device: int) -> int:
        before = here.device
        if device >= 0:
            here.device = index_of(device)
        return before

    def triple(device: int, handle: int) -> tuple[int, int, int]:
        return handle, device, CUDA

    def set_stream(stream_id: int, device_index: int, device_type: int = CUDA) -> None:
        streams.set_current(device_index, stream_id)

    def statistics(device: int | None = None) -> dict[str, Any]:
        return _statistics(allocators[index_of(device)])

    def reset_peak(device: int | None = None) -> None:
        allocator = allocators[index_of(device)]
        allocator.peak_bytes, allocator.reserved_peak_bytes = allocator.bytes, allocator.reserved_bytes()

    def empty_cache(*_: Any) -> None:
        for allocator in allocators:
            allocator.empty_cache()

    def snapshot(*_: Any) -> dict[str, Any]:
        return {
            "segments": [segment for allocator in allocators for segment in allocator.snapshot()],
            "device_traces": [],
        }

    def free_here(*_: Any) -> tuple[int, int]:
        return allocators[here.device].free_and_total_bytes()

    def accelerator_stream(device: int) -> Any:
        return torch.cuda.current_stream(device)

    def sleep(cycles: int) -> None:
        timing, device = streams.timing, here.device
        if timing is not None:
            ns = cycles * 1e6 / PROPERTIES["clock_rate"]
            timing.launch("spin_kernel", timing.costs.launch_ns, (ns, 1.0), device, streams.current(device))

    def nothing(*_: Any, **__: Any) -> None:
        pass

    return {
        "_activate_gpu_trace": nothing,
        "_cuda_init": nothing,
        "_cuda_getDeviceCount": lambda: streams.count,
        "_cuda_getDevice": lambda: here.device,
        "_cuda_setDevice": lambda device: exchange(device) and None,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_getCurrentStream": lambda device: triple(device, streams.current(device)),
        "_cuda_getCurrentRawStream": streams.current,
        "_cuda_getDefaultStream": lambda device: triple(device, 0),
        "_cuda_getStreamFromExternal": lambda handle, device: triple(device, handle),
        "_cuda_setStream": set_stream,
        "_cuda_synchronize": streams.synchronize,
        "_cuda_memoryStats": statistics,
        "_cuda_resetPeakMemoryStats": reset_peak,
        "_cuda_resetAccumulatedMemoryStats": nothing,
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
        "_cuda_emptyCache": empty_cache,
        "_host_emptyCache": nothing,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_setMemoryFraction": nothing,
        "_cuda_getMemoryFraction": lambda *_: 1.0,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_canDeviceAccessPeer": lambda one, other: one != other,
        "_cuda_getArchFlags": lambda: "sm_90",
        "_cuda_ipc_collect": nothing,
        "_cuda_sleep": sleep,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_set_sync_debug_mode": nothing,
        "_cuda_clearCublasWorkspaces": nothing,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: here.device,
        "_accelerator_setDeviceIndex": lambda device: exchange(device) and None,
        "_accelerator_exchangeDevice": exchange,
        "_accelerator_maybeExchangeDevice": exchange,
        "_accelerator_getStream": accelerator_stream,
        "_accelerator_setStream": lambda stream: set_stream(stream.stream_id, stream.device_index),
        "_accelerator_synchronizeDevice": streams.synchronize,
        "_accelerator_emptyCache": empty_cache,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": statistics,
        "_accelerator_resetPeakStats": reset_peak,
        "_accelerator_resetAccumulatedStats": nothing,
        "_accelerator_getMemoryInfo": free_here,
        "_group_tensors_by_device_and_dtype": _grouped(torch._C._group_tensors_by_device_and_dtype),
    }


def of_module(
    streams: Streams,
    allocators: list[DeviceAllocator],
    core: dict[str, Any],
    classes: dict[str, type],
    name: str,
) -> dict[str, Any]:
    """Return the replacements for attributes of ``torch.cuda``."""
    index_of = streams.index_of

    def properties(device: Any = None) -> Any:
        index_of(device)
        return SimpleNamespace(**{**PROPERTIES, "name": name})

    return {
        **classes,
        "is_simulated": True,
        "_initialized": True,
        "_exchange_device": core["_cuda_exchangeDevice"],
        "_maybe_exchange_device": core["_cuda_maybeExchangeDevice"],
        "is_available": lambda: True,
        "device_count": lambda: streams.count,
        # Parts of PyTorch call the original function, which caches the device count of an earlier simulation.
        "_cached_device_count": streams.count,
        "get_device_properties": properties,
        "mem_get_info": lambda device=None: allocators[index_of(device)].free_and_total_bytes(),
        "default_generators": (torch.default_generator,) * streams.count,
        "utilization": lambda device=None: 0,
        "list_gpu_processes": lambda device=None: "",
        "graph_pool_handle": lambda: (0, streams.now()),
        "is_current_stream_capturing": lambda: streams.here.capture is not None,
    }


def _grouped(group: Callable[..., Any]) -> Callable[..., Any]:
    """Group tensors by their simulated device as well: for PyTorch they are all CPU tensors."""

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        result: dict[Any, Any] = {}
        for (_, dtype), (columns, indices) in group(lists, True).items():
            for at, tensor in enumerate(columns[0]):
                parts, places = result.setdefault((tensor.device, dtype), ([[] for _ in columns], []))
                for part, column in zip(parts, columns, strict=True):
                    # A column may be empty.
                    part += column[at : at + 1]
                places += indices[at : at + 1] if with_indices else []
        return result

    return grouped
