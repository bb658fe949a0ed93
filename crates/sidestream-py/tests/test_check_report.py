"""The report of a check: the calls that fix the races, as a patch, and no more than that."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import python
from sidestream import _check_fix
from sidestream._check import CheckedRun, checking
from sidestream._checked import Place

pytestmark = pytest.mark.torch

SIDE = 0x100


class Stream:
    """A stand-in for a PyTorch stream on a machine without a GPU."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


@contextmanager
def on(run: Any, stream: int) -> Iterator[None]:
    run.pretend_stream(stream)
    try:
        yield
    finally:
        run.pretend_stream(0)


#: A loop that two waits fix. `on(…)` stands for `with torch.cuda.stream(…)`.
LOOP = """
import torch

def work(side):
    buffers = [torch.empty(8), torch.empty(8)]
    [buffer.zero_() for buffer in buffers]
    for step in range(4):
        with on(run, 0x100):
            buffers[step % 2].add_(1)
        result = (
            buffers[step % 2] * 2
            + buffers[step % 2]
        )
        buffers[step % 2].sum()
"""


def ran(folder: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> tuple[CheckedRun, Path]:
    file = folder / "loop.py"
    file.write_text(program)
    monkeypatch.chdir(folder)
    with checking(pretend=True) as found:
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        names: dict[str, Any] = {"on": on, "run": found._recorder}
        exec(compile(program, str(file), "exec"), names)
        names["work"](Stream(SIDE))
        monkeypatch.undo()
        monkeypatch.chdir(folder)
    return found, file


def test_races_that_one_call_fixes_are_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = ran(tmp_path, LOOP, monkeypatch)
    assert [(fix.call, fix.place and fix.place.line) for fix in found.mends] == [
        ("side.wait_stream(torch.cuda.default_stream())", 9),
        ("torch.cuda.default_stream().wait_stream(side)", 11),
    ]
    assert sorted(at for fix in found.mends for at in fix.races) == list(range(len(found.races)))
    text = str(found)
    assert text.startswith(
        f"{len(found.races)} races in {found.operations:,} operations; 2 calls fix them\n"
    )
    assert "by one `side.wait_stream(torch.cuda.default_stream())` before loop.py:9\n" in text
    # Reads that come too early are reported first, with both lines.
    waits = text[
        text.index("`torch.cuda.default_stream().wait_stream(side)` before loop.py:11") :
    ].splitlines()
    assert re.fullmatch(
        r"  RAW on float32\[8\] \([\d,]+ bytes\): the second may read before the first has written", waits[1]
    )
    assert waits[2] == "    first:  add_ on side at loop.py:9: buffers[step % 2].add_(1)"
    assert waits[3] == "    second: mul on default at loop.py:11: buffers[step % 2] * 2"
    # Handles help where a name is not the program's own.
    assert "streams: " not in text
    # Each pair is reported once, in at most three lines, and each call once.
    assert len(text.splitlines()) <= 6 + 2 * len(found.mends) + 3 * len(found.races)
    assert found.to_dict()["mends"][0]["races"] == list(found.mends[0].races)


def test_races_that_look_alike_are_shown_once_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import torch

def scale(x):
    x *= 2

def work(side):
    x, y = torch.zeros(8), torch.zeros(8)
    with on(run, 0x100):
        (x.add_(1), y.add_(1))
    scale(x)
    scale(y)
"""
    found, _ = ran(tmp_path, program, monkeypatch)
    text = str(found)
    assert [len(fix.races) for fix in found.mends] == [2, 2] == [text.count("these 2"), text.count("first: ")]
    assert text.count("\n  and 1 more of the same lines, listed in `races` and in the JSON report") == 2


def test_the_change_is_a_patch_that_fixes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, file = ran(tmp_path, LOOP, monkeypatch)
    patch = found.patch()
    assert patch.splitlines()[:2] == ["--- loop.py", "+++ loop.py"]
    added = [line for line in patch.splitlines() if re.match(r"\+(?!\+)", line)]
    # For a statement of several lines, the call is placed before its first line.
    assert added == [
        "+            side.wait_stream(torch.cuda.default_stream())",
        "+        torch.cuda.default_stream().wait_stream(side)",
    ]
    # The program's file is not changed.
    assert file.read_text() == LOOP
    applied = subprocess.run(
        ["git", "apply", "-p0"], input=patch, text=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    fixed = file.read_text()
    assert fixed.index("default_stream().wait_stream(side)") < fixed.index("result = (")
    # The call is reported to the check by hand, as CUDA would report it.
    fixed = fixed.replace(
        "side.wait_stream(torch.cuda.default_stream())", "run.event_record(1, 0); run.event_wait(1, 0x100)"
    )
    fixed = fixed.replace(
        "torch.cuda.default_stream().wait_stream(side)", "run.event_record(2, 0x100); run.event_wait(2, 0)"
    )
    assert "side." not in fixed and ran(tmp_path, fixed, monkeypatch)[0].races == ()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "def work(side):\n    x = torch.zeros(8)\n    with on(run, 256):\n        for _ in x.add_(1):\n"
            "            pass\n",
            "head of a loop",
        ),
        ("def work(_):\n    x = torch.zeros(8)\n    with on(run, 256):\n        x.add_(1)\n", ""),
        (
            "def work(_, *rest):\n    x = torch.zeros(8)\n    _ = 0\n    with on(run, 256):\n"
            "        x.add_(1)\n",
            "no variable there holds the streams",
        ),
        (
            "def work(side):\n    x = torch.zeros(8)\n    run.device_synchronize()\n"
            "    for stream in (0, 256):\n        with on(run, stream):\n            x.add_(1)\n",
            "both accesses come from this line",
        ),
    ],
)
def test_what_cannot_be_placed_safely_is_said(
    program: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = ran(tmp_path, "import torch\n" + program, monkeypatch)
    assert found.races
    patch = found.patch()
    if why:
        assert patch.startswith("# not placed: ") and why in patch and "\n+ " not in patch, patch
    else:
        assert "+        _.wait_stream(torch.cuda.default_stream())" in patch, patch


def test_a_record_stream_is_one_call_for_all_uses_and_is_not_placed() -> None:
    with checking(pretend=True) as found:
        run = found._recorder
        run.allocated(0x1000, 0)
        run.operator("fill_", [], [(0x1000, 512)], 0)
        run.event_record(1, 0)
        run.event_wait(1, SIDE)
        run.operator("mul", [(0x1000, 512)], [(0x9000, 512)], SIDE)
        run.operator("sum", [(0x1000, 512)], [(0xA000, 512)], SIDE)
        run.on_memory_deallocation(0x1000)
        run.allocated(0x1000, 0)
        run.operator("fill_", [], [(0x1000, 512)], 0)
    (fix,) = found.mends
    assert (fix.kind, fix.call) == ("record_stream", "x.record_stream(stream1)")
    assert re.search(
        r"`x.record_stream\(stream1\)` after \S+:\d+, where x is the tensor that sum uses there\n", str(found)
    )
    # The path is the short one of the report.
    assert f"# not placed: x.record_stream(stream1) at {_check_fix.shown(__file__)}:" in found.patch()


#: Two tensors that another stream uses in one line, without `record_stream`.
BATCHES = """
import torch
side = torch.cuda.Stream()

def load():
    with torch.cuda.stream(side):
        return torch.ones(512, device="cuda"), torch.ones(512, device="cuda", dtype=torch.int64)

for step in range(3):
    x, y = load()
    torch.cuda.current_stream().wait_stream(side)
    x.mul_(2), y.add_(1)
    del x, y
"""


def test_each_tensor_of_a_line_needs_its_record_stream(tmp_path: Path) -> None:
    program = tmp_path / "batches.py"
    for known, calls in (("", ["mul_", "add_"]), ("x,", ["add_"]), ("x, y", [])):
        fix = f"; [t.record_stream(torch.cuda.current_stream()) for t in ({known})]"
        program.write_text(BATCHES.replace("y.add_(1)", f"y.add_(1){fix}"))
        said = python("-m", "sidestream.check", "--simulate", program.name, cwd=tmp_path).stderr
        assert re.findall(r"where x is the tensor that (\w+) uses there\n", said) == calls, said
        assert ("; 2 calls fix them" in said) is (known == ""), said


#: A statement that copies on one stream, in a function that it calls, and reads on another.
NESTED = """
import torch
side = torch.cuda.Stream()

def fetch(batch):
    with torch.cuda.stream(side):
        return batch.to("cuda", non_blocking=True)

batches = [torch.ones(64).pin_memory() for _ in range(3)]
for batch in batches:
    torch.cuda.current_stream().synchronize()
    READ
"""


@pytest.mark.parametrize("read", ["y = fetch(batch) * 2", "y = torch.mul(\n        fetch(batch), 2)"])
def test_no_wait_is_placed_before_a_statement_that_makes_both_accesses(read: str, tmp_path: Path) -> None:
    program = tmp_path / "nested.py"
    program.write_text(NESTED.replace("READ", read))
    ran = python("-m", "sidestream.check", "--simulate", "--fix", program.name, cwd=tmp_path)
    call = "torch.cuda.default_stream().wait_stream(side)"
    assert f"# not placed: {call} at nested.py:12: the first access comes from this statement" in ran.stdout
    assert "\n+" not in ran.stdout and "between the two accesses: split the statement\n" in ran.stderr
    # In two statements there is a place between them.
    program.write_text(NESTED.replace("READ", "x = fetch(batch)\n    y = x * 2"))
    ran = python("-m", "sidestream.check", "--simulate", "--fix", program.name, cwd=tmp_path)
    assert f"\n+    {call}\n     y = x * 2\n" in ran.stdout and "split" not in ran.stderr, ran.stdout


def test_lines_of_the_program_are_reported_and_not_those_of_libraries(tmp_path: Path) -> None:
    library = str(Path(textwrap.__file__))
    mine = Place(str(tmp_path / "train.py"), 3, "train")
    assert _check_fix.own((Place(library, 1, "wrap"), mine)) == mine
    assert _check_fix.own((Place(library, 1, "wrap"),)) == Place(library, 1, "wrap")
    assert _check_fix.own(()) is None


def test_waits_in_a_loop_are_those_of_the_program(tmp_path: Path) -> None:
    """Waits of a module that moves its parameters, of a profiler, or of a library are not reported, and each
    line is reported once."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "somebodys.py").write_text("def value(x):\n    return x.item()\n")
    sys.path.insert(0, str(package))
    try:
        import somebodys  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(package))
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(4)))
    with checking(pretend=True) as found:
        x = torch.ones(1)

        class Meets(torch.nn.Module):  # type: ignore[misc]
            def forward(self) -> Any:
                return [x.item() for _ in range(3)]

        model._apply(lambda parameter: (parameter.sum().item(), parameter)[1])
        for _ in range(4):
            somebodys.value(x)
        assert [
            lint
            for lint in found.lints
            if lint.code == "SYNC_IN_LOOP" and lint.stack[0].function != "<lambda>"
        ] == []
        for _ in range(4):
            float(x), x.item(), bool(x)
        Meets()()
    lines = [lint.stack[0].line for lint in found.lints if lint.code == "SYNC_IN_LOOP"]
    assert len(lines) == len(set(lines)) and len(lines) >= 2


