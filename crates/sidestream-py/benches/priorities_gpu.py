"""The gain of a high priority for a few small kernels while other work is queued. The kernels are launched
one by one and as a CUDA graph.

    python crates/sidestream-py/benches/priorities_gpu.py [--quick]

A graph's kernels have the priority of the stream on which they were captured; the stream that replays the
graph may have another. Both are varied separately. Each figure is the median of the milliseconds from the
first call until the host knows that the work is complete. Prints one JSON object per line;
docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from timing import seconds

TRIES = 3 if "--quick" in sys.argv else 15
WIDTH, LAYERS, ROWS = 512, 8, 64
LEAST, MOST = torch.cuda.Stream.priority_range()


def products() -> Callable[[], object]:
    """Make matrix products of 8192 x 8192, whose thread blocks run long."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out)


def sums() -> Callable[[], object]:
    """Make sums over a gigabyte, whose thread blocks take some microseconds."""
    a = torch.zeros(1 << 28, device="cuda")
    return lambda: a.add_(1.0)


def streams() -> dict[str, torch.cuda.Stream]:
    return {"ordinary": torch.cuda.Stream(priority=LEAST), "urgent": torch.cuda.Stream(priority=MOST)}


def captured(stream: torch.cuda.Stream, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph


def latency(
    stream: torch.cuda.Stream, work: Callable[[], object], background: Callable[[], object] | None
) -> float:
    behind = torch.cuda.Stream(priority=LEAST)
    tries = []
    for _ in range(TRIES):
        torch.cuda.synchronize()
        if background is not None:
            with torch.cuda.stream(behind):
                for _ in range(12):
                    background()
            # Sleep until the first kernel runs.
            time.sleep(0.0005)
        with torch.cuda.stream(stream):
            start = time.perf_counter()
            work()
            stream.synchronize()
        tries.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(tries)


def main() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).cuda().requires_grad_(False)
    x = torch.randn(ROWS, WIDTH, device="cuda")
    small = torch.randn(WIDTH, WIDTH, device="cuda")
    by = streams()
    torch.cuda.synchronize()
    for stream in by.values():
        with torch.cuda.stream(stream):
            model(x), small @ small
    torch.cuda.synchronize()
    works: list[tuple[str, str, str, Callable[[], object]]] = []
    for launched in by:
        works.append(("one product", "-", launched, lambda: small @ small))
        works.append(("8 layers", "-", launched, lambda: model(x)))
    for capture, stream in by.items():
        graph = captured(stream, lambda: model(x))
        works.extend(("8 layers, graph", capture, replay, graph.replay) for replay in by)
    print(json.dumps({"device": torch.cuda.get_device_name(), "priorities": [LEAST, MOST], "tries": TRIES}))
    for name, make in (("products", products), ("sums", sums)):
        background = make()
        background()
        once = seconds(background) * 1e3
        for work, capture, launched, run in works:
            said = {"background": name, "background_ms": round(once, 3)}
            said |= {"work": work, "captured": capture, "launched": launched}
            for key, beside in (("alone_ms", None), ("beside_ms", background)):
                said[key] = round(latency(by[launched], run, beside), 4)
            print(json.dumps(said), flush=True)
        del background
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
