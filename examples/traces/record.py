"""Records pairs of traces with PyTorch's profiler: the same job before and after one change.

    python3 record.py FOLDER [JOB...]

Needs PyTorch and a GPU. Each variant is timed without the profiler first (the median over five runs of forty
steps, in `truth.json` next to FOLDER), then traced over twelve steps. Under `pairs`, `truth.json` lists the
changes of `sidestream diagnose --what-if` that lead from one trace to another.
"""

import ctypes
import gc
import glob
import gzip
import json
import os
import site
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

GPU = "cuda"
BF16 = torch.bfloat16


def chain(count, size, dtype=BF16):
    """Make a chain of matrix products, and its input."""
    weight = torch.randn(size, size, device=GPU, dtype=dtype) / size**0.5

    def run(x):
        for _ in range(count):
            x = x @ weight
        return x

    return run, torch.randn(size, size, device=GPU, dtype=dtype)


def scales(count, size):
    """Make a chain of small kernels, and its input."""

    def run(x):
        for _ in range(count):
            x = x * 1.0001
        return x

    return run, torch.randn(size, device=GPU)


def training(model):
    """Make a training step of a model, as a function of its input."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return train


def perceptron(width, depth):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers).to(GPU)


def convolutions():
    def block(a, b, kernel, stride):
        return [nn.Conv2d(a, b, kernel, stride, kernel // 2), nn.BatchNorm2d(b), nn.ReLU()]

    layers = [*block(3, 64, 7, 2), *block(64, 128, 3, 2), *block(128, 256, 3, 2)]
    layers += [
        nn.Conv2d(256, 256, 3, 1, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 100),
    ]
    return nn.Sequential(*layers).to(GPU)


def graphed(run, x):
    """Capture the function as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x)
    return graph.replay


def train_upload(variant, images):
    train = training(convolutions())
    host = [torch.randn(images, 3, 224, 224) for _ in range(4)]
    if variant != "pageable":
        host = [batch.pin_memory() for batch in host]
    copies = torch.cuda.Stream()
    count, ahead = 0, []

    def fetch():
        nonlocal count
        count += 1
        with torch.cuda.stream(copies):
            ahead.append((host[count % 4].to(GPU, non_blocking=True), copies.record_event()))

    def step():
        nonlocal count
        count += 1
        train(host[count % 4].to(GPU, non_blocking=variant == "pinned"))

    def ring():
        x, uploaded = ahead.pop(0)
        torch.cuda.current_stream().wait_event(uploaded)
        x.record_stream(torch.cuda.current_stream())
        train(x)
        fetch()

    if variant != "ring":
        return step
    fetch()
    fetch()
    return ring


def item(variant, width, depth, batch):
    train = training(perceptron(width, depth))
    x = torch.randn(batch, width, device=GPU)
    return (lambda: train(x).item()) if variant == "before" else (lambda: train(x))


def sync_gpu_bound(variant):
    run, x = chain(20, 4096)

    def step():
        run(x)
        if variant == "before":
            torch.cuda.synchronize()

    return step


def pageable_small(variant):
    host = torch.randn(16384)
    host = host.pin_memory() if variant == "after" else host
    run, x = chain(20, 4096)

    def step():
        host.to(GPU, non_blocking=variant == "after")
        run(x)

    return step


class Decode(torch.utils.data.Dataset):
    """A data set whose items each take some CPU time."""

    def __init__(self, milliseconds):
        self.milliseconds = milliseconds

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        end = time.perf_counter() + self.milliseconds / 1e3
        x = np.zeros((3, 64, 64), np.float32)
        while time.perf_counter() < end:
            x += 1
        return torch.from_numpy(x)


def loader(variant, milliseconds, batch, products):
    workers = 4 if variant == "after" else 0
    batches = iter(torch.utils.data.DataLoader(Decode(milliseconds), batch_size=batch, num_workers=workers))
    run, x = chain(products, 4096)

    def step():
        loaded = next(batches).to(GPU)
        run(x).sum()
        loaded.sum()

    return step


def graphs(variant, job):
    run, x = job
    return graphed(run, x) if variant == "after" else (lambda: run(x))


