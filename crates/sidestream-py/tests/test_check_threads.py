"""Host threads under a check: handovers order them, and accesses that are ordered only by timing are a
warning.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sidestream
import torch
from forked import python
from sidestream import _check_threads
from sidestream._check import checking

# Functions that return nothing are called in sequence in a lambda.
# mypy: disable-error-code="func-returns-value"

pytestmark = pytest.mark.torch

#: The last call of one thread, and the first call of another.
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def unheard() -> Pair:
    """Order two threads by a lock of the interpreter that the check does not observe."""
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock.release, lock.acquire


def by_queue(kind: Any) -> Pair:
    items = kind()
    return lambda: items.put(1), items.get


def by_tasks() -> Pair:
    items: queue.Queue[int] = queue.Queue()
    items.put(1)
    items.get()
    return items.task_done, items.join


def by_event() -> Pair:
    event = threading.Event()
    return event.set, event.wait


def by_asking() -> Pair:
    event = threading.Event()
    release, acquire = unheard()
    return lambda: (event.set(), release()), lambda: (acquire(), event.is_set())


def by_semaphore(kind: Any) -> Pair:
    semaphore = kind(1)
    semaphore.acquire()
    return semaphore.release, semaphore.acquire


def by_lock(kind: Any) -> Pair:
    lock = kind()
    release, acquire = unheard()

    def done() -> None:
        # Another thread takes the lock first.
        with lock:
            pass
        release()

    def first() -> None:
        acquire()
        with lock:
            pass

    return done, first


def by_condition() -> Pair:
    condition, ready = threading.Condition(), []

    def done() -> None:
        with condition:
            ready.append(1)
            condition.notify()

    def first() -> None:
        with condition:
            condition.wait_for(lambda: ready)

    return done, first


def by_barrier() -> Pair:
    barrier = threading.Barrier(2)
    return barrier.wait, barrier.wait


def by_future(ask: str) -> Pair:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    release, acquire = unheard()
    return lambda: (future.set_result(1), release()), lambda: (acquire(), getattr(future, ask)())


def by_loop() -> Pair:
    loop = asyncio.new_event_loop()

    def first() -> None:
        # The loop ends with the call that the other thread requests.
        loop.run_forever()
        loop.close()

    return lambda: loop.call_soon_threadsafe(loop.stop), first


KINDS: dict[str, Callable[[], Pair]] = {
    "queue": lambda: by_queue(queue.Queue),
    "lifo": lambda: by_queue(queue.LifoQueue),
    "priority": lambda: by_queue(queue.PriorityQueue),
    "simple": lambda: by_queue(queue.SimpleQueue),
    "tasks": by_tasks,
    "event": by_event,
    "is_set": by_asking,
    "semaphore": lambda: by_semaphore(threading.Semaphore),
    "bounded": lambda: by_semaphore(threading.BoundedSemaphore),
    "lock": lambda: by_lock(threading.Lock),
    "rlock": lambda: by_lock(threading.RLock),
    "condition": by_condition,
    "barrier": by_barrier,
    "result": lambda: by_future("result"),
    "exception": lambda: by_future("exception"),
    "done": lambda: by_future("done"),
    "loop": by_loop,
}


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_what_is_handed_over_orders_two_threads(kind: str | None, found: sidestream.CheckedRun) -> None:
    done, first = unheard() if kind is None else KINDS[kind]()
    x = torch.zeros(1024, device="cuda")

    def reads() -> None:
        first()
        x.sum()

    thread = threading.Thread(target=reads, name="reader")
    thread.start()
    x.add_(1)
    done()
    thread.join()
    x.zero_()
    if kind is not None:
        assert found.races == (), str(found)
        return
    (race,) = found.races
    assert (
        (race.kind, race.severity, race.first.operator, race.second.operator)
        == ("RAW", "warn", "add_", "sum")
    )
    assert (race.first.thread, race.second.thread) == ("MainThread", "reader")
    assert race.doubt == "no order between the two threads was observed" and found.is_clean
    assert race.bytes is not None and race.bytes[1] - race.bytes[0] == 4096


@pytest.mark.parametrize("waits", [True, False])
def test_a_joined_thread_has_ended(waits: bool, found: sidestream.CheckedRun) -> None:
    x = torch.zeros(1024, device="cuda")
    release, acquire = unheard()
    thread = threading.Thread(target=lambda: (x.add_(1), release()))
    thread.start()
    acquire()
    if waits:
        thread.join()
    x.sum()
    thread.join()
    assert bool(found.races) is not waits, str(found)


@pytest.mark.parametrize("waits", [True, False])
def test_a_pool_hands_its_work_over_and_back(waits: bool, found: sidestream.CheckedRun) -> None:
    x = torch.zeros(1024, device="cuda")
    release, acquire = unheard()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            x.mul_(2)
            future = pool.submit(lambda: (x.add_(1), release()))
            acquire()
            if waits:
                future.result()
    assert bool(found.races) is not waits, str(found)


def test_an_item_hands_over_what_was_done_before_it_was_put(found: sidestream.CheckedRun) -> None:
    x = torch.zeros(1024, device="cuda")
    items: queue.Queue[object] = queue.Queue()
    release, acquire = unheard()

    def takes_the_first() -> None:
        acquire()
        items.get()
        x.sum()

    thread = threading.Thread(target=takes_the_first)
    thread.start()
    items.put(object())
    x.add_(1)
    items.put(object())
    release()
    thread.join()
    assert [(race.kind, race.severity) for race in found.races] == [("RAW", "warn")], str(found)


def test_two_that_put_into_one_queue_are_not_ordered_by_it(found: sidestream.CheckedRun) -> None:
    x = torch.zeros(1024, device="cuda")
    items: queue.Queue[int] = queue.Queue()
    release, acquire = unheard()
    thread = threading.Thread(target=lambda: (acquire(), items.put(1), x.sum()))
    thread.start()
    x.add_(1)
    items.put(2)
    release()
    thread.join()
    assert len(found.races) == 1, str(found)


def test_refilling_a_place_is_ordered_after_emptying_it(found: sidestream.CheckedRun) -> None:
    x = torch.zeros(1024, device="cuda")
    items: queue.Queue[int] = queue.Queue(1)
    thread = threading.Thread(target=lambda: (x.add_(1), items.get()))
    items.put(1)
    thread.start()
    items.put(2)
    x.sum()
    thread.join()
    assert found.races == (), str(found)


def test_a_wait_that_ended_too_early_orders_nothing(found: sidestream.CheckedRun) -> None:
    x = torch.zeros(1024, device="cuda")
    event = threading.Event()
    items: queue.Queue[int] = queue.Queue()
    release, acquire = unheard()

    def reads() -> None:
        acquire()
        assert not event.wait(0)
        with pytest.raises(queue.Empty):
            items.get(timeout=0)
        x.sum()

    thread = threading.Thread(target=reads)
    thread.start()
    x.add_(1)
    event.set()
    event.clear()
    release()
    thread.join()
    assert len(found.races) == 1, str(found)


def test_a_race_for_any_timing_is_reported_once_and_is_certain(found: sidestream.CheckedRun) -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(1024, device="cuda")
    release, acquire = unheard()

    def reads() -> None:
        acquire()
        with torch.cuda.stream(side):
            x.sum()

    thread = threading.Thread(target=reads)
    thread.start()
    x.add_(1)
    release()
    thread.join()
    races = [race for race in found.races if race.second.operator == "sum"]
    assert all(race.severity == "error" for race in races) and races, str(found)


def test_memory_that_is_handed_out_again_is_another_tensor(found: sidestream.CheckedRun) -> None:
    release, acquire = unheard()

    def works() -> None:
        acquire()
        torch.ones(1024, device="cuda").sum()

    thread = threading.Thread(target=works)
    thread.start()
    for _ in range(9):
        torch.ones(1024, device="cuda").sum()
    release()
    thread.join()
    assert found.races == (), str(found)


def test_the_threads_of_backward_act_for_its_caller() -> None:
    def by_another(call: Callable[[], None]) -> None:
        release, acquire = unheard()
        _thread.start_new_thread(lambda: (call(), release()), ())
        acquire()

    with checking(pretend=True) as found:
        recorder = found._recorder
        recorder.threads_begin()
        before = recorder.enter_backward()
        by_another(lambda: recorder.operator("mul", [], [(4096, 64)], 0))
        recorder.leave_backward(before)
        recorder.operator("add", [(4096, 64)], [], 0)
        # During backward, a thread that was never observed is left out.
        by_another(lambda: recorder.operator("sub", [], [(4096, 64)], 0))
        recorder.operator("add", [(4096, 64)], [], 0)
    assert found.races == (), str(found)


def test_a_warning_does_not_change_how_the_command_ends(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        """
import _thread, threading, torch
x = torch.zeros(1024, device="cuda")
lock = _thread.allocate_lock()
lock.acquire()
thread = threading.Thread(target=lambda: (x.add_(1), lock.release()), name="writer")
thread.start()
lock.acquire()
x.sum()
""",
        encoding="utf-8",
    )
    ran = python("-m", "sidestream.check", "--simulate", path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("no race and 1 warning in 3 operations on a simulated GPU\n"), ran.stderr
    assert "no order between the two threads was observed" in ran.stderr and "thread writer" in ran.stderr


def test_all_is_put_back() -> None:
    owners = (
        threading,
        threading.Thread,
        threading.Event,
        threading.Condition,
        threading.Semaphore,
        threading.BoundedSemaphore,
        threading.Barrier,
        queue,
        queue.Queue,
        concurrent.futures.Future,
        asyncio.BaseEventLoop,
    )
    before = [dict(vars(owner)) for owner in owners]
    made: tuple[Any, ...] = ()
    plain = threading.Lock()
    with contextlib.suppress(ZeroDivisionError), checking(pretend=True):
        kind: Any = threading.Lock
        assert (
            isinstance(plain, kind)
            and isinstance(threading.Lock(), kind)
            and not isinstance(threading.RLock(), kind)
        )
        made = (
            threading.Lock(),
            threading.RLock(),
            queue.Queue(),
            threading.Condition(),
            queue.SimpleQueue(),
        )
        raise ZeroDivisionError
    assert [dict(vars(owner)) for owner in owners] == before
    # Objects that were created during the check continue to work.
    lock, again, items, condition, simple = made
    with lock, again, again, condition:
        condition.notify_all()
        assert lock.locked() and not lock.acquire(blocking=False)
        items.put(simple)
        items.get().put(1)
        assert simple.get() == 1
    thread = threading.Thread(target=lambda: items.put(1))
    thread.start()
    assert items.get() == 1
    thread.join()


def test_the_documentation_and_the_help_list_what_is_observed() -> None:
    page = (Path(__file__).parents[3] / "docs/guide/check.md").read_text(encoding="utf-8")
    assert _check_threads.HEARD in page
    ran = subprocess.run(
        [sys.executable, "-m", "sidestream.check", "--help"], capture_output=True, text=True, check=True
    )
    told = " ".join(ran.stdout.split())
    assert _check_threads.HEARD in told and "Exit codes: 1 a race, or the check ended early; 2" in told


def test_what_an_operator_stores_is_its_own_while_another_thread_runs_operators() -> None:
    with sidestream.check(simulate=True) as found:
        host, large = torch.empty(1 << 22).pin_memory(), torch.zeros(1 << 22).cuda()
        small = torch.zeros(16).cuda()
        torch.cuda.synchronize()
        is_over = threading.Event()

        def other() -> None:
            while not is_over.is_set():
                torch.empty(16).pin_memory().copy_(small, non_blocking=True)

        thread = threading.Thread(target=other)
        thread.start()
        for _ in range(60):
            host.copy_(large, non_blocking=True)
        is_over.set()
        thread.join()
    assert not found.races, str(found)
