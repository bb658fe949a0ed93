"""An augmentation during training: the code of the part `augmentation` in `seeds_gpu.py`.

The transform crops, enlarges, rotates, blurs and normalizes images, with PyTorch's operators. One variant
rotates image by image, with hundreds of launches and one copy from the host per image, as torchvision does;
the other has one warp for the whole batch and few launches.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch.nn import functional

SIDE = 256
CLASSES = 10
KERNEL = 7


def network() -> torch.nn.Module:
    """Nine convolutions. Each has a quarter of the pixels of the previous one and twice its channels."""
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, 16, kernel_size=1), torch.nn.ReLU(inplace=True)]
    width = 16
    while width < 4096:
        layers += [torch.nn.Conv2d(width, 2 * width, kernel_size=2, stride=2), torch.nn.ReLU(inplace=True)]
        width *= 2
    return torch.nn.Sequential(*layers[:-1], torch.nn.Flatten(), torch.nn.Linear(width, CLASSES))


class Augment:
    """Convert images of bytes to the network's input."""

    def __init__(self, device: torch.device, *, one_by_one: bool) -> None:
        self.one_by_one = one_by_one
        places = torch.arange(KERNEL, dtype=torch.float32) - KERNEL // 2
        weights = torch.exp(-places.square() / (2 * (0.15 * KERNEL + 0.35) ** 2))
        weights = weights / weights.sum()
        self.blur = (weights[:, None] * weights[None, :]).expand(3, 1, KERNEL, KERNEL).contiguous().to(device)
        self.mean = torch.zeros(3, 1, 1, device=device)
        self.std = torch.ones(3, 1, 1, device=device)

    def __call__(self, batch: Any) -> Any:
        images, labels = batch
        warped = (self._each(images) if self.one_by_one else self._all(images)).to(torch.float32)
        half = KERNEL // 2
        padded = functional.pad(warped, (half, half, half, half), mode="reflect")
        blurred = functional.conv2d(padded, self.blur, groups=3)
        return (blurred - self.mean) / self.std, labels

    def _each(self, images: torch.Tensor) -> torch.Tensor:
        small = SIDE // 2
        cropped = []
        for image in images:
            top, left = random.randrange(small + 1), random.randrange(small + 1)
            cropped.append(image[:, top : top + small, left : left + small])
        whole = functional.interpolate(
            torch.stack(cropped).float(), size=(SIDE, SIDE), mode="bilinear", antialias=True
        )
        return torch.stack([self._rotated(image) for image in whole])

    @staticmethod
    def _rotated(image: torch.Tensor) -> torch.Tensor:
        angle = math.radians(random.uniform(-45.0, 45.0))
        cosine, sine = math.cos(angle), math.sin(angle)
        # The source is pageable, so the host waits for the stream.
        matrix = torch.tensor([[[cosine, -sine, 0.0], [sine, cosine, 0.0]]]).to(image.device)
        grid = functional.affine_grid(matrix, [1, *image.shape], align_corners=False)
        mask = torch.ones_like(image[:1])
        both = functional.grid_sample(
            torch.cat([image, mask])[None], grid, mode="nearest", align_corners=False
        )[0]
        return torch.where(both[3:] < 0.5, 0.0, both[:3])

    @staticmethod
    def _all(images: torch.Tensor) -> torch.Tensor:
        count, device = len(images), images.device
        angle = (torch.rand(count, device=device) - 0.5) * (math.pi / 2)
        cosine, sine = angle.cos() / 2, angle.sin() / 2
        shift = torch.rand(2, count, device=device) - 0.5
        matrix = torch.stack([cosine, -sine, shift[0], sine, cosine, shift[1]], dim=1).view(count, 2, 3)
        grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
        return functional.grid_sample(images.float(), grid, align_corners=False)
