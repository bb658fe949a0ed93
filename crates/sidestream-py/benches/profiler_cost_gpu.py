"""The cost of PyTorch's profiler: kinds of calls, and whole steps of 24 jobs, are timed with and without it;
their traces are kept.

    python crates/sidestream-py/benches/profiler_cost_gpu.py --out FOLDER [--device cpu] [JOB …]

`diagnose` uses these figures for the cost of the profiler. Two processes run all jobs. Each process times
every job before any profiler has run, then again in turns with a profiler of the host only, of the device
only, and of both; the last writes a trace. FOLDER gets ``truth.json`` and ``traces.tar`` (traces of at most
ten steps, compressed). On an H200 it takes less than four minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from either_device import Machine, Step
from planted.models import perceptron
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function, schedule

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("jobs", nargs="*", metavar="JOB", help="run only these")
parser.add_argument("--out", required=True, metavar="FOLDER")
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument(
    "--limit",
    type=float,
    default=105.0,
    metavar="SECONDS",
    help="begin no job after so long, in each process",
)
parser.add_argument("--round", type=int, help=argparse.SUPPRESS)
ARGS = parser.parse_args()
MACHINE = Machine(ARGS.device)
IS_CUDA, DEVICE = MACHINE.is_cuda, MACHINE.device
synchronize = MACHINE.synchronize
ROUNDS = 2
#: Seconds of a window of plain steps, and number of windows that are timed at a time.
WINDOW_S, WINDOWS = 0.06 if IS_CUDA else 0.002, 5
#: Number of recorded steps.
RECORDED = 10
#: For each job, the function that makes its step.
JOBS: dict[str, Callable[[], Step]] = {}
#: The jobs that are also traced with more options.
MORE_OPTIONS = {"layers_forward", "encoder_training", "cells", "loss_of_each_layer"}
OPTIONS = {
    "shapes": {"record_shapes": True},
    "stacks": {"with_stack": True},
    "all": {"record_shapes": True, "profile_memory": True, "with_stack": True},
}


def job(make: Callable[[], Step]) -> Callable[[], Step]:
    JOBS[make.__name__] = make
    return make


def of(on_gpu: int, on_cpu: int) -> int:
    return on_gpu if IS_CUDA else on_cpu


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def layers(count: int, width: int) -> nn.Sequential:
    return perceptron(of(count, 2), width).to(DEVICE)


def training(model: nn.Module, optimizer: torch.optim.Optimizer, *shape: int) -> Step:
    x = randn(*shape)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


# Similar jobs alternate: jobs with even numbers are one half, jobs with odd numbers the other.


@job
def layers_forward() -> Step:
    model, x = layers(40, 256), randn(32, 256)

    def step(_: int) -> None:
        with torch.no_grad():
            model(x)

    return step


class Attention(nn.Module):
    """Attention as in GPT-2: one product for queries, keys and values, and separate operators for split, mask
    and merge.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).split(width, dim=2)
        parts = [
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in (q, k, v)
        ]
        y = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).contiguous().view(batch, length, width)))
        h = self.up(self.norm2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.dropout(self.down(h))


class Gpt(nn.Module):
    def __init__(self, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(of(50257, 64), width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList([Attention(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, of(50257, 64), bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, of(50257, 64), (batch, length), device=DEVICE)


@job
def gpt_forward() -> Step:
    model, x = Gpt(of(12, 1), of(768, 32), of(12, 2)).to(DEVICE).eval(), ids(of(4, 1), of(64, 4))

    def step(_: int) -> None:
        with torch.no_grad():
            model(x)

    return step


@job
def encoder_training() -> Step:
    layer = nn.TransformerEncoderLayer(of(256, 16), 4, of(512, 16), batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, of(6, 1), enable_nested_tensor=False).to(DEVICE)
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-6), 8, of(32, 2), of(256, 16))


@job
def cells() -> Step:
    width = of(256, 8)
    cell, head, x = (
        nn.LSTMCell(width, width).to(DEVICE),
        nn.Linear(width, 10).to(DEVICE),
        randn(of(256, 4), 32, width),
    )

    def step(_: int) -> None:
        with torch.no_grad():
            h = c = torch.zeros(32, width, device=DEVICE)
            for now in x:
                h, c = cell(now, (h, c))
            head(h)

    return step


@job
def cells_by_hand() -> Step:
    width = of(128, 8)
    inner, outer = nn.Linear(width, 3 * width).to(DEVICE), nn.Linear(width, 3 * width).to(DEVICE)
    optimizer, x = torch.optim.SGD([*inner.parameters(), *outer.parameters()], lr=1e-6), randn(
        of(40, 3), 16, width
    )

    def step(_: int) -> None:
        optimizer.zero_grad()
        h = torch.zeros(16, width, device=DEVICE)
        for now in x:
            a, b = inner(now).chunk(3, 1), outer(h).chunk(3, 1)
            r, z = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
            h = (1 - z) * torch.tanh(a[2] + r * b[2]) + z * h
        h.square().mean().backward()
        optimizer.step()

    return step


@job
def adam_of_many() -> Step:
    model = layers(24, 256)
    return training(model, torch.optim.Adam(model.parameters(), lr=1e-7, foreach=False), 32, 256)


@job
def adam_together() -> Step:
    model = layers(30, 256)
    return training(model, torch.optim.Adam(model.parameters(), lr=1e-7, foreach=True), 32, 256)


@job
def adam_fused() -> Step:
    model = layers(30, 512)
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-7, fused=IS_CUDA), 32, 512)


def convolutions(depth: int) -> nn.Sequential:
    width = of(32, 4)
    block = [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    many = [part for _ in range(of(depth, 1)) for part in (block[0], block[1], block[2])]
    return nn.Sequential(
        nn.Conv2d(3, width, 3), *many, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    ).to(DEVICE)


@job
def convolutions_training() -> Step:
    model = convolutions(16)
    return training(model, torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9), 8, 3, 32, 32)


@job
def convolutions_forward() -> Step:
    model, x = convolutions(30).eval(), randn(4, 3, 32, 32)

    def step(_: int) -> None:
        with torch.inference_mode():
            model(x)

    return step


@job
def small_operators() -> Step:
    x = randn(64, 64)

    def step(_: int) -> None:
        y = x
        for _ in range(of(150, 3)):
            y = (y + 1.0) * 0.5

    return step


@job
def views_and_lists() -> Step:
    # Few of these operators launch a kernel.
    x = randn(16, 64, 64)

    def step(_: int) -> None:
        for _ in range(of(30, 2)):
            parts = [part.reshape(8, -1).t().unsqueeze(0).narrow(1, 0, 64) for part in x.unbind(0)]
            torch.cat(parts, 0)

    return step


@job
def waits_for_each_layer() -> Step:
    model, x = layers(30, 256), randn(32, 256)

    def step(_: int) -> None:
        y = x
        with torch.no_grad():
            for part in model:
                y = part(y)
                synchronize()

    return step


@job
def loss_of_each_layer() -> Step:
    model, x = layers(20, 256), randn(32, 256)

    def step(_: int) -> None:
        y, all_of_it = x, 0.0
        with torch.no_grad():
            for part in model:
                y = part(y)
                all_of_it += y.mean().item()

    return step


@job
def many_uploads() -> Step:
    hosts = [torch.ones(1024, pin_memory=IS_CUDA) for _ in range(of(80, 2))]

    def step(_: int) -> None:
        for host in hosts:
            host.to(DEVICE, non_blocking=True).add_(1.0)

    return step


@job
def many_pageable_copies() -> Step:
    hosts = [torch.ones(1024) for _ in range(of(40, 2))]

    def step(_: int) -> None:
        for host in hosts:
            host.to(DEVICE).mul_(2.0).cpu()

    return step


@job
def graphs() -> Step:
    model, x = layers(30, 128), randn(16, 128)

    def work() -> None:
        with torch.no_grad():
            model(x)

    replay = MACHINE.captured(work)

    def step(_: int) -> None:
        for _ in range(3):
            x.add_(0.0)
            replay()

    return step


@job
def graph_and_token() -> Step:
    model, x = layers(20, 256), randn(8, 256)

    def work() -> None:
        with torch.no_grad():
            x.copy_(model(x).softmax(1))

    replay = MACHINE.captured(work)

    def step(_: int) -> None:
        for _ in range(2):
            replay()
            x[0].argmax().item()

    return step


@job
def two_streams() -> Step:
    side, main, models, x = (
        MACHINE.side_stream(),
        MACHINE.current(),
        [layers(10, 128), layers(10, 128)],
        randn(16, 128),
    )

    def step(_: int) -> None:
        with torch.no_grad():
            for at in range(of(5, 1)):
                side.wait_stream(main)
                with MACHINE.on(side):
                    models[0][2 * at : 2 * at + 4](x)
                models[1][2 * at : 2 * at + 4](x)
                main.wait_stream(side)

    return step


@job
def mixed_precision() -> Step:
    model, x = layers(16, 256), randn(32, 256)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-6), torch.amp.GradScaler(
        DEVICE.type, enabled=IS_CUDA
    )

    def step(_: int) -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, torch.float16 if IS_CUDA else torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@job
