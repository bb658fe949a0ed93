"""The remarks of a check on a program that does not race: streams created again and again, errors that
surface late, unneeded waits, memory that is freed but cannot be reused. Each program has a twin that gets no
remark.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sidestream
import torch
from forked import python
from sidestream import _check_pinned, _check_remarks
from sidestream._check import CheckedRun, checking

pytestmark = pytest.mark.torch


def said(found: CheckedRun, code: str) -> list[str]:
    return [lint.text for lint in found.lints if lint.code == code]


def line_of(found: CheckedRun, code: str) -> str:
    """Return the line that a remark names."""
    (lint,) = [lint for lint in found.lints if lint.code == code]
    place = lint.stack[0]
    return Path(place.file).read_text(encoding="utf-8").splitlines()[place.line - 1].strip()


@pytest.mark.parametrize("in_each_step", [True, False])
def test_streams_that_are_made_in_each_step_are_named_with_their_line(in_each_step: bool) -> None:
    with sidestream.check(simulate=True) as found:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        x = torch.ones(64, device="cuda")
        torch.cuda.synchronize()
        for _ in range(12):
            if in_each_step:
                side = torch.cuda.Stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                x.mul_(2)
            main.wait_stream(side)
        x.sum().item()
    assert found.races == (), str(found)
    if in_each_step:
        assert (
            "12 streams were made here, and 11 of them were used and dropped"
            in said(found, "STREAMS_MADE")[0]
        )
        assert line_of(found, "STREAMS_MADE") == "side = torch.cuda.Stream()"
    else:
        assert not said(found, "STREAMS_MADE")


@pytest.mark.parametrize("uses", [True, False])
def test_streams_that_are_kept_or_never_used_are_not(uses: bool) -> None:
    with sidestream.check(simulate=True) as found:
        kept = []
        for _ in range(12):
            stream = torch.cuda.Stream()
            if uses:
                kept.append(stream)
                with torch.cuda.stream(stream):
                    torch.ones(8, device="cuda")
    assert not said(found, "STREAMS_MADE")


ASSERTED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"


#: The message of the error that the operator below raises.
_text = ""
_library: Any = None


def fails(text: str) -> None:
    """Make the operator ``late`` fail with this message, like an operator after the fault."""
    global _text, _library
    _text = text
    if _library is None:
        _library = torch.library.Library("sidestream_test", "FRAGMENT")
        _library.define("late(Tensor x) -> Tensor")
        _library.impl("late", late, "CPU")


def late(x: Any) -> Any:
    raise RuntimeError(_text)


def test_an_error_that_comes_late_names_the_calls_that_it_may_belong_to() -> None:
    fails(ASSERTED)
    with checking(pretend=True) as found:
        x = torch.ones(8)
        first = x * 2
        found._recorder.device_synchronize()
        second = first + 1
        for _ in range(3):
            second = second - 1
        with pytest.raises(RuntimeError, match="device-side assert"):
            torch.ops.sidestream_test.late(second)
        # The first error is the one that counts.
        with pytest.raises(RuntimeError, match="device-side assert"):
            torch.ops.sidestream_test.late(first)
    (text,) = said(found, "LATE_ERROR")
    assert "`CUDA error: device-side assert triggered` was raised by sidestream_test::late" in text
    assert "belongs to one of 4 calls on cuda:0" in text
    assert (
        "the last first: sub on default at " in text
        and "(second = second - 1), 3 times; add on default at " in text
    )
    assert "mul" not in text and "CUDA_LAUNCH_BLOCKING=1 names the call" in text
    assert line_of(found, "LATE_ERROR") == "torch.ops.sidestream_test.late(second)"
    assert found.is_clean


@pytest.mark.parametrize("text", ["CUDA error: invalid configuration argument", "expected scalar type Float"])
def test_an_error_of_the_call_itself_is_not_late(text: str) -> None:
    fails(text)
    with checking(pretend=True) as found:
        x = torch.ones(8) * 2
        with pytest.raises(RuntimeError):
            torch.ops.sidestream_test.late(x)
    assert not found.lints


def test_a_wait_that_raises_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    side = 0x100
    with monkeypatch.context() as patch:
        run: Any = None

        def synchronize() -> None:
            # PyTorch reports a wait before the wait itself.
            run.device_synchronize()
            if broken:
                raise RuntimeError(ASSERTED)

        broken = False
        patch.setattr(torch.cuda, "synchronize", synchronize)
        with checking(pretend=True) as found:
            run = found._recorder
            x = torch.ones(8) * 2
            torch.cuda.synchronize()
            run.pretend_stream(side)
            x * 3
            broken = True
            with pytest.raises(RuntimeError, match="device-side assert"):
                torch.cuda.synchronize()
    (text,) = said(found, "LATE_ERROR")
    assert "raised by torch.cuda.synchronize" in text and "belongs to 1 call on cuda:0" in text
    assert "mul on stream" in text and "(x * 3)" in text


WAITS = """
import sys
import torch
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
w = torch.ones(1 << 10, device="cuda")
with torch.cuda.stream(side):
    mine = torch.ones(1 << 10, device="cuda")
