"""Augmentation on a GPU: whether its results equal those of the CPU, and how long it takes. ``seeds_gpu.py
augmentation`` measures what it gains during training.

python benches/augment_gpu.py [--part accuracy|times] [--json FILE]
python benches/augment_gpu.py --dry-run    # on a simulated GPU: all rows, but times have no meaning

The transform is a crop to half, enlarging, a rotation by up to 45 degrees, a blur over 7 pixels and a
normalization, from bytes on the device. Device times are measured with events while the GPU is kept busy
beforehand, so they do not include the host's time, which is shown separately. torchvision and
kornia are measured too if they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import augmentation
import torch
from torch.nn import functional

import sidestream
from sidestream import images

SIDE = augmentation.SIDE
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def transform(side: int, **more: Any) -> images.Compose:
    return images.Compose(
        [
            images.ToDtype("float32"),
            images.RandomCrop(side // 2),
            images.Resize(side),
            images.RandomRotation(45.0),
            images.GaussianBlur(7),
            images.Normalize([0, 0, 0], [1, 1, 1]),
        ],
        **more,
    )


#: Seconds. A call that takes longer is measured only a few times.
LONG = 0.01


def pictures(count: int, side: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    small = torch.randint(0, 256, (count, 3, side // 4, side // 4), generator=generator, dtype=torch.uint8)
    smooth = functional.interpolate(small.float(), size=(side, side), mode="bicubic").clamp(0, 255)
    return smooth.to(torch.uint8).to(device)


# ------------------------------------------------------------------ accuracy


def composes(side: int) -> dict[str, list[images.Operator]]:
    numbers: list[images.Operator] = [images.ToDtype("float32", scale=True), images.Normalize(MEAN, STD)]
    bilinear = "bilinear"
    return {
        "the transform": transform(side).transforms,
        "the transform, bytes": transform(side).transforms[1:-1],
        "ImageNet": [images.RandomResizedCrop(side // 2), images.RandomHorizontalFlip(), *numbers],
        "ImageNet, half": [
            images.RandomResizedCrop(side // 2),
            images.RandomHorizontalFlip(),
            images.ToDtype("float16", scale=True),
        ],
        "SimCLR": [
            images.RandomResizedCrop(side // 2),
            images.RandomHorizontalFlip(),
            images.ColorJitter(0.8, 0.8, 0.8, 0.2),
            images.RandomGrayscale(0.2),
            images.GaussianBlur(23),
            *numbers,
        ],
        "RandAugment and erasing": [
            images.RandomResizedCrop(side // 2),
            images.RandAugment(2, 9, interpolation=bilinear),
            *numbers,
            images.RandomErasing(0.5),
            images.MixUp(alpha=0.2),
        ],
        "all of RandAugment": [images.RandAugment(6, 20), images.CutMix()],
        "affine and perspective": [
            images.RandomAffine(30, (0.1, 0.1), (0.5, 2.0), 10, interpolation=bilinear, fill=(9, 8, 7)),
            images.RandomPerspective(0.5, p=1.0),
            images.Resize(side // 3),
        ],
        "large blur": [images.RandomCrop(side // 2), images.GaussianBlur((31, 9), (1.0, 6.0))],
    }


def accuracy(device: str, side: int, count: int) -> dict[str, Any]:
    """Return the largest difference from the CPU's result: in levels for bytes, in their own units for
    floats.
    """
    rows = {}
    given = pictures(count, side, "cpu")
    print(
        f"{'largest difference from the CPU':42}"
        f"{'by the plan':>14}{'one by one':>14}{'channels last':>16}"
    )
    for name, operators in composes(side).items():
        row = []
        for more in ({}, {"fuse": False}, {"channels_last": True}):
            compose = images.Compose(operators, seed=1, **more)
            numbers = list(range(count))
            there = compose(given.to(device), samples=numbers).cpu().float()
            here = compose(given, samples=numbers).float()
            row.append((there - here).abs().max().item())
        rows[name] = row
        print(f"{name:42}{row[0]:14.2e}{row[1]:14.2e}{row[2]:16.2e}", flush=True)
    return rows


# ------------------------------------------------------------------ times


def device_ms(run: Callable[[], Any], times: int, rounds: int, dry: bool) -> float:
    """Return the median device time of a run. In each round the GPU waits until all runs have been submitted.
    Slow runs are measured less often.
    """
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    submitted = time.perf_counter() - start
    torch.cuda.synchronize()
    if time.perf_counter() - start > LONG:
        times, rounds = 2, 3
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if dry:
            run()
            continue
        # Some tens of milliseconds, in cycles, and longer than the host takes to submit all runs: otherwise
        # the host's time would be measured.
        torch.cuda._sleep(max(40_000_000, int(4e9 * submitted * times)))
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / times)
    return statistics.median(found) if found else 0.0


def host_ms(run: Callable[[], Any], rounds: int) -> float:
    """Return the host time of one run: that of the calling thread."""
    found: list[float] = []
    while len(found) < rounds:
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) * 1e3)
        if found[-1] > 1e3 * LONG:
            rounds = 3
    return statistics.median(found)


def times(device: str, side: int, batches: list[int], rounds: int, dry: bool) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    print(f"\n{'milliseconds of the transform':42}{'device':>10}{'host':>10}{'two passes of memory':>24}")

    def row(name: str, run: Callable[[], Any], floor: float | None = None) -> None:
        on_device, on_host = device_ms(run, 20, rounds, dry), host_ms(run, rounds)
        rows[name] = {"device_ms": on_device, "host_ms": on_host, "floor_ms": floor}
        share = "" if not floor else f"{floor:14.4f} ({on_device / floor:.2f} x)"
        print(f"{name:42}{on_device:10.4f}{on_host:10.4f}{share:>24}", flush=True)

    for count in batches:
        given = pictures(count, side, device)
        numbers = list(range(count))
        one, two = (torch.empty(count, 3, side, side, device=device) for _ in range(2))
        # Time of two passes over the memory: one tensor is written, then the other is copied into it.
        floor = device_ms(lambda two=two: two.zero_(), 20, rounds, dry) + device_ms(
            lambda one=one, two=two: two.copy_(one), 20, rounds, dry
        )
        compose = transform(side)
        row(f"sidestream, batch {count}", lambda c=compose, g=given, n=numbers: c(g, samples=n), floor)
        for name in ("ImageNet", "SimCLR", "RandAugment and erasing"):
            other = images.Compose(composes(side)[name])
            row(f"sidestream, {name}, batch {count}", lambda c=other, g=given, n=numbers: c(g, samples=n))
        labels = torch.zeros(count, dtype=torch.int64, device=device)
        torch_warp = augmentation.Augment(torch.device(device), one_by_one=False) if side == SIDE else None
        if torch_warp is not None:
            row(f"PyTorch, one warp, batch {count}", lambda t=torch_warp, g=given, y=labels: t((g, y)))
        for name, other_transform in others(side, device):
            if name.endswith("picture by picture") and count > 128:
                continue
            row(f"{name}, batch {count}", lambda t=other_transform, g=given: t(g))
    return rows


def others(side: int, device: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    if importlib.util.find_spec("torchvision"):
        from torchvision.transforms import v2

        all_in_one = v2.Compose(
            [
                v2.ToDtype(torch.float32),
                v2.RandomCrop(side // 2),
                v2.Resize(side),
                v2.RandomRotation(45.0),
                v2.GaussianBlur(7),
            ]
        )
        yield "torchvision, one draw a batch", all_in_one
        yield (
            "torchvision, picture by picture",
            lambda batch: torch.stack([all_in_one(picture) for picture in batch]),
        )
    if importlib.util.find_spec("kornia"):
        from kornia import augmentation as kornia

        steps = torch.nn.Sequential(
            kornia.RandomResizedCrop((side, side), scale=(0.25, 0.25), ratio=(1.0, 1.0)),
            kornia.RandomRotation(45.0),
            kornia.RandomGaussianBlur((7, 7), (0.1, 2.0), p=1.0),
        ).to(device)
        yield "kornia", lambda batch: steps(batch.float())


def main() -> None:
    parser = argparse.ArgumentParser(description="Augmentation on a GPU.")
    parser.add_argument("--part", choices=("accuracy", "times"), help="only this one")
    parser.add_argument("--dry-run", action="store_true", help="on a simulated GPU, with small pictures")
    parser.add_argument("--json", help="a file for the figures")
    args = parser.parse_args()
    dry: bool = args.dry_run
    with contextlib.ExitStack() as stack:
        if dry:
            stack.enter_context(sidestream.check(simulate=1))
        side, rounds = (32, 2) if dry else (SIDE, 9)
        result: dict[str, Any] = {"device": "simulated" if dry else torch.cuda.get_device_name()}
        if args.part in (None, "accuracy"):
            result["accuracy"] = accuracy("cuda", side, 4 if dry else 8)
        if args.part in (None, "times"):
            result["times"] = times("cuda", side, [2] if dry else [32, 128, 512], rounds, dry)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
