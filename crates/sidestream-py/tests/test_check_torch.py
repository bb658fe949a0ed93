"""PyTorch operators under a check, on the CPU: the check knows the memory that they touch, and changes
nothing else."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import sidestream
import torch
from forked import python
from sidestream import _check_plan
from sidestream._check import CheckedRun, checking
from torch import nn

pytestmark = pytest.mark.torch


def planned(name: str) -> tuple[str, list[str], list[str], list[bool]]:
    """Return the class of an operator, the arguments that it reads and writes, and which results are new
    memory.
    """
    packet, overload = name.split(".")
    func = getattr(getattr(torch.ops.aten, packet), overload)
    _, _, kind, arguments, results = _check_plan.plan(func)
    reads = [name for _, name, write, _ in arguments if not write]
    writes = [name for _, name, write, _ in arguments if write]
    return kind, reads, writes, results


@pytest.mark.parametrize(
    ("name", "kind", "reads", "writes", "results"),
    [
        ("add.Tensor", "kernel", ["self", "other"], [], [True]),
        ("add_.Tensor", "kernel", ["other"], ["self"], [False]),
        ("addmm.default", "product", ["self", "mat1", "mat2"], [], [True]),
        ("addmm.out", "product", ["self", "mat1", "mat2"], ["out"], [False]),
        ("fill_.Scalar", "kernel", [], ["self"], [False]),
        ("zero_.default", "kernel", [], ["self"], [False]),
        ("view.default", "silent", [], [], []),
        ("_unsafe_view.default", "silent", [], [], []),
        ("t.default", "silent", [], [], []),
        ("t_.default", "silent", [], [], []),
        ("split.Tensor", "silent", [], [], []),
        ("detach.default", "silent", [], [], []),
        ("resize_.default", "silent", [], [], []),
        ("set_.source_Storage", "silent", [], [], []),
        ("empty.memory_format", "silent", [], [], []),
        ("empty_like.default", "silent", [], [], []),
        ("new_empty_strided.default", "silent", [], [], []),
        ("ones_like.default", "kernel", [], [], [True]),
        ("new_zeros.default", "kernel", [], [], [True]),
        ("randn.default", "kernel", [], [], [True]),
        ("clone.default", "kernel", ["self"], [], [True]),
        ("cat.default", "kernel", ["tensors"], [], [True]),
        ("index.Tensor", "indexed", ["self", "indices"], [], [True]),
        ("index_put_.default", "indexed", ["indices", "values"], ["self"], [False]),
        (
            "native_batch_norm.default",
            "kernel",
            ["input", "weight", "bias"],
            ["running_mean", "running_var"],
            [True] * 3,
        ),
        (
            "cudnn_batch_norm.default",
            "kernel",
            ["input", "weight", "bias"],
            ["running_mean", "running_var"],
            [True] * 4,
        ),
        ("native_layer_norm.default", "kernel", ["input", "weight", "bias"], [], [True] * 3),
        ("_foreach_add_.List", "kernel", ["other"], ["self"], []),
        ("_foreach_mul.Scalar", "kernel", ["self"], [], [True]),
        (
            "_amp_foreach_non_finite_check_and_unscale_.default",
            "kernel",
            ["inv_scale"],
            ["self", "found_inf"],
            [],
        ),
        ("max.dim", "kernel", ["self"], [], [True, True]),
        ("_local_scalar_dense.default", "waits", ["self"], [], [False]),
        ("copy_.default", "copy", ["src"], ["self"], [False]),
        ("_to_copy.default", "to_copy", ["self"], [], [True]),
        ("_foreach_copy_.default", "copies", ["src"], ["self"], []),
        ("record_stream.default", "record_stream", [], ["self"], []),
    ],
)
def test_the_plan_of(name: str, kind: str, reads: list[str], writes: list[str], results: list[bool]) -> None:
    assert planned(name) == (kind, reads, writes, results)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def cnn() -> Any:
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)),
        nn.Conv2d(2, 4, 1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def transformer() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.Unflatten(1, (1, 8)), layer, nn.Flatten(), nn.Linear(8, 4))


def train(make: Any, steps: int = 5) -> list[float]:
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=make is transformer):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [mlp, cnn, transformer])
def test_training_is_the_same_and_clean_under_a_check(make: Any) -> None:
    plain = train(make)
    with checking(pretend=True) as found:
        checked = train(make)
    assert checked == plain
    assert found.races == ()
    assert found.ended is None
    assert found.operations > 100


def test_what_the_check_changed_is_put_back() -> None:
    from torch.cuda import _gpu_trace

    def state() -> list[Any]:
        return [
            torch.cuda.Event.__dict__["query"],
            torch.cuda.Stream.__dict__["query"],
            torch.cuda.CUDAGraph.__dict__["replay"],
            torch.Tensor.__dict__.get("tolist"),
            torch.autograd._engine_run_backward,
            threading.Thread.__dict__["_bootstrap_inner"],
            dict(vars(_gpu_trace.MemoryAllocationCallbacks)),
            torch._C._len_torch_dispatch_stack(),
        ]

    before = state()
    with pytest.raises(ZeroDivisionError), checking(pretend=True):
        assert state() != before
        _ = 1 / 0
    assert state() == before


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"on_race": "stop"}, ValueError, 'on_race is .stop.; give "report" or "raise"'),
        ({"memory": -1}, ValueError, "memory is -1; give a number of bytes"),
        ({"memory": "1GB"}, TypeError, "memory is '1GB'; give a number of bytes"),
        ({"stacks": 3}, TypeError, "stacks is 3; give True or False"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(
    options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why), sidestream.check(**options):
        pass
    with checking(pretend=True):
        pass


def test_a_check_inside_a_check_is_refused() -> None:
    with checking(pretend=True):
        with pytest.raises(RuntimeError, match="entered already"), checking(pretend=True):
            pass
    with checking(pretend=True):
        pass


def race(found_by: Any) -> Any:
    """Make a tensor that a made-up stream writes while an operator on the default stream reads it."""
    x = torch.ones(16)
    run = found_by._recorder
    run.event_record(1, 0)
    run.event_wait(1, 0x100)
    run.operator("copy_", [], [(x.data_ptr(), 64)], 0x100)
    return x + 1


def test_a_race_names_the_lines_of_the_user() -> None:
    with checking(pretend=True) as found:
        race(found)
    (one,) = found.races
    assert (one.kind, one.dtype, one.shape) == ("RAW", "float32", (16,))
    assert one.second.operator == "add"
    assert [place.function for place in one.second.stack[:2]] == [
        "race",
        "test_a_race_names_the_lines_of_the_user",
    ]
    assert Path(one.second.stack[0].file) == Path(__file__)
    assert "return x + 1" in str(found)
    assert "torch.cuda.default_stream().wait_stream(stream" in one.fix
    assert not found.is_clean
    assert json.loads(found.json()) == found.to_dict()
    assert "return x + 1" in found._repr_html_()


def test_a_race_in_backward_names_the_call_of_backward() -> None:
    with checking(pretend=True) as found:
        w = torch.ones(16, requires_grad=True)
        y = (w * w).sum()
        run = found._recorder
        run.event_record(1, 0)
        run.event_wait(1, 0x100)
        run.operator("copy_", [], [(w.data_ptr(), 64)], 0x100)
        y.backward()
    assert {one.second.operator for one in found.races} == {"mul"}
    assert {one.second.stack[0].function for one in found.races} == {
        "test_a_race_in_backward_names_the_call_of_backward"
    }


def test_a_race_is_raised_at_the_operator() -> None:
    with pytest.raises(sidestream.RaceError, match=r"RAW on float32\[16\]"):
        with checking(raises=True, pretend=True) as found:
            race(found)
    # The error's message is meant for users.
    with checking(raises=True, pretend=True) as found, pytest.raises(sidestream.RaceError, match="return x"):
        race(found)


def test_threads_that_start_meanwhile_are_observed() -> None:
    with checking(pretend=True) as found:
        thread = threading.Thread(target=race, args=(found,), name="loader")
        thread.start()
        thread.join()
    assert [one.second.thread for one in found.races] == ["loader"]


def test_classes_of_tensors_with_and_without_a_dispatch_of_their_own() -> None:
    class Plain(torch.Tensor):  # type: ignore[misc]
        pass

    class Wrapped(torch.Tensor):  # type: ignore[misc]
        inner: Any

        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inner = [arg.inner if isinstance(arg, cls) else arg for arg in args]
            return func(*inner, **(kwargs or {}))

    x = torch.ones(4)
    with checking(pretend=True) as found:
        plain = x.as_subclass(Plain) + 1
        before = found.operations
        wrapped = Wrapped(x) + 1
    assert plain.tolist() == wrapped.tolist() == [2.0] * 4
    # The operator that the class calls is observed.
    assert found.operations > before > 0


def test_columns_that_interleave_do_not_meet() -> None:
    """There are more rows than are reported one by one, so the checker received the whole span."""
    with checking(pretend=True) as found:
        x = torch.zeros(64, 8)
        run = found._recorder
        run.device_synchronize()
        left, right = x[:, :4], x[:, 4:]
        run.stream_complete(0, 0)
        with other_stream(run):
            left.add_(1)
        right.add_(1)
    assert found.races == ()
    with checking(pretend=True) as found:
        run = found._recorder
        left, right = x[:, :5], x[:, 4:]
        with other_stream(run):
            left.add_(1)
        right.add_(1)
    assert [one.kind for one in found.races] in (["RAW"], ["WAW"])


class other_stream:
    """For the recorder, calls inside this block run on another stream."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __enter__(self) -> None:
        self.run.pretend_stream(0x100)

    def __exit__(self, *_: object) -> None:
        self.run.pretend_stream(0)