def tokens() -> Step:
    # Greedy decoding with a growing cache; the host reads each token.
    model = Gpt(of(4, 1), of(256, 32), of(4, 2)).to(DEVICE).eval()

    def step(_: int) -> None:
        x = ids(1, 4)
        with torch.no_grad():
            for _ in range(of(6, 2)):
                x = torch.cat([x, model(x)[:, -1:].argmax(-1)], 1)
                x[0, -1].item()

    return step


@job
def embeddings() -> Step:
    tables = nn.ModuleList([nn.Embedding(1000, 16) for _ in range(of(26, 2))]).to(DEVICE)
    top, at = layers(3, 16).to(DEVICE), torch.randint(0, 1000, (of(26, 2), 128), device=DEVICE)
    optimizer = torch.optim.Adagrad([*tables.parameters(), *top.parameters()], lr=1e-6)

    def step(_: int) -> None:
        optimizer.zero_grad()
        parts = [table(row) for table, row in zip(tables, at)]
        top(torch.stack(parts).sum(0)).square().mean().backward()
        optimizer.step()

    return step


@job
def own_python() -> Step:
    # Python code between the operators, which a profiler of operators does not see.
    model, x = layers(24, 128), randn(16, 128)

    def step(_: int) -> None:
        y = x
        with torch.no_grad():
            for part in model:
                sum(value * value for value in range(150))
                y = part(y)

    return step


