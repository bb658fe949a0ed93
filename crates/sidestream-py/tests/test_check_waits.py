"""Lines at which the host blocks again and again: those that get a remark, and those that do not."""

from __future__ import annotations

import contextlib
import io
import textwrap

import pytest
import sidestream

pytestmark = pytest.mark.torch

#: The definitions that the loops below use.
GIVEN = """
import logging, queue, time, torch
from torch import nn
import sidestream
model = nn.Linear(64, 64).cuda().requires_grad_(False)
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
batches = [torch.randn(8, 64).pin_memory() for _ in range(6)]
x = torch.ones(8, 64, device="cuda")
down = torch.empty(64, 8)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
torch.cuda.synchronize()
"""


def remarks(loop: str) -> list[tuple[str, str]]:
    """Return the lines of the loop that get a remark, and the remarks."""
    source = GIVEN + textwrap.dedent(loop)
    with sidestream.check(simulate=True) as found, contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, "loop.py", "exec"), {"__name__": "__main__"})
    assert found.races == (), str(found)
    said = [lint for lint in found.lints if lint.code == "SYNC_IN_LOOP"]
    return [(source.splitlines()[lint.stack[0].line - 1].strip(), lint.text) for lint in said]


@pytest.mark.parametrize(
    ("read", "advice"),
    [
        ("total = y.sum().item()", "reads a value here each time"),
        ("total = float(y.sum())", "reads a value here each time"),
        ("total = f'{y.sum():.3f}'", "reads a value here each time"),
        ("if y.sum() > 0: pass", "reads a value here each time"),
        ("while y.sum() > 1e9: pass", "reads a value here each time"),
        ("flag = bool(y.isfinite().all())", "reads a value here each time"),
        ("part = y[: y.sum(1).argmax()]", "reads a value here each time"),
        ("same = torch.equal(y, y)", "reads a value here each time"),
        ("same = torch.allclose(y, y)", "reads a value here each time"),
        ("print(y)", "reads a value here each time"),
        ("logging.getLogger('loop').critical('%s', y)", "reads a value here each time"),
        ("shown = repr(y)", "reads a value here each time"),
        ("values = torch.empty(8, 64).copy_(y)", "until the copy to it is complete"),
        ("values = y.sum(0).tolist()", "until the copy to it is complete"),
        ("values = y.cpu()", "until the copy to it is complete"),
        ("values = y.cpu().numpy()", "until the copy to it is complete"),
        ("values = y.to('cpu')", "until the copy to it is complete"),
        ("values = down.double().pin_memory().t().copy_(y, non_blocking=True)", "contiguous pinned memory"),
        ("values = y[y > 0]", "the size of the result depends on values"),
        ("values = y.unique()", "the size of the result depends on values"),
        ("values = torch.nonzero(y)", "the size of the result depends on values"),
    ],
)
def test_a_read_that_waits_in_a_loop_is_remarked_on_with_what_to_do(read: str, advice: str) -> None:
    ((line, text),) = remarks(f"""
    for batch in batches:
        y = model(batch.to("cuda", non_blocking=True))
        {read}
    """)
    assert line == read and advice in text and "wait once after" not in text


@pytest.mark.parametrize("around", ["clock", "events", "wait", "side"])
def test_what_surrounds_a_read_does_not_excuse_it(around: str) -> None:
    """Reads in a loop that is timed as a whole, after a wait, or with work on another stream."""
    ((line, _),) = remarks(f"""
    t0 = time.perf_counter()
    start.record()
    for batch in batches:
        y = model(batch.to("cuda", non_blocking=True)).sum()
        if {around == "side"}:
            with torch.cuda.stream(side):
                z = torch.ones(8, device="cuda") + 1
        if {around == "wait"}:
            torch.cuda.synchronize()
        total = y.item()
    end.record()
    torch.cuda.synchronize()
    if {around == "events"}:
        start.elapsed_time(end)
    if {around == "clock"}:
        time.perf_counter() - t0
    """)
    assert line == "total = y.item()"


@pytest.mark.parametrize(
    "wait", ["torch.cuda.synchronize()", "main.synchronize()", "main.record_event().synchronize()"]
)
def test_a_wait_that_nothing_needs_is_remarked_on(wait: str) -> None:
    ((line, text),) = remarks(f"""
    for batch in batches:
        y = model(batch.to("cuda", non_blocking=True))
        {wait}
    """)
    assert line == wait and "nothing was observed that needs it" in text


@pytest.mark.parametrize(
    "line",
    [
        "shape = y.shape",
        "parts = list(y.sum(0))",
        "y[y > 1e9] = 0",
        "values = torch.where(y > 0, y, 0)",
        "values = down.double().pin_memory().copy_(y.t(), non_blocking=True)",
    ],
)
def test_what_reads_no_value_in_a_loop_is_left_alone(line: str) -> None:
    loop = f"""
    for batch in batches:
        y = model(batch.to("cuda", non_blocking=True))
        {line}
    """
    assert remarks(loop) == []


def test_a_print_outside_of_a_loop_is_no_loop() -> None:
    """No wait gets a remark, although the loop reads many values."""
    assert remarks("print(model(x)); print(x)") == []


