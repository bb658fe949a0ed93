"""Writes `torchvision.txt`: a picture, and the results of torchvision's functions for it, for
`tests/augment/drawn.rs`.

python torchvision.py, with torchvision 0.26 installed.
A line is a name, a width, a height, and the bytes by rows.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

WIDTH, HEIGHT = 20, 16
BILINEAR, NEAREST = InterpolationMode.BILINEAR, InterpolationMode.NEAREST
FILL = [10.0, 20.0, 30.0]


def picture() -> torch.Tensor:
    """Waves, a hard edge and some noise, all channels different."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    noise = torch.randint(0, 24, (3, HEIGHT, WIDTH), generator=torch.Generator().manual_seed(3))
    waves = [100 + 50 * torch.sin(0.3 * x + c) + 40 * torch.cos(0.25 * y - c) for c in range(3)]
    edge = 30 * ((x + y) // 7 % 2)
    return (torch.stack(waves) + edge + noise).clamp(0, 255).to(torch.uint8)


def lines(image: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {
        "input": image,
        "resize down": F.resize(image, [9, 12]),
        "resize far down": F.resize(image, [4, 3]),
        "resize one way": F.resize(image, [40, 10]),
        "resize up": F.resize(image, [37, 50]),
        "resize plain": F.resize(image, [9, 12], antialias=False),
        "crop and resize": F.resized_crop(image, 2, 4, 12, 12, [5, 5]),
        "center crop": F.center_crop(image, [30, 11]),
        "horizontal flip": F.horizontal_flip(image),
        "vertical flip": F.vertical_flip(image),
        "rotate nearest": F.rotate(image, 30.0, NEAREST, fill=FILL),
        "rotate bilinear": F.rotate(image, 30.0, BILINEAR, fill=FILL),
        "rotate whole": F.rotate(image, -50.0, BILINEAR, expand=True, fill=FILL),
        "rotate about a corner": F.rotate(image, 12.0, BILINEAR, center=[2.0, 3.0], fill=FILL),
        "affine": F.affine(image, 20.0, [0, 0], 1.3, [10.0, 5.0], BILINEAR, fill=FILL),
        "affine nearest": F.affine(image, -20.0, [0, 0], 0.7, [-10.0, 0.0], NEAREST, fill=FILL),
        "brightness": F.adjust_brightness(image, 1.3),
        "low contrast": F.adjust_contrast(image, 0.6),
        "high contrast": F.adjust_contrast(image, 1.7),
        "low saturation": F.adjust_saturation(image, 0.3),
        "high saturation": F.adjust_saturation(image, 1.6),
        "hue": F.adjust_hue(image, 0.2),
        "hue back": F.adjust_hue(image, -0.4),
        "grayscale": F.rgb_to_grayscale(image, 3),
        "blur": F.gaussian_blur(image, [7, 7], [1.5, 1.5]),
        "blur of two sizes": F.gaussian_blur(image, [9, 3], [2.0, 2.0]),
    }
    # What RandAugment can do with magnitude 9 of 31, with both signs.
    share = 9 / 30
    for sign in (1, -1):
        shear = math.degrees(math.atan(sign * 0.3 * share))
        moved = [int(sign * 150 / 331 * length * share) for length in (WIDTH, HEIGHT)]
        factor = 1 + sign * 0.9 * share
        found |= {
            f"any {sign} shear x": F.affine(image, 0.0, [0, 0], 1.0, [shear, 0.0], BILINEAR, center=[0, 0]),
            f"any {sign} shear y": F.affine(image, 0.0, [0, 0], 1.0, [0.0, shear], BILINEAR, center=[0, 0]),
            f"any {sign} translate x": F.affine(image, 0.0, [moved[0], 0], 1.0, [0.0, 0.0], BILINEAR),
            f"any {sign} translate y": F.affine(image, 0.0, [0, moved[1]], 1.0, [0.0, 0.0], BILINEAR),
            f"any {sign} rotate": F.rotate(image, sign * 30 * share, BILINEAR),
            f"any {sign} brightness": F.adjust_brightness(image, factor),
            f"any {sign} color": F.adjust_saturation(image, factor),
            f"any {sign} contrast": F.adjust_contrast(image, factor),
            f"any {sign} sharpness": F.adjust_sharpness(image, factor),
        }
    found |= {
        "any identity": image,
        "any posterize": F.posterize(image, round(8 - 4 * share)),
        "any solarize": F.solarize(image, 255 * (1 - share)),
        "any autocontrast": F.autocontrast(image),
        "any equalize": F.equalize(image),
    }
    return found


def main() -> None:
    text = ""
    for name, image in lines(picture()).items():
        _, height, width = image.shape
        text += (
            f"{name.replace(' ', '_')} {width} {height} "
            f"{bytes(image.permute(1, 2, 0).flatten().tolist()).hex()}\n"
        )
    Path(__file__).with_suffix(".txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