def branches(variant, size, count, dtype=torch.float32):
    run, a = chain(count, size, dtype)
    b, side = a.clone(), torch.cuda.Stream()

    def one():
        return run(a) + run(b)

    def two():
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        left = run(a)
        with torch.cuda.stream(side):
            right = run(b)
        current.wait_stream(side)
        return left + right

    return two if variant == "after" else one


def download_16(variant):
    run, x = chain(20, 4096)
    result = torch.randn(4_000_000, device=GPU)
    host = [torch.empty(result.shape, pin_memory=True) for _ in range(2)]
    side, done, keep, count = torch.cuda.Stream(), [None, None], [None, None], 0

    def blocking():
        run(x)
        (result * 2).cpu()

    def ring():
        nonlocal count
        slot = count % 2
        count += 1
        run(x)
        if done[slot] is not None:
            done[slot].synchronize()
        y = result * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host[slot].copy_(y, non_blocking=True)
            done[slot] = side.record_event()
        y.record_stream(side)
        keep[slot] = y

    return ring if variant == "after" else blocking


def mask(variant):
    run, _ = scales(60, 1)
    x = torch.randn(2_000_000, device=GPU)

    def step():
        y = run(x)
        # The host must read back the number of elements that a mask selects.
        y = y[y > 0] if variant == "before" else torch.where(y > 0, y, 0.0)
        y.sum()

    return step


def empty_cache(variant):
    train = training(perceptron(1024, 12))
    x = torch.randn(2048, 1024, device=GPU)

    def step():
        train(x)
        if variant == "before":
            torch.cuda.empty_cache()

    return step


def both_ways(variant):
    run, x = chain(8, 2048)
    count, slots = 8_000_000, 3
    source = [torch.randn(count).pin_memory() for _ in range(slots)]
    target = [torch.empty(count).pin_memory() for _ in range(slots)]
    device = [torch.empty(count, device=GPU) for _ in range(slots)]
    up, down, free, turn = torch.cuda.Stream(), torch.cuda.Stream(), [None] * slots, 0

    def one():
        device[0].copy_(source[0], non_blocking=True)
        run(x)
        device[0].mul_(2)
        target[0].copy_(device[0], non_blocking=True)

    def three():
        nonlocal turn
        slot = turn % slots
        turn += 1
        current = torch.cuda.current_stream()
        with torch.cuda.stream(up):
            if free[slot] is not None:
                up.wait_event(free[slot])
            device[slot].copy_(source[slot], non_blocking=True)
            uploaded = up.record_event()
        current.wait_event(uploaded)
        run(x)
        device[slot].mul_(2)
        computed = current.record_event()
        with torch.cuda.stream(down):
            down.wait_event(computed)
            target[slot].copy_(device[slot], non_blocking=True)
            free[slot] = down.record_event()

    return three if variant == "after" else one


def legacy(variant):
    """Create streams that wait for the legacy default stream; PyTorch's streams never do, so the CUDA runtime
    creates these."""
    folders = [*site.getsitepackages(), "/usr/local/cuda"]
    found = [path for folder in folders for path in glob.glob(f"{folder}/**/libcudart.so*", recursive=True)]
    runtime = ctypes.CDLL(found[0])

    def stream():
        handle = ctypes.c_void_p()
        non_blocking = ctypes.c_uint(1 if variant == "after" else 0)
        if runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), non_blocking) != 0:
            raise RuntimeError("no stream could be created")
        return torch.cuda.ExternalStream(handle.value)

    first, second = stream(), stream()
    run, x = chain(8, 512, torch.float32)
    y, small = x.clone(), torch.randn(1000, device=GPU)

    def step():
        with torch.cuda.stream(first):
            run(x)
        small.add_(1)
        with torch.cuda.stream(second):
            run(y)
        small.add_(1)

    return step


def graph_upload(variant):
    host = torch.randn(8_000_000)
    host = host.pin_memory() if variant == "after" else host
    device = torch.empty(8_000_000, device=GPU)
    replay = graphed(*chain(30, 2048))

    def step():
        device.copy_(host, non_blocking=variant == "after")
        replay()

    return step


