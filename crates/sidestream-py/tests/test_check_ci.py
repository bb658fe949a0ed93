"""A check in the tests of a library: its fixture, suppressions, checks of some steps only, and a program
that is terminated.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import sidestream
import torch
from conftest import run_pytest
from forked import python
from sidestream._check import checking
from sidestream._check_hooks import Steps
from sidestream._check_suppress import Suppression, suppressions

pytestmark = pytest.mark.torch

#: Finds the recorder of the running check, and makes a race with it.
RACE = """
from torch.utils._python_dispatch import _get_current_dispatch_mode

def race():
    run = _get_current_dispatch_mode()
    run.operator("one", [], [(4096, 8)], 0x100)
    run.operator("two", [(4096, 8)], [], 0x200)
"""
#: The lines of the two accesses.
ONE, TWO = 6, 7


def command(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "sidestream.check", *arguments, env={**os.environ, **environment})


@pytest.fixture
def racy(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(RACE + "race()\n")
    return script


def test_suppressed_races_do_not_count_and_unused_entries_are_named(racy: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text(
        f"# looked at in May\n\ntrain.py:{TWO} the ring has a lock of its own\nother.py:3 gone since\n"
    )
    report = tmp_path / "report.json"
    ran = command("--json", report, "--suppress", known, racy)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("no race besides 1 suppressed finding in 2 operations")
    assert f"suppressed: 1 finding: train.py:{TWO} (the ring has a lock of its own)\n" in ran.stderr
    assert (
        "these suppressions matched nothing; correct or remove them: names and path components match whole: "
        f"{known}:4: other.py:3 (gone since)" in ran.stderr
    )
    assert json.loads(report.read_text())["suppressed"] == [
        {"place": f"train.py:{TWO}", "reason": "the ring has a lock of its own", "findings": 1},
        {"place": "other.py:3", "reason": "gone since", "findings": 0},
    ]
    ran = command("--suppress", known, "--suppress", known, racy)
    assert ran.returncode == 2 and "--suppress: it cannot be used multiple times" in ran.stderr
    known.write_text(f"rain.py:{TWO} of another file\n")
    ran = command("--suppress", known, racy, "--mine", "--simulate")
    assert ran.returncode == 1
    # The program may have an option of this name itself.
    assert ran.stderr.startswith(f"--simulate comes after {racy}")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("train.py:9", "say after train.py:9 why it is not a race"),
        ("train.py:0 nine", "train.py:0: lines are counted from 1"),
        ("train.py nine", "'train.py nine' is not a suppression"),
    ],
)
def test_a_suppression_needs_a_place_and_a_reason(line: str, why: str, tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text(f"\n{line}\n")
    with pytest.raises(ValueError, match=rf"known.txt:2: {why}"), sidestream.check(suppress=known):
        pass
    ran = command("--suppress", known, "train.py")
    assert ran.returncode == 2 and why in ran.stderr


def test_a_race_is_suppressed_by_an_operator_or_a_function_of_its_stack_and_no_other() -> None:
    def program(run: Any) -> None:
        run.operator("one", [], [(4096, 8)], 0x100)
        run.operator("two", [(4096, 8)], [], 0x200)

    for name, left in [("two", 0), ("program", 1), ("tw", 1)]:
        with checking(pretend=True, suppress=(Suppression(None, None, "known", kernel=name),)) as found:
            program(found._recorder)
        assert len(found.races) == left, name
        assert (f"suppressed: 1 finding: kernel:{name} (known)" in str(found)) == (left == 0)
    for name, left in [("program", 0), ("two", 1), ("progra", 1)]:
        with checking(pretend=True, suppress=(Suppression(None, None, "known", name),)) as found:
            program(found._recorder)
        assert len(found.races) == left, name
        assert (f"suppressed: 1 finding: function:{name} (known)" in str(found)) == (left == 0)


def test_a_file_of_suppressions_that_is_no_text_is_named(tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="known.txt is not UTF-8 text: invalid start byte"):
        suppressions(known)


def test_a_call_that_fixes_a_suppressed_race_and_others_stays() -> None:
    def program(run: Any) -> None:
        run.operator("one", [], [(4096, 8), (8192, 8)], 0x100)
        run.operator("two", [(4096, 8)], [], 0x200)
        run.operator("three", [(8192, 8)], [], 0x200)

    line = program.__code__.co_firstlineno + 2
    with checking(pretend=True, suppress=(Suppression("test_check_ci.py", line, "known"),)) as found:
        program(found._recorder)
    assert [race.second.operator for race in found.races] == ["three"]
    (fix,) = found.mends
    assert fix.races == (0,) and fix.first == 0 and found.suppressed


def test_some_steps_only() -> None:
    w = torch.ones(4, requires_grad=True)
    optimizers = [torch.optim.SGD([w], lr=0.1) for _ in range(2)]
    heard = []
    steps = Steps(2, 4)
    with checking(pretend=True, steps=steps) as found:
        for _ in range(6):
            (w * 2).sum().backward()
            # Steps are counted by the first optimizer.
            for optimizer in optimizers:
                optimizer.step()
            heard.append(found.operations)
    assert heard[0] == 0 < heard[2] < heard[3] == heard[5]
    assert steps.made == 6 and "nothing was checked" not in str(found)
    assert str(found).startswith(f"no race in {found.operations} operations of steps 2 to 3")
    assert [Steps(1, 2).shown, Steps(3, sys.maxsize).shown] == ["step 1", "the steps from 3 on"]
    with checking(pretend=True, steps=Steps(9, 10)) as found:
        optimizers[0].step()
    assert "nothing was checked, since the program made 1 step" in str(found)


@pytest.mark.parametrize("steps", ["3", "5:3", "a:b"])
def test_invalid_steps_are_refused(steps: str, racy: Path) -> None:
    ran = command("--steps", steps, racy)
    assert ran.returncode == 2 and f"--steps {steps}: " in ran.stderr


def test_a_gpu_that_is_required() -> None:
    if torch.cuda.is_available():
        return
    ran = command("--require-gpu", "-m", "this")
    assert ran.returncode == 2 and "--require-gpu: PyTorch finds no GPU here" in ran.stderr and not ran.stdout


def test_each_rank_has_a_report_of_its_own(racy: Path, tmp_path: Path) -> None:
    ran = command("--json", tmp_path / "report.json", racy, RANK="3", WORLD_SIZE="4")
    assert ran.stderr.startswith("rank 3: 1 race in 2 operations")
    assert json.loads((tmp_path / "report.rank3.json").read_text())["races"]
    assert not (tmp_path / "report.json").exists()
    command("--json", tmp_path / "report.json", racy, RANK="0", WORLD_SIZE="1")
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_leaves_its_report(by: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    # The report file is rewritten every ten seconds; this program shortens the interval.
    script.write_text(RACE + "race()\nprint('raced', flush=True)\nimport signal\nsignal.pause()\n")
    report = tmp_path / "report.json"
    start = (
        "import sys; from sidestream import check as c; import sidestream.check; "
        "m = sys.modules['sidestream.check']; m._SECONDS = 0.01; "
    )
    start += f"sys.exit(m.main(['--json', {str(report)!r}, {str(script)!r}]))"
    with subprocess.Popen(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ran:
        assert ran.stdout and ran.stderr
        assert ran.stdout.readline() == "raced\n"
        if by == signal.SIGKILL:
            while '"RAW"' not in report.read_text():
                pass
        ran.send_signal(by)
        said = ran.stderr.read()
        code = ran.wait()
    left = json.loads(report.read_text())
    assert [race["kind"] for race in left["races"]] == ["RAW"]
    if by == signal.SIGTERM:
        assert code == 1 and "1 race in 2 operations" in said and left["ended"] is None
    else:
        assert code == -signal.SIGKILL and left["ended"] == "the program had not ended when this was written"


def test_processes_that_the_program_starts_end_as_they_would(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, signal\n"
        "child = multiprocessing.get_context('fork').Process(target=signal.pause)\n"
        "child.start()\nchild.terminate()\nchild.join()\nprint(child.exitcode)\n"
    )
    assert command(script).stdout == f"{-signal.SIGTERM}\n"


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_library.py").write_text(
        RACE
        + textwrap.dedent("""
        def test_clean(sidestream_check):
            assert sidestream_check.is_clean
        def test_racy(sidestream_check):
            race()
        def test_not_checked():
            pass
        """)
    )

    def tested(*options: str) -> str:
        return run_pytest(tmp_path, *options)

    out = tested()
    assert "ERROR test_library.py::test_racy" in out and "3 passed, " in out and "1 error" in out, out
    assert "1 race in 2 operations; one call fixes it" in out
    (tmp_path / "known.txt").write_text(f"test_library.py:{TWO} known\n")
    again = tested("--sidestream-suppress", "known.txt")
    assert "3 passed in" in again, again
    assert "this test ran nothing on a GPU" in tested("--sidestream-require-gpu", "-k", "clean")
    (tmp_path / "test_library.py").write_text(
        "def test_on_a_gpu(sidestream_check):\n"
        "    import torch\n"
        "    assert torch.ones(2, device='cuda').sum() == 2 and sidestream_check.operations\n"
    )
    none = "PyTorch finds no GPU here; with --sidestream-simulate the tests have a simulated one.\n"
    out = tested()
    assert "1 failed in" in out and none in out, out
    out = tested("--sidestream-simulate")
    assert "1 passed in" in out, out
    assert "1 passed in" in tested("-o", "sidestream_simulate=true")


def test_a_file_of_suppressions(tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text("\ufeff./a b/train.py:7   for: a reason  \nkernel:addmm slow\nfunction:step fine\n")
    assert suppressions(known) == (
        Suppression("a b/train.py", 7, "for: a reason"),
        Suppression(None, None, "slow", kernel="addmm"),
        Suppression(None, None, "fine", function="step"),
    )
