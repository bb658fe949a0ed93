"""``sidestream.check_program`` on the examples, and on input that is not a program."""

from __future__ import annotations

import html
import json
import pickle
from pathlib import Path

import pytest
import sidestream
from sidestream import Race

RACE = """
name: race
ops:
- {do: copy_async, s: s1, from: H, to: A}
- {do: kernel, s: s2, r: [A], w: [B]}
"""


def test_a_race_is_named_with_its_fix(programs: Path) -> None:
    report = sidestream.check_program(programs / "hello_race.yaml")
    assert report.races == (
        Race(
            kind="RAW",
            buffer="x",
            first=0,
            second=1,
            severity="error",
            streams=("load", "main"),
            fix="wait_stream s=main src=load before 1",
            count=1,
            sites=(None, None),
        ),
    )
    assert not report.is_clean
    (program,) = report.programs
    assert (program.name, program.verdict, program.refused) == ("hello_race", "race", None)


def test_each_racy_example_races_and_its_twin_does_not(programs: Path) -> None:
    racy = sorted(programs.glob("*.racy.yaml"))
    fixed = sorted(programs.glob("*.fixed.yaml"))
    assert len(racy) > 30 and len(fixed) > 30
    assert [path.name for path in racy if not sidestream.check_program(path).races] == []
    assert [path.name for path in fixed if not sidestream.check_program(path).is_clean] == []


def test_a_text_is_checked_as_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "race.yaml"
    path.write_text(RACE)
    report = sidestream.check_program(text=RACE)
    assert report == sidestream.check_program(str(path))
    assert [race.kind for race in report.races] == ["RAW"]


def test_several_programs_have_a_report_each() -> None:
    text = """
cases:
- name: one
  ops:
  - {do: copy_async, s: s1, from: H, to: A}
  - {do: kernel, s: s2, r: [A], w: [B]}
- name: two
  ops:
  - {do: copy_async, s: s1, from: H, to: A}
  - {do: kernel, s: s1, r: [A], w: [B]}
"""
    report = sidestream.check_program(text=text)
    assert [(p.name, p.verdict) for p in report.programs] == [("one", "race"), ("two", "clean")]
    assert len(report.races) == 1 and not report.is_clean
    assert str(report).index("one: 1 race") < str(report).index("two: ")


def test_a_call_that_cuda_refuses_is_named(programs: Path) -> None:
    (program,) = sidestream.check_program(programs / "timing.no_timing.error.yaml").programs
    assert program.verdict == "error"
    assert program.refused is not None
    assert (program.refused.code, program.refused.at) == ("InvalidResourceHandle", 4)
    assert "an event was created without timing" in program.refused.why


def test_a_report_is_shown_with_the_lines_of_the_program(programs: Path) -> None:
    shown = str(sidestream.check_program(programs / "hello_race.yaml"))
    assert shown.startswith("hello_race: 1 race\n")
    assert "op 0 (line 6) on load: copy_async, s: load, from: h, to: x" in shown
    assert "fix: - {do: wait_stream, s: main, src: load}   before op 1 (line 7)" in shown


def test_a_report_is_exported_and_shows_itself_in_a_notebook(programs: Path) -> None:
    report = sidestream.check_program(programs / "hello_race.yaml")
    value = report.to_dict()
    assert json.loads(report.json()) == value
    (program,) = value["programs"]
    assert program == report.programs[0].to_dict() == json.loads(report.programs[0].json())
    assert (program["name"], program["verdict"], program["races"][0]["fix"]) == (
        "hello_race",
        "race",
        "wait_stream s=main src=load before 1",
    )
    for one in (report, report.programs[0]):
        assert html.unescape(one._repr_html_()) == f"<pre>{one}</pre>"


def test_a_report_survives_a_pickle() -> None:
    report = sidestream.check_program(text=RACE)
    other = pickle.loads(pickle.dumps(report))
    assert (other, str(other)) == (report, str(report))
    assert "RAW" in repr(report)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ops: [", "line "),
        ("", "line 1"),
        ("cases: []", "`cases` lists no program; add one"),
        (RACE.replace("kernel", "kernal"), "line 5, op 1 (`kernal`)"),
    ],
)
def test_a_text_that_is_not_a_program_is_refused_with_its_place(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(sidestream.ProgramError) as raised:
        sidestream.check_program(text=text)
    assert why in str(raised.value)
    assert isinstance(raised.value, ValueError)
    path = tmp_path / "program.yaml"
    path.write_text(text)
    with pytest.raises(sidestream.ProgramError) as of_file:
        sidestream.check_program(path)
    assert str(of_file.value) == f"{path}: {raised.value}"


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(sidestream.ProgramError, match="not UTF-8"):
        sidestream.check_program(path)


def test_a_file_that_is_not_there_raises_what_open_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sidestream.check_program(tmp_path / "gone.yaml")


def test_either_a_path_or_a_text_is_taken() -> None:
    with pytest.raises(TypeError, match="give one of them"):
        sidestream.check_program()
    with pytest.raises(TypeError, match="give one of them"):
        sidestream.check_program("a.yaml", text=RACE)
