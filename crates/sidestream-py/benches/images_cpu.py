"""Pictures per second of ``sidestream.images.Loader``, compared with PyTorch's DataLoader and torchvision.

``python images_cpu.py [FOLDER] [--workers 2] [--rounds 3] [--epochs 1]``, with torchvision and Pillow
installed. Without a folder it makes pictures of 500 x 375 pixels. All are read from the page cache.

The name of each row says what it measures. A DataLoader crops, resizes and flips in its workers, since its
batches need pictures of one size. ``images.Loader`` decodes the needed region into a slab; the rest runs on
the GPU, or on the CPU if PyTorch has no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from sidestream import images

BATCH = 64
#: Number of warm-up batches of a run, which do not count.
WARM_UP = 8

#: Number of different pictures. Further ones are these files under other names, which a loader reads and
#: decodes like any others.
DIFFERENT = 1024


def make(folder: Path, count: int) -> None:
    """Write mosaics of sample pictures, as JPEG files of quality 90 encoded by Pillow."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as small:
        images.write_samples(small, 1)
        tiles = [Image.open(path).resize((250, 188)) for path in sorted(Path(small).rglob("*.jpg"))]
        for number in range(count):
            path = folder / str(number % 4) / f"{number}.jpg"
            path.parent.mkdir(exist_ok=True)
            if number >= DIFFERENT:
                path.hardlink_to(folder / str(number % 4) / f"{number % DIFFERENT}.jpg")
                continue
            whole = Image.new("RGB", (500, 375))
            for quarter in range(4):
                tile = tiles[(7 * number + quarter) % len(tiles)]
                whole.paste(tile, (250 * (quarter % 2), 188 * (quarter // 2)))
            whole.save(path, quality=90)


#: Returns the pictures per second of one run.
Run = Callable[[], float]


def steady(epochs: Iterable[Iterable[int]]) -> float:
    """Return the pictures per second, measured between batches: the startup and the batches that are ready by
    then do not count.
    """
    count, start = 0, 0.0
    for number, pictures in enumerate(itertools.chain.from_iterable(epochs)):
        if number < WARM_UP:
            start = time.perf_counter()
        else:
            count += pictures
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return count / (time.perf_counter() - start)


def of_torchvision(folder: Path, workers: int, epochs: int, decoder: str, floats: bool) -> Run:
    from torchvision import io
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    last: list[Any] = (
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)] if floats else []
    )
    first: list[Any] = [v2.PILToTensor()] if decoder == "Pillow" else []
    crop = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    load = {
        "Pillow": {},
        "torchvision": {"loader": lambda path: io.decode_image(io.read_file(path), io.ImageReadMode.RGB)},
    }
    data = ImageFolder(str(folder), v2.Compose([*crop, *first, *last]), **load[decoder])
    loader = torch.utils.data.DataLoader(
        data,
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    return lambda: steady((len(labels) for _, labels in loader) for _ in range(epochs))


def of_sidestream(
    folder: Path, workers: int, epochs: int, operators: list[images.Operator], *, runs: bool
) -> Run:
    """With operators, only the needed regions are decoded; ``runs`` says whether the operators run as
    well.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    augment = images.Compose(operators) if operators else None

    def run() -> float:
        # A new loader in each run: an existing one would prepare batches while the other rows are timed.
        with images.Loader(folder, batch_size=BATCH, workers=workers, augment=augment) as loader:
            if not runs:
                return steady((len(batch) for batch in loader) for _ in range(epochs))
            with loader.prefetch(device) as batches:
                return steady((len(labels) for _, labels in batches) for _ in range(epochs))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--pictures", type=int, default=1024)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        if args.folder is None:
            make(folder, args.pictures)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        mean = sum(path.stat().st_size for path in paths) / len(paths) / 1024
        print(
            f"{len(paths)} files, {mean:.0f} KiB each on average; {args.workers} workers; "
            f"by {images.decoder()}"
        )
        how = folder, args.workers, args.epochs
        usual: list[images.Operator] = [
            images.RandomResizedCrop(224),
            images.RandomHorizontalFlip(),
            images.ToDtype(torch.float32, scale=True),
            images.Normalize([0.5] * 3, [0.25] * 3),
        ]
        rows = {
            "DataLoader, Pillow, crop, flip, float32": of_torchvision(*how, "Pillow", True),
            "DataLoader, torchvision's decoder, crop, flip, uint8": of_torchvision(
                *how, "torchvision", False
            ),
            "sidestream, whole pictures into a slab": of_sidestream(*how, [], runs=False),
            "sidestream, what a crop needs into a slab": of_sidestream(*how, usual, runs=False),
            "sidestream, crop, flip, float32": of_sidestream(*how, usual, runs=True),
        }
        rates: dict[str, list[float]] = {name: [] for name in rows}
        for run in rows.values():
            run()  # Starts workers and fills the cache.
        for _ in range(args.rounds):
            for name, run in rows.items():
                rates[name].append(run())
        base = rates["DataLoader, Pillow, crop, flip, float32"]
        for name, each in rates.items():
            ratio = statistics.median(ours / theirs for ours, theirs in zip(each, base, strict=True))
            print(f"{name:55} {statistics.median(each):7.0f} pictures/s, {ratio:.2f} x")
        print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