# For each job: the function that makes a variant, and the changes that lead from its first variant to the
# others.
JOBS = {
    "train_upload": (
        lambda v: train_upload(v, 64),
        {"pageable": [], "pinned": ["pinned"], "ring": ["pinned", "prefetch=2"]},
    ),
    "train_upload_small": (
        lambda v: train_upload(v, 2),
        {"pageable": [], "pinned": ["pinned"], "ring": ["pinned", "prefetch=2"]},
    ),
    "item_balanced": (lambda v: item(v, 2048, 8, 4096), {"before": [], "after": ["no-sync"]}),
    "item_gpu_bound": (lambda v: item(v, 4096, 8, 16384), {"before": [], "after": ["no-sync"]}),
    "item_host_bound": (lambda v: item(v, 256, 12, 64), {"before": [], "after": ["no-sync"]}),
    "sync_gpu_bound": (sync_gpu_bound, {"before": [], "after": ["no-sync"]}),
    "pageable_small": (pageable_small, {"before": [], "after": ["pinned"]}),
    "loader_starved": (lambda v: loader(v, 0.5, 16, 10), {"before": [], "after": ["workers=4"]}),
    "loader_gpu_bound": (lambda v: loader(v, 0.05, 8, 60), {"before": [], "after": ["workers=4"]}),
    "graphs_gpu_bound": (lambda v: graphs(v, chain(20, 4096)), {"before": [], "after": ["graphs"]}),
    "graphs_elementwise": (lambda v: graphs(v, scales(100, 1_000_000)), {"before": [], "after": ["graphs"]}),
    "branches_full": (lambda v: branches(v, 4096, 6, BF16), {"before": [], "after": ["second-stream"]}),
    "branches_tiny": (lambda v: branches(v, 128, 20), {"before": [], "after": ["second-stream"]}),
    "branches_mid": (lambda v: branches(v, 1024, 10), {"before": [], "after": ["second-stream"]}),
    "download_16": (download_16, {"before": [], "after": ["pinned", "prefetch=2", "no-sync"]}),
    "mask": (mask, {"before": [], "after": ["no-sync"]}),
    "empty_cache": (empty_cache, {"before": [], "after": ["no-sync"]}),
    "both_ways": (both_ways, {"before": [], "after": ["prefetch=3"]}),
    "legacy": (legacy, {"before": [], "after": ["non-blocking-streams"]}),
    "graph_upload": (graph_upload, {"before": [], "after": ["pinned"]}),
}


def timed_ms(step):
    """Return the time of a step without the profiler: the median of several runs."""

    def run(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps * 1e3

    run(10)
    steps, runs = (20, 3) if run(1) > 30 else (40, 5)
    return statistics.median(run(steps) for _ in range(runs))


def traced(step, path):
    plan = schedule(wait=0, warmup=3, active=12, repeat=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    text = path.removesuffix(".gz")
    with profile(
        activities=activities, schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(text)
    ) as profiler:
        for _ in range(15):
            step()
            profiler.step()
        torch.cuda.synchronize()
    with open(text, "rb") as trace, gzip.open(path, "wb", 9) as packed:
        packed.write(trace.read())
    os.unlink(text)


def main(folder, *names):
    os.makedirs(folder, exist_ok=True)
    runs, pairs = {}, []
    for name in names or JOBS:
        make, variants = JOBS[name]
        first = next(iter(variants))
        for variant, changes in variants.items():
            step = make(variant)
            runs[f"{name}.{variant}"] = {"step_ms": round(timed_ms(step), 4), "steps_in_trace": 12}
            traced(step, f"{folder}/{name}.{variant}.json.gz")
            print(f"{name}.{variant}: {runs[f'{name}.{variant}']['step_ms']} ms a step", flush=True)
            if changes:
                pairs.append({"before": f"{name}.{first}", "changes": changes, "after": f"{name}.{variant}"})
            del step
            gc.collect()
            torch.cuda.empty_cache()
    truth = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    truth["unit"] = "step_ms: median wall milliseconds a step over 5 runs of 40 steps, profiler off"
    with open(f"{folder}/../truth.json", "w") as file:
        json.dump(truth | {"runs": runs, "pairs": pairs}, file, indent=1)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
