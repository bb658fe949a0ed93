"""The speed of `Batcher` on one GPU: an 8-layer perceptron of width 512, one row per request.

    python crates/sidestream-py/benches/requests_gpu.py [--quick] [PART …]

Parts: alone, closed, threads, opened, start, memory, overload, right, urgent. One JSON object per line.
The latency of the open loop counts from the scheduled arrival of a request, not from when it was sent.
docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import parts
import torch
from planted import models

import sidestream
from sidestream import Batcher, RequestRefused

QUICK = "--quick" in sys.argv
WIDTH, LAYERS = 512, 8
SIZES = tuple(1 << power for power in range(10))
PARTS: dict[str, Callable[[], dict[str, Any]]] = {}


def part(run: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    PARTS[run.__name__] = run
    return run


def perceptron() -> torch.nn.Module:
    torch.manual_seed(0)
    return models.perceptron(LAYERS, WIDTH).eval().requires_grad_(False).to("cuda")


def rows(count: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return list(torch.randn(count, WIDTH).unbind(0))


def percentiles(latencies: list[float]) -> dict[str, float]:
    latencies.sort()
    return {
        f"p{share:g}_ms": latencies[min(len(latencies) - 1, int(share / 100 * len(latencies)))] * 1e3
        for share in (50, 95, 99, 99.9)
    }


def seconds() -> float:
    return 0.2 if QUICK else 3.0


def warm(batcher: Batcher) -> None:
    """Run requests until each size that is used has its graphs."""
    row = rows(1)[0]
    for size in SIZES:
        for _ in range(4):
            for answer in [batcher.submit(row) for _ in range(size)]:
                answer.result()
    until = time.perf_counter() + (0.1 if QUICK else 3.0)
    while time.perf_counter() < until:
        for answer in [batcher.submit(row) for _ in range(64)]:
            answer.result()


async def closed_loop(batcher: Batcher, callers: int, lasting: float) -> float:
    """Requests per second; each caller waits for its answer before its next request."""
    row = rows(callers)
    ends = time.perf_counter() + lasting
    done = 0

    async def caller(x: torch.Tensor) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await batcher.submit(x)
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(caller(x) for x in row))
    return done / (time.perf_counter() - start)


async def open_loop(
    batcher: Batcher, rate: float, lasting: float, deadline: float | None = None, by_task: bool = False
) -> dict[str, Any]:
    """Poisson arrivals. The time of an answer is when its callback is called, or when a task that waits for
    the answer resumes.
    """
    drawn = random.Random(7)
    row = rows(64)
    latencies: list[float] = []
    refused = expired = ended = 0

    def over(meant: float, answer: sidestream.Answer) -> None:
        nonlocal expired, ended
        now = time.perf_counter()
        ended += 1
        try:
            answer.result()
            latencies.append(now - meant)
        except TimeoutError:
            expired += 1

    async def awaited(meant: float, answer: sidestream.Answer) -> None:
        with contextlib.suppress(TimeoutError):
            await answer
        over(meant, answer)

    tasks: set[Any] = set()
    # All arrivals are drawn in advance, so that the batcher is measured, not the generator.
    arrivals: list[float] = []
    at = 0.0
    while at < lasting:
        arrivals.append(at)
        at += drawn.expovariate(rate)
    count = 0
    start = time.perf_counter()
    while count < len(arrivals):
        now = time.perf_counter()
        # The requests that are due by now, but at most as many per turn of the loop as a server finds in its
        # sockets: other tasks need turns, too.
        for meant in arrivals[count : count + 64]:
            if start + meant > now:
                break
            count += 1
            # A deadline counts from the scheduled arrival, as the latency does: a server knows when a request
            # reached it.
            left = None if deadline is None else start + meant + deadline - now
            try:
                answer = batcher.submit(row[count % 64], deadline=left)
            except RequestRefused:
                refused += 1
            else:
                if by_task:
                    task = asyncio.ensure_future(awaited(start + meant, answer))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    # A callback, since a task for each request would cost more than the request.
                    answer.add_done_callback(functools.partial(over, start + meant))
        ahead = start + arrivals[count] - time.perf_counter() if count < len(arrivals) else 0.0
        await asyncio.sleep(0 if ahead < 0.001 else ahead - 0.0005)
    while ended + refused < count:
        await asyncio.sleep(0.001)
    took = time.perf_counter() - start
    inside = sum(latency <= (deadline or 1e9) for latency in latencies)
    return {
        "rate": rate,
        "requests": count,
        "goodput": inside / took,
        "late": len(latencies) - inside,
        "refused": refused,
        "expired": expired,
    } | (percentiles(latencies) if latencies else {})


@part
def alone() -> dict[str, Any]:
    """Plain PyTorch: one request after another, and spread over 16 streams."""
    model = perceptron()
    requests = [x.pin_memory() for x in rows(64)]
    result = {}
    with torch.inference_mode():
        for name, pool in (
            ("one_by_one", [torch.cuda.current_stream()]),
            ("over_16_streams", [torch.cuda.Stream() for _ in range(16)]),
        ):
            count, ends = 0, time.perf_counter() + seconds()
            start = time.perf_counter()
            while time.perf_counter() < ends:
                outs = []
                for at, x in enumerate(requests):
                    with torch.cuda.stream(pool[at % len(pool)]):
                        outs.append(
                            model(x.to("cuda", non_blocking=True).unsqueeze(0)).to("cpu", non_blocking=True)
                        )
                torch.cuda.synchronize()
                count += len(outs)
            result[f"{name}_per_s"] = count / (time.perf_counter() - start)
    return result


@part
def closed() -> dict[str, Any]:
    """An event loop with a fixed number of outstanding requests."""
    result: dict[str, Any] = {}
    with Batcher(perceptron(), SIZES, 0.0005, slots=3) as batcher:
        warm(batcher)
        for callers in (64, 256, 1024):
            result[f"asyncio_{callers}_per_s"] = asyncio.run(closed_loop(batcher, callers, seconds()))
        result["mean_batch"] = batcher.statistics.mean_batch
        result["not_captured"] = batcher.not_captured
    return result


@part
def threads() -> dict[str, Any]:
    """64 threads; each waits for its answer before its next request."""
    with Batcher(perceptron(), SIZES, 0.0001, slots=3) as batcher:
        warm(batcher)
        ends = time.perf_counter() + seconds()
        counts = [0] * 64

        def caller(at: int, x: torch.Tensor) -> None:
            while time.perf_counter() < ends:
                batcher.submit(x).result()
                counts[at] += 1

        callers = [threading.Thread(target=caller, args=each) for each in enumerate(rows(64))]
        start = time.perf_counter()
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        return {
            "threads_64_per_s": sum(counts) / (time.perf_counter() - start),
            "mean_batch": batcher.statistics.mean_batch,
        }


@part
def opened() -> dict[str, Any]:
    """Half of the closed loop's rate, with random arrivals."""
    with Batcher(perceptron(), SIZES, 0.0005, slots=3) as batcher:
        warm(batcher)
        most = asyncio.run(closed_loop(batcher, 256, seconds()))
        result: dict[str, Any] = {"closed_per_s": most}
        for rate in (15_000.0, 30_000.0, most / 2):
            result[f"at {rate:.0f} per_s"] = asyncio.run(open_loop(batcher, rate, 2 * seconds()))
        return result


