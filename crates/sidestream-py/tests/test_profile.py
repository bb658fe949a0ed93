"""``profile``: PyTorch's profiler around a block. Without a GPU there is nothing to diagnose, and the result
says so."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sidestream


def test_without_torch_the_remedy_is_named() -> None:
    code = """
import sys
sys.modules["torch"] = None
import sidestream
try:
    sidestream.profile()
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "PyTorch is not installed; pip install torch" in ran.stdout


def test_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="steps is 0; give how many are recorded, 1 or more"):
        sidestream.profile(steps=0)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"steps": "a"}, TypeError, "steps is 'a'; give how many"),
        (
            {"timed": 8},
            ValueError,
            "timed is 8; give True, False, or how many steps are timed before the profiler starts, 9 or",
        ),
        ({"timed": 30, "every": 4}, ValueError, "starts, 33 or more"),
        ({"timed": "yes"}, TypeError, "timed is 'yes'"),
        ({"every": 0}, ValueError, "every is 0"),
        ({"path": "/no/such/folder/trace.json"}, FileNotFoundError, "/no/such/folder/trace.json"),
        ({"what_if": "magic"}, ValueError, "there is no change `magic`"),
        ({"link_gbps": -1.0}, ValueError, "link_gbps is -1"),
        ({"with_stacks": True}, TypeError, "torch.profiler.profile has no such option: .*with_stacks"),
    ],
)
def test_what_its_end_would_refuse_is_refused_before_it(
    options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        sidestream.profile(**options)


@pytest.mark.torch
def test_a_profile_is_entered_once_and_alone() -> None:
    profile = sidestream.profile()
    with pytest.raises(RuntimeError, match="not entered; call step"):
        profile.step()
    with profile, pytest.raises(RuntimeError, match="another profile is entered"):
        sidestream.profile().__enter__()
    with pytest.raises(RuntimeError, match="entered before; make another"):
        profile.__enter__()
    with pytest.raises(TypeError, match="leave on_trace_ready out"):
        sidestream.profile(on_trace_ready=print)
    with pytest.raises(TypeError, match="a profile cannot be pickled; keep its diagnosis"):
        pickle.dumps(profile)


@pytest.mark.torch
def test_a_file_that_is_there_is_written_anew_and_none_is_left_by_asking(tmp_path: Path) -> None:
    sidestream.profile(path=tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    old = tmp_path / "old.json"
    old.write_text("mine")
    sidestream.profile(path=old)
    assert old.read_text() == "mine"


@pytest.mark.torch
def test_on_a_machine_without_cuda_it_says_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    import torch

    with sidestream.profile() as profiled:
        assert str(profiled) == "no diagnosis: the block has not ended"
        for _ in range(3):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiled.step()
    assert profiled.diagnosis is None
    assert profiled.problem is not None and "PyTorch finds no CUDA here" in profiled.problem
    assert profiled.problem in str(profiled) and profiled.problem in repr(profiled)
    assert json.loads(profiled.json()) == profiled.to_dict() == {"problem": profiled.problem}
    assert "PyTorch finds no CUDA here" in profiled._repr_html_()
    with pytest.raises(RuntimeError, match="there is no table: nothing ran on a GPU"):
        profiled.table("operators")
    assert capfd.readouterr().out == ""


def steps_of(path: Path) -> list[str]:
    """Return the names of the steps in a trace, in order."""
    events = json.loads(path.read_text())["traceEvents"]
    marks = {
        (event["ts"], event["name"]) for event in events if event.get("name", "").startswith("ProfilerStep#")
    }
    return [name for _, name in sorted(marks)]


@pytest.mark.torch
def test_the_trace_is_kept_with_its_steps_where_a_path_is_given(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "trace.json"
    with sidestream.profile(path=path) as profiled:
        for _ in range(3):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiled.step()
    assert steps_of(path) == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]


@pytest.mark.torch
def test_the_requested_number_of_steps_is_recorded(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "trace.json"
    with sidestream.profile(steps=2, timed=False, path=path, record_shapes=True) as profiled:
        for _ in range(6):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiled.step()
    assert steps_of(path) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert profiled.unprofiled is None


@pytest.mark.torch
def test_steps_are_timed_first_and_what_they_took_is_in_the_trace(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "trace.json"
    started = 0
    with sidestream.profile(steps=2, timed=20, path=path) as profiled:
        for step in range(30):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiled.step()
            if torch.autograd.profiler._is_profiler_enabled and not started:
                started = step + 1
    # 20 steps have ended without the profiler; the first step with the profiler is left out.
    assert started == 21
    assert steps_of(path) == ["ProfilerStep#1", "ProfilerStep#2"]
    unprofiled = profiled.unprofiled
    assert unprofiled is not None and unprofiled.taken >= 5
    assert json.loads(path.read_text())["sidestream.unprofiled"] == unprofiled.to_dict()
    assert "Without the profiler a step took" in str(profiled)


@pytest.mark.torch
def test_a_second_profile_says_that_a_first_one_has_run(tmp_path: Path) -> None:
    with sidestream.profile():
        pass
    with sidestream.profile(steps=1, timed=9) as profiled:
        for _ in range(12):
            profiled.step()
    assert profiled.unprofiled is not None and profiled.unprofiled.after_profiler


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "is_timed"),
    [
        ({}, False),
        ({"steps": 3}, True),
        ({"timed": True}, True),
        ({"steps": 3, "timed": False}, False),
        ({"steps": 3, "schedule": None}, False),
    ],
)
def test_steps_are_timed_where_a_number_of_them_is_recorded(
    options: dict[str, Any], is_timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    started: list[object] = []
    enter = torch.profiler.profile.__enter__

    def start(profiler: object) -> object:
        started.append(profiler)
        return enter(profiler)

    monkeypatch.setattr(torch.profiler.profile, "__enter__", start)
    with sidestream.profile(**options) as profiled:
        assert len(started) == (0 if is_timed else 1)
    assert profiled.unprofiled is None


@pytest.mark.torch
def test_an_exception_while_steps_are_timed_passes_through() -> None:
    with pytest.raises(KeyError), sidestream.profile(steps=2) as profiled:
        profiled.step()
        raise KeyError
    assert profiled.problem == "the block ended with KeyError, so its trace was not diagnosed"
    with sidestream.profile():
        pass


@pytest.mark.torch
def test_a_profiler_that_does_not_start_after_the_timing_ends_the_block_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    def refuse(_: object) -> None:
        raise RuntimeError("no profiler today")

    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="no profiler today"):
        context.setattr(torch.profiler.profile, "__enter__", refuse)
        with sidestream.profile(steps=1, timed=9) as profiled:
            for _ in range(12):
                profiled.step()
    with sidestream.profile():
        pass


@pytest.mark.torch
@pytest.mark.parametrize("options", [{"timed": False}, {}, {"timed": 9}])
def test_a_step_that_was_never_called_is_named(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    with sidestream.profile(steps=2, **options) as profiled:
        # Without a GPU this is reported instead, at the end of the block.
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert profiled.problem == (
        "step() was never called in the block, so nothing was recorded; call it at the end of each step"
    )
    assert str(profiled) == f"no diagnosis: {profiled.problem}"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "steps", "needed"),
    [
        # The first step, one window of one step, two windows of five steps that agree, five windows that
        # count; then one step that is left out, and three.
        ({"steps": 3}, 16, 41),
        ({"steps": 3, "every": 4}, 16, 37),
        ({"steps": 3, "timed": 20}, 16, 24),
        ({"timed": True}, 2, 38),
        # The timing had already ended.
        ({"steps": 3, "timed": 9}, 9, 13),
    ],
)
def test_a_block_that_is_too_short_says_how_many_steps_it_needs(
    options: dict[str, Any], steps: int, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    # By this clock a step takes 20 ms, so that no window needs more than the minimum of steps.
    times = iter(range(0, 10**12, 10_000_000))
    monkeypatch.setattr("sidestream._profile._clock", lambda: next(times))
    with sidestream.profile(**options) as profiled:
        for _ in range(steps):
            profiled.step()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert profiled.problem is not None
    assert profiled.problem.startswith(f"the block ended after {steps} steps"), profiled.problem
    assert f"; give the block {needed} steps or more" in profiled.problem, profiled.problem


@pytest.mark.torch
@pytest.mark.parametrize("steps", [0, 2])
def test_without_a_gpu_a_block_that_is_too_short_does_not_ask_for_more_steps(steps: int) -> None:
    with sidestream.profile(steps=3) as profiled:
        for _ in range(steps):
            profiled.step()
    assert profiled.problem is not None
    assert profiled.problem.startswith("nothing ran on a GPU: PyTorch finds no CUDA here"), profiled.problem
    assert "run this on a machine with a GPU" in profiled.problem and "steps or more" not in profiled.problem


@pytest.mark.torch
def test_a_recording_that_the_block_cut_short_is_diagnosed_and_says_so(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sidestream import _profile

    diagnose = sidestream.diagnose
    monkeypatch.setattr(
        _profile,
        "diagnose",
        lambda _, **options: diagnose(traces / "branches_long.before.json.gz", **options),
    )
    for options, steps, remark in [
        ({"steps": 3, "timed": False}, 2, "the block ended when 1 of 3 steps were recorded"),
        (
            {},
            0,
            "step() was never called, so the trace does not say where a step ends; "
            "call it at the end of each step",
        ),
        ({"steps": 3, "timed": False}, 4, None),
    ]:
        with sidestream.profile(**options) as profiled:  # type: ignore[arg-type]
            for _ in range(steps):
                profiled.step()
        assert profiled.problem is None and profiled.diagnosis is not None
        assert profiled.remark == remark
        assert str(profiled) == (
            str(profiled.diagnosis) if remark is None else f"{remark}\n\n{profiled.diagnosis}"
        )


@pytest.mark.torch
def test_an_exception_passes_through() -> None:
    with pytest.raises(KeyError), sidestream.profile() as profiled:
        raise KeyError
    assert profiled.problem == "the block ended with KeyError, so its trace was not diagnosed"
    # The lock is free again.
    with sidestream.profile():
        pass


@pytest.mark.torch
def test_what_the_gpu_did_is_diagnosed(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The fake profiler writes the trace of an H200.
    import gzip

    import torch

    trace = gzip.decompress((traces / "copy_bound.before.json.gz").read_bytes())

    def export(_: object, path: str) -> None:
        Path(path).write_bytes(trace)

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    with sidestream.profile(what_if="prefetch=2", path=tmp_path / "trace.json") as profiled:
        torch.ones(8) + 1
        profiled.step()
    diagnosis = profiled.diagnosis
    assert diagnosis is not None and profiled.problem is None
    assert [finding.code for finding in diagnosis.findings] == ["COPY_ON_COMPUTE_STREAM"]
    assert diagnosis.what_if[0].changes == ("prefetch=2",)
    assert str(profiled) == str(diagnosis) and profiled.json() == diagnosis.json()
    assert profiled.table("kernels", limit=2) == diagnosis.table("kernels", limit=2)
    assert profiled._repr_html_() == diagnosis._repr_html_()