@job
def compiled() -> Step:
    model, x = layers(12, 128), randn(16, 128)
    run = torch.compile(nn.Sequential(*model, nn.LayerNorm(128).to(DEVICE))) if IS_CUDA else model

    def step(_: int) -> None:
        with torch.no_grad():
            for _ in range(4):
                run(x)

    return step


# Kinds of calls. Each is called a number of times in a loop.


def calls() -> dict[str, Callable[[], object]]:
    one, host = randn(64), torch.ones(64, pin_memory=IS_CUDA)
    out, pageable = torch.empty_like(one), torch.ones(64)
    square, result = randn(32, 32), randn(32, 32)
    all_kinds: dict[str, Callable[[], object]] = {
        "view": lambda: one.view(8, 8),
        "view_of_view": lambda: one.unsqueeze(0).squeeze(0).view(8, 8),
        "reshape_with_shape": lambda: one.reshape(8, 8),
        "empty": lambda: torch.empty(64, device=DEVICE),
        "kernel_out": lambda: torch.add(one, one, out=out),
        "kernel_new": lambda: one + one,
        "product": lambda: torch.mm(square, square, out=result),
        "linear": lambda: functional.linear(square, square),
        "fill": lambda: out.zero_(),
        "upload_pinned": lambda: out.copy_(host, non_blocking=True),
        "upload_pageable": lambda: out.copy_(pageable),
        "device_copy": lambda: out.copy_(one),
        "item": lambda: one[0].item(),
    }

    def annotated() -> None:
        with record_function("annotation"):
            pass

    all_kinds["annotation"] = annotated
    if IS_CUDA:
        event, stream, side = torch.cuda.Event(), torch.cuda.current_stream(), torch.cuda.Stream()
        event.record()
        replay = MACHINE.captured(lambda: torch.add(one, one, out=out))
        replay_32 = MACHINE.captured(lambda: [torch.add(one, one, out=out) for _ in range(32)])
        all_kinds |= {
            "event_record": event.record,
            "event_query": event.query,
            "event_synchronize": event.synchronize,
            "wait_event": lambda: side.wait_event(event),
            "stream_synchronize": stream.synchronize,
            "device_synchronize": torch.cuda.synchronize,
            "graph_of_1": replay,
            "graph_of_32": replay_32,
        }
    return all_kinds