@part
def start() -> dict[str, Any]:
    """A cold start: the first answer, then traffic until all sizes have their graphs."""
    model = perceptron()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    with Batcher(model, SIZES, 0.0005, slots=3) as batcher:
        batcher.submit(rows(1)[0]).result()
        first = time.perf_counter() - begun
        reserved = torch.cuda.memory_reserved()
        draw = random.Random(3)
        many = rows(SIZES[-1])
        latencies = []
        captured = None
        while time.perf_counter() - begun < (1 if QUICK else 10):
            asked = time.perf_counter()
            for answer in [batcher.submit(x) for x in many[: draw.choice(SIZES)]]:
                answer.result()
            latencies.append(time.perf_counter() - asked)
            slots = [slot for each in batcher._classes for slot in each.slots]
            if captured is None and all(len(slot.graphs) == len(SIZES) for slot in slots):
                captured = time.perf_counter() - begun
        more = torch.cuda.memory_reserved() - reserved
        return {
            "first_s": first,
            "all_captured_s": captured,
            "memory_of_graphs_mb": more / 1e6,
        } | percentiles(latencies)


@part
def memory() -> dict[str, Any]:
    """The graph memory of all sizes in a slot, compared with that of the largest size alone."""
    wide = 256 if QUICK else 4096
    model = (
        torch.nn.Sequential(*(torch.nn.Linear(wide, wide) for _ in range(4)))
        .eval()
        .requires_grad_(False)
        .to("cuda")
    )
    row = torch.zeros(wide)

    def held(sizes: tuple[int, ...]) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        with Batcher(model, sizes, 0.0, slots=1) as batcher:
            until = time.perf_counter() + 10
            while time.perf_counter() < until:
                for size in sizes:
                    for answer in [batcher.submit(row) for _ in range(size)]:
                        answer.result()
                if all(len(slot.graphs) == len(sizes) for each in batcher._classes for slot in each.slots):
                    break
            # The memory of batches without a graph belongs to PyTorch's cache.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.memory_reserved() - before

    alone, together = held(SIZES[-1:]), held(SIZES)
    return {
        "largest_mb": alone / 1e6,
        "all_sizes_mb": together / 1e6,
        "ratio": together / max(1, alone),
        "ok": QUICK or together <= 1.2 * alone,
    }


