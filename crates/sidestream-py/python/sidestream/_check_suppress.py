"""Suppressions: findings that a user has judged harmless, by their place, each with a reason."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sidestream._sidestream import parse_suppressions, printable

if TYPE_CHECKING:
    from sidestream._checked import Place


@dataclass(frozen=True)
class Suppression:
    """A finding that is not reported. It is of a line, a function or a kernel; the others are None.

    Attributes:
        file: The last components of the source file's path.
        line: The line number, starting at 1.
        reason: Why the finding is harmless.
        function: The name of a function in the stack.
        kernel: The name of an operator or a kernel.
    """

    file: str | None
    line: int | None
    reason: str
    function: str | None = None
    kernel: str | None = None
    #: The file and the line in which it stands.
    _source: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return printable(f"{self._place} ({self.reason})")

    @property
    def _entry(self) -> str:
        return printable(f"{self._source}: {self}") if self._source else str(self)

    @property
    def _place(self) -> str:
        named = f"kernel:{self.kernel}" if self.function is None else f"function:{self.function}"
        return named if self.file is None else f"{self.file}:{self.line}"

    def is_of(self, operator: str | None, stack: Iterable[Place]) -> bool:
        """Return whether a call of this operator, with this stack, is at the suppressed place."""
        if self.kernel is not None:
            return self.kernel == operator
        if self.function is not None:
            return any(place.function == self.function for place in stack)
        return any(place.line == self.line and self._is_file(place.file) for place in stack)

    def _is_file(self, file: str) -> bool:
        names, own = Path(os.path.abspath(file)).parts, Path(self.file or "").parts
        return names[-len(own) :] == own


def suppressions(path: str | os.PathLike[str]) -> tuple[Suppression, ...]:
    """Read a file of suppressions, each on a line ``FILE:LINE REASON``, ``function:NAME REASON`` or
    ``kernel:NAME REASON``. Empty lines and lines that start with ``#`` are ignored.

    Raises:
        ValueError: A line is not a suppression, and the message has its number; or the file is not UTF-8
            text.
        OSError: The file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)} is not UTF-8 text: {error.reason}") from None
    return tuple(Suppression(*one) for one in parse_suppressions(text, os.fspath(path)))
