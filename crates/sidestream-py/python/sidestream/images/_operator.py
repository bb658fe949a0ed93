"""The base class of the operators. Each operator checks and holds its arguments, as the table of the
extension module describes them. The operators' classes are in ``_operators.py``, which ``python -m
sidestream.images._operator FILE`` writes from that table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from sidestream._arguments import whole
from sidestream._sidestream import check_operator, operators

Pair = Sequence[float]
Colour = float | Sequence[float]

#: The arguments of every operator in torchvision's order: name, kind of value, and default.
ARGUMENTS = {name: arguments for name, _, arguments in operators()}


class Operator:
    """A step of an augmentation: its name and its arguments, which are checked when it is made."""

    def __init__(self, *values: Any) -> None:
        """Take torchvision's arguments in its order, and hold them as the extension module takes them.

        Raises:
            ValueError: An argument is invalid; the message names the operator and the argument.
        """
        name = type(self).__name__
        self._given: dict[str, Any] = {}
        for (argument, kind, default), value in zip(ARGUMENTS.get(name, ()), values, strict=False):
            is_none = value is None and default == "None" and kind not in ("Padding", "Shear")
            self._given.update({argument: None} if is_none else self._held(argument, kind, value))
        if "fill" in self._given:
            # `fill` comes after the others, as in the states that loaders have saved.
            self._given["fill"] = self._given.pop("fill")
        # Arguments that the extension does not take are attributes.
        self.__dict__.update(
            {beside: self._given.pop(beside) for beside in ("dtype", "num_classes") if beside in self._given}
        )
        check_operator(name, self._given)

    def __repr__(self) -> str:
        """Return the name and the arguments."""
        beside = self.__dict__
        words = [beside["dtype"]] if "dtype" in beside else []
        words += [f"{name}={value!r}" for name, value in self._given.items()]
        words += [f"num_classes={beside['num_classes']}"] if "num_classes" in beside else []
        return f"{type(self).__name__}({', '.join(words)})"

    def _held(self, name: str, kind: str, value: Any) -> dict[str, Any]:
        """Return the values that are held for an argument, by the argument's name."""
        match kind:
            case "Size" | "Places":
                return {name: self._sides(name, value)}
            case "Target":
                if value is None:
                    self._refuse(name, value, "a length of the shorter side, or height and width")
                sides = self._sides(name, value)
                return {
                    name: sides,
                    "side": None if hasattr(value, "__len__") and len(value) == 2 else sides[0],
                }
            case "Longest":
                if self._given["side"] is None:
                    self._refuse(name, value, "one length for the shorter side, or leave max_size out")
                return {name: self._whole(name, value, 1, "the most pixels of the longer side")}
            case "Padding":
                return {name: self._padding(name, value)}
            case "Probability" | "Share" | "Positive":
                return {name: self._number(name, value)}
            case "Count":
                return {name: self._whole(name, value, *_COUNTS.get(name, (0, "a whole number")))}
            case "Pair" | "Shares" | "Place":
                return {name: self._pair(name, value)}
            case "Between":
                return {name: self._pair(name, value if hasattr(value, "__len__") else (value, value))}
            case "Around":
                return {name: self._around(name, value)}
            case "Hue":
                return {name: None if value == 0 else self._around(name, value)}
            case "Factors":
                return {name: self._factors(name, value)}
            case "Shear":
                if isinstance(value, Sequence) and len(value) == 4:
                    return {name: self._numbers(name, value, 4, "one number, two or four")}
                sheared = (0.0, 0.0) if value is None else self._around(name, value)
                return {name: (*sheared, 0.0, 0.0)[:4]}
            case "Colour" | "Value" | "Deviation":
                return {name: self._colour(name, value)}
            case "Flag" | "Antialias":
                return {name: bool(value)}
            case "Interpolation":
                return {"bilinear": self._is_bilinear(value)}
            case "Bilinear":
                if not self._is_bilinear(value):
                    self._refuse(name, "nearest", '"bilinear", which is the only one that resizes here')
            case "Three":
                if value != 3:
                    self._refuse(name, value, "3, and take one channel of the result")
            case "Constant":
                if value != "constant":
                    self._refuse(name, value, '"constant", which is the only one here')
            case "Classes":
                return {name: self._whole(name, value, 1, "how many classes there are")}
            case "Dtype":
                dtype = str(value).removeprefix("torch.")
                if dtype not in ("float32", "float16", "bfloat16"):
                    self._refuse(name, dtype, "float32, float16 or bfloat16, or leave ToDtype out for uint8")
                return {name: dtype}
        return {}

    # --------------------------------------------------------- arguments, as numbers of one kind each

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
        """Return two bounds: the given ones, or for one number the negative and the positive number."""
        if hasattr(value, "__len__"):
            return self._numbers(name, value, 2, "a non-negative number, or two numbers, the lower first")
        most = self._number(name, value)
        if most < 0:
            self._refuse(name, value, "a non-negative number, or two numbers, the lower first")
        return -most, most

    def _factors(self, name: str, value: Any) -> tuple[float, ...] | None:
        if hasattr(value, "__len__"):
            return self._pair(name, value)
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
        """Return height and width."""
        give = "one length, or height and width, in pixels"
        sides = list(value) if hasattr(value, "__len__") and not isinstance(value, str) else [value]
        if len(sides) not in (1, 2) or any(
            isinstance(side, bool) or not hasattr(side, "__index__") for side in sides
        ):
            self._refuse(name, value, give)
        if any(side < 1 for side in sides):
            self._refuse(name, value, give)
        return [sides[0].__index__(), sides[-1].__index__()]

    def _padding(self, name: str, value: Any) -> list[Any]:
        """Return left, top, right and bottom."""
        sides: list[Any] = [value or 0] if value is None or isinstance(value, int) else list(value)
        if len(sides) not in (1, 2, 4) or any(not hasattr(side, "__index__") or side < 0 for side in sides):
            give = (
                "one non-negative whole number, two (left and right, top and bottom) "
                "or four (left, top, right, bottom)"
            )
            self._refuse(name, value, give)
        return (sides * 4)[:4]

    def _is_bilinear(self, interpolation: Any) -> bool:
        name = str(getattr(interpolation, "value", interpolation)).lower()
        if name not in ("nearest", "nearest-exact", "bilinear"):
            self._refuse("interpolation", name, '"nearest" or "bilinear"')
        return name == "bilinear"


