"""Thirty PyTorch jobs with a planted fault, before and after the fix: does the diagnosis name the cause
first, and predict the gain of the fix?

    python crates/sidestream-py/benches/truth_gpu.py [--sidestream PATH] [--json FILE] [--keep FOLDER] [JOB …]

Needs PyTorch with CUDA. Each job is timed in both forms without a profiler (the median step of five windows),
then its first form is recorded by PyTorch's profiler and diagnosed: by the package ``sidestream``, or by the
command at PATH. The median is printed in milliseconds; "off" is the predicted step by the measured one, less
1. On an H200 all of them take under four minutes; what would begin after ``--limit`` seconds is left out and
named. ``--device cpu`` runs the same code with tiny tensors and no diagnosis, to see that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from either_device import Machine, Step
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

#: Number of recorded steps, and of steps in a window: divisible by 2, 4 and 5.
STEPS = 20
WINDOWS = 5
WARM_UP = 6
#: The allowed relative error of the predicted step.
OFF = 0.15

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("jobs", nargs="*", metavar="JOB", help="run only these")
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument("--sidestream", metavar="PATH", help="the command, if the package is not installed")
parser.add_argument("--json", metavar="FILE", help="also write the rows, one line of JSON each")
parser.add_argument("--keep", metavar="FOLDER", help="keep the traces there")
parser.add_argument("--limit", type=float, default=225.0, metavar="SECONDS")
ARGS = parser.parse_args()
MACHINE = Machine(ARGS.device)
IS_CUDA, DEVICE = MACHINE.is_cuda, MACHINE.device
side_stream, current, on, event = MACHINE.side_stream, MACHINE.current, MACHINE.on, MACHINE.event
synchronize, busy, captured = MACHINE.synchronize, MACHINE.busy, MACHINE.captured


def megabytes(size: float, pinned: bool = False) -> torch.Tensor:
    """Allocate host memory, and write it once so that its pages exist."""
    count = int(size * (1 << 18)) if IS_CUDA else 256
    return torch.empty(count, pin_memory=pinned and IS_CUDA).fill_(1.0)


def like_on_device(host: torch.Tensor) -> torch.Tensor:
    return torch.zeros(host.shape, device=DEVICE)


class Model:
    """Matrix products one after another, each with an addition and a ReLU: about 8 ms for 24 of size 2,048 on
    an H200.
    """

    def __init__(self, layers: int = 24, side: int = 2048) -> None:
        self.side = side if IS_CUDA else 16
        self.x = torch.randn(self.side, self.side, device=DEVICE)
        self.weights = [
            torch.randn(self.side, self.side, device=DEVICE) / self.side**0.5 for _ in range(layers)
        ]
        self.y = torch.zeros_like(self.x)

    def layer(self, at: int, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weights[at])

    def __call__(self, batch: torch.Tensor | None = None) -> torch.Tensor:
        x = self.x
        if batch is not None:
            # Reads the batch, so that the rest depends on the upload.
            x = x + batch.flatten()[0]
        for at in range(len(self.weights)):
            x = self.layer(at, x)
        self.y = x
        return x


class Slow(Dataset[torch.Tensor]):
    """A data set whose batches take the CPU a given time, some of them longer."""

    def __init__(self, seconds: float, every: int = 1, sleeps: bool = False, size: float = 0.25) -> None:
        self.seconds, self.every, self.sleeps = seconds, every, sleeps
        self.batch = megabytes(size)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, at: int) -> torch.Tensor:
        if at % self.every == self.every - 1:
            if self.sleeps:
                time.sleep(self.seconds if IS_CUDA else 1e-5)
            else:
                busy(self.seconds)
        return self.batch


def batches(data: Dataset[torch.Tensor], workers: int) -> Iterator[torch.Tensor]:
    more: dict[str, Any] = {"prefetch_factor": 4, "multiprocessing_context": "fork"} if workers else {}
    return iter(DataLoader(data, batch_size=None, num_workers=workers, pin_memory=IS_CUDA, **more))


def pinned(batch: torch.Tensor) -> torch.Tensor:
    return batch.pin_memory() if IS_CUDA else batch


#: Functions to call when a job has ended.
LEFT: list[Callable[[], object]] = []

#: For each job: the codes of its cause, and the function that makes its step, faulty or fixed. A step takes
#: its index.
JOBS: dict[str, tuple[set[str], Callable[[bool], Step]]] = {}


def job(*codes: str) -> Callable[[Callable[[bool], Step]], Callable[[bool], Step]]:
    def add(make: Callable[[bool], Step]) -> Callable[[bool], Step]:
        JOBS[make.__name__] = (set(codes), make)
        return make

    return add


# Loaders.


def loading(data: Slow, before: int, after: int, repaired: bool) -> Step:
    model, source = Model(16), batches(data, after if repaired else before)

    def step(_: int) -> None:
        model(next(source).to(DEVICE, non_blocking=True))

    return step


@job("HOST_STARVED")
def loader_in_every_step(repaired: bool) -> Step:
    return loading(Slow(0.012), 0, 4, repaired)


@job("HOST_STARVED")
def loader_in_some_steps(repaired: bool) -> Step:
    # Five workers: with four, one worker would get all of the slow batches.
    return loading(Slow(0.040, every=4), 0, 5, repaired)


@job("HOST_STARVED")
def loader_that_sleeps(repaired: bool) -> Step:
    return loading(Slow(0.010, sleeps=True), 0, 4, repaired)


@job("HOST_STARVED")
def loader_with_one_worker(repaired: bool) -> Step:
    return loading(Slow(0.016), 1, 6, repaired)


def in_range(name: str, data: Dataset[torch.Tensor], workers: int, repaired: bool, every: int = 1) -> Step:
    """The host works in a named range, and the result is uploaded. Fixed: worker processes do the work.
    """
    model, source = Model(16), batches(data, workers) if repaired else None

    def step(at: int) -> None:
        batch = None
        if at % every == every - 1:
            with record_function(name):
                batch = pinned(data[at]) if source is None else next(source)
        model(None if batch is None else batch.to(DEVICE, non_blocking=True))

    return step


@job("HOST_STARVED", "HOST_WORK")
def loader_in_a_range(repaired: bool) -> Step:
    return in_range("load_batch", Slow(0.010), 4, repaired)


# The host's own work.


class Images(Dataset[torch.Tensor]):
    """Images that CPU operators augment, which takes some ten milliseconds per batch in one thread."""

    def __init__(self) -> None:
        self.images = torch.rand(24, 3, 224, 224) if IS_CUDA else torch.rand(2, 3, 8, 8)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, at: int) -> torch.Tensor:
        return ((self.images.flip(-1) - 0.45) / 0.225).clamp_(-2, 2)[:1].clone()


@job("HOST_WORK", "HOST_STARVED")
def host_augments(repaired: bool) -> Step:
    return in_range("augment", Images(), 6, repaired)


@job("HOST_WORK", "HOST_STARVED")
def host_tokenizes(repaired: bool) -> Step:
    return in_range("tokenize", Slow(0.009), 3, repaired)


@job("HOST_WORK", "HOST_STARVED")
def host_works_in_some_steps(repaired: bool) -> Step:
    return in_range("refresh", Slow(0.050), 4, repaired, every=5)


@job("HOST_WORK", "HOST_STARVED")
def host_measures(repaired: bool) -> Step:
    model, values = Model(16), torch.rand(1 << 17 if IS_CUDA else 64)
    todo: queue.Queue[bool] = queue.Queue()

    def work() -> None:
        for _ in range(2):
            values.sort()

    def loop() -> None:
        while todo.get():
            work()

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(6 if repaired else 0)]
    for thread in threads:
        thread.start()

    def step(_: int) -> None:
        model()
        with record_function("metrics"):
            if repaired:
                todo.put(True)
            else:
                work()

    # The threads end with the job.
    LEFT.append(lambda: [todo.put(False) for _ in threads])
    return step


# Copies from unpinned memory.


def landing(size: float) -> tuple[torch.Tensor, Callable[[int], None]]:
    """Make a result on the device and its download in each step; the next step waits for the download."""
    result = torch.ones(megabytes(size).shape, device=DEVICE)
    hosts = [megabytes(size, pinned=True) for _ in range(2)]
    marks = [event(), event()]

    def download(at: int) -> None:
        hosts[at % 2].copy_(result, non_blocking=True)
        marks[at % 2].record()
        marks[(at + 1) % 2].synchronize()

    return result, download


def uploading(size: float, pieces: int, repaired: bool, layers: int = 16) -> Step:
    model = Model(layers)
    hosts = [megabytes(size / pieces, pinned=repaired) for _ in range(pieces)]

    def step(_: int) -> None:
        arrived = [host.to(DEVICE, non_blocking=repaired) for host in hosts]
        model(arrived[-1])

    return step


@job("PAGEABLE_COPY")
def pageable_upload(repaired: bool) -> Step:
    return uploading(48, 1, repaired)


@job("PAGEABLE_COPY")
def pageable_uploads_of_many(repaired: bool) -> Step:
    return uploading(48, 12, repaired)


@job("PAGEABLE_COPY", "BLOCKING_COPY")
def pageable_download(repaired: bool) -> Step:
    model, (result, download) = Model(16), landing(48)

    def step(at: int) -> None:
        model()
        download(at) if repaired else result.cpu()

    return step


@job("PAGEABLE_COPY", "BLOCKING_COPY")
def pageable_both_ways(repaired: bool) -> Step:
    model, source, (result, download) = Model(12), megabytes(32, pinned=repaired), landing(24)

    def step(at: int) -> None:
        model(source.to(DEVICE, non_blocking=repaired))
        download(at) if repaired else result.cpu()

    return step


# Copies in the stream of the kernels.


def in_line(size: float, pieces: int, repaired: bool, layers: int = 16) -> Step:
    model, stream = Model(layers), side_stream()
    hosts = [megabytes(size / pieces, pinned=True) for _ in range(pieces)]
    slots = [[like_on_device(host) for host in hosts] for _ in range(2)]
    synchronize()

    def upload(slot: int) -> None:
        for host, target in zip(hosts, slots[slot]):
            target.copy_(host, non_blocking=True)

    def step(at: int) -> None:
        if not repaired:
            upload(0)
            model(slots[0][-1])
            return
        # The previous step fetched batch `at`. Both waits come first, then the next copy, then the model.
        current().wait_stream(stream)
        stream.wait_stream(current())
        with on(stream):
            upload((at + 1) % 2)
        model(slots[at % 2][-1])

    return step


@job("COPY_ON_COMPUTE_STREAM")
def upload_in_line(repaired: bool) -> Step:
    return in_line(128, 1, repaired)


@job("COPY_ON_COMPUTE_STREAM")
def uploads_in_line(repaired: bool) -> Step:
    return in_line(96, 8, repaired)


@job("COPY_ON_COMPUTE_STREAM")
def upload_in_line_as_long_as_the_model(repaired: bool) -> Step:
    return in_line(256, 1, repaired, layers=14)


def downloading_aside(aside: bool, waits: bool) -> Step:
    """Results are downloaded in the stream of the kernels, or on a separate stream, for which the kernels may
    wait.
    """
    model, stream = Model(16), side_stream()
    results = [torch.ones(megabytes(128).shape, device=DEVICE) for _ in range(2)]
    hosts = [megabytes(128, pinned=True) for _ in range(2)]
    marks = [event(), event()]
    synchronize()

    def step(at: int) -> None:
        slot = at % 2
        if aside and not waits:
            # The result of two steps ago must be downloaded before its memory is written again.
            current().wait_event(marks[slot])
        model()
        results[slot][:1].fill_(2.0)
        if not aside:
            hosts[slot].copy_(results[slot], non_blocking=True)
            return
        stream.wait_stream(current())
        with on(stream):
            hosts[slot].copy_(results[slot], non_blocking=True)
            marks[slot].record()
        if waits:
            current().wait_stream(stream)

    return step


@job("COPY_ON_COMPUTE_STREAM")
def download_in_line(repaired: bool) -> Step:
    return downloading_aside(aside=repaired, waits=False)


# Waits between streams in the wrong places.


def misplaced(size: float, repaired: bool, layers: int) -> Step:
    model, stream = Model(layers), side_stream()
    host = megabytes(size, pinned=True)
    slots = [like_on_device(host) for _ in range(2)]
    synchronize()

    def step(at: int) -> None:
        if repaired:
            current().wait_stream(stream)
        stream.wait_stream(current())
        with on(stream):
            slots[(at + 1) % 2].copy_(host, non_blocking=True)
        if not repaired:
            # This wait includes the copy of the next batch, too.
            current().wait_stream(stream)
        model(slots[at % 2])

    return step


@job("STREAM_WAIT")
def waits_behind_the_copy(repaired: bool) -> Step:
    return misplaced(128, repaired, 16)


@job("STREAM_WAIT")
def waits_behind_a_long_copy(repaired: bool) -> Step:
    return misplaced(256, repaired, 14)


@job("STREAM_WAIT")
def waits_for_the_download(repaired: bool) -> Step:
    return downloading_aside(aside=True, waits=not repaired)


# Copies that the host waits for.


def downloading(size: float, wait: Callable[[], None], repaired: bool, layers: int = 16) -> Step:
    model, result = Model(layers), torch.ones(megabytes(size).shape, device=DEVICE)
    hosts = [megabytes(size, pinned=True) for _ in range(2)]
    marks = [event(), event()]

    def step(at: int) -> None:
        # The host prepares its step.
        busy(0.0015)
        model()
        hosts[at % 2].copy_(result, non_blocking=True)
        if not repaired:
            wait()
            return
        marks[at % 2].record()
        marks[(at + 1) % 2].synchronize()

    return step


#: The host's preparation is as much the cause as the wait: together they leave the device idle.
EITHER = ("BLOCKING_COPY", "SYNC_IN_STEP", "HOST_WORK", "HOST_STARVED")


@job(*EITHER)
def download_and_synchronize(repaired: bool) -> Step:
    return downloading(32, synchronize, repaired)


@job(*EITHER)
def download_and_wait_for_the_stream(repaired: bool) -> Step:
    return downloading(16, lambda: current().synchronize(), repaired, layers=10)


@job("BLOCKING_COPY", "SYNC_IN_STEP")
def download_in_pieces(repaired: bool) -> Step:
    model, results = Model(24, 1024), [torch.ones(megabytes(1).shape, device=DEVICE) for _ in range(8)]
    hosts = [[megabytes(1, pinned=True) for _ in results] for _ in range(2)]
    marks = [event(), event()]

    def step(at: int) -> None:
        for piece, (result, host) in enumerate(zip(results, hosts[at % 2])):
            for layer in range(3):
                model.y = model.layer(3 * piece + layer, model.x)
            host.copy_(result, non_blocking=repaired)
        marks[at % 2].record()
        marks[(at + 1) % 2].synchronize()

    return step


# Waits that block the host.


def layers_with(wait: Callable[[torch.Tensor], object], repaired: bool, look: bool = False) -> Step:
    # Layers of about 0.1 ms: the host runs ahead of the device if nothing blocks the host.
    model = Model(32, 1024)

    def step(_: int) -> None:
        x = model.x
        for at in range(32):
            x = model.layer(at, x)
            x = model.layer(at, x)
            seen = (x[0] > 0).all() if look else x
            if not repaired:
                wait(seen)

    return step


@job("SYNC_IN_STEP")
def sync_after_each_layer(repaired: bool) -> Step:
    return layers_with(lambda _: synchronize(), repaired)


@job("SYNC_IN_STEP", "BLOCKING_COPY")
def item_after_each_layer(repaired: bool) -> Step:
    return layers_with(lambda x: x[0, 0].item(), repaired)


@job("SYNC_IN_STEP", "BLOCKING_COPY")
def branch_in_each_layer(repaired: bool) -> Step:
    return layers_with(bool, repaired, look=True)


@job("SYNC_IN_STEP")
def memory_given_back_in_each_step(repaired: bool) -> Step:
    model, count = Model(10), (1 << 26 if IS_CUDA else 64)

    def step(_: int) -> None:
        scratch = torch.empty(count, device=DEVICE)
        model()
        del scratch
        if not repaired and IS_CUDA:
            # cudaFree waits for the device, and the next step allocates again.
            torch.cuda.empty_cache()

    return step


# Launches.


@job("LAUNCH_BOUND")
def small_operators(repaired: bool) -> Step:
    x = torch.ones(4096, device=DEVICE)

    def work() -> None:
        for _ in range(200):
            x.mul_(1.0001).add_(1e-6)

    run = captured(work) if repaired else work
    return lambda _: None if run() is None else None


@job("LAUNCH_BOUND")
def small_transformer(repaired: bool) -> Step:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dropout=0.0, device=DEVICE)
    layers = torch.nn.ModuleList([layer] * 12)
    x = torch.randn(8, 32, 256, device=DEVICE)
    layer.train()

    def work() -> None:
        with torch.no_grad():
            y = x
            for inner in layers:
                y = inner(y)

    run = captured(work) if repaired else work
    return lambda _: None if run() is None else None


@job("LAUNCH_BOUND")
def small_training(repaired: bool) -> Step:
    parts = [part for _ in range(10) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = torch.nn.Sequential(*parts).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
    x = torch.randn(64, 256, device=DEVICE)

    def work() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    run = captured(work) if repaired else work
    return lambda _: None if run() is None else None


# Measuring.


def traced(step: Step, path: Path) -> None:
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if IS_CUDA else [])
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    write = lambda profiler: profiler.export_chrome_trace(str(path))  # noqa: E731
    with profile(activities=activities, schedule=plan, on_trace_ready=write, acc_events=True) as profiler:
        for at in range(STEPS + 2):
            step(at)
            if at == STEPS + 1:
                synchronize()
            profiler.step()


def diagnosed(path: Path) -> dict[str, Any]:
    if ARGS.sidestream is None:
        import sidestream

        return dict(sidestream.diagnose(path).to_dict())
    ran = subprocess.run(
        [ARGS.sidestream, "diagnose", "--json", str(path)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(ran.stdout))


def judged(report: dict[str, Any], codes: set[str], before_ms: float, after_ms: float) -> dict[str, Any]:
    """Judge a report. No other code here reads reports."""
    findings = [finding for finding in report["findings"] if not finding["is_aside"]]
    is_nothing = any(finding["code"] == "NOTHING_TO_GAIN" for finding in findings)
    first = None if is_nothing or not findings else findings[0]
    base_ns = report["replay"].get("unprofiled_ns") or report["steps"]["median_ns"] or 1
    saving = first["saving_ns"] if first else {"low": 0, "likely": 0, "high": 0}
    share = {end: saving[end] / base_ns for end in saving}
    predicted_ms = before_ms * (1 - share["likely"])
    gain = 1 - after_ms / before_ms
    return {
        "said": first["code"] if first else "NOTHING_TO_GAIN",
        "first": bool(first and first["code"] in codes),
        "base_ms": round(base_ns / 1e6, 3),
        "predicted_ms": round(predicted_ms, 3),
        "off": round(predicted_ms / after_ms - 1, 3),
        "near": abs(predicted_ms / after_ms - 1) <= OFF,
        "gain": round(gain, 3),
        "promised": round(share["likely"], 3),
        "holds": share["low"] <= gain <= share["high"],
        "all": [finding["code"] for finding in findings],
    }


def run(name: str, folder: Path) -> dict[str, Any]:
    codes, make = JOBS[name]
    begun = time.perf_counter()
    timed = (WARM_UP, 0, STEPS, WINDOWS)
    # Processes run one after another, so that their threads and memory disturb each other as little as
    # possible.
    after_ms = MACHINE.timed_ms(make(True), *timed)
    step = make(False)
    before_ms = MACHINE.timed_ms(step, *timed)
    row: dict[str, Any] = {"job": name, "before_ms": round(before_ms, 3), "after_ms": round(after_ms, 3)}
    path = folder / f"{name}.json"
    traced(step, path)
    if IS_CUDA:
        row.update(judged(diagnosed(path), codes, before_ms, after_ms))
    while LEFT:
        LEFT.pop()()
    row["seconds"] = round(time.perf_counter() - begun, 1)
    return row


def main() -> int:
    unknown = set(ARGS.jobs) - set(JOBS)
    if unknown:
        parser.error(f"there is no job {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
    if IS_CUDA and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA here; --device cpu tries the code without diagnosis")
    # One thread, as in each worker, so that the host's work takes about as long on any machine.
    torch.set_num_threads(1)
    begun, rows, left = time.perf_counter(), [], []
    name = torch.cuda.get_device_name() if IS_CUDA else "no GPU"
    print(f"{len(JOBS)} jobs, torch {torch.__version__}, {name}")
    print(f"{'job':<36} {'before':>8} {'after':>8} {'base':>8} {'predicted':>9} {'off':>7}  said")
    with contextlib.ExitStack() as stack:
        folder = Path(ARGS.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="truth-")))
        folder.mkdir(parents=True, exist_ok=True)
        for name in ARGS.jobs or JOBS:
            if time.perf_counter() - begun > ARGS.limit:
                left.append(name)
                continue
            try:
                row = run(name, folder)
            except Exception:
                traceback.print_exc()
                row = {"job": name, "failed": True}
            rows.append(row)
            if "said" in row:
                marks = ("" if row["first"] else ", WRONG") + (
                    "" if row["holds"] else ", outside of the range"
                )
                print(
                    f"{name:<36} {row['before_ms']:>8.3f} {row['after_ms']:>8.3f} {row['base_ms']:>8.3f} "
                    f"{row['predicted_ms']:>9.3f} {100 * row['off']:>+6.1f}%  {row['said']}{marks}",
                    flush=True,
                )
            elif "failed" not in row:
                print(f"{name:<36} {row['before_ms']:>8.3f} {row['after_ms']:>8.3f}", flush=True)
    if ARGS.json:
        Path(ARGS.json).write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = [row for row in rows if "said" in row]
    failed = [row["job"] for row in rows if "failed" in row]
    if said:
        count = {key: sum(row[key] for row in said) for key in ("first", "near", "holds")}
        print(
            f"of {len(said)}: cause first {count['first']}, step within {OFF:.0%} {count['near']}, "
            f"range holds the gain {count['holds']}"
        )
    if failed:
        print(f"failed: {', '.join(failed)}")
    if left:
        print(f"left out after {ARGS.limit:.0f} s: {', '.join(left)}")
    print(f"{time.perf_counter() - begun:.0f} s in all")
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