torch.cuda.synchronize()
for step in range(5):
    w.mul_(2)
    side.wait_stream(main)   # the wait
    with torch.cuda.stream(side):
        mine.add_(w if "needed" in sys.argv else 1)
    if "needed" in sys.argv:
        main.wait_stream(side)
    if "synced" in sys.argv:
        torch.cuda.synchronize()
"""


@pytest.mark.parametrize("synced", [True, False], ids=["each step", "at the end"])
@pytest.mark.parametrize("needed", [True, False])
def test_a_wait_that_no_access_needs_is_named_and_one_that_an_access_needs_is_not(
    tmp_path: Path, needed: bool, synced: bool
) -> None:
    program = tmp_path / "program.py"
    program.write_text(WAITS, encoding="utf-8")
    arguments = [name for name, given in (("needed", needed), ("synced", synced)) if given]
    ran = python("-m", "sidestream.check", "--simulate", program, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert ("WAIT_NOT_NEEDED" in ran.stderr) is not needed, ran.stderr
    if not needed:
        assert (
            "no access that was observed in this run needs this wait of side for main: "
            "5 of 5 such waits were followed" in ran.stderr
        )
        assert f"({program}:11)" in ran.stderr


def test_a_wait_that_comes_too_early_for_a_race_is_not_called_needless(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        WAITS.replace("w.mul_(2)\n    side.wait_stream(main)", "side.wait_stream(main)\n    w.mul_(2)")
    )
    ran = python("-m", "sidestream.check", "--simulate", program, "needed")
    assert ran.returncode == 1 and "RAW" in ran.stderr, ran.stderr
    assert "WAIT_NOT_NEEDED" not in ran.stderr, ran.stderr


def test_after_the_last_checked_step_a_wait_may_be_needed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    step = "    optimizer.zero_grad()\n    parameter.sum().backward()\n    optimizer.step()\n"
    begin = (
        'parameter = torch.nn.Parameter(torch.ones(8, device="cuda"))\n'
        "optimizer = torch.optim.SGD([parameter])\n"
    )
    program.write_text(WAITS.replace("torch.cuda.synchronize()\nfor", begin + "for") + step, encoding="utf-8")
    named = [
        python("-m", "sidestream.check", "--simulate", "--steps", steps, program).stderr
        for steps in ("0:3", "0:")
    ]
    assert ["WAIT_NOT_NEEDED" in text for text in named] == [False, True], named


@pytest.mark.parametrize("why", ["the host", "memory used again", "a chain of three", "not followed"])
def test_a_wait_that_may_be_needed_is_left_alone(why: str) -> None:
    with sidestream.check(simulate=True) as found:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        third = torch.cuda.Stream()
        w = torch.ones(1 << 10, device="cuda")
        with torch.cuda.stream(third):
            mine = torch.ones(1 << 10, device="cuda")
        landing = torch.empty(1 << 10, pin_memory=True)
        torch.cuda.synchronize()
        for _ in range(3):
            w.mul_(2)
            if why == "the host":
                landing.copy_(w, non_blocking=True)
            if why == "memory used again":
                with torch.cuda.stream(side):
                    x = torch.ones(1 << 10, device="cuda")
                main.wait_stream(side)
                x.mul_(2)
            side.wait_stream(main)
            if why == "memory used again":
                del x
            with torch.cuda.stream(side):
                torch.ones(1 << 10, device="cuda")
            if why == "a chain of three":
                third.wait_stream(side)
                with torch.cuda.stream(third):
                    mine.add_(w)
                main.wait_stream(third)
            side.synchronize()
            if why == "the host":
                landing.sum()
            if why != "not followed":
                torch.cuda.synchronize()
    assert found.races == () and not said(found, "WAIT_NOT_NEEDED"), str(found)


@pytest.mark.parametrize("pending", [True, False])
def test_memory_that_is_freed_and_held_is_named_with_its_line(
    pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `pretend=True` there is no allocator to ask for pending memory: the test supplies the answer."""
    mib, side = 1 << 20, 0x100
    freed: list[tuple[int, int]] = []

    def snapshot() -> Any:
        state = "active_pending_free" if pending else "inactive"
        return [{"blocks": [{"address": at, "size": size, "state": state} for at, size in freed]}]

    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    with checking(pretend=True) as found:
        run = found._recorder
        kept = []
        for _ in range(3):
            x = torch.ones(4 * mib)
            kept.append(x)
            at, size = x.untyped_storage().data_ptr(), x.nbytes
            run.allocated(at, 0)
            x.mul_(1)
            note(run, x, side)
            run.on_memory_deallocation(at)
            freed.append((at, size))
            # The check asks the allocator before an operator.
            torch.ones(1)
    if pending:
        (text,) = said(found, "MEMORY_HELD")
        assert (
            f"{32 * mib:,} bytes that were freed could not be used again" in text
            and "records stream1 for them" in text
        )
        assert (
            line_of(found, "MEMORY_HELD")
            == "run.record_stream(x.untyped_storage().data_ptr(), x.nbytes, side)"
        )
    else:
        assert not said(found, "MEMORY_HELD")


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("a call", "kept = [batch[0].pin_memory() for batch in data]"),
        ("an argument", "kept = [torch.empty(1 << 24, dtype=torch.uint8, pin_memory=True) for _ in data]"),
        ("a loader", "kept = list(torch.utils.data.DataLoader(data, pin_memory=True))"),
        ("a prefetcher", 'for kept in sidestream.prefetch(arrays, "sim:h200", depth=3):'),
        ("one at a time", None),
        ("less", None),
    ],
)
def test_much_pinned_memory_is_remarked_on(
    where: str, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's memory size is made up, so that no machine has to pin a quarter of a real one."""
    for module in (_check_pinned, _check_remarks):
        monkeypatch.setattr(module, "memory_bytes", lambda: 256 << 20)
    count = 4 if where == "less" else 6
    data = torch.utils.data.TensorDataset(torch.zeros(count, 1 << 24, dtype=torch.uint8))
    kept: Any
    with sidestream.check(simulate=True) as found:
        if where == "an argument":
            kept = [torch.empty(1 << 24, dtype=torch.uint8, pin_memory=True) for _ in data]
        elif where == "a loader":
            kept = list(torch.utils.data.DataLoader(data, pin_memory=True))
        elif where == "a prefetcher":
            arrays = [np.ones((1, 12 << 20), np.float32)] * 3
            for kept in sidestream.prefetch(arrays, "sim:h200", depth=3):
                pass
        elif where == "one at a time":
            for batch in data:
                kept = [batch[0].pin_memory().sum()]
        else:
            kept = [batch[0].pin_memory() for batch in data]
        torch.ones(8, device="cuda")
    assert kept is not None and found.is_clean
    if line is None:
        assert not said(found, "MUCH_PINNED"), str(found)
        return
    (text,) = said(found, "MUCH_PINNED")
    share = f"{6 << 24:,} bytes are pinned at once, 37 % of the host's {256 << 20:,}"
    assert where == "a prefetcher" or share in text
    assert line_of(found, "MUCH_PINNED") == line


@pytest.mark.parametrize(
    ("what", "is_said"),
    [
        ("queued", True),
        ("waited for", False),
        ("a copy", False),
        ("nothing measured", False),
        ("more queued at the end", False),
    ],
)
def test_a_clock_that_starts_after_queued_work_is_named_with_both_lines(what: str, is_said: bool) -> None:
    with sidestream.check(simulate=True) as found:
        host = torch.zeros(64, pin_memory=True)
        x = torch.zeros(64, device="cuda")
        torch.cuda.synchronize()
        if what == "a copy":
            x.copy_(host, non_blocking=True)
        else:
            x.add_(1)  # before
        if what == "waited for":
            torch.cuda.synchronize()
        start = time.perf_counter()  # first
        if what != "nothing measured":
            x.mul_(2)
        event = torch.cuda.Event()
        event.record()
        if what == "more queued at the end":
            x.add_(1)
            event.synchronize()
        else:
            torch.cuda.synchronize()
        time.perf_counter() - start  # second
    if not is_said:
        assert not said(found, "HOST_CLOCK"), str(found)
        return
    (text,) = said(found, "HOST_CLOCK")
    assert line_of(found, "HOST_CLOCK").endswith("# first")
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    before, second = (int(number) for number in re.findall(r"test_check_remarks\.py:(\d+)", text))
    assert source[before - 1].endswith("x.add_(1)  # before") and source[second - 1].endswith("# second")


@pytest.mark.parametrize("fixed", [None, "the host waits", "its stream waits"])
def test_held_memory_is_named_on_a_simulated_gpu_too(fixed: str | None) -> None:
    mib = 1 << 20
    with sidestream.check(simulate=True) as found:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        for _ in range(4):
            x = torch.ones(4 * mib, device="cuda")
            side.wait_stream(main)
            with torch.cuda.stream(side):
                x.mul_(2)
            if fixed == "its stream waits":
                main.wait_stream(side)
            else:
                x.record_stream(side)
            del x
            if fixed == "the host waits":
                side.synchronize()
        torch.ones(8, device="cuda")
    assert found.races == (), str(found)
    if fixed is None:
        (text,) = said(found, "MEMORY_HELD")
        held = f"{64 * mib:,} bytes that were freed could not be used again when the check looked"
        assert held in text and "records side for them, and the host has not waited for side since" in text
        assert line_of(found, "MEMORY_HELD") == "x.record_stream(side)"
    else:
        assert not said(found, "MEMORY_HELD"), str(found)


def note(run: Any, x: Any, side: int) -> None:
    run.record_stream(x.untyped_storage().data_ptr(), x.nbytes, side)
