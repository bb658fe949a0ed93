"""Checks the PyTorch programs in the code blocks of a Markdown file, each on simulated GPUs."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from sidestream import _check_found
from sidestream._check import CheckedRun, check

_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:python|py)\b[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL | re.IGNORECASE
)


def blocks(text: str) -> list[tuple[int, str]]:
    """Return the Python blocks, each with the number of lines before it: the marked blocks, or if none is
    marked, the lines that parse as a PyTorch program.
    """
    marked = [
        (text.count("\n", 0, block.start(1)), textwrap.dedent(block.group(1)))
        for block in _BLOCK.finditer(text)
    ]
    return marked or _check_found.found(text)


def check_text(path: Path, devices: int, stacks: bool, memory: int, file: Path | None = None) -> int:
    """Run each block as a separate program, and print the report of each to standard error.

    ``file`` gets the reports as JSON. Return 1 if a block races, otherwise 3 if one does not run to its end
    or something was not simulated, otherwise 0; 2 if the document cannot be read.
    """
    judged: list[dict[str, Any]] = []
    try:
        every = blocks(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{path} cannot be read as UTF-8 text: {error}", file=sys.stderr)
        return 2
    for before, source in every:
        failure = ""
        with check(stacks=stacks, memory=memory, simulate=devices) as found:
            try:
                # Lines are numbered as in the document, so that the report names its lines.
                exec(
                    compile("\n" * before + source, str(path), "exec"),
                    {"__name__": "__main__", "__file__": str(path)},
                )
            except SystemExit:
                pass
            except Exception as error:
                failure = f"it ended with {type(error).__name__}: {error}"
        said = "\n\n".join(part for part in (str(found), failure) if part)
        print(f"{path}:{before + 1}: {said}", end="\n\n", file=sys.stderr)
        judged.append(
            {
                "line": before + 1,
                "verdict": _verdict(found, failure),
                "text": said,
                "failure": failure,
                "found": found.to_dict(),
            }
        )
    if not every:
        print(
            f"{path}: no code block is marked as python, and nothing in it parses as a PyTorch program",
            file=sys.stderr,
        )
    if file is not None:
        file.write_text(
            json.dumps({"schema": "sidestream.checked_text/1", "blocks": judged}) + "\n", encoding="utf-8"
        )
    verdicts = [block["verdict"] for block in judged]
    return 1 if "race" in verdicts else 3 if "incomplete" in verdicts or not every else 0


def _verdict(found: CheckedRun, failure: str) -> str:
    """Return the verdict of a block in one word: the worst one that applies."""
    if not found.is_clean:
        return "race"
    if failure or found.skipped:
        return "incomplete"
    if not found.operations:
        return "nothing"
    return "open" if found.races else "clean"
