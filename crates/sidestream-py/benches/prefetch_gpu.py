"""The speed of `prefetch` on one GPU, and whether it ever corrupts a batch.

    python crates/sidestream-py/benches/prefetch_gpu.py [--quick] [PART ...]

Parts: pinned, unpinned, small, epochs, ten_loops, stress, memory. One JSON object per line; times are
medians of rounds in which the compared variants take turns. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import parts
import ten_loops as loops_of_ten
import torch
from parts import say
from planted.models import perceptron, trained
from timing import medians, seconds

import sidestream

QUICK = "--quick" in sys.argv
#: Without a GPU, `epochs` and `ten_loops` are dry runs: on the CPU, with little work.
DRY = not torch.cuda.is_available()
GPU = torch.device("cpu" if DRY else "cuda:0")
BATCH_BYTES = 38 << 20


class Compute:
    """Work that reads a batch and takes about this many seconds on the device."""

    def __init__(self, lasts: float) -> None:
        side = 2048
        self.left = torch.randn(side, side, device=GPU, dtype=torch.bfloat16)
        self.right = torch.randn(side, side, device=GPU, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.left)
        self.first = torch.zeros((), device=GPU)
        one = self._one()
        self.times = max(1, round(lasts / one))
        self.lasts = self.times * one

    def _one(self) -> float:
        def many() -> None:
            for _ in range(500):
                torch.mm(self.left, self.right, out=self.out)

        many()
        return statistics.median(seconds(many) for _ in range(5)) / 500

    def __call__(self, batch: torch.Tensor) -> None:
        self.first.add_(batch.view(-1)[:1].float().sum())
        for _ in range(self.times):
            torch.mm(self.left, self.right, out=self.out)


def copy_seconds() -> float:
    """Measure one upload of a batch from pinned memory, with events on the device."""
    host = torch.empty(BATCH_BYTES, dtype=torch.uint8).pin_memory()
    device = torch.empty(BATCH_BYTES, dtype=torch.uint8, device=GPU)
    took = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        device.copy_(host, non_blocking=True)
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(took)


def against_compute(part: str, batches: list[Any], by_hand: Callable[[Any], torch.Tensor]) -> None:
    """Time a loop over big batches whose copy takes half as long as the computation."""
    copy = copy_seconds()
    compute = Compute(2 * copy)
    count = 100 if QUICK else 400
    resident = torch.zeros(BATCH_BYTES, dtype=torch.uint8, device=GPU)
    prefetched = sidestream.prefetch([batches[at % len(batches)] for at in range(count)], GPU)
    deeper = sidestream.prefetch([batches[at % len(batches)] for at in range(count)], GPU, depth=3)

    def alone() -> None:
        for _ in range(count):
            compute(resident)

    def ours() -> None:
        for batch in prefetched:
            compute(batch)

    def ours_deeper() -> None:
        for batch in deeper:
            compute(batch)

    def to() -> None:
        for at in range(count):
            compute(by_hand(batches[at % len(batches)]))

    jobs = {"alone": alone, "prefetch": ours, "prefetch_depth_3": ours_deeper, "to": to}
    took = medians(jobs, 3 if QUICK else 5)
    say(
        part,
        copy_ms=round(copy * 1e3, 4),
        compute_ms=round(compute.lasts * 1e3, 4),
        ms_a_batch={name: round(t / count * 1e3, 4) for name, t in took.items()},
        of_compute_alone={name: round(took["alone"] / t, 4) for name, t in took.items()},
    )


def pinned() -> None:
    batches = [torch.randint(0, 256, (BATCH_BYTES,), dtype=torch.uint8).pin_memory() for _ in range(8)]
    against_compute("pinned", batches, lambda batch: batch.to(GPU, non_blocking=True))


def unpinned() -> None:
    generator = numpy.random.default_rng(0)
    batches = [generator.integers(0, 256, BATCH_BYTES, dtype=numpy.uint8) for _ in range(8)]
    against_compute("unpinned", batches, lambda batch: torch.from_numpy(batch).to(GPU))


def small() -> None:
    """500 tensors of 16 KB per batch."""
    batches = [[torch.randn(4096) for _ in range(500)] for _ in range(4)]
    pinned_batches = [[tensor.pin_memory() for tensor in batch] for batch in batches]
    count = 50 if QUICK else 200
    items = [batches[at % 4] for at in range(count)]
    prefetched = sidestream.prefetch(items, GPU)
    named = sidestream.prefetch([{f"f{at}": t for at, t in enumerate(batch)} for batch in items], GPU)

    def ours() -> None:
        for _ in prefetched:
            pass

    def ours_named() -> None:
        for _ in named:
            pass

    def to() -> None:
        for batch in items:
            [tensor.to(GPU) for tensor in batch]

    def to_pinned() -> None:
        for at in range(count):
            [tensor.to(GPU, non_blocking=True) for tensor in pinned_batches[at % 4]]

    took = medians({"prefetch": ours, "prefetch_dict": ours_named, "to": to, "to_pinned": to_pinned}, 5)
    say(
        "small",
        ms_a_batch={name: round(t / count * 1e3, 4) for name, t in took.items()},
        times_as_fast_as_to=round(took["to"] / took["prefetch"], 2),
        times_as_fast_as_pinned_to=round(took["to_pinned"] / took["prefetch"], 2),
    )


# ---------------------------------------------------------------- a prefetcher for each epoch, and loops of
# all kinds


def epochs() -> None:
    """Time a new prefetcher for each epoch, compared with one prefetcher that is kept: 40 batches of 33.6 MB.
    Also measure its memory.
    """
    count, side = (4, 64) if DRY else (40, 4096)
    labels = torch.randint(0, 10, (side // 2,), device=GPU)
    model = perceptron(1, side, 10).to(GPU)
    train = trained(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.nn.CrossEntropyLoss())
    there = torch.randn(side // 2, side, device=GPU)
    cached_bytes = getattr(sidestream._sidestream, "cached_bytes", lambda: None)

    def alone() -> None:
        for _ in range(count):
            train(there, labels)

    def of(batches: Any) -> None:
        for x in batches:
            train(x, labels)

    def left_early() -> None:
        for at, x in enumerate(sidestream.prefetch(data, GPU)):
            train(x, labels)
            if at == count // 2:
                break

    for is_pinned in (False, True):
        data = [torch.randn(side // 2, side) for _ in range(count)]
        if is_pinned:
            data = [loops_of_ten.pinned(x) for x in data]
        transform = {"transform": lambda x: x.mul(2)}
        kept, transforming = sidestream.prefetch(data, GPU), sidestream.prefetch(data, GPU, **transform)
        jobs: dict[str, Callable[[], None]] = {
            "alone": alone,
            "kept": lambda: of(kept),
            "new": lambda: of(sidestream.prefetch(data, GPU)),
            "kept_transform": lambda: of(transforming),
            "new_transform": lambda: of(sidestream.prefetch(data, GPU, **transform)),
            "left_early": left_early,
            "new_after_left_early": lambda: of(sidestream.prefetch(data, GPU)),
        }
        took = medians(jobs, 3 if QUICK or DRY else 9)
        say(
            "epochs",
            memory="pinned" if is_pinned else "pageable",
            ms_a_step={name: round(t / count * 1e3, 3) for name, t in took.items() if name != "left_early"},
            new_costs_ms_an_epoch={
                f"new{kind}": round((took[f"new{kind}"] - took[f"kept{kind}"]) * 1e3, 2)
                for kind in ("", "_transform")
            },
            goal_ms=2,
            cached_bytes=cached_bytes(),
        )
        kept.close()
        transforming.close()


def ten_loops() -> None:
    """Time ten loops, in turns: with `.to()`, with `non_blocking` from pinned memory, and with `prefetch`
    from pageable and from pinned memory. Each epoch has a new prefetcher.
    """
    rounds = 2 if DRY else 4 if QUICK else 12
    worst = 0.0
    for loop in loops_of_ten.loops(GPU, 64 if DRY else 1):

        def by_hand(is_pinned: bool, count: int, loop: Any = loop) -> None:
            for batch in loop.loader(is_pinned, count):
                loop.step(loops_of_ten.with_tensors(batch, lambda leaf: leaf.to(GPU, non_blocking=is_pinned)))

        def ahead(is_pinned: bool, count: int, loop: Any = loop) -> None:
            for batch in sidestream.prefetch(loop.loader(is_pinned, count), GPU):
                loop.step(batch)

        by_hand(True, 5)
        one = seconds(lambda: by_hand(True, 10)) / 10
        count = max(20, min(300, round(0.1 / one)))
        forms: dict[str, Callable[[], None]] = {
            "to": lambda: by_hand(False, count),
            "prefetch": lambda: ahead(False, count),
            "non_blocking": lambda: by_hand(True, count),
            "prefetch_pinned": lambda: ahead(True, count),
        }
        took = {name: t / count * 1e3 for name, t in medians(forms, rounds).items()}
        best = min(took["to"], took["non_blocking"])
        ratios = {name: round(took[name] / best, 3) for name in ("prefetch", "prefetch_pinned")}
        worst = max(worst, min(ratios.values()))
        say(
            "ten_loops",
            loop=loop.name,
            host_bound=loop.host_bound,
            steps=count,
            ms_a_step={name: round(t, 3) for name, t in took.items()},
            of_the_better=ratios,
            goal=1.02,
        )
    say("ten_loops", worst_of_the_better=worst, goal=1.02)


# ---------------------------------------------------------------- stress


class Numbered:
    """Batches in which every element is the batch's number. Their memory is refilled for each batch, as a
    loader does.
    """

    def __init__(self, count: int, elements: int, pinned: bool) -> None:
        self.count = count
        self.elements = elements
        self.buffer = torch.empty(elements, dtype=torch.int32)
        if pinned:
            self.buffer = self.buffer.pin_memory()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for number in range(self.count):
            self.buffer.fill_(number)
            yield self.buffer, number


class Naive:
    """A prefetcher as it is often written: two buffers on each side, a side stream, and no wait for the
    consumer.
    """

    def __init__(self, loader: Numbered) -> None:
        self.loader = loader
        self.stream = torch.cuda.Stream()
        self.device = [torch.empty(loader.elements, dtype=torch.int32, device=GPU) for _ in range(2)]
        self.host = [torch.empty(loader.elements, dtype=torch.int32).pin_memory() for _ in range(2)]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        ready: tuple[torch.Tensor, int] | None = None
        for at, (batch, number) in enumerate(self.loader):
            self.host[at % 2].copy_(batch)
            with torch.cuda.stream(self.stream):
                self.device[at % 2].copy_(self.host[at % 2], non_blocking=True)
            if ready is not None:
                yield ready
            torch.cuda.current_stream().wait_stream(self.stream)
            ready = self.device[at % 2], number
        if ready is not None:
            yield ready


class Consumer:
    """Uses batches in the ways that break prefetchers, and counts wrong elements on the device."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.wrong = torch.zeros((), dtype=torch.int64, device=GPU)
        self.third = torch.cuda.Stream()
        self.wrong_third = torch.zeros((), dtype=torch.int64, device=GPU)
        self.kept: list[tuple[torch.Tensor, int]] = []
        self.batches = 0

    def look(self, batch: torch.Tensor, number: int) -> None:
        self.wrong.add_((batch != number).sum())

    def use(self, batch: torch.Tensor, number: int) -> None:
        self.batches += 1
        way = self.random.randrange(8)
        if way < 3:
            # Delays the device: the batch is read long after it was released.
            torch.cuda._sleep(self.random.choice([20_000, 200_000]))
            self.look(batch, number)
        elif way == 3:
            self.kept.append((batch, number))
            if len(self.kept) > self.random.randrange(1, 6):
                for kept in self.kept:
                    self.look(*kept)
                self.kept.clear()
        elif way == 4:
            # A view of the batch is used on a third stream, for which it is recorded, and released at once.
            part = batch[batch.numel() // 2 :]
            self.third.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.third):
                torch.cuda._sleep(100_000)
                self.wrong_third.add_((part != number).sum())
            part.record_stream(self.third)
        elif way == 5:
            # Keeps a view longer than the tensor from which it was made.
            self.kept.append((batch[1:], number))
        elif way == 6:
            pass
        else:
            self.look(batch, number)

    def end(self) -> int:
        for kept in self.kept:
            self.look(*kept)
        self.kept.clear()
        torch.cuda.synchronize()
        return int(self.wrong) + int(self.wrong_third)


