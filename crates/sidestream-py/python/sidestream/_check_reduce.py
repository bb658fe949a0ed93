"""Reduces a checked program to the shortest stream program that still has one of its races."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sidestream._check import CheckedRun
from sidestream._check_fix import line, own, source
from sidestream._checked import CheckedRace


def chosen(found: CheckedRun) -> CheckedRace | None:
    """Return the race to keep: the first certain race of the report, or the first race if none is certain."""
    races = [found.races[at] for mend in found.mends for at in mend.races] + list(found.races)
    return next((race for race in races if race.severity == "error"), races[0] if races else None)


def write(found: CheckedRun, file: Path, name: str) -> str:
    """Write the reduced program to a file, and return a sentence that describes it.

    Raises:
        OSError: The file cannot be written.
        RuntimeError: There is no such program; the message says why.
    """
    race = chosen(found)
    if race is None:
        return f"there is no race to reduce the program to; {file} is not written"
    text, ops, operations = reduced(found, race, name)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError:
        # A partly written program would not be valid.
        with contextlib.suppress(OSError):
            file.unlink()
        raise
    return (
        f"{ops} of {operations:,} calls are left in {file}, with the first race of the report; "
        f"`sidestream run {file} --explore 100` shows what it does to the results"
    )


def reduced(found: CheckedRun, race: CheckedRace, name: str) -> tuple[str, int, int]:
    """Return the shortest program with a race, its number of calls, and that of the calls of the run.

    Raises:
        RuntimeError: There is no such program; the message says why.
    """
    recorder = found._recorder
    if race._ids is None:
        raise RuntimeError("the race of the report is not one of the run's")

    def told(stack: int, operator: str) -> str:
        place = own(found._places(stack))
        if place is None:
            return operator
        text = source(place)
        return f"{operator} at {line(place)}" + (f": {text}" if text else "")

    sides = zip((race.first.stream, race.second.stream), race.names, strict=True)
    called = [(stream, name) for stream, name in sides if name is not None and name.isidentifier()]
    text, ops, operations = recorder.reduced(race._ids, name, called, told)
    return text, ops, operations