#: For some counts: the minimum, and the advice for error messages. The table has the other bounds.
_COUNTS: dict[str, tuple[int, str]] = {
    "num_ops": (0, "a number of operators"),
    "magnitude": (0, "a bin"),
    "num_magnitude_bins": (2, "a number of bins"),
}

#: The Python types for the kinds of values; kinds that are not listed are ``Any``.
_TYPES = {
    "int | Sequence[int]": ("Size", "Target", "Padding", "Places"),
    "float": ("Probability", "Share", "Positive"),
    "int": ("Longest", "Count", "Three", "Classes"),
    "Pair": ("Pair", "Shares", "Place"),
    "float | Pair": ("Between", "Around", "Hue", "Factors"),
    "float | Sequence[float]": ("Shear",),
    "Colour": ("Colour", "Deviation"),
    "bool": ("Flag", "Antialias", "Ignored"),
    "str": ("Constant",),
}

#: Notes on kinds that differ from torchvision's.
_NOTES = {
    "Constant": '``padding_mode`` is ``"constant"``',
    "Three": "results have three channels",
    "Value": "``value`` is not a string",
    "Ignored": "``inplace`` is ignored",
    "Classes": "labels are given to ``Compose``",
    "Dtype": "``dtype`` may be a string",
}


def source() -> str:
    """Return the source of ``_operators.py``, with the classes of all operators."""
    types = {kind: name for name, kinds in _TYPES.items() for kind in kinds}
    text = '"""The operators, with the names and the arguments of ``torchvision.transforms.v2``.\n\n'
    text += (
        '``interpolation`` is ``"nearest"`` or ``"bilinear"``, as a string or as a member of torchvision\'s\n'
        "``InterpolationMode``. Colours (``fill``, ``value``) are one number or three. Written by\n"
        '``python -m sidestream.images._operator``: change the table in Rust.\n"""\n\n'
    )
    text += "from __future__ import annotations\n\n"
    text += "from collections.abc import Sequence\nfrom typing import Any\n\n"
    text += "from sidestream.images._operator import Colour, Operator, Pair\n"
    for name, about, arguments in operators():
        taken = ["self"]
        beside = ""
        for argument, kind, default in arguments:
            type_ = types.get(kind, "Any")
            is_optional = default == "None" or kind in ("Target", "Antialias")
            type_ += " | None" if type_ != "Any" and is_optional else ""
            quoted = f'"{default}"' if kind in ("Interpolation", "Bilinear", "Constant") else default
            taken.append(f"{argument}: {type_}" + ("" if default is None else f" = {quoted}"))
            own = {"Dtype": "    dtype: str\n\n", "Classes": "    num_classes: int | None\n\n"}
            beside += own.get(kind, "")
        if "num_classes" in beside:
            # Keyword-only arguments, as in torchvision.
            taken.insert(1, "*")
        signature = ", ".join(taken)
        if len(signature) > 80:
            signature = f"\n{_filled(taken, 8)}\n    "
        text += (
            f'\n\nclass {name}(Operator):\n    """{about}"""\n\n'
            f"{beside}    def __init__({signature}) -> None:\n"
        )
        notes = " and ".join(_NOTES[kind] for _, kind, _ in arguments if kind in _NOTES)
        text += (
            f'        """Take torchvision\'s arguments{"; " * bool(notes)}{notes}."""\n'
            f'        super().__init__({", ".join(argument for argument, *_ in arguments)})\n'
        )
    names = [f'"{name}"' for name in sorted(ARGUMENTS)]
    return f"{text}\n\n__all__ = [\n{_filled(names, 4)}\n]\n"


def _filled(parts: list[str], indent: int) -> str:
    """Return lines that break between parts only."""
    unbroken = ", ".join(part.replace(" ", "\0") for part in parts)
    lines = fill(unbroken, 108, initial_indent=" " * indent, subsequent_indent=" " * indent)
    return lines.replace("\0", " ") + ","


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(source())