def stress() -> None:
    seed = random.randrange(1 << 30)
    say("stress", seed=seed)
    elements = 64 << 10 >> 2
    naive = Consumer(seed)
    for batch, number in Naive(Numbered(2000, elements, False)):
        naive.use(batch, number)
    wrong = naive.end()
    say("stress", what="naive", batches=naive.batches, wrong_elements=wrong, corrupts=wrong > 0)

    total = 5_000 if QUICK else 100_000
    # Depth and kind of memory of each run, and the way in which it keeps batches.
    runs = [(2, False, "grow"), (2, True, "grow"), (3, False, "copy"), (4, True, "copy"), (1, False, "grow")]
    for depth, is_pinned, keep in runs:
        consumer = Consumer(seed)
        loader = Numbered(5_000, elements, is_pinned)
        prefetched = sidestream.prefetch(loader, GPU, depth=depth, keep=keep)
        begin = time.perf_counter()
        while consumer.batches < total // len(runs):
            # Some epochs are left early.
            leave = consumer.random.choice([None, None, 3, 777])
            for at, (batch, number) in enumerate(prefetched):
                consumer.use(batch, number)
                if at == leave or consumer.batches >= total // len(runs):
                    break
        wrong = consumer.end()
        say(
            "stress",
            what="ours",
            depth=depth,
            pinned=is_pinned,
            keep=keep,
            batches=consumer.batches,
            wrong_elements=wrong,
            seconds=round(time.perf_counter() - begin, 2),
        )