def call_ns(call: Callable[[], object]) -> float:
    count = of(300, 20)
    for _ in range(30):
        call()
    times = []
    for _ in range(5):
        synchronize()
        begun = time.perf_counter_ns()
        for _ in range(count):
            call()
        times.append((time.perf_counter_ns() - begun) / count)
        synchronize()
    return statistics.median(times)


def activities(host: bool, device: bool) -> list[ProfilerActivity]:
    wanted = [ProfilerActivity.CPU] if host else []
    return wanted + ([ProfilerActivity.CUDA] if device and IS_CUDA else [])


#: For each kind of profiler: whether it records the host, and the device.
KINDS = {"host": (True, False), "device": (False, True), "both": (True, True)}


def kinds_of_calls() -> dict[str, dict[str, float]]:
    kinds = calls()
    rows = {name: {"plain_ns": call_ns(call)} for name, call in kinds.items()}
    for kind, which in KINDS.items():
        if activities(*which):
            with profile(activities=activities(*which), acc_events=True) as profiler:
                for name, call in kinds.items():
                    rows[name][f"{kind}_ns"] = call_ns(call)
            del profiler
    for name, call in kinds.items():
        rows[name]["plain_after_ns"] = call_ns(call)
    return rows


def plain_ms(step: Step, warm_up_s: float) -> list[float]:
    """Return the mean step time of each window; the host waits for the device only at the end of a window."""
    synchronize()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < warm_up_s or count < 3:
        step(count)
        count += 1
    synchronize()
    steps = max(int(count / (time.perf_counter() - begun) * WINDOW_S), 5)
    windows = []
    for _ in range(WINDOWS):
        begun = time.perf_counter()
        for at in range(steps):
            step(at)
        synchronize()
        windows.append((time.perf_counter() - begun) / steps * 1e3)
    return windows


def profiled_ms(
    step: Step, which: tuple[bool, bool], steps: int, path: Path | None, options: dict[str, Any]
) -> list[float]:
    """Return the time between the ends of consecutive steps, by a clock other than the profiler's."""

    def write(profiler: Any) -> None:
        if path is not None:
            profiler.export_chrome_trace(str(path))

    marks = []
    plan = schedule(wait=0, warmup=3, active=steps, repeat=1)
    with profile(
        activities=activities(*which), schedule=plan, on_trace_ready=write, acc_events=True, **options
    ) as profiler:
        for at in range(3 + steps):
            step(at)
            if at == 2:
                synchronize()
            if at + 1 == 3 + steps:
                synchronize()
            marks.append(time.perf_counter())
            profiler.step()
    recorded = marks[2:]
    return [(after - before) * 1e3 for before, after in zip(recorded, recorded[1:])]


def measure(name: str, folder: Path) -> dict[str, Any]:
    step = JOBS[name]()
    row: dict[str, Any] = {"plain_ms": plain_ms(step, 0.1 if IS_CUDA else 0.001)}
    steps = RECORDED if statistics.median(row["plain_ms"]) < 8 else 6
    row["steps"] = steps
    for kind, which in KINDS.items():
        if activities(*which):
            path = folder / f"{name}.{ARGS.round}.json.gz" if kind == "both" else None
            row[f"{kind}_ms"] = profiled_ms(step, which, steps, path, {})
    row["plain_after_ms"] = plain_ms(step, 0.02 if IS_CUDA else 0.001)
    if name in MORE_OPTIONS and ARGS.round == 0:
        for word, options in OPTIONS.items():
            path = folder / f"{name}.{word}.json.gz"
            row[f"{word}_ms"] = profiled_ms(step, (True, True), min(steps, 4), path, options)
    return row