def test_what_a_program_asked_for_at_its_end_is_done_before_the_process_ends() -> None:
    """With a GPU the command ends the process itself, so that no output follows the report."""
    code = """
        import atexit, sys, threading, types
        torch = types.ModuleType("torch")
        torch.cuda = types.SimpleNamespace(is_initialized=lambda: True)
        from sidestream.check import _end
        sys.modules["torch"] = torch
        class Noisy:
            def __del__(self):
                print("taken down", file=sys.stderr)
        kept = Noisy()
        atexit.register(print, "at exit")
        released = threading.Event()
        def late():
            released.wait()
            print("a thread")
        threading.Thread(target=late).start()
        released.set()
        print("the end", end=" ")
        _end(3)
    """
    ran = python("-c", textwrap.dedent(code))
    assert ran.returncode == 3 and ran.stderr == ""
    assert "the end" in ran.stdout and "a thread" in ran.stdout and ran.stdout.endswith("at exit\n")


def test_a_clock_that_is_read_before_the_work_is_complete_is_named_with_both_lines() -> None:
    import logging
    import time

    x = torch.ones(8)
    with checking(pretend=True) as found:
        run = found._recorder
        for _ in range(3):
            start = time.perf_counter()
            x * 2
            time.perf_counter() - start
        run.device_synchronize()
        right = time.perf_counter()
        x * 2
        run.device_synchronize()
        time.perf_counter() - right
        # Reading a value waits.
        right = time.perf_counter()
        (x * 2).sum().item()
        time.perf_counter() - right
        # A library's own reading is not reported.
        start = time.perf_counter()
        run.device_synchronize()
        x * 2
        logging.makeLogRecord({})
        run.device_synchronize()
        # No work was launched.
        right = time.perf_counter()
        x.view(2, 4)
        time.perf_counter() - right
    (one,) = [lint for lint in found.lints if lint.code == "HOST_CLOCK"]
    source = Path(__file__).read_text().splitlines()
    assert source[one.stack[0].line - 1].strip() == "time.perf_counter() - start"
    since = re.search(r"launched since (\S+):(\d+) \(time.perf_counter\) is not waited for", one.text)
    assert since and source[int(since[2]) - 1].strip() == "start = time.perf_counter()"
    assert time.perf_counter.__module__ != "sidestream._check_hooks" and "HOST_CLOCK: " in str(found)


