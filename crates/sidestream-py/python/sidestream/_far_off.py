"""Explains why a call is far from its roofline, as far as its kernel launches show: sentences that follow
from figures of PyTorch's profiler.

How many blocks fit on a multiprocessor is computed as in CUDA's occupancy calculator: by threads, by
registers, which a warp has in units of 256, and by shared memory, of which each block takes 1 KiB for the
system on devices of compute capability 8.0 or higher.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sidestream import _units as units

#: A call that reaches less than this share of the roofline is far off.
FAR = 0.5
#: With this many rounds of thread blocks or more, the last round hardly counts.
_MOST_ROUNDS = 4


def asked(torch: Any, call: Callable[..., object], args: tuple[Any, ...]) -> tuple[str, ...]:
    """Call once under the profiler, and return sentences on the kernels; none if the profiler cannot run.
    """
    try:
        from torch.profiler import ProfilerActivity, profile

        with warnings.catch_warnings():
            # PyTorch warns that a later cycle would clear the events; there is no later cycle.
            warnings.simplefilter("ignore")
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                call(*args)
                torch.cuda.synchronize()
        with tempfile.TemporaryDirectory(prefix="sidestream-") as folder:
            path = Path(folder) / "call.json"
            profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text())
    except (ImportError, OSError, RuntimeError, ValueError):
        return ()
    return tuple(sentences(trace.get("traceEvents", ()), trace.get("deviceProperties", ())))


def sentences(events: Iterable[Mapping[str, Any]], devices: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return sentences on the kernels of a call, the longest kernel first."""
    kernels = [event for event in events if event.get("cat") == "kernel" and "grid" in event.get("args", ())]
    if not kernels:
        return []
    by_name: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        by_name[kernel["name"]] += kernel["dur"]
    name = max(by_name, key=lambda each: by_name[each])
    longest = max(
        (kernel for kernel in kernels if kernel["name"] == name), key=lambda kernel: float(kernel["dur"])
    )
    total = sum(by_name.values())
    short = name.replace("(anonymous namespace)::", "").split("(")[0].removeprefix("void ")
    short = short if len(short) <= 60 else f"{short[:57]}..."
    count = "one kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
    said = [
        f"a call is {count} of {units.time(1e3 * total)} in all; {short} takes "
        f"{100 * by_name[name] / total:.0f} % of it"
    ]
    given = longest["args"]
    device = next((device for device in devices if device.get("id") == given.get("device")), None)
    return [*said, *(_of_launch(given, device) if device is not None else ())]


def _of_launch(given: Mapping[str, Any], device: Mapping[str, Any]) -> list[str]:
    blocks, threads = math.prod(given["grid"]), math.prod(given["block"])
    registers, shared = given.get("registers per thread", 0), given.get("shared memory", 0)
    multiprocessors, warp = device["numSms"], device["warpSize"]
    warps, most_warps = -(-threads // warp), device["maxThreadsPerMultiprocessor"] // warp
    if blocks < multiprocessors:
        idle = f"{multiprocessors - blocks} of {multiprocessors} multiprocessors"
        leaves = "leaves" if blocks == 1 else "leave"
        return [
            f"its {_blocks(blocks)} {leaves} {idle} without work: more work per call, or concurrent work"
        ]
    by_threads = most_warps // warps
    by_registers = (
        device["regsPerMultiprocessor"] // (-(-registers * warp // 256) * 256 * warps)
        if registers
        else by_threads
    )
    reserved = 1024 if device.get("computeMajor", 0) >= 8 else 0
    by_shared = device["sharedMemPerMultiprocessor"] // (shared + reserved) if shared else by_threads
    fit = min(by_threads, by_registers, by_shared)
    said = []
    if 0 < fit:
        rounds = blocks / (multiprocessors * fit)
        last = rounds % 1
        if 1 < rounds < _MOST_ROUNDS and 0 < last < 0.5:
            said.append(
                f"its {_blocks(blocks)} are {rounds:.2f} times as many as fit at once: while the last ones "
                f"run, {100 * (1 - last):.0f} % of the room is empty if all take the same time"
            )
        if 2 * fit * warps <= most_warps:
            what = (
                f"{registers} registers a thread"
                if by_registers <= by_shared
                else f"{units.size(shared)} of shared memory a block"
            )
            said.append(
                f"its {what} leave room for {fit * warps} of {most_warps} warps on a multiprocessor: fewer "
                "warps hide less of the memory latency"
            )
    if not said:
        said.append(
            f"its launch gives no reason ({_blocks(blocks)} of {threads} threads, {registers} registers "
            "each); Nsight Compute analyses the kernel itself"
        )
    return said


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count:,} blocks"
