"""The baseline: findings that a repository already has, so that only new ones fail its check."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidestream import _check_fix

if TYPE_CHECKING:
    from sidestream._checked import CheckedRace, Place, Remark

SCHEMA = "sidestream.baseline/1"
#: Maximum size of a baseline: tens of thousands of findings.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, order=True)
class Access:
    """A line of a finding, without its number, which changes with the lines above it."""

    file: str
    function: str
    source: str
    operator: str


@dataclass(frozen=True, order=True)
class Finding:
    """What identifies a race, by its two accesses, or a remark, by its one line, in later runs."""

    kind: str
    accesses: tuple[Access, ...]


class Baseline:
    """The known findings, and the folder that their paths are relative to: that of the repository around the
    file, else of the one around the current folder, else the current folder.

    Args:
        path: The file; None if nothing is known.
        is_read: Whether the file has the known findings; otherwise it will be written.

    Raises:
        ValueError: The file is not a baseline.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, is_read: bool = True) -> None:
        self.path = path
        self.known = frozenset[Finding]() if path is None or not is_read else _read(path)
        self._start = Path.cwd().resolve()
        beside = (self._start / (path or "file")).parent.resolve()
        above = (beside, *beside.parents, self._start, *self._start.parents)
        self._root = next((folder for folder in above if (folder / ".git").exists()), self._start)

    def race(self, race: CheckedRace) -> Finding:
        """Return what identifies a race."""
        sides = (race.first, race.second)
        return Finding(race.kind, tuple(self._access(side.operator, side.stack) for side in sides))

    def remark(self, remark: Remark) -> Finding:
        """Return what identifies a remark."""
        return Finding(remark.code, (self._access("", remark.stack),))

    def relative(self, file: str) -> str | None:
        """Return the path of a file in the repository, with ``/``; None for a file elsewhere."""
        # The program may have changed the current folder.
        path = (self._start / file).resolve()
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else None

    def told(self, text: str) -> str:
        """Return a text with the paths before line numbers as ``relative`` returns them."""

        def named(path: re.Match[str]) -> str:
            name = self.relative(path[0])
            return name if name and os.path.isfile(self._root / name) else path[0]

        # What is left has a space.
        return re.sub(r"(?<![^\s(])[^\s(]+(?=:\d)", named, text).replace(f"{self._root}{os.sep}", "")

    def shown(self, gone: int) -> str:
        """Return the sentence on known findings that a run did not have."""
        path = _check_fix.shown(os.fspath(self.path or ""))
        if not any(os.path.exists(self._root / side.file) for one in self.known for side in one.accesses):
            return f"no path in {path} exists below {self._root}; name another baseline, or write it anew"
        return f"{counted(gone)} of {path} did not appear; after a whole run, write it anew to shorten it"

    def _access(self, operator: str, stack: Sequence[Place]) -> Access:
        place = _check_fix.own(stack)
        if place is None:
            return Access("", "", "", operator)
        return Access(self._name(place.file), place.function, _check_fix.source(place), operator)

    def _name(self, file: str) -> str:
        if _check_fix.is_library(file):
            # Each machine has its own folder of installed code.
            for folder in (f"site-packages{os.sep}", f"dist-packages{os.sep}", *_check_fix.LIBRARIES):
                if folder in file:
                    return Path(file.rpartition(folder)[2]).as_posix()
        return self.relative(file) or file


def counted(count: int) -> str:
    return "1 finding" if count == 1 else f"{count:,} findings"


def written(findings: Iterable[Finding]) -> str:
    """Return the text of a baseline with these findings: sorted, each once."""
    value = {"schema": SCHEMA, "findings": [asdict(finding) for finding in sorted(set(findings))]}
    return json.dumps(value, indent=1)


def _read(path: str | os.PathLike[str]) -> frozenset[Finding]:
    with open(path, "rb") as file:
        text = file.read(_MOST_BYTES + 1)
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        value = json.loads(text)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        return frozenset(found(one) for one in value["findings"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{os.fspath(path)} is not a baseline: {why}; write it anew") from None


def found(value: Any) -> Finding:
    """Return the finding of a JSON value."""
    accesses = (
        Access(**{field.name: _text(side[field.name]) for field in fields(Access)})
        for side in value["accesses"]
    )
    return Finding(_text(value["kind"]), tuple(accesses))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    return value
