"""The work that a pipeline issues on each stream, judged by the checker: a double of PyTorch's streams
reports each call.
"""

from __future__ import annotations

import contextlib
import gc
import json
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driven import recorder
from sidestream import Pipeline

pytestmark = pytest.mark.torch

SIZE = 4096
#: The parameters of the stages, and the memory of items and results.
PARAMETERS = {"first": 0x10_0000, "second": 0x20_0000}


def memory(number: int) -> int:
    return 0x100_0000 + number * 0x1_0000


class Gpu:
    """Streams and events that run nothing and report all calls to the checker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checker = run = recorder()
        self.current = (0, 0, 1)
        self.numbers = iter(range(0x100, 0x10000))
        gpu = self

        class Stream:
            def __init__(
                self,
                device: Any = None,
                stream_id: int | None = None,
                device_index: int = 0,
                device_type: int = 1,
            ) -> None:
                self.stream_id = next(gpu.numbers) if stream_id is None else stream_id
                self.device_index, self.device_type = device_index, device_type

            def synchronize(self) -> None:
                run.stream_synchronize(self.stream_id)

            def query(self) -> bool:
                # The pipeline queries only if the machine is slow, and a query that finds the work complete
                # would order later work.
                return False

            def wait_stream(self, other: Stream) -> None:
                event = Event()
                event.record(other)
                event.wait(self)

        class Event:
            def __init__(self) -> None:
                self.number = next(gpu.numbers)

            def record(self, stream: Stream) -> None:
                run.event_record(self.number, stream.stream_id)

            def wait(self, stream: Stream) -> None:
                run.event_wait(self.number, stream.stream_id)

            def synchronize(self) -> None:
                raise AssertionError("nothing here lies in pinned memory")

        def switch(stream_id: int, device_index: int, device_type: int) -> None:
            gpu.current = (stream_id, device_index, device_type)

        doubles = {
            "init": lambda: None,
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "Stream": Stream,
            "Event": Event,
            "current_stream": lambda _=None: Stream(stream_id=gpu.current[0]),
        }
        for name, double in doubles.items():
            monkeypatch.setattr(torch.cuda, name, double)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", lambda _: gpu.current, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_setStream", switch, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)

    def works(self, name: str, reads: list[int], writes: list[int]) -> None:
        """Record work on the current stream."""
        self.checker.operator(
            name, [(at, SIZE) for at in reads], [(at, SIZE) for at in writes], self.current[0]
        )

    def stage(self, name: str, offset: int) -> Callable[[Any], Any]:
        """Make a stage that changes its parameters, reads its item and writes its result."""

        def run(item: Any) -> Any:
            at = getattr(item, "at", item)
            self.works(name, [at], [PARAMETERS[name], at + offset])
            return types.SimpleNamespace(at=at + offset) if hasattr(item, "at") else at + offset

        return run

    def stages(self) -> list[Callable[[Any], Any]]:
        return [self.stage("first", 0x2000), self.stage("second", 0x2000)]

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before, self.current = self.current, (stream, 0, 1)
        try:
            yield
        finally:
            self.current = before

    def races(self) -> list[Any]:
        races: list[Any] = json.loads(self.checker.report())["races"]
        return races


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


@pytest.mark.parametrize("mode", ["serial", "streams"])
def test_the_caller_may_take_each_result_on_another_stream(gpu: Gpu, mode: Any) -> None:
    items = [memory(number) for number in range(6)]
    results = iter(Pipeline(gpu.stages(), mode=mode, device="cuda:0")(items))
    for number in range(6):
        with gpu.on(0x10 + number % 3):
            gpu.works("use", [next(results)], [])
    assert gpu.races() == []


def test_a_change_of_mode_and_of_stream_at_once_is_ordered(gpu: Gpu) -> None:
    cuda = Pipeline(gpu.stages(), mode="serial", device="cuda:0")._cuda
    modes = ["serial", "streams", "serial", "serial", "streams", "streams", "serial"]
    for number, mode in enumerate(modes):
        with gpu.on(0x10 + number % 2):
            result, behind = cuda.issue(number, memory(number), mode)
        with gpu.on(0x20 + number % 2):
            gpu.works("use", [cuda.hand_over(result, behind)], [])
    assert gpu.races() == []


@pytest.mark.parametrize("mode", ["serial", "streams"])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_failed_run_has_ended_when_the_next_one_begins(gpu: Gpu, mode: Any, leaves: bool) -> None:
    """Once the error is gone, nothing refers to its item, so the next run may reuse the item's memory."""

    def fails(item: int) -> int:
        gpu.works("before it fails", [item], [PARAMETERS["second"]])
        if item == memory(2) + 0x2000:
            raise ArithmeticError("no")
        return item

    pipe = Pipeline([gpu.stage("first", 0x2000), fails], mode=mode, device="cuda:0", depth=3)
    run = pipe([memory(number) for number in range(4)])
    next(run)
    if leaves:
        run.close()
    else:
        with pytest.raises(Exception, match="ArithmeticError: no"):
            list(run)
    # Another stream of the allocator reuses the memory; the host observed the end of the run, so no wait is
    # needed.
    with gpu.on(0x50):
        gpu.works("fill", [], [memory(2), memory(2) + 0x2000])
    assert gpu.races() == []


