"""``provoke`` without a GPU: schedules of a simulated one, what it refuses, and what it writes.
``benches/provoke_gpu.py`` needs a GPU.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import linecache
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import sidestream
from conftest import run_pytest
from forked import python
from sidestream import _check_delays, _check_fix, _check_provoke

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
        (print, {"search_s": -1.0}, ValueError, "search_s is -1.0; give seconds, 0 or more"),
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
    quiet = dataclasses.replace(provocation(0), wrong_alone=0)
    assert provoked.wrong and not sidestream.Provoked((quiet,)).wrong
    text = str(provoked)
    assert "wrong in 20 of 20 runs with a delay before the first access, in 1 of 20 without: value 0" in text
    assert "not reached: 20 runs" in text and "does not mean that it cannot happen" in text
    assert "not tried: no delay can come right before the first access" in text
    found = dataclasses.replace(provocation(0), why="the host called the second access only later")
    assert "not reached: the host called the second access only later" in str(found)
    search = str(sidestream.Provoked((), 5, searched=(3, 9)))
    assert "a search, no proof: 3 of 9 operators were delayed in turn, and the delay of none" in search
    assert "2 results differ from run to run without a race and were not compared; 5 were" in text
    assert "safe" not in text
    assert provoked.to_dict()["races"][0]["first"] == list(COPY)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "searches", "alone", "says"),
    [
        ("", False, 0, "in 0 of 3 without"),
        ("", True, 0, "in 0 of 3 without"),
        ("host", False, None, "not tried without"),
        ("hidden", False, None, "not tried without"),
        ("hidden", True, None, "not tried without"),
    ],
)
def test_what_shows_only_with_a_delay_was_not_tried_without_one(
    kind: str, searches: bool, alone: int | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def run(_: Any, how: _check_delays.How, *__: Any) -> _check_delays.Run:
        """A program whose second access finds other bytes if the first is delayed."""
        ran = _check_delays.Run()
        ran.delays = int(how.first is not None)
        is_late = ran.delays > 0 and not how.waits
        if kind == "hidden":
            ran.results[READ + (0, 0, "")] = torch.zeros(1)
            if how.hides and is_late:
                ran.results[COPY + (0, 0, "hidden")] = 1
        elif kind == "" or how.second is not None:
            ran.results[READ + (0, 0, kind)] = torch.full((1,), float(is_late))
        return ran

    monkeypatch.setattr(_check_provoke, "run", run)
    runner = _check_provoke._Runner(
        print, {(COPY, READ): "RAW on x"}, 3, _check_delays.Delay(20.0, 1), 0, True
    )
    provoked = runner.search(60.0) if searches else runner.provoked()
    assert provoked.races[0].wrong == 3 and provoked.races[0].wrong_alone == alone
    assert says in str(provoked)


@pytest.mark.parametrize("path", ["train", "", "a b:c", "train:", ":step", "nope:step"])
def test_no_test_is_written_for_a_bad_path_or_without_wrong_results(path: str) -> None:
    races = () if path == "nope:step" else (provocation(20),)
    with pytest.raises(ValueError, match="no race gave wrong results|give a module and a function"):
        sidestream.Provoked(races).test(path)


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
        (["--provoke", "0"], "--provoke: 0: give a number of runs, 1 or more, or all"),
        (["--provoke", "all"], "--provoke needs a GPU, and PyTorch finds none"),
    ],
)
def test_the_command_refuses_what_it_cannot_provoke(options: list[str], says: str) -> None:
    ran = python("-m", "sidestream.check", *options, __file__)
    assert ran.returncode == 2 and says in ran.stderr, ran.stderr


RACY = """
import torch
from helper import sum_of

side = torch.cuda.Stream()
x = torch.zeros(1000, device="cuda")
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    x.fill_(1)
total = sum_of(x)
"""
HELPER = """
def sum_of(x):
    total = x.sum()
    return total
"""


@pytest.mark.torch
def test_a_simulated_gpu_shows_how_many_schedules_find_other_bytes(tmp_path: Path) -> None:
    (tmp_path / "racy.py").write_text(RACY)
    (tmp_path / "helper.py").write_text(HELPER)
    ran = python(
        "-m", "sidestream.check", "--simulate", "--provoke", "all", "--json=out.json", "racy.py", cwd=tmp_path
    )
    told = re.search(r"other bytes than in order in\s([0-9,]+) of 10,000 legal schedules", ran.stderr)
    assert ran.returncode == 1 and told, ran.stderr
    (provoked,) = json.loads((tmp_path / "out.json").read_text())["provoked"]
    (race,) = provoked["races"]
    assert 0 < race["wrong"] == int(told[1].replace(",", "")) < race["runs"] == 10_000
    assert race["wrong_alone"] is None and race["how"] is None


@pytest.mark.torch
def test_a_function_is_provoked_on_a_simulated_gpu_and_its_fix_has_nothing_to_provoke() -> None:
    import torch

    def step(right: bool) -> Any:
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        x = torch.zeros(1000, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            x.fill_(1)
        if right:
            main.wait_stream(side)
        return x.sum()

    (race,) = sidestream.provoke(lambda: step(False), simulate=True).races
    assert race.simulated and 0 < race.wrong < race.runs == 10_000
    assert (race.first[0], race.second[0]) == ("fill_", "sum")
    fixed = sidestream.provoke(lambda: step(True), simulate=True)
    assert not fixed.races and not fixed.wrong and str(fixed) == "no race to provoke"


def test_modules_and_scripts_run_with_the_calls_that_fix_them_and_no_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, module = tmp_path / "script.py", tmp_path / "a_module_to_fix.py"
    script.write_text("import a_module_to_fix\nvalue = a_module_to_fix.value\n")
    module.write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def value() -> Any:
        return runpy.run_path(str(script))["value"]

    assert value() == 1
    lines = {
        str(script): [*script.read_text().splitlines(True), "value += 10\n"],
        str(module): ["value = 2\n"],
    }
    with _check_fix.applied(lines):
        assert value() == 12
        assert linecache.getline(str(script), 3) == "value += 10\n"
    assert value() == 1 and module.read_text() == "value = 1\n"


@pytest.mark.torch
def test_the_fixture_says_what_schedules_do_to_a_race(tmp_path: Path) -> None:
    test = "\n".join(
        f"    {line}" for line in RACY.replace("from helper import sum_of", "").splitlines() if line
    )
    test = test.replace("sum_of(x)", "x.sum()")
    (tmp_path / "test_one.py").write_text(f"def test_one(sidestream_check):\n{test}\n")
    told = run_pytest(tmp_path, "--sidestream-simulate", "--sidestream-provoke=3")
    assert "1 error" in told and "of 10,000 legal schedules of a simulated GPU" in told, told
