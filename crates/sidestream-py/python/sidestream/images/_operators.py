"""The operators, with the names and the arguments of ``torchvision.transforms.v2``.

Each only holds its arguments; ``Compose`` runs them. ``interpolation`` is ``"nearest"`` or ``"bilinear"``, as a text or as a member of
torchvision's ``InterpolationMode``. Colours (``fill``, ``value``) are one number or three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Pair = Sequence[float]
Colour = float | Sequence[float]


class Operator:
    """A step of an augmentation: its name and its arguments, checked where a ``Compose`` is made."""

    def __init__(self, **given: Any) -> None:
        """Take the arguments as the extension module takes them."""
        self._given = given

    def __repr__(self) -> str:
        """Return the name and the arguments."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"


class RandomResizedCrop(Operator):
    """Cut out a part of any size and proportions, and resize it to ``size``."""

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Pair = (0.08, 1.0),
        ratio: Pair = (3 / 4, 4 / 3),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        """Take torchvision's arguments."""
        _only_bilinear(self, interpolation)
        super().__init__(size=_size(size), scale=_pair("scale", scale), ratio=_pair("ratio", ratio), antialias=bool(antialias))


class RandomCrop(Operator):
    """Cut out a part of this size, behind padding with one colour."""

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Colour = 0,
        padding_mode: str = "constant",
    ) -> None:
        """Take torchvision's arguments; ``padding_mode`` is ``"constant"``."""
        if padding_mode != "constant":
            raise ValueError(f'padding_mode is {padding_mode!r}; only "constant" is known here')
        sides = [padding or 0] if isinstance(padding, int) or padding is None else list(padding)
        if len(sides) not in (1, 2, 4):
            raise ValueError(f"padding is {padding!r}; give one number, two (left and right, top and bottom) or four (left, top, right, bottom)")
        super().__init__(size=_size(size), padding=(sides * 4)[:4], pad_if_needed=bool(pad_if_needed), fill=_colour("fill", fill))


class CenterCrop(Operator):
    """Cut out the middle; where that is too small, it is padded with black."""

    def __init__(self, size: int | Sequence[int]) -> None:
        """Take torchvision's arguments."""
        super().__init__(size=_size(size))


class Resize(Operator):
    """Resize to height and width, or to a length of the shorter side."""

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        """Take torchvision's arguments."""
        _only_bilinear(self, interpolation)
        if size is None:
            raise ValueError("size is None; give a length of the shorter side, or height and width")
        side = size if isinstance(size, int) else size[0] if len(size) == 1 else None
        if side is None and max_size is not None:
            raise ValueError("max_size goes with one length for the shorter side; leave it out")
        super().__init__(
            size=_size(size), side=side, max_size=max_size, antialias=bool(antialias)
        )


class RandomHorizontalFlip(Operator):
    """Mirror left and right, with this probability."""

    def __init__(self, p: float = 0.5) -> None:
        """Take torchvision's arguments."""
        super().__init__(p=p)


class RandomVerticalFlip(Operator):
    """Mirror top and bottom, with this probability."""

    def __init__(self, p: float = 0.5) -> None:
        """Take torchvision's arguments."""
        super().__init__(p=p)


