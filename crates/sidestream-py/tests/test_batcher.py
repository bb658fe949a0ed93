"""Requests of many callers, run as PyTorch batches on a simulated GPU under a check: each request ends once,
with its own rows."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import math
import os
import pickle
import random
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sidestream
import torch
from sidestream import Batcher, RequestExpired, RequestRefused
from sidestream._sidestream import Requests

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("silent")]

#: Longer than any test takes: a batch that is launched earlier was launched for another reason.
FOREVER = 3000.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads leave an event loop's batches to the loop, however busy the machine is."""
    monkeypatch.setattr("sidestream._batcher._GRACE_S", FOREVER)


def row(value: float) -> Any:
    return torch.full((3,), float(value))


class Gate:
    """A model that sums rows, once the test allows it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, x: Any) -> Any:
        self.sizes.append(x.shape[0])
        self.entered.release()
        assert self.opened.wait(60)
        return x.sum(1)


def test_rows_become_a_batch_and_each_caller_gets_its_own() -> None:
    with Batcher(lambda x: {"sum": x.sum(1), "twice": [2 * x]}, (1, 4, 16), 0.0) as batcher:
        answers = [batcher.submit(row(n)) for n in range(100)]
        for n, answer in enumerate(answers):
            said = answer.result(60)
            assert said["sum"].item() == 3 * n and said["twice"][0].tolist() == [2.0 * n] * 3
            assert answer.done() and not answer.cancelled()
    counts = batcher.statistics
    assert (counts.answered, counts.waiting, counts.in_flight, counts.total.count) == (100, 0, 0, 100)
    assert sum(size * count for size, count in counts.batches.items()) == 100 + counts.padding_rows
    assert counts.total.quantile_s(0.5) <= counts.total.longest_s
    assert 'nv_inference_request_success{model="m"} 100' in counts.prometheus("m").splitlines()


def test_requests_are_structures_of_tensors_and_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    with Batcher(lambda request: request["x"].sum(1) + request["y"], (2,), 0.0) as batcher:
        assert batcher.submit({"x": numpy.ones(3, numpy.float32), "y": 4.0}).result(60).item() == 7.0


def test_what_waits_leaves_as_one_batch_filled_up_to_the_next_size() -> None:
    gate = Gate()
    with Batcher(gate, (1, 2, 4, 8), 0.0, slots=1, graphs=False) as batcher:
        first = batcher.submit(row(1))
        gate.entered.acquire()
        others = [batcher.submit(row(n)) for n in range(11)]
        gate.opened.set()
        assert first.result(60).item() == 3
        assert [answer.result(60).item() for answer in others] == [3 * n for n in range(11)]
    assert gate.sizes == [1, 8, 4]
    assert batcher.statistics.batches == {1: 1, 4: 1, 8: 1} and batcher.statistics.padding_rows == 1


def test_a_full_batch_is_launched_at_once() -> None:
    with Batcher(lambda x: x.sum(1), (1, 4), FOREVER) as batcher:
        answers = [batcher.submit(row(n)) for n in range(4)]
        assert [answer.result(60).item() for answer in answers] == [0, 3, 6, 9]


@pytest.mark.usefixtures("patient")
def test_an_event_loop_launches_its_own_batches() -> None:
    where: list[str] = []

    def model(x: Any) -> Any:
        where.append(threading.current_thread().name)
        return x.sum(1)

    async def all_of_them() -> list[float]:
        async with Batcher(model, (1, 4, 16), 0.001, graphs=False) as batcher:
            answers = await asyncio.gather(*(number(batcher, n) for n in range(50)))
            assert batcher.statistics.answered == 50
            return answers

    async def number(batcher: Batcher[Any], n: int) -> float:
        return float((await batcher.submit(row(n))).item())

    assert asyncio.run(all_of_them()) == [3.0 * n for n in range(50)]
    assert set(where) == {threading.main_thread().name}


def test_a_task_that_is_cancelled_takes_its_request_back() -> None:
    async def main() -> None:
        async with Batcher(lambda x: x.sum(1), (1, 8), FOREVER) as batcher:
            task = asyncio.ensure_future(waits(batcher))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert batcher.statistics.cancelled == 1

    async def waits(batcher: Batcher[Any]) -> Any:
        return await batcher.submit(row(1))

    asyncio.run(main())


def test_several_tasks_may_await_one_answer() -> None:
    async def main() -> list[float]:
        async with Batcher(lambda x: x.sum(1), (1, 2), FOREVER) as batcher:
            answer = batcher.submit(row(1))
            tasks = [asyncio.ensure_future(waits(answer)) for _ in range(3)]
            await asyncio.sleep(0)
            await batcher.submit(row(2))
            return await asyncio.gather(*tasks)

    async def waits(answer: sidestream.Answer[Any]) -> float:
        return float((await answer).item())

    assert asyncio.run(main()) == [3.0] * 3


def test_threads_wake_each_other_even_if_some_are_interrupted_or_impatient() -> None:
    gate = Gate()
    got: list[float] = []
    late = 0

    def waits(answer: sidestream.Answer[Any], timeout: float | None) -> None:
        nonlocal late
        try:
            got.append(answer.result(timeout).item())
        except KeyboardInterrupt:
            got.append(-1.0)
        except TimeoutError:
            late += 1
            got.append(answer.result().item())

    with Batcher(gate, (1, 16), FOREVER, slots=1, graphs=False) as batcher:
        answers = [batcher.submit(row(n)) for n in range(16)]
        gate.entered.acquire()
        threads = [
            threading.Thread(target=waits, args=(answer, 1e-4 if n == 5 else None))
            for n, answer in enumerate(answers) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        while late < 2 or any(len(answer._locks or ()) < 2 for answer in answers):
            pass
        for thread in threads[2:5]:
            assert thread.ident is not None
            # An exception that is sent to a sleeping thread is raised when the thread wakes up.
            interrupt = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), interrupt)
        gate.opened.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert sorted(got) == sorted([-1.0] * 3 + [3.0 * (at // 2) for at in range(32) if at not in (2, 3, 4)])


def test_a_closed_loop_leaves_no_caller_waiting() -> None:
    async def leaves(batcher: Batcher[Any]) -> None:
        batcher.submit(row(1))

    with Batcher(lambda x: x.sum(1), (1, 8), 0.001, graphs=False) as batcher:
        asyncio.run(leaves(batcher))
        assert batcher.submit(row(2)).result(60).item() == 6


def test_a_closed_loop_keeps_no_other_loop_waiting() -> None:
    async def leaves(batcher: Batcher[Any]) -> sidestream.Answer[Any]:
        return batcher.submit(row(1))

    async def asks(batcher: Batcher[Any]) -> float:
        return await asyncio.wait_for(awaited(batcher.submit(row(2))), 30)

    with Batcher(lambda x: x.sum(1), (1, 8), 0.001, graphs=False) as batcher:
        left = asyncio.run(leaves(batcher))
        assert [asyncio.run(asks(batcher)) for _ in range(2)] == [6, 6]
        assert left.result(30).item() == 3
        # The answer comes even if no later request does.
        assert asyncio.run(leaves(batcher)).result(30).item() == 3


def test_a_loop_that_is_busy_keeps_no_thread_waiting() -> None:
    got: list[float] = []

    async def main(batcher: Batcher[Any]) -> float:
        answer = batcher.submit(row(1))
        thread = threading.Thread(target=lambda: got.append(batcher.submit(row(2)).result(30).item()))
        thread.start()
        # The loop is blocked until the thread has its answer.
        thread.join(30)
        assert got == [6]
        return await awaited(answer)

    with Batcher(lambda x: x.sum(1), (1, 8), 0.001, graphs=False) as batcher:
        assert asyncio.run(main(batcher)) == 3


def test_in_its_own_event_loop_an_answer_is_not_waited_for() -> None:
    async def main() -> None:
        async with Batcher(lambda x: x.sum(1), (1,), 0.0) as batcher:
            answer = batcher.submit(row(1))
            if not answer.done():
                with pytest.raises(RuntimeError, match="await the answer instead"):
                    answer.result()
            assert (await answer).item() == 3

    asyncio.run(main())


def test_batches_become_graphs_with_the_same_answers() -> None:
    with Batcher(lambda x: x.sum(1), (1, 4), 0.0, slots=2) as batcher:
        slots = batcher._classes[0].slots
        while not slots or any(set(slot.graphs) != {1, 4} for slot in slots):
            for many in (1, 4):
                answers = [batcher.submit(row(n)) for n in range(many)]
                assert [answer.result(60).item() for answer in answers] == [3 * n for n in range(many)]
        answers = [batcher.submit(row(n)) for n in range(50)]
        assert [answer.result(60).item() for answer in answers] == [3 * n for n in range(50)]
    assert batcher.not_captured == {}


def test_a_model_that_cannot_be_captured_runs_as_it_is() -> None:
    with Batcher(lambda x: x.sum(1) + x[0, 0].item() * 0, (1,), 0.0, slots=1) as batcher:
        while not batcher.not_captured:
            assert batcher.submit(row(1)).result(60).item() == 3
        assert "not permitted when stream is capturing" in batcher.not_captured[1]
        assert batcher.submit(row(2)).result(60).item() == 6


def test_a_request_that_fails_does_so_alone() -> None:
    def model(x: Any) -> Any:
        if (x < 0).any().item():
            raise ArithmeticError("a negative row")
        return x.sum(1)

    with Batcher(model, (1, 8), FOREVER, graphs=False) as batcher:
        answers = [batcher.submit(row(n)) for n in (0, 1, -2, 3, 4, 5, 6, 7)]
        for n, answer in enumerate(answers):
            if n == 2:
                with pytest.raises(ArithmeticError, match="a negative row"):
                    answer.result(60)
            else:
                assert answer.result(60).item() == 3 * n
    assert (batcher.statistics.answered, batcher.statistics.failed) == (7, 1)


class Panic(BaseException):
    """Python takes this for a panic of another Rust extension."""


def fragile(kind: type[BaseException]) -> Any:
    def model(x: Any) -> Any:
        if (x < 0).any().item():
            raise kind("a negative row")
        return x.sum(1)

    return model


@pytest.mark.parametrize("kind", [Panic, SystemExit, KeyboardInterrupt])
def test_whatever_a_model_raises_ends_its_request_and_no_other(kind: type[BaseException]) -> None:
    with Batcher(fragile(kind), (1, 2), FOREVER, slots=1, graphs=False) as batcher:
        for _ in range(2):
            bad, good = batcher.submit(row(-1)), batcher.submit(row(1))
            with pytest.raises(kind):
                bad.result(30)
            assert good.result(30).item() == 3

        async def main() -> None:
            bad, good = batcher.submit(row(-1)), None
            with pytest.raises(Panic):
                good = batcher.submit(row(1))
                await bad
            assert good is not None and await awaited(good) == 3

        if kind is Panic:
            asyncio.run(main())
    counts = batcher.statistics
    assert (counts.answered, counts.failed, counts.in_flight) == ((3, 3, 0) if kind is Panic else (2, 2, 0))


def test_a_loop_that_is_interrupted_leaves_its_batch_in_good_hands() -> None:
    answers = []

    async def main() -> None:
        answers.append(batcher.submit(row(-1)))
        await asyncio.sleep(FOREVER)

    with Batcher(fragile(KeyboardInterrupt), (1,), 0.0, slots=1, graphs=False) as batcher:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(main())
        assert batcher.submit(row(1)).result(30).item() == 3
    counts = batcher.statistics
    assert (counts.answered, counts.failed, counts.in_flight) == (1, counts.failed, 0)


def test_a_model_has_to_return_a_row_for_each() -> None:
    with Batcher(lambda x: x.sum(), (1,), 0.0) as batcher:
        with pytest.raises(ValueError, match="was given 1 rows and returned a tensor of shape"):
            batcher.submit(row(1)).result(60)


def test_a_queue_that_is_full_refuses_and_one_that_is_taken_back_is_not_computed() -> None:
    gate = Gate()
    with Batcher(gate, (1,), 0.0, slots=1, max_queue=2, graphs=False) as batcher:
        first = batcher.submit(row(1))
        gate.entered.acquire()
        second, third = batcher.submit(row(2)), batcher.submit(row(3))
        with pytest.raises(RequestRefused, match="raise max_queue") as refused:
            batcher.submit(row(4))
        assert refused.value.reason == "full"
        assert third.cancel() and third.cancelled() and not first.cancel() and not third.cancel()
        # A cancelled request makes room in the queue.
        assert batcher.submit(row(4)).cancel()
        gate.opened.set()
        assert (first.result(60).item(), second.result(60).item()) == (3, 6)
        with pytest.raises(CancelledError):
            third.result()
    counts = batcher.statistics
    assert (counts.refused_full, counts.cancelled, counts.answered) == (1, 2, 2)
    assert gate.sizes == [1, 1]


def test_deadlines_are_looked_at_before_a_request_is_queued_and_before_it_leaves() -> None:
    gate = Gate()
    with Batcher(gate, (1,), 0.0, slots=1, graphs=False) as batcher:
        with pytest.raises(RequestRefused) as refused:
            batcher.submit(row(0), deadline=0.0)
        assert refused.value.reason == "late"
        first = batcher.submit(row(1))
        gate.entered.acquire()
        late = batcher.submit(row(2), deadline=1e-9)
        kept = batcher.submit(row(3), deadline=FOREVER)
        gate.opened.set()
        assert first.result(60).item() == 3 and kept.result(60).item() == 9
        with pytest.raises(RequestExpired):
            late.result(60)
        # From the time that those batches took, the deadline cannot be met, even with an empty queue.
        with pytest.raises(RequestRefused, match="as recent batches and max_delay show"):
            batcher.submit(row(4), deadline=1e-200)
        batcher.submit(row(4), deadline=FOREVER).result(60)
    assert (batcher.statistics.refused_late, batcher.statistics.expired) == (2, 1)


def test_a_deadline_is_a_number_of_seconds() -> None:
    with Batcher(lambda x: x.sum(1), (1,), 0.0, graphs=False) as batcher:
        with pytest.raises(ValueError, match="deadline is nan; give seconds"):
            batcher.submit(row(1), deadline=math.nan)
        for wrong in (True, "1"):
            with pytest.raises(TypeError, match=f"deadline is {wrong!r}; give seconds"):
                batcher.submit(row(1), deadline=wrong)  # type: ignore[arg-type]
        for far in (math.inf, 1e300, 10):
            assert batcher.submit(row(1), deadline=far).result(30).item() == 3


def test_a_history_decides_what_is_taken() -> None:
    """The history is that of the tests in Rust, and the decisions must be equal."""
    requests = Requests([1, 2, 4], 0.0005, 8, [0], 2, 0.005)
    batches = []
    history = Path(__file__).parents[2] / "sidestream" / "tests" / "data" / "admission.txt"
    for line in history.read_text(encoding="utf-8").splitlines():
        what, *said = line.split()
        if what == "submit":
            now, deadline = int(said[0]) * 1e-6, int(said[1]) * 1e-6
            is_late = requests.late(0, now, deadline) is not None
            many = 0 if is_late else requests.submit(0, line, now, deadline, None)
            assert ("late" if is_late else "full" if many == -1 else "taken") == said[2], line
        elif what == "take":
            taken = requests.take(0, int(said[0]) * 1e-6)
            assert taken is not None and [len(taken[0]), len(taken[1])] == [int(said[1]), int(said[2])], line
            if taken[0]:
                batches.append(taken)
        elif what == "over":
            _, _, slot, _, due = batches[int(said[1])]
            now = int(said[0]) * 1e-6
            requests.answered(0, slot, None, None, now)
            requests.over(0, slot, now)
            requests.told(0, due, now)
    assert requests.statistics().refused_late > 10


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch, patient: None) -> Iterator[Behind]:
    """A device whose work is pending, while the batchers' threads do not notice the end of it."""
    device = Behind()
    plain: Any = torch.cuda.Event
    query, synchronize = plain.query, plain.synchronize

    def held(event: Any) -> None:
        if threading.current_thread().name.startswith("batcher"):
            assert device.is_heard.wait(30)
        synchronize(event)

    # A single query never finds the simulated work complete.
    monkeypatch.setattr(plain, "query", lambda event: device.is_over and (query(event) or query(event)))
    monkeypatch.setattr(plain, "synchronize", held)
    yield device


