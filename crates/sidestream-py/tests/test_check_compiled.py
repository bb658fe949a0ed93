"""Programs with torch.compile under a check: the compiled code runs, forward and backward."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from sidestream._check import CheckedRun, checking

# Some imports of Inductor are deprecated.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def compiled() -> Any:
    """A function that Inductor compiles to C++, for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("Inductor needs a C++ compiler")
    from torch.utils._python_dispatch import TorchDispatchMode

    if not hasattr(TorchDispatchMode, "ignore_compile_internals"):
        pytest.skip("this PyTorch leaves compiled functions aside while a mode is entered")
    return torch.compile(lambda x, w: torch.relu(x @ w).sin().sum(0) * 2)


def ordered(found: CheckedRun, before: int, after: int) -> None:
    recorder: Any = found._recorder
    recorder.event_record(1, before)
    recorder.event_wait(1, after)


def operators(found: CheckedRun) -> set[str]:
    return {side.operator for race in found.races for side in (race.first, race.second)}


@pytest.mark.parametrize("waits", [False, True], ids=["racy", "repaired"])
def test_generated_kernels_and_library_calls_are_observed(waits: bool, compiled: Any) -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    with checking(pretend=True, host=False) as found:
        recorder: Any = found._recorder
        x.add_(1)
        recorder.pretend_stream(7)
        if waits:
            ordered(found, 0, 7)
        y = compiled(x, w)
        recorder.pretend_stream(0)
        if waits:
            ordered(found, 7, 0)
        y + 1
    # There is one product, and one kernel for everything else; uncompiled, there are seven operators.
    assert found.operations == 4, str(found)
    assert operators(found) == (set() if waits else {"add_", "mm", "compiled kernel", "add"}), str(found)
    assert all(race.severity == "error" for race in found.races), str(found)
    for race in found.races:
        assert not any(
            "torchinductor" in place.file for side in (race.first, race.second) for place in side.stack
        )
    assert torch.allclose(y, torch.relu(x @ w).sin().sum(0) * 2, atol=1e-4)


@pytest.mark.parametrize("waits", [False, True], ids=["racy", "repaired"])
def test_a_compiled_backward_is_observed(waits: bool, compiled: Any) -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    with checking(pretend=True, host=False) as found:
        recorder: Any = found._recorder
        compiled(x, w).sum().backward()
        recorder.pretend_stream(7)
        if waits:
            ordered(found, 0, 7)
        assert w.grad is not None
        w.grad.mul_(2)
    assert operators(found) == (set() if waits else {"mm", "mul_"}), str(found)


def test_a_function_that_was_compiled_before_runs_as_it_is(compiled: Any) -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    wanted = compiled(x, w)
    with checking(pretend=True, host=False) as found:
        again = compiled(x, w)
    assert torch.equal(again, wanted)
    # A check that begins after the compilation does not observe generated CPU code, which PyTorch reuses.
    assert found.races == () and 1 <= found.operations <= 2