def taken() -> int:
    """Return the bytes of device memory that are in use, by all processes."""
    free, total = torch.cuda.mem_get_info(GPU)
    return total - free


def ring(depth: int) -> None:
    """Measure the device memory of a ring. This runs in a separate process, since freed memory is kept for
    the next ring.
    """
    batch = torch.zeros(BATCH_BYTES, dtype=torch.uint8)
    compute = Compute(0.001)
    before = taken()
    prefetched = sidestream.prefetch([batch] * 100, GPU, depth=depth)
    most = 0
    for tensor in prefetched:
        compute(tensor)
        most = max(most, taken() - before)
    del tensor
    say("memory", depth=depth, slots=round(most / BATCH_BYTES, 2), statistics=prefetched.statistics.to_dict())
    prefetched.close()
    sidestream.empty_cache()
    del prefetched
    torch.cuda.synchronize()
    say("memory", depth=depth, left_mib_when_closed=(taken() - before) >> 20)


def memory() -> None:
    """Measure the ring's device memory, and the memory that stays on side streams over epochs with a
    transform.
    """
    for depth in (2, 3, 4):
        subprocess.run([sys.executable, __file__, f"--ring={depth}"], check=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = taken()
    batch = torch.zeros(4 << 20, dtype=torch.uint8)
    prefetched = sidestream.prefetch([batch] * 20, GPU, transform=lambda one: one.float() / 255)
    after_epoch = []
    for epoch in range(5 if QUICK else 50):
        for tensor in prefetched:
            (tensor * 2).sum()
        if epoch in (0, 4, 49):
            figures = {"epochs": epoch + 1, "taken_mib": (taken() - before) >> 20}
            after_epoch.append(figures | {"reserved_mib": torch.cuda.memory_reserved() >> 20})
    say("memory", what="with a transform", after=after_epoch)


if __name__ == "__main__":
    rings = [int(word.removeprefix("--ring=")) for word in sys.argv[1:] if word.startswith("--ring=")]
    if rings:
        ring(*rings)
        sys.exit()
    all_parts = (pinned, unpinned, small, epochs, ten_loops, stress, memory)
    sys.exit(
        parts.run(
            {part.__name__: part for part in all_parts},
            [word for word in sys.argv[1:] if not word.startswith("--")],
        )
    )
