"""The operators, with the names and the arguments of ``torchvision.transforms.v2``.

Each checks and holds its arguments; ``Compose`` runs them. ``interpolation`` is ``"nearest"`` or ``"bilinear"``, as a text or as a member of
torchvision's ``InterpolationMode``. Colours (``fill``, ``value``) are one number or three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from sidestream._arguments import whole
from sidestream._sidestream import check_operator

Pair = Sequence[float]
Colour = float | Sequence[float]


class Operator:
    """A step of an augmentation: its name and its arguments, which are checked where it is made."""

    def __init__(self, **given: Any) -> None:
        """Take the arguments as the extension module takes them.

        Raises:
            ValueError: One means nothing; the text names the operator and the argument.
        """
        self._given = given
        check_operator(type(self).__name__, given)

    def __repr__(self) -> str:
        """Return the name and the arguments."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"

    # ------------------------------------------------------------------ arguments, as numbers of one kind each

    def _refuse(self, name: str, value: Any, give: str) -> NoReturn:
        raise ValueError(f"{type(self).__name__}: {name} is {value!r}; give {give}") from None

    def _number(self, name: str, value: Any, give: str = "a number") -> float:
        if isinstance(value, (str, bool)):
            self._refuse(name, value, give)
        try:
            return float(value)
        except (TypeError, ValueError):
            self._refuse(name, value, give)

    def _numbers(self, name: str, value: Any, count: int, give: str) -> tuple[float, ...]:
        if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != count:
            self._refuse(name, value, give)
        return tuple(self._number(name, one, give) for one in value)

    def _whole(self, name: str, value: Any, least: int, give: str) -> int:
        return whole(f"{type(self).__name__}: {name}", value, least, give)

    def _pair(self, name: str, value: Any) -> tuple[float, ...]:
        return self._numbers(name, value, 2, "two numbers")

    def _around(self, name: str, value: Any) -> tuple[float, ...]:
        """As far to both sides, or between two."""
        if hasattr(value, "__len__"):
            return self._numbers(name, value, 2, "a number from 0 on, or two, the lower one first")
        most = self._number(name, value)
        if most < 0:
            self._refuse(name, value, "a number from 0 on, or two, the lower one first")
        return -most, most

    def _factors(self, name: str, value: Any) -> tuple[float, ...] | None:
        if value is None or hasattr(value, "__len__"):
            return None if value is None else self._pair(name, value)
        most = self._number(name, value)
        if most < 0:
            self._refuse(name, value, "0 or more")
        return (max(0.0, 1.0 - most), 1.0 + most) if most else None

    def _colour(self, name: str, value: Any) -> list[float]:
        give = "one number, or three"
        values = [value] * 3 if not hasattr(value, "__len__") or isinstance(value, str) else list(value)
        values = values * 3 if len(values) == 1 else values
        colour = list(self._numbers(name, values, 3, give))
        if not all(math.isfinite(one) for one in colour):
            self._refuse(name, value, give)
        return colour

    def _sides(self, name: str, value: Any) -> list[int]:
        """Height and width."""
        give = "one length, or height and width, in pixels"
        sides = list(value) if hasattr(value, "__len__") and not isinstance(value, str) else [value]
        if len(sides) not in (1, 2) or any(isinstance(side, bool) or not hasattr(side, "__index__") for side in sides):
            self._refuse(name, value, give)
        if any(side < 1 for side in sides):
            self._refuse(name, value, give)
        return [sides[0].__index__(), sides[-1].__index__()]

    def _is_bilinear(self, interpolation: Any) -> bool:
        name = str(getattr(interpolation, "value", interpolation)).lower()
        if name not in ("nearest", "nearest-exact", "bilinear"):
            self._refuse("interpolation", name, '"nearest" or "bilinear"')
        return name == "bilinear"

    def _only_bilinear(self, interpolation: Any) -> None:
        if not self._is_bilinear(interpolation):
            self._refuse("interpolation", "nearest", '"bilinear", which is the only one that resizes here')


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
        self._only_bilinear(interpolation)
        super().__init__(size=self._sides("size", size), scale=self._pair("scale", scale), ratio=self._pair("ratio", ratio), antialias=bool(antialias))


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
            self._refuse("padding_mode", padding_mode, '"constant", which is the only one here')
        give = "one whole number from 0 on, two (left and right, top and bottom) or four (left, top, right, bottom)"
        sides: list[Any] = [padding or 0] if padding is None or isinstance(padding, int) else list(padding)
        if len(sides) not in (1, 2, 4) or any(not hasattr(side, "__index__") or side < 0 for side in sides):
            self._refuse("padding", padding, give)
        super().__init__(size=self._sides("size", size), padding=(sides * 4)[:4], pad_if_needed=bool(pad_if_needed), fill=self._colour("fill", fill))


