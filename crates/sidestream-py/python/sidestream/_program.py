"""Races in programs of streams that are written as text."""

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
    """Find every pair of operations of a stream program that nothing orders.

    A stream program lists CUDA calls in the order in which they are made; docs/reference/stream-programs.md
    describes the format. It is judged by CUDA's documented rules and not run: no GPU is needed, and a
    race is found even where it happens not to bite. Other threads run meanwhile.

    Args:
        path: A file with one program, or with several under ``cases:``.
        text: The same as text, instead of a file.

    Raises:
        ProgramError: The text is no stream program, or one of its programs breaks the format. The text
            of the error says where, and what to do.
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
    """Two operations that touch the same bytes, one of them writing, and that nothing orders.

    Attributes:
        kind: ``RAW``, ``WAR``, ``WAW`` and the others of docs/guide/check.md.
        buffer: The name of the buffer, where the program gives one.
        first: The number of the operation that comes first in the program, from 0.
        second: The number of the other one.
        severity: ``error``, or ``warn`` where CUDA leaves open whether it can happen.
        streams: Where the two run.
        fix: The call that orders them, and where to put it.
        count: How many pairs of the same two call sites there are.
        sites: The call sites, where the program names them.
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


@dataclass(frozen=True)
class Lint:
    """A call that does not do what it seems to, though nothing races for it.

    Attributes:
        code: The kind of remark, as in docs/guide/check.md.
        op: The number of the operation.
    """

    code: str
    op: int


@dataclass(frozen=True)
class Refused:
    """A call that CUDA refuses. What comes after it was not checked.

    Attributes:
        code: CUDA's name of the error.
        at: The number of the operation.
        why: Why CUDA refuses it.
    """

    code: str
    at: int
    why: str


@dataclass(frozen=True)
class ProgramReport(Told):
    """What was found in one program. ``print`` shows it with the repair of each race.

    As JSON it has the fields of ``sidestream check --json``.

    Attributes:
        name: The name of the program.
        verdict: ``clean``, ``race``, or ``error`` where CUDA refuses a call.
        races: The races, in the order of the program.
        lints: Calls that do not do what they seem to.
        refused: The call that CUDA refuses, if it refuses one.
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
    """What was found in the programs of a text.

    Attributes:
        programs: What was found in each, in the order of the text.
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
        """Return the report as new dictionaries and lists: ``schema``, and ``programs`` with that of each."""
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
