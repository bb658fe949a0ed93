"""Programs of PyTorch in the code blocks of a text, each checked on simulated GPUs."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from sidestream._check import check

_BLOCK = re.compile(r"^[ \t]*```[ \t]*(?:python|py)\b[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL | re.IGNORECASE)


def blocks(text: str) -> list[tuple[int, str]]:
    """The blocks of Python, each with the number of lines before it."""
    return [(text.count("\n", 0, found.start(1)), textwrap.dedent(found.group(1))) for found in _BLOCK.finditer(text)]


def check_text(path: Path, devices: int, stacks: bool, memory: int) -> int:
    """Run each block as a program of its own, and print to standard error what the check says of it.

    Returns 1 where a block races, else 3 where one does not run to its end or something was not simulated, else 0; 2 where
    the text cannot be read.
    """
    races, incomplete = False, False
    try:
        every = blocks(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{path} cannot be read as UTF-8 text: {error}", file=sys.stderr)
        return 2
    for before, source in every:
        failure = ""
        with check(stacks=stacks, memory=memory, simulate=devices) as found:
            try:
                # The lines are those of the text, so that the report names them.
                exec(compile("\n" * before + source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
            except SystemExit:
                pass
            except Exception as error:
                failure = f"it ended with {type(error).__name__}: {error}"
        races = races or not found.is_clean
        incomplete = incomplete or bool(failure or found.skipped)
        parts = [f"{path}:{before + 1}: {found}", failure]
        print("\n\n".join(part for part in parts if part), end="\n\n", file=sys.stderr)
    if not every:
        print(f"{path}: no code block is marked as python", file=sys.stderr)
    return 1 if races else 3 if incomplete or not every else 0