class CenterCrop(Operator):
    """Cut out the middle; where that is too small, it is padded with black."""

    def __init__(self, size: int | Sequence[int]) -> None:
        """Take torchvision's arguments."""
        super().__init__(size=self._sides("size", size))


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
        self._only_bilinear(interpolation)
        if size is None:
            self._refuse("size", size, "a length of the shorter side, or height and width")
        sides = self._sides("size", size)
        side = None if hasattr(size, "__len__") and len(size) == 2 else sides[0]
        if max_size is not None:
            if side is None:
                self._refuse("max_size", max_size, "one length for the shorter side, or leave max_size out")
            max_size = self._whole("max_size", max_size, 1, "the most pixels of the longer side")
        super().__init__(size=sides, side=side, max_size=max_size, antialias=bool(antialias))


class RandomHorizontalFlip(Operator):
    """Mirror left and right, with this probability."""

    def __init__(self, p: float = 0.5) -> None:
        """Take torchvision's arguments."""
        super().__init__(p=self._number("p", p))


class RandomVerticalFlip(Operator):
    """Mirror top and bottom, with this probability."""

    def __init__(self, p: float = 0.5) -> None:
        """Take torchvision's arguments."""
        super().__init__(p=self._number("p", p))


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
            degrees=self._around("degrees", degrees),
            bilinear=self._is_bilinear(interpolation),
            expand=bool(expand),
            center=None if center is None else self._pair("center", center),
            fill=self._colour("fill", fill),
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
        if isinstance(shear, Sequence) and len(shear) == 4:
            sheared = self._numbers("shear", shear, 4, "one number, two or four")
        elif shear is not None:
            sheared = self._around("shear", shear)
        super().__init__(
            degrees=self._around("degrees", degrees),
            translate=None if translate is None else self._pair("translate", translate),
            scale=None if scale is None else self._pair("scale", scale),
            shear=(*sheared, 0.0, 0.0)[:4],
            bilinear=self._is_bilinear(interpolation),
            center=None if center is None else self._pair("center", center),
            fill=self._colour("fill", fill),
        )


class RandomPerspective(Operator):
    """Move the corners inwards, with this probability."""

    def __init__(self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = "bilinear", fill: Colour = 0) -> None:
        """Take torchvision's arguments."""
        super().__init__(
            distortion_scale=self._number("distortion_scale", distortion_scale),
            p=self._number("p", p),
            bilinear=self._is_bilinear(interpolation),
            fill=self._colour("fill", fill),
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
            brightness=self._factors("brightness", brightness),
            contrast=self._factors("contrast", contrast),
            saturation=self._factors("saturation", saturation),
            hue=None if hue is None or hue == 0 else self._around("hue", hue),
        )


class Grayscale(Operator):
    """Take the colours away; the result has three equal channels."""

    def __init__(self, num_output_channels: int = 3) -> None:
        """Take 3, which is not torchvision's default: results have three channels."""
        if num_output_channels != 3:
            self._refuse("num_output_channels", num_output_channels, "3, and take one channel of the result")
        super().__init__()


class RandomGrayscale(Operator):
    """Take the colours away, with this probability."""

    def __init__(self, p: float = 0.1) -> None:
        """Take torchvision's arguments."""
        super().__init__(p=self._number("p", p))


class GaussianBlur(Operator):
    """Blur, by a kernel of up to 31 places."""

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Pair = (0.1, 2.0)) -> None:
        """Take torchvision's arguments."""
        pair = self._pair("sigma", sigma if hasattr(sigma, "__len__") else (sigma, sigma))
        super().__init__(kernel_size=self._sides("kernel_size", kernel_size), sigma=pair)


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
        super().__init__(p=self._number("p", p), scale=self._pair("scale", scale), ratio=self._pair("ratio", ratio), value=self._colour("value", value))


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
            num_ops=self._whole("num_ops", num_ops, 0, "a number of operators"),
            magnitude=self._whole("magnitude", magnitude, 0, "a bin"),
            num_magnitude_bins=self._whole("num_magnitude_bins", num_magnitude_bins, 2, "a number of bins"),
            bilinear=self._is_bilinear(interpolation),
            fill=None if fill is None else self._colour("fill", fill),
        )


class _Mixes(Operator):
    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        """Take torchvision's arguments; labels are given to ``Compose``."""
        super().__init__(alpha=self._number("alpha", alpha))
        self.num_classes = None if num_classes is None else self._whole("num_classes", num_classes, 1, "how many classes there are")

    def __repr__(self) -> str:
        """Return the name and the arguments."""
        return f"{type(self).__name__}(alpha={self._given['alpha']}, num_classes={self.num_classes})"


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
            self._refuse("dtype", self.dtype, "float32, float16 or bfloat16, or leave ToDtype out for uint8")

    def __repr__(self) -> str:
        """Return the name and the arguments."""
        return f"ToDtype({self.dtype}, scale={self._given['scale']})"


class Normalize(Operator):
    """Subtract ``mean`` and divide by ``std``, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        """Take torchvision's arguments; ``inplace`` says nothing here."""
        super().__init__(mean=self._colour("mean", mean), std=self._colour("std", std))
