"""Host accesses to memory that PyTorch copies, on the CPU: tensors over NumPy's bytes count as pinned memory.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from forked import python
from sidestream._check import CheckedRun, checking
from sidestream._sidestream import RaceError

pytestmark = pytest.mark.torch

PAGE = mmap.PAGESIZE
COUNT = 8 * PAGE


def pinned(found: CheckedRun, count: int = COUNT) -> tuple[Any, Any]:
    """Return a tensor in pinned memory, and NumPy's view of it."""
    array = np.frombuffer(mmap.mmap(-1, 4 * count), np.float32)
    found._recorder.pretend_pinned(array.ctypes.data, array.nbytes)
    return torch.from_numpy(array), array


def test_a_source_filled_again_by_numpy_names_tensor_and_line() -> None:
    with checking(pretend=True) as found:
        host, array = pinned(found)
        x = torch.empty(COUNT)
        x.copy_(host, non_blocking=True)
        array[2000:3000] = 2
        found._recorder.device_synchronize()
        array[:] = 3
    (race,) = found.races
    assert (race.kind, race.severity, race.first.operator) == ("HOST_WAR", "error", "copy_")
    assert race.second.stack[0].function == "test_a_source_filled_again_by_numpy_names_tensor_and_line"
    assert race.bytes is not None and race.bytes[0] == host.data_ptr() + 8000
    text = str(found)
    assert "array[2000:3000] = 2" in text and "event.synchronize()" in race.fix
    # All of it was watched, so nothing is said about it.
    assert "asynchronous copies" not in text and not str(found.host)
    assert str(replace(found.host, compared_bytes=COUNT, guarded_bytes=3 * COUNT)).endswith(
        "75.0 % watched for the host's loads and stores, 25.0 % watched for stores of other values alone, so "
        "that no load is found"
    )
    assert found.host.guarded_bytes == 4 * COUNT == found.to_dict()["host"]["bytes"]


def test_what_an_operator_reports_is_reported_once() -> None:
    with checking(pretend=True) as found:
        host, array = pinned(found)
        x = torch.empty(COUNT)
        x.copy_(host, non_blocking=True)
        host.fill_(4)
        found._recorder.device_synchronize()
    assert [(race.second.operator, race.count) for race in found.races] == [("fill_", 1)]
    with checking(pretend=True) as found:
        host, array = pinned(found)
        host.copy_(x, non_blocking=True)
        host.add_(1)
        found._recorder.device_synchronize()
        array += 1
    assert {race.second.operator for race in found.races} == {"add_"}
    with checking(pretend=True) as found:
        host, array = pinned(found)
        host.copy_(x, non_blocking=True)
        float(host.sum())
        found._recorder.device_synchronize()
    assert [(race.second.operator, race.count) for race in found.races] == [("sum", 1)]
    with checking(pretend=True) as found:
        host, array = pinned(found)
        host.copy_(x, non_blocking=True)
        host.tolist()
        found._recorder.device_synchronize()
    assert [(race.second.operator, race.count) for race in found.races] == [("tolist", 1)]
    with checking(pretend=True) as found:
        small, array = pinned(found, 16)
        x[:16].copy_(small, non_blocking=True)
        small.fill_(5)
        found._recorder.device_synchronize()
    assert [(race.second.operator, race.count) for race in found.races] == [("fill_", 1)]


def test_memory_that_is_registered_and_given_up_under_its_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda ptr, size, flags: done.append(ptr),
        cudaHostUnregister=lambda ptr: done.append(ptr),
    )
    monkeypatch.setattr(torch._C, "_cudart", runtime, raising=False)
    for right in (False, True):
        with checking(pretend=True) as found:
            host, array = pinned(found)
            runtime.cudaHostRegister(host.data_ptr(), 4 * COUNT, 0)
            torch.empty(COUNT).copy_(host, non_blocking=True)
            if right:
                found._recorder.device_synchronize()
            runtime.cudaHostUnregister(host.data_ptr())
            array[:] = 1
        assert [race.kind for race in found.races] == ([] if right else ["UAF"])
    assert done == [done[0]] * 2 + [done[2]] * 2


def test_once_a_storage_is_gone_its_memory_is_not_checked() -> None:
    with checking(pretend=True) as found:
        host, array = pinned(found)
        x = torch.empty(COUNT)
        x.copy_(host, non_blocking=True)
        del host
        gc.collect()
        array[:] = 1
    assert found.races == ()


