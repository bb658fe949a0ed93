"""The operators, with the names and the arguments of ``torchvision.transforms.v2``.

``interpolation`` is ``"nearest"`` or ``"bilinear"``, as a string or as a member of torchvision's
``InterpolationMode``. Colours (``fill``, ``value``) are one number or three. Written by
``python -m sidestream.images._operator``: change the table in Rust.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sidestream.images._operator import Colour, Operator, Pair


class RandomResizedCrop(Operator):
    """Cut out a part of any size and proportions, and resize it to ``size``."""

    def __init__(
        self, size: int | Sequence[int], scale: Pair = (0.08, 1.0),
        ratio: Pair = (0.75, 1.3333333333333333), interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(size, scale, ratio, interpolation, antialias)


class RandomCrop(Operator):
    """Cut out a part of this size, after padding with one colour."""

    def __init__(
        self, size: int | Sequence[int], padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False, fill: Colour = 0, padding_mode: str = "constant",
    ) -> None:
        """Take torchvision's arguments; ``padding_mode`` is ``"constant"``."""
        super().__init__(size, padding, pad_if_needed, fill, padding_mode)


class CenterCrop(Operator):
    """Cut out the middle; a picture that is too small is padded with black."""

    def __init__(self, size: int | Sequence[int]) -> None:
        """Take torchvision's arguments."""
        super().__init__(size)


class Resize(Operator):
    """Resize to height and width, or to a length of the shorter side."""

    def __init__(
        self, size: int | Sequence[int] | None, interpolation: Any = "bilinear",
        max_size: int | None = None, antialias: bool | None = True,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(size, interpolation, max_size, antialias)


class RandomHorizontalFlip(Operator):
    """Mirror left and right, with this probability."""

    def __init__(self, p: float = 0.5) -> None:
        """Take torchvision's arguments."""
        super().__init__(p)


class RandomVerticalFlip(Operator):
    """Mirror top and bottom, with this probability."""

    def __init__(self, p: float = 0.5) -> None:
        """Take torchvision's arguments."""
        super().__init__(p)


class RandomRotation(Operator):
    """Turn counter-clockwise by a random angle in the range ``degrees``, where 30 means -30 to 30."""

    def __init__(
        self, degrees: float | Pair, interpolation: Any = "nearest", expand: bool = False,
        center: Pair | None = None, fill: Colour = 0,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(degrees, interpolation, expand, center, fill)


class RandomAffine(Operator):
    """Turn clockwise, move, scale and shear about the middle."""

    def __init__(
        self, degrees: float | Pair, translate: Pair | None = None, scale: Pair | None = None,
        shear: float | Sequence[float] | None = None, interpolation: Any = "nearest", fill: Colour = 0,
        center: Pair | None = None,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(degrees, translate, scale, shear, interpolation, fill, center)


class RandomPerspective(Operator):
    """Move the corners inwards, with this probability."""

    def __init__(
        self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = "bilinear",
        fill: Colour = 0,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(distortion_scale, p, interpolation, fill)


class ColorJitter(Operator):
    """Change brightness, contrast, saturation and hue, in any order."""

    def __init__(
        self, brightness: float | Pair | None = None, contrast: float | Pair | None = None,
        saturation: float | Pair | None = None, hue: float | Pair | None = None,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(brightness, contrast, saturation, hue)


class Grayscale(Operator):
    """Take the colours away; the result has three equal channels."""

    def __init__(self, num_output_channels: int = 3) -> None:
        """Take torchvision's arguments; results have three channels."""
        super().__init__(num_output_channels)


class RandomGrayscale(Operator):
    """Take the colours away, with this probability."""

    def __init__(self, p: float = 0.1) -> None:
        """Take torchvision's arguments."""
        super().__init__(p)


class GaussianBlur(Operator):
    """Blur with a kernel of up to 31 pixels."""

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Pair = (0.1, 2.0)) -> None:
        """Take torchvision's arguments."""
        super().__init__(kernel_size, sigma)


class RandomErasing(Operator):
    """Fill a part with one colour, with this probability."""

    def __init__(
        self, p: float = 0.5, scale: Pair = (0.02, 0.33), ratio: Pair = (0.3, 3.3), value: Any = 0.0,
        inplace: bool = False,
    ) -> None:
        """Take torchvision's arguments; ``value`` is not a string and ``inplace`` is ignored."""
        super().__init__(p, scale, ratio, value, inplace)


class RandAugment(Operator):
    """Apply ``num_ops`` of fourteen operators, each with this magnitude."""

    def __init__(
        self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31,
        interpolation: Any = "nearest", fill: Colour | None = None,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(num_ops, magnitude, num_magnitude_bins, interpolation, fill)


class MixUp(Operator):
    """Mix each picture with the one before it in the batch, each by its own random share."""

    num_classes: int | None

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        """Take torchvision's arguments; labels are given to ``Compose``."""
        super().__init__(alpha, num_classes)


class CutMix(Operator):
    """Replace a random part of each picture by that of the picture before it in the batch."""

    num_classes: int | None

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        """Take torchvision's arguments; labels are given to ``Compose``."""
        super().__init__(alpha, num_classes)


class ToDtype(Operator):
    """Convert bytes to ``torch.float32``, ``float16`` or ``bfloat16``; ``scale`` divides them by 255."""

    dtype: str

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        """Take torchvision's arguments; ``dtype`` may be a string."""
        super().__init__(dtype, scale)


class Normalize(Operator):
    """Subtract ``mean`` and divide by ``std``, channel by channel."""

    def __init__(self, mean: Colour, std: Colour, inplace: bool = False) -> None:
        """Take torchvision's arguments; ``inplace`` is ignored."""
        super().__init__(mean, std, inplace)


__all__ = [
    "CenterCrop", "ColorJitter", "CutMix", "GaussianBlur", "Grayscale", "MixUp", "Normalize", "RandAugment",
    "RandomAffine", "RandomCrop", "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip",
    "RandomPerspective", "RandomResizedCrop", "RandomRotation", "RandomVerticalFlip", "Resize", "ToDtype",
]