def test_what_is_hidden_in_an_object_waits_for_the_caller(gpu: Gpu) -> None:
    pipe = Pipeline(gpu.stages(), mode="streams", device="cuda:0")

    def items() -> Iterator[Any]:
        for number in range(8):
            # The caller makes each item on its own stream.
            gpu.works("make", [], [memory(number)])
            yield types.SimpleNamespace(at=memory(number))

    for result in pipe(items()):
        gpu.works("use", [result.at], [])
    assert gpu.races() == []


class Timed:
    """Stages that advance the pipeline's clock by 10 ms on a side stream, and by 20 ms on the caller's.
    """

    def __init__(self, gpu: Gpu, clock: types.SimpleNamespace) -> None:
        self.gpu, self.clock = gpu, clock

    def stage(self, item: Any) -> Any:
        self.clock.now += 0.02 if self.gpu.current == (0, 0, 1) else 0.01
        return item

    def other(self, item: Any) -> Any:
        return self.stage(item)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    from sidestream._pipeline import _pipeline

    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(_pipeline, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def epoch(stage: Any, item: Any, pipe: Pipeline | None = None) -> Pipeline:
    pipe = pipe or Pipeline([stage], device="cuda:0")
    assert len(list(pipe([item] * 40))) == 40
    return pipe


def test_what_was_measured_is_known_to_later_pipelines_of_these_stages(gpu: Gpu, clock: Any) -> None:
    import torch

    # The double copies nothing: it has no host memory.
    small, large = (torch.zeros(size, device="meta") for size in (3, 4))
    timed = Timed(gpu, clock)
    first = epoch(timed.stage, small)
    assert first.choice.mode == "serial" and not first.choice.measured
    assert first.choice.reason == "being measured; to try streams could cost this run more than 2 % by now"
    measured = epoch(timed.stage, small, first).choice
    assert (measured.mode, measured.measured, measured.notes) == ("streams", True, ())
    before = clock.now
    again = epoch(timed.stage, torch.ones(3, device="meta"))
    assert clock.now - before == pytest.approx(40 * 0.01)
    note = "an earlier pipeline of these stages measured it, with items of these shapes"
    assert again.choice.to_dict() == measured.to_dict() | {"notes": [note]}
    # Other shapes and types, another method and another object have no measurement.
    for stage, item in (
        (timed.stage, large),
        (timed.stage, small.to(torch.float16)),
        (timed.other, small),
        (Timed(gpu, clock).stage, small),
    ):
        assert not epoch(stage, item).choice.measured
    # A new measurement also replaces the result for later pipelines.
    again.remeasure()
    assert not epoch(timed.stage, small, again).choice.measured
    assert not epoch(timed.stage, small).choice.measured


def test_a_pipeline_for_each_epoch_continues_where_the_previous_one_ended(gpu: Gpu, clock: Any) -> None:
    timed = Timed(gpu, clock)
    first = epoch(timed.stage, memory(0))
    # While the first pipeline exists, the second one measures for itself.
    second = epoch(timed.stage, memory(0))
    assert not first.choice.measured and not second.choice.measured
    del first, second
    assert epoch(timed.stage, memory(0)).choice.mode == "streams"


def test_of_items_with_hidden_tensors_nothing_is_known(gpu: Gpu, clock: Any) -> None:
    timed, item = Timed(gpu, clock), types.SimpleNamespace(at=memory(0))
    measured = epoch(timed.stage, item, epoch(timed.stage, item))
    assert measured.choice.measured and not epoch(timed.stage, item).choice.measured


def test_what_is_known_keeps_no_stage_and_no_item_alive(gpu: Gpu, clock: Any) -> None:
    import torch

    timed, item = Timed(gpu, clock), torch.zeros(3, device="meta")
    gone = weakref.ref(timed), weakref.ref(item)
    for _ in range(2):
        measured = epoch(timed.stage, item).choice.measured
    assert measured
    del timed, item
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_the_double_finds_what_is_not_ordered(gpu: Gpu) -> None:
    gpu.works("write", [], [memory(0)])
    with gpu.on(0x10):
        gpu.works("read", [memory(0)], [])
    assert [race["kind"] for race in gpu.races()] == ["RAW"]