class RandomRotation(Operator):
    """Turn, counter-clockwise, by an angle between two, or up to one to both sides."""

    def __init__(
        self,
        degrees: float | Pair,
        interpolation: Any = "nearest",
        expand: bool = False,
        center: Pair | None = None,
        fill: Colour = 0,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(
            degrees=_around("degrees", degrees),
            bilinear=_is_bilinear(self, interpolation),
            expand=bool(expand),
            center=None if center is None else _pair("center", center),
            fill=_colour("fill", fill),
        )


class RandomAffine(Operator):
    """Turn clockwise, move, scale and shear about the middle."""

    def __init__(
        self,
        degrees: float | Pair,
        translate: Pair | None = None,
        scale: Pair | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Any = "nearest",
        fill: Colour = 0,
        center: Pair | None = None,
    ) -> None:
        """Take torchvision's arguments."""
        sheared: tuple[float, ...] = (0.0, 0.0)
        if shear is not None:
            sheared = tuple(shear) if isinstance(shear, Sequence) and len(shear) == 4 else _around("shear", shear)
        super().__init__(
            degrees=_around("degrees", degrees),
            translate=None if translate is None else _pair("translate", translate),
            scale=None if scale is None else _pair("scale", scale),
            shear=(*sheared, 0.0, 0.0)[:4],
            bilinear=_is_bilinear(self, interpolation),
            center=None if center is None else _pair("center", center),
            fill=_colour("fill", fill),
        )


class RandomPerspective(Operator):
    """Move the corners inwards, with this probability."""

    def __init__(self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = "bilinear", fill: Colour = 0) -> None:
        """Take torchvision's arguments."""
        super().__init__(
            distortion_scale=distortion_scale, p=p, bilinear=_is_bilinear(self, interpolation), fill=_colour("fill", fill)
        )


class ColorJitter(Operator):
    """Change brightness, contrast, saturation and hue, in any order."""

    def __init__(
        self,
        brightness: float | Pair | None = None,
        contrast: float | Pair | None = None,
        saturation: float | Pair | None = None,
        hue: float | Pair | None = None,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(
            brightness=_factors("brightness", brightness),
            contrast=_factors("contrast", contrast),
            saturation=_factors("saturation", saturation),
            hue=None if not hue else _around("hue", hue),
        )


class Grayscale(Operator):
    """Take the colours away; the result has three equal channels."""

    def __init__(self, num_output_channels: int = 3) -> None:
        """Take 3, which is not torchvision's default: results have three channels."""
        if num_output_channels != 3:
            raise ValueError(f"num_output_channels is {num_output_channels}; give 3, and take one channel of the result")
        super().__init__()


class RandomGrayscale(Operator):
    """Take the colours away, with this probability."""

    def __init__(self, p: float = 0.1) -> None:
        """Take torchvision's arguments."""
        super().__init__(p=p)


class GaussianBlur(Operator):
    """Blur, by a kernel of up to 31 places."""

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Pair = (0.1, 2.0)) -> None:
        """Take torchvision's arguments."""
        pair = (sigma, sigma) if isinstance(sigma, (int, float)) else _pair("sigma", sigma)
        sides = [kernel_size] * 2 if isinstance(kernel_size, int) else (list(kernel_size) * 2)[:2]
        super().__init__(kernel_size=sides, sigma=pair)


class RandomErasing(Operator):
    """Give a part one colour, with this probability."""

    def __init__(
        self,
        p: float = 0.5,
        scale: Pair = (0.02, 0.33),
        ratio: Pair = (0.3, 3.3),
        value: Any = 0.0,
        inplace: bool = False,
    ) -> None:
        """Take torchvision's arguments; ``value`` is no text, and ``inplace`` says nothing here."""
        if isinstance(value, str):
            raise ValueError(f"value is {value!r}; give a number or three")
        super().__init__(p=p, scale=_pair("scale", scale), ratio=_pair("ratio", ratio), value=_colour("value", value))


class RandAugment(Operator):
    """Apply ``num_ops`` of fourteen operators, each with this magnitude."""

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: Colour | None = None,
    ) -> None:
        """Take torchvision's arguments."""
        super().__init__(
            num_ops=num_ops,
            magnitude=magnitude,
            num_magnitude_bins=num_magnitude_bins,
            bilinear=_is_bilinear(self, interpolation),
            fill=None if fill is None else _colour("fill", fill),
        )


class _Mixes(Operator):
    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        """Take torchvision's arguments; labels are given to ``Compose``."""
        super().__init__(alpha=alpha)
        self.num_classes = num_classes


class MixUp(_Mixes):
    """Mix each picture with the one before it in the batch; each has a share of its own."""


class CutMix(_Mixes):
    """Put a part of the picture before it in the batch into each; each has a part of its own."""


class ToDtype(Operator):
    """Make floating-point numbers: ``torch.float32``, ``float16`` or ``bfloat16``; with ``scale`` from 0 to 1."""

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        """Take torchvision's arguments; ``dtype`` may be a text."""
        super().__init__(scale=bool(scale))
        self.dtype = str(dtype).removeprefix("torch.")
        if self.dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype}; give float32, float16 or bfloat16, or leave ToDtype out for uint8")


class Normalize(Operator):
    """Subtract ``mean`` and divide by ``std``, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        """Take torchvision's arguments; ``inplace`` says nothing here."""
        super().__init__(mean=_colour("mean", mean), std=_colour("std", std))


def _size(size: int | Sequence[int]) -> list[int]:
    """Height and width."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(sides) not in (1, 2) or any(not isinstance(side, int) or side < 1 for side in sides):
        raise ValueError(f"size is {size!r}; give one length, or height and width, in pixels")
    return [sides[0], sides[-1]]


def _pair(name: str, value: Pair) -> tuple[float, float]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError(f"{name} is {value!r}; give two numbers")
    return float(value[0]), float(value[1])


def _around(name: str, value: float | Pair) -> tuple[float, float]:
    return (-float(value), float(value)) if isinstance(value, (int, float)) else _pair(name, value)


def _factors(name: str, value: float | Pair | None) -> tuple[float, float] | None:
    if value is None or value == 0:
        return None
    if isinstance(value, (int, float)):
        if value < 0:
            raise ValueError(f"{name} is {value}; give 0 or more")
        return max(0.0, 1.0 - value), 1.0 + value
    return _pair(name, value)


def _colour(name: str, value: Colour) -> list[float]:
    values = [float(value)] * 3 if isinstance(value, (int, float)) else [float(v) for v in value]
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3 or not all(math.isfinite(v) for v in values):
        raise ValueError(f"{name} is {value!r}; give one number, or three")
    return values


def _is_bilinear(operator: Operator, interpolation: Any) -> bool:
    name = str(getattr(interpolation, "value", interpolation)).lower()
    if name not in ("nearest", "nearest-exact", "bilinear"):
        raise ValueError(f'interpolation of {type(operator).__name__} is {name!r}; give "nearest" or "bilinear"')
    return name == "bilinear"


def _only_bilinear(operator: Operator, interpolation: Any) -> None:
    if not _is_bilinear(operator, interpolation):
        raise ValueError(f'interpolation of {type(operator).__name__} is "nearest"; give "bilinear", which is the only one that resizes here')
