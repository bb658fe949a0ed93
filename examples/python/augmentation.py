"""Augmentation on the GPU, on a separate stream, with your own transform.

python examples/python/augmentation.py

Cropping, rotating and blurring images keeps eight loader processes busy while the GPU is idle. Passed to
`sidestream.prefetch` as `transform`, any function from batch to batch runs on the device while the step on
the previous batch runs. Random numbers are the same as in a direct call.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import sidestream

Batch = tuple[torch.Tensor, torch.Tensor]


def augment(batch: Batch, random: torch.Generator) -> Batch:
    """Rotate, crop and blur each image differently, as one warp of the whole batch."""
    images, labels = batch
    count, channels = images.shape[:2]
    images = images.float() / 255
    angle = (torch.rand(count, device=images.device, generator=random) - 0.5) * math.pi / 2
    shift = torch.rand(count, 2, device=images.device, generator=random) - 0.5
    # Half the width, rotated and moved: the effect of a random crop that is resized and rotated.
    cos, sin = 0.5 * torch.cos(angle), 0.5 * torch.sin(angle)
    warp = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    images = F.grid_sample(images, F.affine_grid(warp, list(images.shape), False), align_corners=False)
    blur = torch.exp(-torch.linspace(-2, 2, 7, device=images.device) ** 2 / 2)
    blur = (blur / blur.sum()).repeat(channels, 1)
    images = F.conv2d(images, blur[:, None, :, None], padding=(3, 0), groups=channels)
    images = F.conv2d(images, blur[:, None, None, :], padding=(0, 3), groups=channels)
    return images, labels


def loader(steps: int, batch: int, size: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, generator=generator)
        yield images, torch.randint(0, 10, (batch,), generator=generator)


def train(batches: Iterable[Batch], device: str) -> tuple[float, float]:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 2, stride=2), nn.ReLU()) for a, b in ((3, 32), (32, 64), (64, 128))
    ]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    total = torch.zeros((), device=device)
    start = time.perf_counter()
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item(), time.perf_counter() - start


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Augmentation on a separate stream.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument("--steps", type=count, default=10)
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    batch, size = (32, 256) if on_gpu else (4, 64)

    def seeded() -> Callable[[Batch], Batch]:
        return partial(augment, random=torch.Generator(args.device).manual_seed(0))

    def in_the_loop(steps: int) -> Iterator[Batch]:
        transform = seeded()
        for images, labels in loader(steps, batch, size):
            yield transform((images.to(args.device), labels.to(args.device)))

    train(in_the_loop(2), args.device)  # Selects the kernels.
    plain, plain_s = train(in_the_loop(args.steps), args.device)
    ahead = sidestream.prefetch(loader(args.steps, batch, size), args.device, transform=seeded())
    ours, ours_s = train(ahead, args.device)
    print(f"transform in the loop:     {args.steps / plain_s:8.1f} steps/s, losses sum up to {plain:.4f}")
    print(f"transform during the step: {args.steps / ours_s:8.1f} steps/s, losses sum up to {ours:.4f}")
    print("the sums are the same" if math.isclose(plain, ours, rel_tol=1e-3) else "THE SUMS DIFFER")
    if not on_gpu:
        print(
            "this is the CPU, where nothing runs concurrently with the model; "
            "a GPU transforms the next batch meanwhile"
        )


if __name__ == "__main__":
    main()
