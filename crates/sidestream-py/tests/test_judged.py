"""Checks docs/developers/judged.md, which judges the programs of five texts. The texts are not in the
repository. If `SIDESTREAM_TEXTS` names a folder with them, each program is judged again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest
import sidestream
from judged import BLOCKS, Block

PAGE = (Path(__file__).parents[3] / "docs/developers/judged.md").read_text(encoding="utf-8")
TEXTS = os.environ.get("SIDESTREAM_TEXTS")


def test_the_page_has_a_row_for_each_program_with_its_verdict() -> None:
    rows = re.findall(r"^\| (\d+\.\d+[^|]*?) \| [^|]+ \| ([^|]+?) \|", PAGE, re.MULTILINE)
    assert dict(rows) == {block.name: block.verdict.replace(",", ", ") for block in BLOCKS}


def test_the_stream_programs_of_the_page_are_what_it_says() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    programs = sidestream.check_program(text=text).programs
    rows = dict(re.findall(r"^\| ([a-z][a-z ]+) \| [^|]+ \| (clean|[A-Z, ]+) \|$", PAGE, re.MULTILINE))
    kinds = {
        each.name.replace("_", " "): ", ".join(race.kind for race in each.races) or "clean"
        for each in programs
    }
    assert kinds == rows


def test_the_gains_are_those_of_the_patterns() -> None:
    patterns = (Path(__file__).parents[3] / "docs/guide/patterns.md").read_text(encoding="utf-8")
    times = re.findall(r"\d+ µs → \d+ µs", PAGE)
    assert times and not [time for time in times if time not in patterns]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
@pytest.mark.parametrize("block", BLOCKS if TEXTS else [], ids=lambda block: block.name)
def test_a_program_of_the_texts_is_judged_as_the_page_says(block: Block) -> None:
    assert TEXTS is not None
    program = compile(block.program(Path(TEXTS)), block.name, "exec")
    refused = ""
    with sidestream.check(simulate=2) as found, contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(program, {"__name__": "__main__"})
        except RuntimeError as error:
            refused = str(error)
    kinds = ",".join(sorted({race.kind for race in found.races if race.severity == "error"}))
    assert ("device not ready" in refused) == (block.verdict == "refused"), refused
    assert found.operations and not found.skipped
    assert ("refused" if refused else kinds or "clean") == block.verdict, str(found)