SCRIPT = """
import sys, torch
print("arguments", sys.argv[1:])
x = torch.ones(4) + 1
print(float(x.sum()))
sys.exit(int(sys.argv[1]))
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "sidestream.check", *arguments)


def test_a_script_is_run_with_its_arguments_and_keeps_its_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    report = tmp_path / "report.json"
    ran = command("--json", str(report), str(script), "3", "--flag")
    assert ran.returncode == 3
    assert ran.stdout == "arguments ['3', '--flag']\n8.0\n"
    assert "no race in" in ran.stderr
    assert json.loads(report.read_text(encoding="utf-8"))["races"] == []
    assert command(str(script), "0").returncode == 0


def test_the_report_comes_after_an_exception(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('broken')", encoding="utf-8")
    ran = command(str(script))
    assert ran.returncode == 1
    ended = "the program ended with ValueError; the report covers the time before that\n"
    assert ran.stderr.index("ValueError: broken") < ran.stderr.index(ended) < ran.stderr.index("no race in")


def test_a_race_is_exit_code_1(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gc\n"
        "from sidestream._sidestream import Recorder\n"
        "(run,) = [thing for thing in gc.get_objects() if isinstance(thing, Recorder)]\n"
        "run.operator('one', [], [(4096, 8)], 0x100)\n"
        "run.operator('two', [(4096, 8)], [], 0x200)\n",
        encoding="utf-8",
    )
    ran = command("--fix", str(script))
    assert ran.returncode == 1, ran.stderr
    assert "RAW" in ran.stderr and "; one call fixes it\n" in ran.stderr
    # The patch is on standard output; here no call can be placed.
    assert (
        ran.stdout.startswith("# not placed: stream1.wait_stream(stream0) at ")
        and ran.stdout.count("\n") == 1
    )


def test_the_module_can_be_called_like_the_function() -> None:
    import importlib

    importlib.import_module("sidestream.check")
    try:
        with sidestream.check() as found:  # The module replaces the function.
            pass
        assert type(found) is CheckedRun and found.races == ()
        with pytest.raises(ValueError, match="on_race is 'maybe'"):
            sidestream.check(on_race="maybe")  # type: ignore[arg-type]
    finally:
        from sidestream._check import check

        sidestream.check = check


def test_a_check_that_ended_early_is_not_clean_and_says_why() -> None:
    with checking(memory=0, pretend=True) as found:
        torch.ones(3).add_(1)
    assert not found.is_clean and found.races == ()
    assert "would take more than 0 bytes of memory; allow more" in str(found)
    assert str(found).startswith("the check ended early, with no race until then; the program made ")
    assert "nothing ran on a GPU" not in str(found)
    with checking() as found:
        pass
    assert found.is_clean
    nothing = (
        "no race in 0 operations: nothing was checked, since nothing ran on a GPU; where there is none, "
        "`--simulate` and "
    )
    assert str(found).startswith(nothing), str(found)


@pytest.mark.parametrize(
    ("wrong", "kind", "why"),
    [
        ({"on_race": "maybe"}, ValueError, "on_race is 'maybe'"),
        ({"stacks": 1}, TypeError, "stacks is 1"),
        ({"memory": -1}, ValueError, "memory is -1"),
        ({"memory": "1 GB"}, TypeError, "memory is '1 GB'"),
    ],
)
def test_what_is_wrong_is_said_at_the_call_and_not_where_the_block_begins(
    wrong: dict[str, Any], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why):
        sidestream.check(**wrong)


def test_the_command_says_what_is_wrong_before_the_program_runs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("print('it ran')\n")

    def command(*arguments: str) -> tuple[int, str]:
        ran = python("-m", "sidestream.check", *arguments)
        assert "Traceback" not in ran.stderr and "it ran" not in ran.stdout
        return ran.returncode, ran.stderr

    code, errors = command(str(tmp_path / "missing.py"))
    assert code == 2 and "there is no file" in errors
    code, errors = command("--json", str(tmp_path / "missing" / "report.json"), str(script))
    assert code == 2 and "No such file or directory" in errors
    for name, command_of_it in (
        ("program.yaml", "check"),
        ("trace.json.gz", "diagnose"),
        ("trace.sqlite", "diagnose"),
    ):
        code, errors = command(name)
        assert code == 2 and f"`sidestream {command_of_it} {name}`" in errors
    folder = tmp_path / "job.json"
    folder.mkdir()
    (folder / "__main__.py").write_text("import sys; sys.exit('a folder is a program, too')")
    code, errors = command(str(folder))
    assert code == 1 and "a folder is a program, too" in errors


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-m", "nopkg.at_all"], "there is no module nopkg.at_all"),
        (["--memory", "-5", "train.py"], "--memory: -5: give a number of bytes, 0 or more"),
        (["--memory", "lots", "train.py"], "--memory: lots: give a number of bytes, 0 or more, such as"),
        (["--suppress", "nowhere", "train.py"], "--suppress nowhere: No such file or directory"),
    ],
)
def test_wrong_arguments_do_not_count_as_races(arguments: list[str], why: str) -> None:
    ran = python("-m", "sidestream.check", *arguments)
    assert ran.returncode == 2 and why in ran.stderr and "Traceback" not in ran.stderr


def test_a_traceback_begins_with_the_program_and_a_folder_is_one(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text(
        "def fails():\n    raise ValueError('broken')\nfails()\n", encoding="utf-8"
    )
    ran = python("-m", "sidestream.check", tmp_path)
    trace = ran.stderr[: ran.stderr.index("ValueError: broken")]
    assert trace.count("File ") == 2 and "runpy" not in trace and "check.py" not in trace


def test_a_program_without_work_on_a_gpu_is_not_called_checked(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import torch\ntorch.ones(3) + 1\nprint('it ran')\n")
    ran = python("-m", "sidestream.check", "--", script)
    assert (ran.returncode, ran.stdout) == (0, "it ran\n")
    assert "nothing was checked, since nothing ran on a GPU" in ran.stderr


def test_an_option_after_the_script_is_said_to_be_the_programs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    ran = command(str(script), "--simulate", "--epochs", "2", "--json=x", "--simulate")
    assert ran.stdout == "['--simulate', '--epochs', '2', '--json=x', '--simulate']\n"
    assert ran.stderr.startswith(f"--simulate, --json come after {script}, so the program gets them"), (
        ran.stderr
    )
    assert ran.stderr.count("--simulate, --json") == 1
    for arguments in (("--", str(script), "--simulate"), (str(script), "--epochs", "2")):
        assert "so the program gets" not in command(*arguments).stderr


@pytest.mark.parametrize("ends", ["capture_end", "capture_end_pre"])
def test_a_capture_ends_however_pytorch_ends_it(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement has the methods of PyTorch 2.15; without a GPU no graph is captured."""
    import torch

    class Graph:
        def capture_begin(self) -> None: ...

        def capture_end_pre(self) -> None: ...

        def capture_end(self) -> None:
            self.capture_end_pre()

        def replay(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    x, y = torch.ones(8), torch.ones(8)
    with checking(pretend=True, host=False) as found:
        recorder: Any = found._recorder
        graph = Graph()
        graph.capture_begin()
        y.add_(1)
        getattr(graph, ends)()
        x.add_(1)
        recorder.pretend_stream(7)
        # The captured work has not run.
        y.sum()
        x.sum()
    (race,) = found.races
    assert (race.kind, race.first.operator, race.second.operator) == ("RAW", "add_", "sum"), str(found)
