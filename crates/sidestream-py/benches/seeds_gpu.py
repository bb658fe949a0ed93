"""The experiments of five texts that teach CUDA streams, in our own variants, on one GPU: each line has our
measurement and, if the text states one, its own figure. Takes at most eight minutes.

    python crates/sidestream-py/benches/seeds_gpu.py [PART ...]
    python crates/sidestream-py/benches/seeds_gpu.py --tiny    # on a simulated GPU: times have no meaning

Parts: loader, overlap, pair, augmentation, serving, profile. docs/developers/seeds.md says what the texts
are. Variants of a job take turns; a figure is their median. With `--tiny` everything runs under the
check, and a race is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import augment_gpu
import augmentation as pictures
import encoder_decoder as pair_of
import torch
from torch.nn import functional
from torch.profiler import record_function

import sidestream

TINY = "--tiny" in sys.argv
# A simulated GPU is also named "cuda"; it exists only while the parts run.
DEVICE = pair_of.DEVICE = "cuda"
#: Number of steps in a turn, and number of turns.
SIZE = pair_of.Size(quick=True)
SIZE.items, SIZE.rounds = (2, 1) if TINY else (20, 5)

Run = Callable[[int], None]


def line(what: str, measured: float | str, unit: str = "", text: str = "") -> None:
    """Print our figure, and next to it the text's."""
    shown = measured if isinstance(measured, str) else f"{measured:,.2f}"
    print(f"  {what:58}{shown:>12} {unit:12}{text and f'text: {text}'}".rstrip(), flush=True)


def rates(variants: dict[str, Run], texts: dict[str, str] | None = None) -> dict[str, float]:
    """Return the steps per second of variants that take turns."""
    found = pair_of.in_turns(variants, SIZE)
    for name, rate in found.items():
        line(name, rate, "steps/s", (texts or {}).get(name, ""))
    return found


def gain(what: str, found: dict[str, float], better: str, base: str, text: str = "") -> None:
    line(what, f"{100 * (found[better] / found[base] - 1):+.1f} %", text=text)


def moved(batch: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(part.to(DEVICE, non_blocking=True) for part in batch)


def two_streams(first: Callable[[Any], Any], second: Callable[[Any], object], items: Any) -> Run:
    """The usual hand-written code, with its waits: one stream runs the first stage of the next item while
    another runs the second stage of this item.
    """
    ahead, behind = torch.cuda.Stream(), torch.cuda.Stream()

    def run(steps: int) -> None:
        current, ready = torch.cuda.current_stream(), None
        for stream in (ahead, behind):
            stream.wait_stream(current)
        for item in [*items(steps), None]:
            if ready is not None:
                with torch.cuda.stream(behind):
                    behind.wait_stream(ahead)
                    for part in ready:
                        part.record_stream(behind)
                    second(ready)
            if item is not None:
                with torch.cuda.stream(ahead):
                    ready = first(moved(item))
        current.wait_stream(behind)

    return run


def network(width: int, layers: int) -> torch.nn.Module:
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts, torch.nn.Linear(width, 10)).to(DEVICE)