#: Loops that are correct as they are.
RIGHT = {
    "a time by events": """
    for batch in batches:
        start.record()
        y = model(x)
        end.record()
        end.synchronize()
        start.elapsed_time(end)
    """,
    "a time by events, and a device that is waited for": """
    for batch in batches:
        start.record()
        y = model(x)
        end.record()
        torch.cuda.synchronize()
        start.elapsed_time(end)
    """,
    "a time by the clock": """
    for batch in batches:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        y = model(x)
        torch.cuda.synchronize()
        time.perf_counter() - t0
    """,
    "several streams, then a time": """
    streams = [torch.cuda.Stream() for _ in range(2)]
    for batch in batches:
        start.record()
        for stream in streams:
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                x + 1
        for stream in streams:
            stream.synchronize()
        end.record()
        torch.cuda.synchronize()
        start.elapsed_time(end)
    """,
    "downloads that are measured": """
    start.record()
    for batch in batches:
        out = torch.relu(x).cpu()
    end.record()
    end.synchronize()
    start.elapsed_time(end)
    """,
    "requests that are collected": """
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(4):
        waiting, answers = [], []
        for stream, batch in zip(streams * 3, batches):
            with torch.cuda.stream(stream):
                y = model(batch.to("cuda", non_blocking=True))
            waiting.append((y, stream.record_event()))
        for y, done in waiting:
            done.synchronize()
            answers.append(y.cpu())
    """,
    "an answer that was copied, by an event": """
    landing = torch.empty(8, 64, pin_memory=True)
    for batch in batches:
        landing.copy_(model(batch.to("cuda", non_blocking=True)), non_blocking=True)
        done = main.record_event()
        done.synchronize()
        answer = landing.sum()
    """,
    "pinned memory that is filled again": """
    staging = torch.empty(8, 64, pin_memory=True)
    for batch in batches:
        staging.copy_(batch)
        y = model(staging.to("cuda", non_blocking=True))
        main.synchronize()
    """,
    "pinned memory that numpy fills again": """
    staging = torch.empty(8, 64, pin_memory=True)
    array = staging.numpy()
    for batch in batches:
        array[:] = 1
        y = model(staging.to("cuda", non_blocking=True))
        torch.cuda.synchronize()
    """,
    "two buffers in turns": """
    staging = [torch.empty(8, 64, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in range(2)]
    for step, batch in enumerate(batches):
        copied[step % 2].synchronize()
        staging[step % 2].copy_(batch)
        x.copy_(staging[step % 2], non_blocking=True)
        copied[step % 2].record()
        model(x)
    """,
    "a buffer that is handed to another thread": """
    free = queue.Queue()
    for batch in batches:
        y = model(x)
        main.record_event().synchronize()
        free.put(y)
    """,
    "a slot of which another still works": """
    slots = [torch.cuda.Stream() for _ in range(2)]
    for step in range(8):
        slots[step % 2].synchronize()
        with torch.cuda.stream(slots[step % 2]):
            torch.ones(8, device="cuda") + 1
    """,
    "a step behind": """
    before = None
    for batch in batches:
        y = model(x)
        if before is not None:
            before.synchronize()
        before = main.record_event()
        x.add_(1)
    """,
    "all streams at the end": """
    streams = [torch.cuda.Stream() for _ in range(6)]
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.ones(8, device="cuda") + 1
    for stream in streams:
        stream.synchronize()
    """,
    "uploads that block": """
    for batch in batches:
        y = model(batch.to("cuda"))
    """,
    "the library's own waits": """
    batcher = sidestream.Batcher(model.eval())
    for batch in batches:
        batcher.submit(batch[0]).result()
    batcher.close()
    mean = sidestream.RunningMean()
    for batch in sidestream.prefetch(batches, "cuda"):
        mean.update(model(batch).sum().detach())
        str(mean)
        sidestream.fetch(x).result()
    list(sidestream.Pipeline([lambda x: x * 2, lambda x: x + 1])([torch.ones(1)] * 4))
    """,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_wait_that_serves_something_is_left_alone(name: str) -> None:
    assert remarks(RIGHT[name]) == []


@pytest.mark.parametrize("ours", [True, False])
def test_many_streams_are_counted_without_the_librarys_and_named_with_the_line_that_made_most(
    ours: bool,
) -> None:
    source = GIVEN + textwrap.dedent(f"""
    streams = [torch.cuda.Stream() for _ in range({4 if ours else 8})]
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.ones(8, device="cuda")
    if {ours}:
        for _ in range(8):
            with sidestream.Batcher(model.eval()) as batcher:
                batcher.submit(batches[0][0]).result()
    """)
    with sidestream.check(simulate=True) as found:
        exec(compile(source, "loop.py", "exec"), {"__name__": "__main__"})
    said = [lint for lint in found.lints if lint.code == "MANY_STREAMS"]
    if ours:
        assert len(found.streams) > 8 and said == []
    else:
        assert "uses 9 streams on cuda:0" in said[0].text
        assert source.splitlines()[said[0].stack[0].line - 1].startswith("streams = [torch.cuda.Stream()")


def test_a_print_of_what_another_stream_writes_is_a_race() -> None:
    import torch

    with sidestream.check(simulate=True) as found, contextlib.redirect_stdout(io.StringIO()):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            y = torch.ones(8, device="cuda") + 1
        print(y)
    assert [(race.kind, race.second.operator) for race in found.races] == [("RAW", "print")], str(found)
