"""``check_program``: finds races in stream programs, which are text files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidestream import _sidestream
from sidestream._results import Result, Told, made


def check_program(
    path: str | os.PathLike[str] | None = None, *, text: str | None = None
) -> CheckReport:
    """Find every unordered pair of conflicting operations in a stream program.

    A stream program lists CUDA calls in the order in which they are made; docs/reference/stream-programs.md
    describes the format. The program is judged by CUDA's documented rules and not run: neither a GPU nor
    PyTorch is needed, and a race is found even if it would have no effect. Other threads run meanwhile.

    Args:
        path: A file with one program, or with several under ``cases:``.
        text: The program as text, instead of a file.

    Returns:
        A ``CheckReport``, with an entry in ``programs`` for each program.

    Raises:
        ProgramError: The text is not a stream program, or one of its programs breaks the format. The error
            says where, and what to do.
        OSError: The system cannot read the file; ``FileNotFoundError`` where there is none.
        TypeError: Both of ``path`` and ``text`` are given, or neither.
    """
    if (path is None) == (text is None):
        raise TypeError("check_program takes either a path or text=; give one of them")
    if not isinstance(text if path is None else path, (str, os.PathLike) if text is None else str):
        raise TypeError(
            "check_program takes the name of a file, or text= with a program; this is "
            f"{path if text is None else text!r}"
        )
    values, pages = _sidestream.check_program(path, text)
    programs = zip(json.loads(values), pages, strict=True)
    return CheckReport(tuple(_program(value, page) for value, page in programs))


@dataclass(frozen=True)
class Race:
    """Two unordered operations that touch the same bytes, at least one of which writes.

    Attributes:
        kind: ``RAW``, ``WAR``, ``WAW`` and the others of docs/guide/check.md.
        buffer: The name of the buffer, if the program gives one.
        first: The index of the operation that comes first in the program, starting at 0.
        second: The index of the other operation.
        severity: ``error``, or ``warn`` where it is not certain that the race can happen.
        streams: The streams of the two operations.
        fix: The call that orders them, and where to put it.
        count: Number of pairs at the same two call sites.
        sites: The call sites, if the program names them.
        doubt: For ``warn``, the reason why it is not certain.
    """

    kind: str
    buffer: str | None
    first: int
    second: int
    severity: str
    streams: tuple[str, str]
    fix: str
    count: int
    sites: tuple[str | None, str | None]
    doubt: str | None = None


@dataclass(frozen=True)
class Lint:
    """A remark on a call that races with nothing but does not have the intended effect.

    Attributes:
        code: The kind of remark, as in docs/guide/check.md.
        op: The number of the operation.
    """

    code: str
    op: int


@dataclass(frozen=True)
class Refused:
    """A call that CUDA refuses. Later operations were not checked.

    Attributes:
        code: CUDA's name for the error.
        at: The number of the operation.
        why: Why CUDA refuses it.
    """

    code: str
    at: int
    why: str


@dataclass(frozen=True)
class ProgramReport(Told):
    """The findings in one program. ``print`` shows it with the fix of each race.

    Its JSON has the fields of ``sidestream check --json``.

    Attributes:
        name: The name of the program.
        verdict: ``clean``, ``race``, or ``error`` where CUDA refuses a call.
        races: The races, in the order of the program.
        lints: Remarks on calls that do not have the intended effect.
        refused: The call that CUDA refuses, if any.
    """

    name: str
    verdict: str
    races: tuple[Race, ...]
    lints: tuple[Lint, ...]
    refused: Refused | None
    _text: str = field(repr=False)
    _json: str = field(repr=False)

    def __str__(self) -> str:
        return self._text


@dataclass(frozen=True)
class CheckReport(Result):
    """The findings in the programs of a file or string.

    Attributes:
        programs: A report for each program, in the order of the file or string.
    """

    programs: tuple[ProgramReport, ...]

    @property
    def races(self) -> tuple[Race, ...]:
        """The races of all programs."""
        return tuple(race for program in self.programs for race in program.races)

    @property
    def is_clean(self) -> bool:
        """Whether no program has a race or a call that CUDA refuses. There may be lints."""
        return all(program.verdict == "clean" for program in self.programs)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as new dictionaries and lists, of the schema ``sidestream.check.programs/1``."""
        return {
            "schema": "sidestream.check.programs/1",
            "programs": [program.to_dict() for program in self.programs],
        }

    def __str__(self) -> str:
        return "\n\n".join(str(program) for program in self.programs)


def _program(value: Mapping[str, Any], page: str) -> ProgramReport:
    error = value["error"] and {**value["error"], "why": value["why"]}
    told = {**value, "refused": error, "_text": page, "_json": json.dumps(value)}
    report: ProgramReport = made(ProgramReport, told)
    return report