def step_of(model: torch.nn.Module) -> Callable[[Any], torch.Tensor]:
    """Make a training step, which takes inputs and labels."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def alone(work: Callable[[Any], object], batch: Any) -> Run:
    def run(steps: int) -> None:
        for _ in range(steps):
            work(batch)

    return run


def again(batches: list[Any]) -> Callable[[int], Iterator[Any]]:
    return lambda steps: (batches[at % len(batches)] for at in range(steps))


# Texts 0 to 3: a loop that uploads its batches, as in docs/guide/tutorial.md.


def loader() -> None:
    rows, width, layers = (4, 16, 2) if TINY else (4096, 4096, 4)
    torch.backends.cuda.matmul.allow_tf32 = True
    train = step_of(network(width, layers))
    pageable = [(torch.randn(rows, width), torch.randint(0, 10, (rows,))) for _ in range(4)]
    pinned = [tuple(part.pin_memory() for part in batch) for batch in pageable]
    there = moved(pinned[0])

    def plain(batches: list[Any], read: Callable[[torch.Tensor], object], **how: bool) -> Run:
        def run(steps: int) -> None:
            for x, y in again(batches)(steps):
                read(train((x.to(DEVICE, **how), y.to(DEVICE, **how))))

        return run

    def prefetched(batches: list[Any], read: Callable[[torch.Tensor], object]) -> Run:
        def run(steps: int) -> None:
            for batch in sidestream.prefetch(again(batches)(steps), DEVICE):
                read(train(batch))

        return run

    def mean(batches: list[Any]) -> Run:
        def run(steps: int) -> None:
            losses = sidestream.RunningMean()
            prefetched(batches, losses.update)(steps)
            losses.result()

        return run

    found = rates(
        {
            "pageable, .to() and .item()": plain(pageable, torch.Tensor.item),
            "pageable, .to()": plain(pageable, torch.Tensor.detach),
            "pinned, .to()": plain(pinned, torch.Tensor.detach),
            "pinned, non_blocking": plain(pinned, torch.Tensor.detach, non_blocking=True),
            "pinned, prefetched by hand": two_streams(tuple, train, again(pinned)),
            "pinned, prefetch": prefetched(pinned, torch.Tensor.detach),
            "pageable, prefetch and .item()": prefetched(pageable, torch.Tensor.item),
            "pageable, prefetch": prefetched(pageable, torch.Tensor.detach),
            "pageable, prefetch and RunningMean": mean(pageable),
            "no uploads": alone(train, there),
        }
    )
    for memory in ("pinned", "pageable"):
        less = 100 * (1 - found[f"{memory}, .to()"] / found[f"{memory}, prefetch"])
        line(f"prefetch takes off the time, {memory}", f"{less:.1f} %", text="15 to 35 % (2), once 35 %")
    if not TINY:
        print(sidestream.overlap(train, pageable))


# Text 2: its benchmark, and the number of streams. Text 3: a matrix product compared with its minimum time.


TEXTS_OF_STREAMS = {2: "2 to 4 streams do (2)", 4: "3 times (3)", 16: "rarely more than 8 does (2)"}


def overlap() -> None:
    where = "sim:h200" if TINY else "cuda:0"

    def of(streams: int, layout: str = "streams") -> float:
        return min(row.time_ns for row in result.rows if row.layout == layout and row.k == streams) / 1e6

    result = sidestream.overlap(where, batch="4MiB", count=20, work=16, download=False)
    line("4 MiB, hardly any work: one stream by two", of(1) / of(2), "times", "modest (2)")
    for batch, work in (("64KiB", 16), ("4MiB", 256), ("4MiB", 4096)):
        result = sidestream.overlap(where, batch=batch, work=work, streams=16)
        for streams in (2, 4, 8, 16):
            said = TEXTS_OF_STREAMS.get(streams, "")
            line(f"{batch}, work {work}: one stream by {streams}", of(1) / of(streams), "times", said)
    if TINY:
        return
    side = 4096
    a = torch.randn(side, side, dtype=torch.float16, device=DEVICE)
    product = sidestream.benchmark(torch.matmul, a, a, flops=2 * side**3, bytes=6 * side**2, dtype="fp16")
    took = product.median_ns / 1e6
    line("a product of 4096 x 4096 in half precision", took, "ms", "at least 0.44 on an A100 (3)")
    print(product)


# Text 4, first part: a frozen encoder, and a decoder in training.


def small_pair(batch: int) -> pair_of.Job:
    encoder, decoder = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 10, 1)
    return pair_of.Job(encoder, decoder, torch.nn.CrossEntropyLoss(), pair_of.images(batch, side=16))


def pair() -> None:
    for batch in (2,) if TINY else (2, 8, 32, 64):
        print(f" batch {batch}")
        job = small_pair(batch) if TINY else pair_of.convolutions(batch)
        other = job.again()
        by_hand = two_streams(other.encode, other.train, other.batches)
        variants: dict[str, Run] = {
            "plain loop": pair_of.by_hand_serial(job.again()),
            "two streams, with the waits that the text lacks": by_hand,
        }
        chosen = {}
        for name, capture in (("Pipeline", False), ("Pipeline(capture=True)", True)):
            mine = job.again()
            # A simulated GPU has no times from which to choose a mode.
            mode = ("graphs" if capture else "streams") if TINY else "auto"
            stages = [mine.encode, mine.train]
            variants[name], chosen[name] = pair_of.ours(stages, mine.batches, mode, SIZE, capture=capture)
        plain, hand, *_ = variants
        # The text's figures are for its own batch size, 8.
        found = rates(variants, {plain: "83 on an A10G (4)", hand: "91 on an A10G (4)"} if batch == 8 else {})
        for name in (hand, *chosen):
            gain(f"gained by {name}", found, name, plain, "9.6 % with batches of 8" if name == hand else "")
        for name, pipe in chosen.items():
            print(f"  {name}: {pipe.choice.mode}, {pipe.choice.reason}")


# Text 4, second part: augmentation in the loader, on the GPU, and concurrent with training.


def made(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


class Pictures(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random pictures, which the workers of a loader augment."""

    def __init__(self, count: int, side: int, change: Callable[[Any], Any]) -> None:
        self.count, self.side, self.change = count, side, change

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        x, y = self.change((made(1, self.side), torch.tensor([at % 10])))
        return x[0], y[0]