class Behind:
    """Whether the device has completed its work, and whether threads notice it."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_heard = threading.Event()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        self.is_heard.set()


async def turns() -> None:
    """Let the event loop continue."""
    for _ in range(5):
        await asyncio.sleep(0)


async def awaited(answer: sidestream.Answer[Any]) -> float:
    return float((await answer).item())


def test_an_event_loop_that_is_asked_ends_complete_work_before_a_thread_does(behind: Behind) -> None:
    async def main() -> None:
        async with Batcher(lambda x: x.sum(1), (1, 2), 0.0, graphs=False) as batcher, behind:
            tasks = [asyncio.ensure_future(awaited(batcher.submit(row(n)))) for n in range(2)]
            for behind.is_over in (False, True):
                await turns()
                with pytest.raises(RequestRefused, match="its deadline has passed"):
                    batcher.submit(row(9), deadline=0.0)
                await turns()
                assert all(task.done() is behind.is_over for task in tasks)
            assert [task.result() for task in tasks] == [0.0, 3.0]
            assert (batcher.statistics.answered, batcher.statistics.in_flight) == (2, 0)

    asyncio.run(main())


def test_what_tasks_do_with_their_answers_counts_for_the_next_deadline(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sidestream._batcher.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def takes_long(answer: sidestream.Answer[Any]) -> None:
        await answer
        now[0] += 0.25

    async def main() -> None:
        async with Batcher(lambda x: x.sum(1), (1, 4), 0.0, graphs=False) as batcher, behind:
            tasks = [asyncio.ensure_future(takes_long(batcher.submit(row(n)))) for n in range(4)]
            await turns()
            behind.is_over = True
            with pytest.raises(RequestRefused):
                batcher.submit(row(0), deadline=0.0)
            await asyncio.gather(*tasks)
            # The last task had its answer after a second, and accepted deadlines have some margin.
            for deadline in (0.9, 1.1):
                with pytest.raises(RequestRefused, match="as recent batches and max_delay show"):
                    batcher.submit(row(0), deadline=deadline)
            assert batcher.statistics.refused_late == 3
            kept = batcher.submit(row(2), deadline=1.3)
            await turns()
            with pytest.raises(RequestRefused):
                batcher.submit(row(0), deadline=0.0)
            assert await awaited(kept) == 6
            # Only a batch shows how long batches take now: after a while, a request is accepted again to find
            # out.
            now[0] += 5.0
            batcher.submit(row(0), deadline=0.01)
            await turns()

    asyncio.run(main())


def test_a_refusal_can_be_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(RequestRefused("full", "too many wait")))
    assert (sent.reason, str(sent)) == ("full", "too many wait")


def test_closing_computes_what_waits_or_ends_it() -> None:
    for drain in (True, False):
        batcher = Batcher(lambda x: x.sum(1), (1, 8), FOREVER)
        answer = batcher.submit(row(1))
        batcher.close(drain)
        if drain:
            assert answer.result().item() == 3
        else:
            with pytest.raises(RequestRefused, match="was closed while the request waited"):
                answer.result()
        with pytest.raises(RequestRefused, match="closed"):
            batcher.submit(row(1))
        assert not any(thread.is_alive() for thread in batcher._threads)


def test_classes_have_streams_of_their_priority() -> None:
    seen = []

    def model(x: Any) -> Any:
        seen.append(torch.cuda.current_stream().priority)
        return x.sum(1)

    with Batcher(model, (1,), 0.0, classes={"usual": 0, "urgent": -1}, graphs=False) as batcher:
        batcher.submit(row(1), of="urgent").result(60)
        batcher.submit(row(1)).result(60)
        assert seen == [-1, 0]
        with pytest.raises(ValueError, match="no class 'urgnt'; there is 'usual', 'urgent'"):
            batcher.submit(row(1), of="urgnt")


def test_of_what_is_due_the_urgent_leaves_first() -> None:
    gate, seen = Gate(), []

    def model(x: Any) -> Any:
        seen.append(torch.cuda.current_stream().priority)
        return gate(x)

    with Batcher(model, (1,), 0.0, classes={"usual": 0, "urgent": -1, "batch": 0}, graphs=False) as batcher:
        answers = [batcher.submit(row(1), of="batch")]
        gate.entered.acquire()
        answers += [batcher.submit(row(2)), batcher.submit(row(3), of="urgent")]
        gate.opened.set()
        assert [answer.result(60).item() for answer in answers] == [3, 6, 9]
    assert seen == [0, -1, 0]


def test_a_callback_that_raises_does_not_affect_other_requests(caplog: pytest.LogCaptureFixture) -> None:
    called: list[bool] = []

    def fail(_: object) -> None:
        raise ValueError("a callback")

    with Batcher(lambda x: x.sum(1), (1, 2), FOREVER) as batcher:
        answers = [batcher.submit(row(1))]
        answers[0].add_done_callback(fail)
        answers[0].add_done_callback(lambda answer: called.append(answer.done()))
        answers.append(batcher.submit(row(2)))
        assert [answer.result(60).item() for answer in answers] == [3, 6]
    answers[1].add_done_callback(lambda answer: called.append(answer.done()))
    assert called == [True, True]
    assert "a callback of an answer raised ValueError" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sizes": ()}, "sizes is empty"),
        ({"sizes": (0,)}, "a size is 0"),
        ({"slots": 0}, "slots is 0"),
        ({"max_queue": 0}, "max_queue is 0"),
        ({"max_delay": -1}, "max_delay is -1"),
        ({"classes": {}}, "classes is empty"),
    ],
)
def test_useless_arguments_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Batcher(lambda x: x, **arguments)


def test_requests_have_the_shape_of_the_first() -> None:
    with Batcher(lambda x: x.sum(1), (1,), 0.0) as batcher:
        batcher.submit(row(1)).result(60)
        with pytest.raises(ValueError, match=r"is float32\[3\], and this one is float32\[4\]"):
            batcher.submit(torch.ones(4))
        with pytest.raises(TypeError, match="pass CPU tensors"):
            batcher.submit(torch.ones(3, device="cuda"))
        says = "as the first that was answered; a request is one row, without the batch dimension"
        with pytest.raises(ValueError, match=says):
            batcher.submit(torch.ones(2, 3))
    with Batcher(lambda x: x.sum(1), (1,), 0.0, like=row(0), graphs=False) as batcher:
        says = r"is float32\[3\], and this one is float32\[4\]: the first is as like= gives it"
        with pytest.raises(ValueError, match=says):
            batcher.submit(torch.ones(4))
        assert batcher.submit(row(1)).result(30).item() == 3


def test_a_request_that_failed_does_not_say_what_others_are_like() -> None:
    weights = torch.ones(3, device="cuda")
    gate = Gate()

    def model(x: Any) -> Any:
        gate(x)
        return x @ weights

    with Batcher(model, (1,), 0.0, graphs=False) as batcher:
        wrong = batcher.submit(torch.ones(7))
        gate.entered.acquire()
        with pytest.raises(ValueError, match="as the previous one, which is not answered yet"):
            batcher.submit(row(1))
        gate.opened.set()
        with pytest.raises(RuntimeError, match="7"):
            wrong.result(30)
        assert batcher.submit(row(1)).result(30).item() == 3
        with pytest.raises(ValueError, match=r"is float32\[3\], and this one is float32\[7\]"):
            batcher.submit(torch.ones(7))


def test_numbers_in_the_structure_of_requests_are_the_same_for_all() -> None:
    with Batcher(lambda request: request["x"].sum(1) * request["by"], (1,), 0.0, graphs=False) as batcher:
        assert batcher.submit({"x": row(1), "by": 2.0}).result(30).item() == 6
        with pytest.raises(ValueError, match="other numbers in it"):
            batcher.submit({"x": row(1), "by": 3.0})
        with pytest.raises(ValueError, match="a request has no tensor"):
            batcher.submit([1.0] * 3)


def test_memory_that_is_not_there_leaves_no_slot_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidestream import _batch, _batcher

    made = 0

    class Slot(_batch.Slot):
        def __init__(self, *args: Any) -> None:
            nonlocal made
            made += 1
            if made == 2:
                raise torch.cuda.OutOfMemoryError("the second slot")
            super().__init__(*args)

    monkeypatch.setattr(_batcher, "Slot", Slot)
    with Batcher(lambda x: x.sum(1), (1,), 0.0, slots=3, graphs=False) as batcher:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            batcher.submit(torch.ones(100_000))
        assert [batcher.submit(row(n)).result(30).item() for n in range(4)] == [0, 3, 6, 9]
        assert [slot.device[0].shape for slot in batcher._classes[0].slots] == [(1, 3)] * 3


def test_a_batcher_without_references_ends_its_threads() -> None:
    batcher = Batcher(lambda x: x.sum(1), (1,), 0.0)
    assert batcher.submit(row(1)).result(30).item() == 3
    threads, is_held = batcher._threads, weakref.ref(batcher)
    # The request is answered first.
    answered = threading.Event()
    batcher.submit(row(2)).add_done_callback(lambda answer: answered.set())
    del batcher
    assert answered.wait(30)
    for thread in threads:
        thread.join(30)
    gc.collect()
    assert is_held() is None and not any(thread.is_alive() for thread in threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_in_a_forked_child_a_batcher_refuses() -> None:
    gate = Gate()
    with Batcher(gate, (1,), 0.0, slots=1, graphs=False) as batcher:
        answer = batcher.submit(row(1))
        gate.entered.acquire()
        said, says = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for call in (lambda: batcher.submit(row(2)), batcher.close, answer.result, answer.cancel):
                    with pytest.raises(sidestream.DeviceError, match="the Batcher was made before the fork"):
                        call()
                assert repr(batcher) == f"<Batcher on {batcher._device}: of another process>"
                os.write(says, b"right")
            finally:
                os._exit(0)
        os.close(says)
        gate.opened.set()
        assert os.read(said, 100) == b"right"
        os.waitpid(child, 0)
        assert answer.result(30).item() == 3


def test_arguments_of_others_and_a_model_on_the_host_are_named() -> None:
    with pytest.raises(TypeError, match="no argument 'max_batch_size'; the largest of sizes is that"):
        Batcher(lambda x: x, max_batch_size=8)  # type: ignore[arg-type]
    model = torch.nn.Linear(3, 2)
    says = r"the weights of the model are on the host, and batches are on cuda:0; give model.to\('cuda:0'\)"
    with pytest.raises(ValueError, match=says):
        Batcher(model)
    with Batcher(model.to("cuda"), (1,)) as batcher:
        assert batcher.submit(row(1)).result(30).shape == (2,)


def test_whatever_callers_do_each_request_ends_once() -> None:
    """Threads and an event loop make random calls; the seed determines the random numbers."""
    for seed in range(8):
        print(f"seed {seed}")
        drawn = random.Random(seed)
        fails = drawn.random() < 0.5

        def model(x: Any, fails: bool = fails) -> Any:
            if fails and (x == 7).any().item():
                raise ArithmeticError("seven")
            return x.sum(1)

        batcher = Batcher(
            model, (1, 2, 4), drawn.choice([0.0, 0.0005]),
            slots=drawn.randint(1, 3), max_queue=drawn.randint(2, 30), graphs=drawn.random() < 0.5,
        )
        taken: list[sidestream.Answer[Any]] = []
        lock = threading.Lock()

        def caller(
            of: int, batcher: Batcher[Any] = batcher,
            taken: list[sidestream.Answer[Any]] = taken, lock: threading.Lock = lock,
        ) -> None:
            own = random.Random(of)
            for _ in range(20):
                ask(batcher, own, taken, lock)

        threads = [threading.Thread(target=caller, args=(100 * seed + at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        asyncio.run(loop(batcher, seed, taken, lock))
        for thread in threads:
            thread.join()
        counts = batcher.close(drain=drawn.random() < 0.7)
        assert all(answer.done() for answer in taken)
        ended = counts.answered + counts.expired + counts.cancelled + counts.failed + counts.dropped
        assert ended == len(taken), counts
        assert (counts.waiting, counts.in_flight) == (0, 0)


def ask(
    batcher: Batcher[Any], drawn: random.Random, taken: list[sidestream.Answer[Any]], lock: threading.Lock
) -> sidestream.Answer[Any] | None:
    try:
        answer = batcher.submit(row(drawn.randrange(10)), deadline=drawn.choice([None, 1e-6, 60.0]))
    except RequestRefused:
        return None
    with lock:
        taken.append(answer)
    if drawn.random() < 0.2:
        answer.cancel()
    return answer


async def loop(
    batcher: Batcher[Any], seed: int, taken: list[sidestream.Answer[Any]], lock: threading.Lock
) -> None:
    drawn = random.Random(seed)
    for _ in range(20):
        answer = ask(batcher, drawn, taken, lock)
        if answer is not None and drawn.random() < 0.5:
            try:
                assert (await answer).numel() == 1
            except (ArithmeticError, CancelledError, RequestExpired):
                pass
    for answer in [answer for answer in taken if answer._loop is not None]:
        while not answer.done():
            await asyncio.sleep(0)