def test_a_changed_small_source_is_reported_before_its_storage_is_gone() -> None:
    with checking(pretend=True) as found:
        host, array = pinned(found, 16)
        x = torch.empty(16)
        x.copy_(host, non_blocking=True)
        array[3] = 1
        del host
        gc.collect()
    (race,) = found.races
    assert race.second.operator == "a store before this end of the tensor"


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_small_buffer_that_is_sent_and_then_received_into(free: bool, dtype: str) -> None:
    with checking(pretend=True) as found:
        host, _ = pinned(found, 16)
        x = torch.empty(16)
        x.copy_(host, non_blocking=True)
        host.copy_(torch.ones(16, dtype=getattr(torch, dtype)), non_blocking=free)
        found._recorder.device_synchronize()
    assert found.races == ()


LAST = torch.channels_last


def square(device: str) -> Any:
    """Return a pinned tensor, or one on the device."""
    return torch.zeros(1, 3, 64, 64, device=device, pin_memory=device == "cpu")


@pytest.mark.parametrize(
    ("copy", "races"),
    [
        (lambda host, x: host.double().pin_memory().copy_(x, non_blocking=True), True),
        (lambda host, x: host.double().pin_memory().copy_(x), False),
        (lambda host, x: host.copy_(x.mT, non_blocking=True), True),
        (lambda host, x: host.copy_(x[..., :1], non_blocking=True), True),
        (lambda host, x: host.mT.copy_(x, non_blocking=True), False),
        (lambda host, x: host[..., :3].copy_(x[..., :3], non_blocking=True), False),
        (lambda host, x: x.to("cpu", torch.float64, non_blocking=True), True),
        (lambda host, x: x.to("cpu", torch.float64), False),
        (lambda host, x: x.to(memory_format=LAST).to("cpu", non_blocking=True), True),
        (lambda host, x: x.to(memory_format=LAST).to("cpu", torch.float64, non_blocking=True), False),
        (lambda host, x: torch._foreach_copy_([host], [x.double()], non_blocking=True)[0], True),
        (lambda host, x: torch._foreach_copy_([host], [x.double()])[0], False),
    ],
)
def test_a_download_is_asynchronous_unless_the_host_orders_or_converts(copy: Any, races: bool) -> None:
    with checking(simulate=1) as found:
        copy(square("cpu"), square("cuda")).sum()
    assert [race.kind for race in found.races] == (["HOST_RAW"] if races else []), str(found)


@pytest.mark.parametrize(
    ("copy", "races"),
    [
        (lambda x, host: x.double().copy_(host, non_blocking=True), True),
        (lambda x, host: x.double().copy_(host), False),
        (lambda x, host: x.mT.copy_(host, non_blocking=True), True),
        (lambda x, host: x.copy_(host.mT, non_blocking=True), False),
        (lambda x, host: x.copy_(host[..., :1], non_blocking=True), False),
        (lambda x, host: x.copy_(host[0], non_blocking=True), True),
        (lambda x, host: host.to("cuda", torch.float64, non_blocking=True), True),
        (lambda x, host: torch._foreach_copy_([x.double()], [host], non_blocking=True), True),
    ],
)
def test_an_upload_is_asynchronous_unless_the_host_orders_or_converts(copy: Any, races: bool) -> None:
    with checking(simulate=1) as found:
        host = square("cpu")
        kept = copy(square("cuda"), host)
        host.fill_(1)
        del kept
    assert [race.kind for race in found.races] == (["HOST_WAR"] if races else []), str(found)


def test_a_storage_that_is_resized_has_its_bytes_elsewhere() -> None:
    with checking(pretend=True) as found:
        host = torch.zeros(COUNT)
        found._recorder.pretend_pinned(host.data_ptr(), 4 * COUNT)
        x = torch.empty(COUNT)
        x.copy_(host, non_blocking=True)
        host.untyped_storage().resize_(16 * COUNT)
        host.numpy()[:] = 2
        x.copy_(host, non_blocking=True)
    assert found.races == ()


def test_a_pageable_source_is_a_warning_and_is_not_protected() -> None:
    with checking(pretend=True) as found:
        run = found._recorder
        array = np.zeros(1000, np.uint8)
        run.host_memory(array.ctypes.data, array.nbytes, False)
        run.host_copy("copy_", array.ctypes.data, 0x1000, array.nbytes, True, 0x100)
        array[5] = 1
        run.stream_synchronize(0x100)
        torch.zeros(1)
    (race,) = found.races
    assert (race.kind, race.severity) == ("HOST_WAR", "warn") and found.is_clean
    assert found.host.copies == 0