@part
def overload() -> dict[str, Any]:
    """Three times as many requests as the batcher can serve, with a deadline of 20 ms."""
    with Batcher(perceptron(), SIZES, 0.0005, slots=3, max_queue=2048) as batcher:
        warm(batcher)
        most = asyncio.run(closed_loop(batcher, 256, seconds()))
        before = torch.cuda.memory_reserved()
        said = asyncio.run(open_loop(batcher, 3 * most, 3 * seconds(), deadline=0.02))
        counts = batcher.statistics
        kept = 1 - (said["late"] + said["expired"]) / max(1, said["requests"] - said["refused"])
        more = torch.cuda.memory_reserved() - before
        ok = QUICK or (kept >= 0.99 and more == 0)
        return {
            "closed_per_s": most,
            "more_memory_bytes": more,
            "waiting": counts.waiting,
            "in_flight": counts.in_flight,
            "kept": kept,
            "ok": ok,
        } | said


@part
def right() -> dict[str, Any]:
    """Batches of mixed sizes in three slots; each answer is compared with that of the request alone."""
    weights = torch.randn(WIDTH, WIDTH, device="cuda").round()
    draw = random.Random(11)
    wrong = count = 0
    with Batcher(lambda x: (x @ weights).relu() @ weights, SIZES, 0.0, slots=3) as batcher:
        many = torch.randint(-2, 3, (SIZES[-1], WIDTH)).float()
        expected = ((many.cuda() @ weights).relu() @ weights).cpu()
        each = list(many.unbind(0))
        batches = 200 if QUICK else 100_000
        # As many groups in flight as keep all slots busy. Small groups are drawn more often, so that there
        # are many batches.
        waiting: deque[list[tuple[int, sidestream.Answer]]] = deque()
        while sum(batcher.statistics.batches.values()) < batches or waiting:
            if len(waiting) < 6 and sum(batcher.statistics.batches.values()) < batches:
                (size,) = draw.choices(SIZES[:8], [1 / size for size in SIZES[:8]])
                waiting.append(
                    [(at, batcher.submit(each[at])) for at in draw.choices(range(len(each)), k=size)]
                )
                continue
            for at, answer in waiting.popleft():
                wrong += not torch.equal(answer.result(), expected[at])
                count += 1
        return {
            "answers": count,
            "batches": sum(batcher.statistics.batches.values()),
            "wrong": wrong,
            "ok": wrong == 0,
        }


@part
def urgent() -> dict[str, Any]:
    """One urgent request at a time, alone and together with background batches that fill the GPU."""
    side = 4096
    weights = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(8):
            y = y @ weights
        return y

    result = {}
    with Batcher(
        model, (1, 4096), 0.0, slots=2, max_queue=1 << 16, classes={"urgent": -5, "background": 0}
    ) as batcher:
        row = torch.randn(side, dtype=torch.bfloat16)
        batcher.submit(row, of="urgent").result()
        for load in (False, True):
            ends = time.perf_counter() + seconds()
            waiting: list[Any] = []
            latencies = []
            while time.perf_counter() < ends:
                if load and len(waiting) < 3 * 4096:
                    waiting += [batcher.submit(row, of="background") for _ in range(4096)]
                    waiting = [answer for answer in waiting if not answer.done()]
                asked = time.perf_counter()
                batcher.submit(row, of="urgent").result()
                latencies.append(time.perf_counter() - asked)
            result["beside background" if load else "alone"] = percentiles(latencies)
            for answer in waiting:
                answer.result()
        result["background_batch_ms"] = statistics.median([1e3 * batcher.statistics.compute.quantile_s(0.99)])
    return result


if __name__ == "__main__":
    sys.exit(parts.run(PARTS, [name for name in sys.argv[1:] if not name.startswith("--")]))