def one_round(folder: Path) -> dict[str, Any]:
    """Run all jobs in this process, first without a profiler."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    begun, rows, failed = time.perf_counter(), {}, []
    names = ARGS.jobs or list(JOBS)
    first = {}
    for name in names:
        if time.perf_counter() - begun > ARGS.limit / 2:
            break
        try:
            torch.manual_seed(0)
            first[name] = plain_ms(JOBS[name](), 0.25 if IS_CUDA else 0.001)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        gc.collect()
    # The second round has the reverse order, so that no variant always runs in a process that has warmed up
    # more.
    for name in [name for name in (names if ARGS.round == 0 else names[::-1]) if name in first]:
        if time.perf_counter() - begun > ARGS.limit:
            failed.append(f"{name} (no time left)")
            continue
        try:
            torch.manual_seed(0)
            rows[name] = {"first_ms": first[name], **measure(name, folder)}
        except Exception:
            traceback.print_exc()
            failed.append(name)
        gc.collect()
    kinds = {} if ARGS.jobs else kinds_of_calls()
    return {"jobs": rows, "calls": kinds, "failed": failed, "seconds": time.perf_counter() - begun}


def machine() -> dict[str, Any]:
    texts = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":", 1)[1].strip() for line in texts if line.startswith("model name")]
    return {
        "gpu": torch.cuda.get_device_name() if IS_CUDA else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "unit": "milliseconds a step, nanoseconds a call",
    }


def show(truth: dict[str, Any]) -> None:
    print(
        f"{'job':<24} {'plain':>9} {'after':>9} {'host':>9} {'device':>9} {'both':>9}  ms a step, median; of "
        "both rounds"
    )
    for name in JOBS:
        for row in (part["jobs"].get(name) for part in truth["rounds"]):
            if row is not None:
                kinds = ("first_ms", "plain_after_ms", "host_ms", "device_ms", "both_ms")
                cells = [
                    f"{statistics.median(row[kind]):9.3f}" if kind in row else f"{'-':>9}" for kind in kinds
                ]
                print(f"{name:<24} {' '.join(cells)}")
    for part in truth["rounds"][:1]:
        for name, row in part["calls"].items():
            print(f"{name:<24} {' '.join(f'{key[:-3]} {ns:.0f}' for key, ns in row.items())} ns")


def pack(traces: Path, out: Path) -> tuple[int, int]:
    """Pack the traces into archives that can be copied anywhere, those of the first round first. Return the
    number of archives, and the number of traces that are in none.
    """
    most, packed, left_out, archives = 15_000_000, 0, 0, [tarfile.open(out / "traces0.tar", "w")]
    for path in sorted(traces.iterdir(), key=lambda path: (".1." in path.name, path.name)):
        size = path.stat().st_size
        if packed + size > most and len(archives) < 4:
            archives.append(tarfile.open(out / f"traces{len(archives)}.tar", "w"))
            packed = 0
        if packed + size <= most:
            archives[-1].add(path, path.name)
            packed += size
        else:
            left_out += 1
        path.unlink()
    for archive in archives:
        archive.close()
    return len(archives), left_out


def main() -> int:
    unknown = set(ARGS.jobs) - set(JOBS)
    if unknown:
        parser.error(f"there is no job {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
    if IS_CUDA and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA here; --device cpu tries the code")
    out = Path(ARGS.out)
    traces = out / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    if ARGS.round is not None:
        (traces / f"round{ARGS.round}.json").write_text(json.dumps(one_round(traces)))
        return 0
    begun, parts = time.perf_counter(), []
    for number in range(ROUNDS):
        subprocess.run(
            [sys.executable, *sys.argv, "--round", str(number)], check=False, timeout=3 * ARGS.limit
        )
        path = traces / f"round{number}.json"
        if path.exists():
            parts.append(json.loads(path.read_text()))
            path.unlink()
    truth = {"machine": machine(), "rounds": parts}
    (out / "truth.json").write_text(json.dumps(truth))
    number, left_out = pack(traces, out)
    traces.rmdir()
    show(truth)
    failed = [name for part in parts for name in part["failed"]]
    print(
        f"{len(parts)} rounds, {time.perf_counter() - begun:.0f} s in all, {number} archives without "
        f"{left_out} traces; failed: {', '.join(failed) or 'none'}"
    )
    return 1 if failed or len(parts) < ROUNDS else 0


if __name__ == "__main__":
    sys.exit(main())
