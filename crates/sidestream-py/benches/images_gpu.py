"""Pictures per second of ``sidestream.images.Loader`` on a GPU, decoded by the GPU's engines and on the CPU,
and the number of CPU cores that this takes.

python benches/images_gpu.py [FOLDER] [--workers 16] [--seconds 2] [--json FILE]
python benches/images_gpu.py --dry    # on a simulated GPU: all rows, but figures have no meaning

Without a folder it makes pictures of 500 x 375 pixels (JPEG of quality 90, 4:2:0; some thousand files, of
which 1,024 differ), which needs Pillow; if that is not installed, it uses the package's sample pictures, of
about 300 x 220. Each row loads, decodes and augments for a number of seconds, after a few batches that do
not count; first alone, then with a training step of a convolutional network on each batch, a narrow one and
a wide one. "Of the limit" is the rate relative to the slower of the two alone, the loader and the step.
Cores are the CPU seconds of all threads of the process per second of wall time; in the rows "one core" the
process may use only one. Before that it reports how far the engines' pixels differ from those of the CPU.

CUDA reads CUDA_DEVICE_MAX_CONNECTIONS when it starts. A loader with engines sets it to 32 if it is not set;
so does this program, and reports that. Set to 8, CUDA's default, it shows what the setting gains.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

# Must be set before CUDA starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch
from images_cpu import make
from torch.nn import functional

import sidestream
from sidestream import images

#: Number of batches of a row that do not count, including those that were ready before the first request.
WARM_UP = 6


def compose(side: int) -> images.Compose:
    numbers = [
        images.ToDtype("float32", scale=True),
        images.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    return images.Compose([images.RandomResizedCrop(side), images.RandomHorizontalFlip(), *numbers])


def batches(loader: images.Loader) -> Generator[Any]:
    """Return the batches of all epochs, one after another, without an end."""
    prefetched = loader.prefetch("cuda")
    while True:
        yield from prefetched


@contextlib.contextmanager
def cores(count: int | None) -> Iterator[None]:
    """Restrict all existing threads of the process to this many cores."""
    if count is None:
        yield
        return
    whole = os.sched_getaffinity(0)

    def keep(to: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            # The thread may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), to)

    keep(set(sorted(whole)[:count]))
    try:
        yield
    finally:
        keep(whole)


def apart(folder: Path, count: int, share: float) -> tuple[float, int, int]:
    """Compare the batches that engines decode with those of the CPU. Return the mean and the largest
    difference in levels, and the number of batches that the engines refused.
    """
    whole = images.Compose([images.Resize((256, 256))])
    with contextlib.ExitStack() as stack:
        options: list[dict[str, Any]] = [{}, {"decode": "gpu", "engine_share": share}]
        loaders = [
            stack.enter_context(images.Loader(folder, batch_size=count, augment=whole, **one))
            for one in options
        ]
        ours, theirs = (next(batches(loader))[0].cpu().int() for loader in loaders)
        difference = (ours - theirs).abs()
        return difference.float().mean().item(), int(difference.max()), loaders[1].refused


def training(side: int, width: int, dry: bool) -> Callable[[Any, Any], None]:
    """Nine convolutions with batch normalization in bfloat16, forward, backward and a step of SGD."""
    layers: list[torch.nn.Module] = []
    before = 3
    for number in range(3 if dry else 9):
        after = width * 2 ** (number // 2)
        stride = 2 if number % 2 == 0 else 1
        layers += [
            torch.nn.Conv2d(before, after, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(after),
            torch.nn.ReLU(inplace=True),
        ]
        before = after
    network = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(before, 10)
    ).to("cuda")
    if not dry:
        network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)

    def step(pictures: Any, labels: Any) -> None:
        with contextlib.nullcontext() if dry else torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(network(pictures), labels.clamp(0, 9))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def measured(
    source: Iterator[Any], step: Callable[[Any, Any], None] | None, seconds: float
) -> dict[str, float]:
    def one() -> int:
        pictures, labels = next(source)
        if step is not None:
            step(pictures, labels)
        return len(labels)

    for _ in range(WARM_UP):
        one()
    torch.cuda.synchronize()
    clock, processor = time.perf_counter(), time.process_time()
    count = one()
    while time.perf_counter() - clock < seconds:
        count += one()
    torch.cuda.synchronize()
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    return {"pictures_per_s": count / clock, "cores": processor / clock}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--dry", action="store_true", help="on a simulated GPU, with few and small batches")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--pictures", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="*",
        default=[1.0, 0.8, 0.6],
        help="engine_share of the rows with all workers",
    )
    parser.add_argument("--json", metavar="FILE", help="a file for the figures")
    args = parser.parse_args()
    if args.dry:
        args.workers, args.batch, args.seconds = 2, 8, 0.0
    side, workers = (16 if args.dry else 224), args.workers
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = args.folder or Path(made)
        if args.folder is None:
            if importlib.util.find_spec("PIL") and not args.dry:
                make(folder, args.pictures)
            else:
                for seed in range(1 if args.dry else args.pictures // 40):
                    images.write_samples(folder / f"{seed}", seed)
        files = [path for path in folder.rglob("*") if path.is_file()]
        if args.dry:
            stack.enter_context(sidestream.check(simulate=1))
        name = "simulated" if args.dry else torch.cuda.get_device_name()
        mean = sum(path.stat().st_size for path in files) / len(files) / 1024
        print(
            f"{name}; {len(files)} files, {mean:.0f} KiB each on average; batches of {args.batch}; "
            f"else by {images.decoder()}"
        )
        print(f"CUDA_DEVICE_MAX_CONNECTIONS: {os.environ['CUDA_DEVICE_MAX_CONNECTIONS']}")
        result: dict[str, Any] = {"device": name, "batch": args.batch}
        for share in args.shares:
            mean, most, refused = result[f"apart, share {share:g}"] = apart(folder, args.batch, share)
            print(
                f"share {share:g}: pixels of 256 x 256 are {mean:.3f} levels in the mean and {most} at most "
                f"from the CPU's, {refused} batches refused"
            )
        rows: dict[str, dict[str, Any]] = {
            f"CPU, {workers} workers": {"workers": workers},
            "engines, 1 worker": {"workers": 1, "decode": "gpu"},
            "engines, 1 worker, one core": {"workers": 1, "decode": "gpu", "cores": 1},
        }
        for share in args.shares:
            rows[f"engines, {workers} workers, share {share:g}"] = {
                "workers": workers,
                "decode": "gpu",
                "engine_share": share,
            }
        steps = {"alone": None} | {
            f"beside a step of width {width}": training(side, width, args.dry)
            for width in ([8] if args.dry else [24, 64])
        }
        for title, beside in steps.items():
            print(f"\n{title:42}{'pictures/s':>12}{'of the limit':>14}{'cores':>8}{'refused':>9}")
            figures = result[title] = {}
            step_alone = math.inf
            if beside is not None:
                fixed = (
                    torch.rand(args.batch, 3, side, side).to("cuda"),
                    torch.zeros(args.batch, dtype=torch.int64).to("cuda"),
                )
                figures["the step alone"] = measured(
                    iter(lambda fixed=fixed: fixed, None), beside, args.seconds
                ) | {"refused": 0}
                step_alone = figures["the step alone"]["pictures_per_s"]
                show("the step alone", figures["the step alone"])
            for row, options in rows.items():
                own = dict(options)
                count = own.pop("cores", None)
                if count is not None and beside is not None:
                    continue
                loader = images.Loader(
                    folder, batch_size=args.batch, drop_last=True, augment=compose(side), **own
                )
                with loader, contextlib.closing(batches(loader)) as source:
                    next(source)
                    with cores(count):
                        figures[row] = measured(source, beside, args.seconds) | {"refused": loader.refused}
                if beside is not None:
                    limit = min(step_alone, result["alone"][row]["pictures_per_s"])
                    figures[row]["of_the_limit"] = figures[row]["pictures_per_s"] / limit
                show(row, figures[row])
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1), encoding="utf-8")


def show(row: str, figures: dict[str, float]) -> None:
    share = f"{figures['of_the_limit']:.2f}" if "of_the_limit" in figures else ""
    print(
        f"{row:42}{figures['pictures_per_s']:12.0f}{share:>14}"
        f"{figures['cores']:8.2f}{figures['refused']:9.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