@pytest.mark.parametrize(
    ("what", "is_open"),
    [
        ("freed", True),
        ("freed behind a wait", False),
        ("freed behind a copy that waits", False),
        ("freed, and small", False),
        ("freed, and numpy's", False),
        ("kept", False),
        ("filled again", True),
        ("filled again behind a wait", False),
    ],
)
def test_a_large_pageable_source_that_is_freed_while_its_copy_may_read_it_is_a_warning(
    what: str, is_open: bool
) -> None:
    with checking(simulate=1) as found:
        array = np.ones(1 << (12 if "small" in what else 20), np.float32)
        is_numpys = "numpy" in what or "filled" in what
        x = torch.from_numpy(array) if is_numpys else torch.ones(array.size)
        y = x.to("cuda", non_blocking="copy that waits" not in what)
        if "behind a wait" in what:
            torch.cuda.current_stream().synchronize()
        if "filled" in what:
            array[:] = 2
        if "freed" in what:
            del x
        y.sum().item()
    assert found.is_clean
    if not is_open:
        assert found.races == (), str(found)
        return
    (race,) = found.races
    assert (race.kind, race.severity) == ("HOST_WAR", "warn")
    assert "CUDA leaves open whether the call waits" in str(found)
    if what == "freed":
        assert race.second.operator == "the end of the tensor"
        assert line(race.second) == "del x"
        # If one line creates, copies and drops a source, a wait before the end of the source would come too
        # early.
        assert race.fix.startswith("pin the source (`pin_memory()`")
        assert [fix.call for fix in found.mends] == ["x = x.pin_memory()"]


def line(side: Any) -> str:
    """Return the line of one side of a race."""
    place = side.stack[0]
    source = Path(place.file).read_text(encoding="utf-8").splitlines()
    return source[int(place.line) - 1].strip()


def test_a_race_of_the_hosts_is_raised_by_the_next_operator_or_at_the_end() -> None:
    with pytest.raises(RaceError, match="HOST_WAR"), checking(raises=True, pretend=True) as found:
        host, array = pinned(found)
        torch.empty(COUNT).copy_(host, non_blocking=True)
        array[2000] = 1
        torch.zeros(1)
        raise AssertionError("it went on")
    with pytest.raises(RaceError, match="HOST_WAR"), checking(raises=True, pretend=True) as found:
        host, array = pinned(found)
        torch.empty(COUNT).copy_(host, non_blocking=True)
        array[2000] = 1
    # The race does not hide an exception of the program.
    with pytest.raises(ZeroDivisionError), checking(raises=True, pretend=True) as found:
        host, array = pinned(found)
        torch.empty(COUNT).copy_(host, non_blocking=True)
        array[2000] = 1
        _ = 1 / 0


def test_without_the_guard_the_host_is_not_observed_and_the_report_says_so() -> None:
    with checking(pretend=True, host=False) as found:
        host, array = pinned(found)
        torch.empty(COUNT).copy_(host, non_blocking=True)
        array[2000] = 1
    assert found.races == () and found.host.problem == "the check was asked not to"
    assert "are not observed: the check was asked not to" in str(found)


def test_a_worker_of_a_loader_has_its_own_handler(capfd: pytest.CaptureFixture[str]) -> None:
    with checking(pretend=True) as found:
        host, _ = pinned(found)
        torch.empty(COUNT).copy_(host, non_blocking=True)
        child = os.fork()
        if child == 0:
            torch._C._set_worker_signal_handlers()
            ctypes.string_at(8)
        _, ended = os.waitpid(child, 0)
        found._recorder.device_synchronize()
    assert os.WTERMSIG(ended) == signal.SIGSEGV and found.races == ()
    assert "segmentation fault encountered in worker" in capfd.readouterr().err


SCRIPT = """
import gc, mmap
import numpy as np
from sidestream._sidestream import Recorder

(run,) = [thing for thing in gc.get_objects() if isinstance(thing, Recorder)]
source = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
run.host_memory(source.ctypes.data, source.nbytes, True)

def step(value):
    source[70_000] = value
    run.host_copy("copy_", source.ctypes.data, 0x1000, source.nbytes, True, 0x100)
    if RIGHT:
        run.stream_synchronize(0x100)

for value in range(3):
    step(value)
print(source.sum())
"""


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("option", [(), ("--raise",), ("--no-host",)])
def test_the_command_names_the_line_that_fills_a_source_again(
    right: bool, option: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(SCRIPT.replace("RIGHT", str(right)), encoding="utf-8")
    done = python("-m", "sidestream.check", *option, script)
    racy = not right and option != ("--no-host",)
    assert done.returncode == int(racy), done.stderr
    assert ("source[70_000] = value" in done.stderr) == racy and ("HOST_WAR" in done.stderr) == racy, (
        done.stderr
    )
    assert done.stdout == "" if racy and option else done.stdout == "2\n"
    assert "Traceback" not in done.stderr or option == ("--raise",)
