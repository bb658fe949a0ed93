"""The reduction of a racy program: the shortest stream program that still has the race."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sidestream
from forked import python

pytestmark = pytest.mark.torch

RACY = """
import torch
side = torch.cuda.Stream()
x = torch.ones(1 << 20, device="cuda")
side.wait_stream(torch.cuda.current_stream())
for step in range(50):
    with torch.cuda.stream(side):
        y = x * 2
    z = y.sum()
"""
FREED = """
import torch
side = torch.cuda.Stream()
host = torch.ones(1 << 20).pin_memory()
for step in range(20):
    x = host.to("cuda", non_blocking=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    del x
"""
REFILLED = """
import torch
host = torch.ones(1 << 20).pin_memory()
x = torch.empty(1 << 20, device="cuda")
for step in range(20):
    host[:100].fill_(step)
    x.copy_(host, non_blocking=True)
"""


def reduced(folder: Path, text: str, *options: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    program, left = folder / "program.py", folder / "left.yaml"
    program.write_text(text, encoding="utf-8")
    return left, python(
        "-m", "sidestream.check", "--simulate", "--reduce", left, *options, program.name, cwd=folder
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "sidestream", *arguments)


def ops(left: Path) -> list[str]:
    return [line for line in left.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]


def numberless(lines: list[str]) -> list[str]:
    """Remove call numbers: another version of PyTorch may make other calls in between."""
    return [re.sub(r"# call \d+", "# call N", line) for line in lines]


@pytest.mark.parametrize(
    ("text", "expected", "fix", "before"),
    [
        (
            RACY,
            [
                "- {do: kernel, s: side, w: [A]}  # call N, 4194304 bytes: mul at program.py:8: y = x * 2",
                "- {do: kernel, s: default, r: [A]}  # call N, 4194304 bytes: sum at program.py:9: "
                "z = y.sum()",
            ],
            "- {do: wait_stream, s: default, src: side}",
            1,
        ),
        (
            FREED,
            [
                "- {do: kernel, s: side, r: [A]}  # call N, 4194304 bytes: mul at program.py:9: y = x * 2",
                "- {do: free, buf: A}  # call N",
                "- {do: alloc, buf: B, s: default, over: A, after_events: true}  # call N: ",
                "- {do: copy_async, s: default, from: H, to: B}  # call N, 4194304 bytes: "
                "_to_copy at program.py:6: ",
            ],
            "- {do: record_stream, buf: A, st: side}",
            1,
        ),
        (
            REFILLED,
            [
                "- {do: copy_async, s: default, from: H, to: A}  # call N, 4194304 bytes: "
                "copy_ at program.py:7: ",
                '- {do: host_write, buf: "H[0:512]"}  # call N, 400 bytes: fill_ at program.py:6: ',
            ],
            "- {do: sync_stream, st: default}",
            1,
        ),
    ],
)
def test_a_racy_program_is_cut_to_the_calls_that_race(
    tmp_path: Path, text: str, expected: list[str], fix: str, before: int
) -> None:
    left, ran = reduced(tmp_path, text)
    kept = ops(left)
    assert ran.returncode == 1, ran.stderr
    assert len(kept) == len(expected) and all(map(str.startswith, numberless(kept), expected)), kept
    assert f"{len(kept)} of " in ran.stderr and f"`sidestream run {left} --explore 100`" in ran.stderr, (
        ran.stderr
    )
    checked = command("check", str(left))
    assert checked.returncode == 1 and f"fix: {fix}   before op {before}" in checked.stdout, checked.stdout
    assert "late" in command("run", str(left), "--explore", "20").stdout
    # With the fix applied, the program has no race.
    lines = left.read_text(encoding="utf-8").splitlines()
    lines.insert(lines.index(kept[before]), fix)
    fixed = tmp_path / "fixed.yaml"
    fixed.write_text("\n".join(line for line in lines if not line.startswith("expect:")), encoding="utf-8")
    assert sidestream.check_program(fixed).is_clean
    # Running the command again gives an equal result.
    first = left.read_text(encoding="utf-8")
    assert reduced(tmp_path, text)[0].read_text(encoding="utf-8") == first


def test_a_program_without_a_race_leaves_nothing(tmp_path: Path) -> None:
    left, ran = reduced(tmp_path, RACY.replace("z = y.sum()", "torch.cuda.synchronize()"))
    assert ran.returncode == 0 and not left.exists(), ran.stderr
    assert f"there is no race to reduce the program to; {left} is not written" in ran.stderr


def test_a_race_that_is_suppressed_is_not_kept(tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text("program.py:9 it is known\n", encoding="utf-8")
    left, ran = reduced(tmp_path, RACY, "--suppress", str(known))
    assert ran.returncode == 0 and not left.exists(), ran.stderr


def test_what_cannot_be_written_is_refused_before_the_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('ran')", encoding="utf-8")
    for left in (tmp_path / "none" / "left.yaml", tmp_path, program):
        ran = python("-m", "sidestream.check", "--simulate", "--reduce", left, program)
        assert (ran.returncode, ran.stdout) == (2, "") and f"--reduce {left}: name a file" in ran.stderr, (
            ran.stderr
        )


def test_the_command_too_reports_the_blocks_of_a_text_with_their_verdicts(tmp_path: Path) -> None:
    text = tmp_path / "notes.md"
    text.write_text(
        f"# Notes\n\n```python{RACY}```\n\n```python\nimport torch\ntorch.ones(2, device='cuda')\n```\n",
        encoding="utf-8",
    )
    # By default the command uses its own Python.
    ran = command("check", str(text))
    assert ran.returncode == 1, ran.stderr
    assert f"{text}:4: python: race\n  2 races in 101 operations on a simulated GPU" in ran.stdout, ran.stdout
    assert f"{text}:15: python: clean\n  no race in 1 operation on a simulated GPU\n" in ran.stdout, (
        ran.stdout
    )
    text.write_text("```python\nmodel(x)\n```\n", encoding="utf-8")
    ran = command("check", str(text), "--python", sys.executable)
    assert ran.returncode == 3 and "python: incomplete" in ran.stdout and "NameError" in ran.stdout, (
        ran.stdout
    )