@pytest.mark.parametrize(("count", "set_to", "said"), [(8, None, False), (9, None, True), (9, "4", False)])
def test_more_streams_than_connections(
    count: int, set_to: str | None, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if set_to is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", set_to)
    with checking(pretend=True) as found:
        for stream in range(count):
            found._recorder.operator("mul", [], [(4096 * (stream + 1), 64)], 0x100 + stream)
        said_now = [lint.code for lint in found.lints]
    assert said_now == (["MANY_STREAMS"] if said else [])


def test_a_report_counts_as_people_do() -> None:
    with checking(simulate=1) as found:
        torch.ones(3, device="cuda")
    assert (
        str(found) == "no race in 1 operation on a simulated GPU"
        and repr(found) == "<CheckedRun: 0 races in 1 operation>"
    )
    with checking(simulate=1) as found:
        x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(side):
            x += 1
        x *= 2
    # Two races on one simulated GPU.
    assert str(found).startswith("2 races in 3 operations on a simulated GPU"), str(found)
    assert " fixes it" not in str(found)


#: Names of streams: a variable, an attribute, one variable for two streams, and no name.
NAMES = """
import torch

class Loader:
    def __init__(self):
        self.copying = torch.cuda.Stream()

def add(stream, x):
    with torch.cuda.stream(stream):
        x.add_(1)

loader = Loader()
main, others = torch.cuda.current_stream(), [torch.cuda.Stream(), torch.cuda.Stream()]
x, y, z = (torch.ones(8, device="cuda") for _ in range(3))
torch.cuda.synchronize()
with torch.cuda.stream(loader.copying):
    x.mul_(2)
x.sum()
for stream, tensor in zip(others, (y, z)):
    tensor.mul_(2)
    add(stream, tensor)
"""


def test_streams_are_called_in_the_report_as_the_program_calls_them(tmp_path: Path) -> None:
    program = tmp_path / "names.py"
    program.write_text(NAMES)
    said = python("-m", "sidestream.check", "--simulate", program).stderr
    assert "by `main.wait_stream(loader.copying)` before " in said, said
    assert "first:  mul_ on loader.copying at " in said and "second: sum on main at " in said, said
    # Two streams of one name cannot be told apart by that name. Where the name means both, one call fixes
    # both races.
    assert "add_ on stream2 at " in said and "by `stream.wait_stream(main)` before " in said, said
    assert re.search(
        r"streams: main = the default stream of cuda:0, loader.copying = 0x\w+ on cuda:0, "
        r"stream2 = `stream`, 0x\w+ on cuda:0",
        said,
    ), said


def test_to_ask_for_a_name_keeps_no_tensor_alive(tmp_path: Path) -> None:
    program = tmp_path / "alive.py"
    program.write_text(
        "import torch, weakref\n"
        "def work():\n"
        "    x = torch.ones(8, device='cuda')\n"
        "    with torch.cuda.stream(torch.cuda.Stream()):\n"
        "        x.mul_(2)\n"
        "    seen = weakref.ref(x)\n"
        "    torch.cuda.Stream().wait_stream(torch.cuda.current_stream())\n"
        "    del x\n"
        "    print(seen())\n"
        "work()\n"
    )
    ran = python("-m", "sidestream.check", "--simulate", program)
    assert (ran.returncode, ran.stdout) == (1, "None\n"), ran.stderr


#: In a loop, the host reads results that the device copies to pinned memory.
READS = """
import torch
x = torch.ones(1 << 10, device="cuda")
landing = torch.empty(1 << 10, pin_memory=True)
for step in range(6):
    landing.copy_(x, non_blocking=True)
    x.mul_(2)
    print(float(landing[0]))
"""


@pytest.mark.parametrize("between", [True, False])
def test_a_wait_of_the_host_in_a_loop_is_for_an_event_if_work_can_continue_after_it(
    tmp_path: Path, between: bool
) -> None:
    program = tmp_path / "loop.py"
    program.write_text(READS if between else READS.replace("    x.mul_(2)\n", ""))
    racy = python("-m", "sidestream.check", "--simulate", "--fix", program.name, cwd=tmp_path)
    patch = racy.stdout[racy.stdout.index("# " if not between else "--- ") :]
    added = [line for line in patch.splitlines() if re.match(r"\+(?!\+)", line)]
    stream = "torch.cuda.default_stream()"
    if between:
        assert added == [f"+    done = {stream}.record_event()", "+    done.synchronize()"], patch
    else:
        assert (
            added == [f"+    {stream}.synchronize()"]
            and "loop.py:7: " in patch
            and "the next check will report it as SYNC_IN_LOOP" in patch
        ), patch
    applied = subprocess.run(
        ["git", "apply", "-p0"], input=patch, text=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    again = python("-m", "sidestream.check", "--simulate", program.name, cwd=tmp_path)
    assert again.returncode == 0 and again.stdout.splitlines() == [
        f"{2.0**step if between else 1.0}" for step in range(6)
    ], again.stderr
    # Statements in between are enqueued before the host waits.
    assert ("SYNC_IN_LOOP" in again.stderr) is not between, again.stderr


def test_no_name_of_a_program_moves_the_cursor() -> None:
    """File, function and thread names and source lines are untrusted."""
    file = "\x1b[31mevil\nno race in 3 operations\u202e.py"
    program = compile(
        "def work(x):\n    with on(run, 0x100):\n        x.add_(1)\n    x.sum()\n"
        "    run.clock_read('a\x1b[2J')\n"
        * 2,
        file,
        "exec",
    )
    with checking(pretend=True) as found:
        names: dict[str, Any] = {"on": on, "run": found._recorder}
        exec(program, names)
        thread = threading.Thread(target=names["work"], args=(torch.ones(8),), name="one\x1b]0;two")
        thread.start()
        thread.join()
        names["work"](torch.ones(8))
    faces = [
        str(found),
        found._repr_html_(),
        *map(str, (*found.races, *found.lints)),
        *(race.fix for race in found.races),
    ]
    faces += [str(race.second.stack[0]) for race in found.races]
    assert len(found.races) == 4 and found.races[0].second.stack[0].file == file
    for face in faces:
        assert (
            "evil no race" in face
            and "\x1b" not in face
            and "\u202e" not in face
            and "\nno race in 3" not in face
        )


#: Streams that are created in each step, and a line with two statements.
BRANCHES = """
import torch
from torch import nn
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        left = torch.cuda.Stream()
        right = torch.cuda.Stream()
        with torch.cuda.stream(left):
            a = self.one(x)
        with torch.cuda.stream(right):
            b = self.two(x)
        torch.cuda.current_stream().wait_stream(left)
        torch.cuda.current_stream().wait_stream(right)
        return a + b
model = Branches().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    x = torch.rand(4, 8).pin_memory().to("cuda", non_blocking=True)
    model(x).sum().backward()
    opt.step(); opt.zero_grad()
"""
#: The gradients of two streams, which another one adds in the second statement of a line.
LINE = """
import torch
from torch import nn
one, two = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
opt = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
x = torch.ones(4, 8).cuda()
s, t = torch.cuda.Stream(), torch.cuda.Stream()
for _ in range(3):
    with torch.cuda.stream(s):
        one(x).sum().backward()
    with torch.cuda.stream(t):
        two(x).sum().backward()
    done = True; opt.step(); opt.zero_grad()
"""
#: The second access shares its line with the head of a block.
HEAD = """
import torch
x = torch.ones(8).cuda()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    x.mul_(2)
for _ in range(1): größe = "größe"; x.add_(1)
"""


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (BRANCHES, ["left.wait_stream(D)", "right.wait_stream(D)"]),
        (LINE, ["D.wait_stream(s)", "D.wait_stream(t)", "s.wait_stream(D)", "t.wait_stream(D)"]),
        (HEAD, ['for _ in range(1): D.wait_stream(side); größe = "größe"; x.add_(1)']),
    ],
)
def test_calls_by_the_programs_own_names_fix_it(tmp_path: Path, program: str, calls: list[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text(program, encoding="utf-8")
    racy = python("-m", "sidestream.check", "--simulate", "--fix", file.name, cwd=tmp_path)
    added = [line[1:].strip() for line in racy.stdout.splitlines() if re.match(r"\+(?!\+)", line)]
    assert sorted(added) == sorted(call.replace("D", "torch.cuda.default_stream()") for call in calls), (
        racy.stdout + racy.stderr
    )
    said = "; one call fixes" if len(calls) == 1 else f"; {len(calls)} calls fix them"
    assert said in racy.stderr and "# not placed" not in racy.stdout, racy.stdout + racy.stderr
    applied = subprocess.run(
        ["git", "apply", "-p0"], input=racy.stdout, text=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    again = python("-m", "sidestream.check", "--simulate", file.name, cwd=tmp_path)
    assert again.returncode == 0 and "no race in" in again.stderr, again.stderr