def from_workers(batch: int, change: Callable[[Any], Any], then: Callable[[Any], object]) -> float:
    """Return the batches per second when a DataLoader with eight workers feeds ``then`` on the GPU, measured
    from the eleventh batch.
    """
    warm, count = (1, 3) if TINY else (10, 40)
    data = Pictures((warm + count) * batch, pictures.SIDE, change)
    workers = torch.utils.data.DataLoader(data, batch, num_workers=0 if TINY else 8)
    start = 0.0
    for at, one in enumerate(workers):
        then(moved(one))
        if at + 1 == warm:
            torch.cuda.synchronize()
            start = time.perf_counter()
    torch.cuda.synchronize()
    return count / (time.perf_counter() - start)


def augmentation() -> None:
    for batch in (2,) if TINY else (8, 32, 128):
        print(f" batch {batch}")
        torch.manual_seed(0)
        train = step_of(network(3, 1) if TINY else pictures.network().to(DEVICE).train())
        if TINY:
            wide, train = train, lambda pair: wide((pair[0].mean((-1, -2)), pair[1]))
        each = pictures.Augment(torch.device(DEVICE), one_by_one=True)
        whole = augment_gpu.transform(pictures.SIDE)

        def augment(batch: Any, whole: Any = whole) -> Any:
            return whole(batch[0]), batch[1]

        labels = torch.randint(0, 10, (batch,)).pin_memory()
        ready = [(made(batch, pictures.SIDE).pin_memory(), labels) for _ in range(4)]
        items = again(ready)
        there = moved(ready[0])
        fixed = each(there)

        def in_the_loop(change: Callable[[Any], Any], train: Any = train, items: Any = items) -> Run:
            def run(steps: int) -> None:
                for one in items(steps):
                    train(change(moved(one)))

            return run

        def prefetched(change: Callable[[Any], Any], train: Any = train, items: Any = items) -> Run:
            def run(steps: int) -> None:
                for one in sidestream.prefetch(items(steps), DEVICE, transform=change):
                    train(one)

            return run

        mode = "streams" if TINY else "auto"
        pipeline, piped = pair_of.ours([each, train], items, mode, SIZE, capture=False)
        forms = ("in the loop", "two streams", "prefetch(transform=)")
        loop, hand, ours = (f"one by one, {how}" for how in forms)
        in_one, in_one_ahead = "in one launch, in the loop", "in one launch, prefetch(transform=)"
        on_host = pictures.Augment(torch.device("cpu"), one_by_one=True)
        # The text's figures are for its own batch size, 32.
        texts = {loop: "35.22 on an A10G (4)", hand: "38.82 on an A10G (4)"} if batch == 32 else {}
        by_workers = from_workers(batch, on_host, train)
        said = "20.41 on an A10G (4)" if batch == 32 else ""
        line("by eight workers of the loader", by_workers, "steps/s", said)
        found = rates(
            {
                "model alone": alone(train, fixed),
                "augmentation alone, one by one": alone(each, there),
                loop: in_the_loop(each),
                hand: two_streams(each, train, items),
                ours: prefetched(each),
                "one by one, Pipeline": pipeline,
                in_one: in_the_loop(augment),
                "in one launch, two streams": two_streams(augment, train, items),
                in_one_ahead: prefetched(augment),
            },
            texts,
        )
        found["workers"] = by_workers
        gain("on the GPU instead of by workers", found, loop, "workers", "72.57 % with batches of 32 (4)")
        gain("overlapped by hand", found, hand, loop, "10.2 % with batches of 32 (4)")
        gain("overlapped by prefetch", found, ours, loop)
        gain("overlapped by prefetch, in one launch", found, in_one_ahead, in_one)
        print(f"  Pipeline: {piped.choice.mode}, {piped.choice.reason}")


