"""What a pipeline issues on which stream, judged by the checker:
a double of PyTorch's streams tells it each call.
"""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from driven import Recorder
from sidestream import Pipeline

pytestmark = pytest.mark.torch

SIZE = 4096
#: The parameters of the stages, and the memory of items and results.
PARAMETERS = {"first": 0x10_0000, "second": 0x20_0000}


def memory(number: int) -> int:
    return 0x100_0000 + number * 0x1_0000


class Gpu:
    """Streams and events that run nothing. What they are told goes to the checker."""

    def __init__(self, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def plan(_: Any) -> Any:
            raise AssertionError("no operator of PyTorch runs here")

        self.checker = run = Recorder(
            plan,
            str,
            lambda one, two: (None, None),
            lambda: "MainThread",
            None,
            [],
            None,
            1 << 30,
            False,
            None,
            None,
            None,
            True,
        )
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
                # Asked where the machine is slow. That work is over would order what follows.
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
        """Something runs on the current stream."""
        self.checker.operator(
            name, [(at, SIZE) for at in reads], [(at, SIZE) for at in writes], self.current[0]
        )

    def stage(self, name: str, offset: int) -> Callable[[Any], Any]:
        """A stage that changes its parameters, reads its item and writes its result beside it."""

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
    import torch

    return Gpu(torch, monkeypatch)


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
def test_a_run_that_failed_is_over_when_the_next_one_begins(gpu: Gpu, mode: Any, leaves: bool) -> None:
    """The item of the error is held by nobody once the error is gone, so the next run may get its memory."""

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
    # Another stream of the allocator's fills the memory anew;
    # the host saw the run end, so nothing has to wait.
    with gpu.on(0x50):
        gpu.works("fill", [], [memory(2), memory(2) + 0x2000])
    assert gpu.races() == []


def test_what_is_hidden_in_an_object_waits_for_the_caller(gpu: Gpu) -> None:
    pipe = Pipeline(gpu.stages(), mode="streams", device="cuda:0")

    def items() -> Iterator[Any]:
        for number in range(8):
            # The caller makes each on its stream.
            gpu.works("make", [], [memory(number)])
            yield types.SimpleNamespace(at=memory(number))

    for result in pipe(items()):
        gpu.works("use", [result.at], [])
    assert gpu.races() == []


def test_the_double_finds_what_is_not_ordered(gpu: Gpu) -> None:
    gpu.works("write", [], [memory(0)])
    with gpu.on(0x10):
        gpu.works("read", [memory(0)], [])
    assert [race["kind"] for race in gpu.races()] == ["RAW"]
