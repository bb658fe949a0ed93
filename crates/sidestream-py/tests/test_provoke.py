"""``provoke`` without a GPU: what it refuses, and what it writes. ``benches/provoke_gpu.py`` needs one."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import sidestream
from forked import python

COPY = ("copy_", "x.copy_(batch, non_blocking=True)")
READ = ("sum", "x.sum()")


def provocation(wrong: int, delays: int = 1, what: str | None = "value 0 differs") -> sidestream.Provocation:
    return sidestream.Provocation("RAW on x", COPY, READ, 20, wrong, 1, delays, what if wrong else None)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("function", "options", "error", "says"),
    [
        (3, {}, TypeError, "function is int; give one that takes no arguments"),
        (print, {"runs": 0}, ValueError, "runs is 0"),
        (print, {"delay_ms": 0.0}, ValueError, "delay_ms is 0.0; give milliseconds above 0"),
        (print, {}, RuntimeError, "PyTorch finds none"),
    ],
)
def test_what_cannot_be_provoked_is_refused(
    function: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        sidestream.provoke(function, **options)


def test_a_result_says_how_often_the_bytes_were_wrong_and_never_that_a_program_is_safe() -> None:
    provoked = sidestream.Provoked((provocation(20), provocation(0), provocation(0, delays=0)), 5, 2)
    assert provoked.wrong and not sidestream.Provoked((provocation(0),)).wrong
    text = str(provoked)
    assert "wrong in 20 of 20 runs with a delay before the first access, in 1 of 20 without: value 0" in text
    assert "not reached: 20 runs" in text and "does not mean that it cannot happen" in text
    assert "not tried: no delay can come right before the first access" in text
    assert "2 results differ from run to run without a race and were not compared; 5 were" in text
    assert "safe" not in text
    assert provoked.to_dict()["races"][0]["first"] == list(COPY)


def test_the_test_that_it_writes_is_short_python_with_the_pairs_that_were_wrong() -> None:
    other = sidestream.Provocation("WAR on y", READ, COPY, 20, 0, 0, 1, None)
    text = sidestream.Provoked((provocation(20), provocation(20), other)).test("train:step")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 40
    pairs = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(pairs) == [(COPY, READ)]
    assert "from train import step" in text and "def test_step_gives_the_same_bytes_with_a_delay" in text


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--provoke", "0"], "--provoke 0: give a number of runs, 1 or more"),
        (["--provoke", "5", "--simulate"], "--provoke delays work on a GPU, and --simulate has none"),
    ],
)
def test_the_command_refuses_what_it_cannot_provoke(options: list[str], says: str) -> None:
    ran = python("-m", "sidestream.check", *options, __file__)
    assert ran.returncode == 2 and says in ran.stderr, ran.stderr
