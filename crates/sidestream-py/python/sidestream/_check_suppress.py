"""Suppressions: findings that a user has judged harmless, by file and line, each with a reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidestream._sidestream import printable

if TYPE_CHECKING:
    from sidestream._checked import Place


@dataclass(frozen=True)
class Suppression:
    """A finding that is not reported.

    Attributes:
        file: The last components of the source file's path.
        line: The line number, starting at 1.
        reason: Why the finding is harmless.
    """

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.file}:{self.line} ({self.reason})")

    def is_of(self, stack: Iterable[Place]) -> bool:
        """Return whether one of these lines is the suppressed one."""
        return any(place.line == self.line and self._is_file(place.file) for place in stack)

    def _is_file(self, file: str) -> bool:
        names, own = Path(os.path.abspath(file)).parts, Path(self.file).parts
        return names[-len(own) :] == own


def suppressions(path: str | os.PathLike[str]) -> tuple[Suppression, ...]:
    """Read a file of suppressions, each on a line ``FILE:LINE REASON``. Empty lines and lines that start
    with ``#`` are ignored.

    Raises:
        ValueError: A line is not a suppression, and the message has its number; or the file is not UTF-8
            text.
        OSError: The file cannot be read.
    """
    found = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)} is not UTF-8 text: {error.reason}") from None
    for number, text in enumerate(lines, 1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        parts = re.fullmatch(r"\s*(?:\./)?(.+?):(\d+)(?:\s+(.*\S))?\s*", text)
        if parts is None:
            raise ValueError(
                f"{os.fspath(path)}:{number}: {text.strip()!r} is not a suppression; write FILE:LINE REASON"
            )
        file, line, reason = parts.groups()
        if reason is None:
            raise ValueError(f"{os.fspath(path)}:{number}: say after {file}:{line} why it is not a race")
        found.append(Suppression(file, int(line), reason))
    return tuple(found)