# Text 2: requests one by one, over streams, and in batches; urgent work concurrent with other work.


def serving() -> None:
    import priorities_gpu
    import requests_gpu

    if TINY:
        requests_gpu.QUICK, requests_gpu.WIDTH, requests_gpu.SIZES = True, 8, (1, 2, 4)
    by_hand = requests_gpu.alone()
    line("one by one", by_hand["one_by_one_per_s"], "requests/s")
    line("over 16 streams", by_hand["over_16_streams_per_s"], "requests/s", "much more than one by one (2)")
    asked = requests_gpu.rows(8 if TINY else 2048)
    with sidestream.Batcher(requests_gpu.perceptron(), requests_gpu.SIZES, 0.0001, slots=3) as batcher:
        requests_gpu.warm(batcher)
        for callers in (1, 4 if TINY else 64):
            with ThreadPoolExecutor(callers) as pool:
                start = time.perf_counter()
                list(pool.map(lambda row: batcher.submit(row).result(), asked))
                line(f"Batcher, {callers} callers", len(asked) / (time.perf_counter() - start), "requests/s")
        start = time.perf_counter()
        for answer in [batcher.submit(row) for row in asked]:
            answer.result()
        line("Batcher, all at once", len(asked) / (time.perf_counter() - start), "requests/s")
    small = torch.randn(64, 64, device=DEVICE)
    large = torch.zeros(1 << (10 if TINY else 28), device=DEVICE)
    torch.cuda.synchronize()
    for name, background in (
        ("alone", None),
        ("beside sums of a gigabyte", lambda: large.add_(1.0)),
        ("beside large products", (lambda: small @ small) if TINY else priorities_gpu.products()),
    ):
        for kind, stream in priorities_gpu.streams().items():
            took = priorities_gpu.latency(stream, lambda: small @ small, background)
            said = "goes before the rest (2)" if kind == "urgent" and background else ""
            line(f"a small product, {kind}, {name}", took, "ms", said)


# Text 3, section 6: the tables of a profiled loop.


def profile() -> None:
    train = step_of(network(16 if TINY else 512, 1))
    steps = 4 if TINY else 400

    def load() -> Any:
        with record_function("load_batch"):
            end = time.perf_counter() + (0 if TINY else 0.003)
            while time.perf_counter() < end:
                pass
            return torch.randn(256, 16 if TINY else 512), torch.randint(0, 10, (256,))

    with tempfile.TemporaryDirectory(prefix="seeds-") as folder:
        path = os.path.join(folder, "trace.json")
        options: dict[str, Any] = {"steps": 2, "timed": False} if TINY else {"steps": 10}
        with sidestream.profile(path=path, record_shapes=True, profile_memory=True, **options) as profiled:
            for _ in range(steps):
                batch = moved(load())
                with record_function("train"):
                    train(batch)
                profiled.step()
        print(profiled)
        for table in ("ranges --sort idle", "operators --by-shape --limit 6", "kernels --limit 5", "memory"):
            print(f" {table}", flush=True)
            command = [sys.executable, "-m", "sidestream", "diagnose", path, "--table", *table.split()]
            subprocess.run(command, check=False)


PARTS = {each.__name__: each for each in (loader, overlap, pair, augmentation, serving, profile)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which parts run; by default all")
    parser.add_argument("--tiny", action="store_true", help="on a simulated GPU")
    asked = parser.parse_args().parts or list(PARTS)
    failed = []
    with sidestream.check(simulate=1) if TINY else contextlib.nullcontext() as found:
        where, version = torch.cuda.get_device_name(), sidestream.__version__
        print(f"{where}, PyTorch {torch.__version__}, sidestream {version}")
        for name in asked:
            print(f"\n{name}", flush=True)
            start = time.perf_counter()
            try:
                PARTS[name]()
            except Exception:  # The other parts run anyway.
                failed.append(name)
                traceback.print_exc()
            line("took", time.perf_counter() - start, "s")
    # As in the text, the loader does not pin its batches; the check warns that a batch may be freed too
    # early.
    if found is not None and not found.is_clean:
        failed.append("check")
        print(found)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
