"""A guard for a repository: a baseline of known findings, and reports for other tools."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import EXAMPLES, run_pytest
from forked import python
from sidestream._check_export import RULES

pytestmark = pytest.mark.torch

#: Has a race at the call of `model`, and blocks in its loop.
LOOP = """
import torch

def step(model, side, host):
    with torch.cuda.stream(side):
        x = host.to("cuda", non_blocking=True)
    y = model(x)
    return y.sum().item()

model, side = torch.nn.Linear(8, 8).cuda(), torch.cuda.Stream()
for _ in range(4):
    step(model, side, torch.randn(2, 8).pin_memory())
"""
#: Has another race, which is not in the baseline of the loop.
OTHER = "host = torch.ones(8).pin_memory()\nhost.cuda(non_blocking=True)\nhost.zero_()\n"
EMPTY = '{"schema": "sidestream.baseline/1", "findings": []}'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text(LOOP)
    return tmp_path


def checked(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "sidestream.check", "--simulate", *arguments, cwd=folder)


def results(file: Path) -> list[dict[str, Any]]:
    (run,) = json.loads(file.read_text())["runs"]
    found: list[dict[str, Any]] = run["results"]
    return found


def test_only_findings_that_are_not_in_the_baseline_fail(repository: Path) -> None:
    script, known = repository / "src/train.py", repository / "known.json"
    ran = checked(repository, "--baseline", known, script)
    assert (
        ran.returncode == 2 and "known.json: No such file or directory; --write-baseline writes" in ran.stderr
    )
    ran = checked(repository, "--write-baseline", known, script)
    assert (
        ran.returncode == 0
        and "1 race in " in ran.stderr
        and "2 findings written to known.json" in ran.stderr
    )
    value = json.loads(known.read_text())
    assert value["schema"] == "sidestream.baseline/1"
    assert [finding["kind"] for finding in value["findings"]] == ["RAW", "SYNC_IN_LOOP"]
    assert value["findings"][0]["accesses"][1] == {
        "file": "src/train.py",
        "function": "step",
        "source": "y = model(x)",
        "operator": "addmm",
    }
    # The lines have other numbers, the path is another one, and the program changes the folder.
    script.write_text("import os\nos.chdir('/')\n" + LOOP)
    ran = checked(repository / "src", "--baseline", "../known.json", "--json", "found.json", "train.py")
    assert ran.returncode == 0 and "left out as known: 2 findings" in ran.stderr, ran.stderr
    assert "did not appear" not in ran.stderr
    report = json.loads((repository / "src/found.json").read_text())
    assert report["known"] == 2 and not report["races"] and not report["lints"]
    # Two calls on lines with the same text are one finding, and paths are those of the file's repository.
    script.write_text(LOOP + LOOP)
    with tempfile.TemporaryDirectory() as elsewhere:
        ran = checked(Path(elsewhere), "--baseline", known, script)
        assert ran.returncode == 0 and "left out as known: 2 findings" in ran.stderr, ran.stderr
        (Path(elsewhere) / ".git").mkdir()
        moved = shutil.copy(known, elsewhere)
        ran = checked(repository, "--baseline", moved, script)
        assert ran.returncode == 1 and f"no path in {moved} exists below {elsewhere};" in ran.stderr
    script.write_text(LOOP.replace("range(4)", "range(1)") + OTHER)
    ran = checked(repository, "--baseline", known, script)
    assert ran.returncode == 1 and ran.stderr.startswith("1 race in ") and "HOST_WAR" in ran.stderr
    assert "1 finding of known.json did not appear" in ran.stderr


def test_a_suppressed_finding_is_not_written(repository: Path) -> None:
    (repository / "fine.txt").write_text("train.py:7 a lock orders them\n")
    ran = checked(
        repository, "--suppress", "fine.txt", "--write-baseline", "known.json", repository / "src/train.py"
    )
    assert "suppressed: 1 finding: train.py:7 (a lock orders them)" in ran.stderr
    assert '"RAW"' not in (repository / "known.json").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<<<<<<< HEAD", "Expecting value: line 1"),
        ('{"schema": "sidestream.baseline/2"}', "its schema is not sidestream.baseline/1"),
        ('{"schema": "sidestream.baseline/1"}', "'findings' is missing"),
        ('{"schema": "sidestream.baseline/1", "findings": [{"kind": 3, "accesses": []}]}', "3 is not text"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_is_not_a_baseline_is_refused(text: str, why: str, repository: Path) -> None:
    (repository / "known.json").write_text(text)
    ran = checked(repository, "--baseline", "known.json", repository / "src/train.py")
    assert ran.returncode == 2 and "known.json is not a baseline: " in ran.stderr and why in ran.stderr


@pytest.mark.parametrize("option", ["--sarif", "--junit", "--write-baseline"])
def test_a_file_that_cannot_be_written_is_an_error_before_the_program_runs(
    option: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('runs')")
    ran = checked(tmp_path, option, "gone/file", script)
    assert ran.returncode == 2 and f"{option} gone/file: No such file" in ran.stderr and not ran.stdout


@pytest.mark.parametrize("option", ["--json", "--sarif", "--junit", "--reduce"])
def test_no_two_options_name_the_same_file(option: str, repository: Path) -> None:
    file = repository / "known.json"
    file.write_text(EMPTY)
    ran = checked(repository / "src", "--baseline", "../known.json", option, file, "train.py")
    assert ran.returncode == 2 and f"{option} name the same file, {file};" in ran.stderr
    assert file.read_text() == EMPTY


def test_without_torch_the_remedy_is_named(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "found.json"
    script.write_text("print('runs')")
    code = (
        "import sys; sys.modules['torch'] = None; from sidestream.check import main; "
        f"main(['--simulate', '--json', {str(file)!r}, {str(script)!r}])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 2 and "not installed; pip install torch" in ran.stderr and not ran.stdout
    assert "Traceback" not in ran.stderr and not file.exists()


def test_sarif_has_a_place_and_a_fingerprint_for_each_finding(repository: Path) -> None:
    script, file = repository / "src/train.py", repository / "found.sarif"
    assert checked(repository / "src", "--sarif", file, "./train.py").returncode == 1
    log = json.loads(file.read_text())
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and run["invocations"][0]["executionSuccessful"]
    race, remark = run["results"]
    assert (race["ruleId"], race["level"]) == ("RAW", "error")
    assert (remark["ruleId"], remark["level"]) == ("SYNC_IN_LOOP", "note")
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(RULES)

    def place(location: dict[str, Any]) -> tuple[str, str, int, int, int]:
        physical = location["physicalLocation"]
        artifact, region = physical["artifactLocation"], physical["region"]
        columns = (region["startColumn"], region["endColumn"])
        return artifact["uri"], artifact["uriBaseId"], region["startLine"], *columns

    second = ("src/train.py", "%SRCROOT%", 7, 5, 17)
    assert place(race["locations"][0]) == second
    (first,) = race["relatedLocations"]
    assert place(first)[2] == 6 and f"]({first['id']})" in race["message"]["text"]
    steps = [step["location"] for step in race["codeFlows"][0]["threadFlows"][0]["locations"]]
    assert [place(step)[2] for step in steps] == [6, 7]
    told = " ".join(one["message"]["text"] for one in (race, *steps))
    assert set(re.findall(r"\S+(?=:[67]\b)", told)) == {"src/train.py"}
    # The fingerprint stays when lines move; the report is written although the program dies.
    script.write_text("# a line\n" + LOOP + "raise ValueError('here')\n")
    assert checked(repository, "--sarif", file, script).returncode == 1
    moved = results(file)[0]
    assert place(moved["locations"][0])[2] == 8
    assert moved["partialFingerprints"] == race["partialFingerprints"]
    invocation = json.loads(file.read_text())["runs"][0]["invocations"][0]
    (problem,) = invocation["toolExecutionNotifications"]
    assert not invocation["executionSuccessful"] and "ended with ValueError" in problem["message"]["text"]


def test_junit_has_a_failed_test_for_each_race(repository: Path) -> None:
    script, file = repository / "src/train.py", repository / "found.xml"

    def suite() -> ElementTree.Element:
        checked(repository, "--junit", file, script)
        (one,) = ElementTree.parse(file).getroot()
        return one

    race, remark = suite()
    assert race.get("name") == "RAW, addmm after _to_copy at src/train.py:7"
    failure = race.find("failure")
    assert failure is not None and "second: addmm on default" in str(failure.text)
    assert remark.find("failure") is None and remark.find("system-out") is not None
    script.write_text("import torch\nraise ValueError('\\x00')\n")
    dead = suite()
    assert [dead.get(count) for count in ("tests", "failures", "errors")] == ["1", "0", "1"]
    script.write_text("import torch\n")
    clean = suite()
    assert [dict(test.attrib) for test in clean] == [{"classname": "src/train.py", "name": "no race"}]
    assert [clean.get(count) for count in ("tests", "failures", "errors")] == ["1", "0", "0"]


def test_each_kind_of_the_guide_has_a_rule() -> None:
    guide = (EXAMPLES.parent / "docs/guide/check.md").read_text()
    told = guide.partition("### Kinds")[2].partition("### Backward")[0]
    assert set(RULES) == set(re.findall(r"^\| `([A-Z_]+)` \|", told, re.MULTILINE))


def test_the_fixture_leaves_out_what_is_known_and_writes_sarif(repository: Path) -> None:
    (repository / "test_train.py").write_text(
        "import runpy, torch\n"
        "HERE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "def test_loop(sidestream_check):\n    runpy.run_path('src/train.py')\n"
        "def test_again(sidestream_check):\n    runpy.run_path('src/train.py')\n"
        "def test_nothing(sidestream_check):\n    torch.ones(2, device=HERE)\n"
    )

    def tested(*options: str) -> str:
        return run_pytest(repository, "--sidestream-simulate", *options)

    for wrong in ("0", "-4", "all"):
        assert f"{wrong}: give a number of runs, 1 or more" in tested("--sidestream-provoke", wrong)
    assert "--sidestream-write-baseline writes one" in tested("--sidestream-baseline", "known.json")
    out = tested("--sidestream-write-baseline", "known.json")
    assert "3 passed in" in out and "sidestream: 2 findings written to known.json" in out, out
    assert "nothing was checked in test_train.py::test_nothing, since nothing ran on a GPU" in out
    alone = (repository / "known.json").read_text()
    # The workers of xdist send what they found.
    out = tested("--sidestream-write-baseline", "known.json", "--sidestream-sarif", "found.sarif", "-n", "1")
    assert "3 passed in" in out and (repository / "known.json").read_text() == alone, out
    found = results(repository / "found.sarif")
    assert [result["ruleId"] for result in found] == ["RAW", "SYNC_IN_LOOP"]
    script = repository / "src/train.py"
    script.write_text("# moved\n" + LOOP.replace("range(4)", "range(1)"))
    out = tested("--sidestream-baseline", "known.json", "--sidestream-sarif", "found.sarif")
    assert "3 passed in" in out and not results(repository / "found.sarif"), out
    assert "sidestream: 1 finding left out as known; 1 finding of known.json did not appear" in out
    script.write_text(LOOP + OTHER)
    out = tested("--sidestream-baseline", "known.json", "--sidestream-sarif", "found.sarif")
    assert "2 errors" in out and [one["ruleId"] for one in results(repository / "found.sarif")] == [
        "HOST_WAR"
    ]
    assert "gone/file: No such file" in tested("--sidestream-sarif", "gone/file")
    out = tested("--sidestream-baseline", "known.json", "--sidestream-sarif", "./known.json")
    assert "name the same file" in out and (repository / "known.json").read_text() == alone


def test_the_workflow_to_copy_uses_options_that_exist() -> None:
    options = re.findall(r"--sidestream-[a-z-]+", (EXAMPLES / "ci/races.yml").read_text())
    told = run_pytest(EXAMPLES, "--help")
    assert len(options) > 4 and [option for option in options if option not in told] == []
