"""A check that is left on another thread than the one that entered it, or is used twice, is refused; later
checks observe everything.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sidestream
import torch
from sidestream._check import checking

pytestmark = pytest.mark.torch

ELSEWHERE = "left on another thread than the one that entered it.*leave it on one thread"


def racy() -> None:
    side, x = torch.cuda.Stream(), torch.ones(1000, device="cuda")
    with torch.cuda.stream(side):
        y = x + 1
    _ = y + 1


def on_another_thread(what: Callable[[], Any]) -> Any:
    """Run the call on another thread; return its result or raise its error."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(what).result(60)


def modes() -> int:
    return int(torch._C._len_torch_dispatch_stack())


def hears_all() -> None:
    """Check that two further checks find every race, as the first check of a process does."""
    for _ in range(2):
        with sidestream.check(simulate=True) as found:
            racy()
        assert len(found.races) == 2, str(found)
    assert modes() == 0


@contextlib.contextmanager
def fixture() -> Iterator[sidestream.CheckedRun]:
    with sidestream.check(simulate=True) as found:
        yield found


@pytest.mark.parametrize("through", ["check", "generator", "stack"])
def test_left_on_another_thread(through: str) -> None:
    stack = contextlib.ExitStack()
    entered: Any = {"check": sidestream.check(simulate=True), "generator": fixture(), "stack": stack}[through]
    found: Any = entered.__enter__()
    if through == "stack":
        found = stack.enter_context(sidestream.check(simulate=True))
    racy()
    with pytest.raises(RuntimeError, match=ELSEWHERE):
        on_another_thread(lambda: entered.__exit__(None, None, None))
    # Observations until then are kept.
    assert len(found.races) == 2
    hears_all()


def test_a_mode_of_the_other_thread_stays_where_it_is() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):  # type: ignore[misc]
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    entered = sidestream.check(simulate=True)
    entered.__enter__()

    def leave() -> int:
        with Counts() as counts:
            with pytest.raises(RuntimeError, match=ELSEWHERE):
                entered.__exit__(None, None, None)
            torch.ones(3)
            return int(counts.count)

    assert on_another_thread(leave) == 1
    # A mode that was entered later stays in its place, too.
    with Counts() as counts:
        hears_inside = checking(pretend=True)
        with hears_inside:
            torch.ones(3)
        assert counts.count >= 1 and modes() == 1
    hears_all()


def test_left_by_another_thread_after_the_one_that_entered_it_has_ended() -> None:
    entered = sidestream.check(simulate=True)

    def enter() -> sidestream.CheckedRun:
        found = entered.__enter__()
        racy()
        return found

    found = on_another_thread(enter)
    with pytest.raises(RuntimeError, match=ELSEWHERE):
        entered.__exit__(None, None, None)
    assert len(found.races) == 2
    hears_all()


def test_a_thread_of_an_earlier_check_can_enter_one() -> None:
    """The thread has the recorder of the earlier check in its stack, which must neither observe nor run
    anything."""
    go, seen = threading.Event(), []

    def work() -> None:
        go.wait(60)
        hears_all()
        seen.append(modes())

    with sidestream.check(simulate=True):
        thread = threading.Thread(target=work)
        thread.start()
    go.set()
    thread.join(60)
    assert seen == [0]


def test_a_check_is_entered_once() -> None:
    entered = checking(pretend=True)
    with pytest.raises(RuntimeError, match="was not entered; use it in a `with` statement"):
        entered.__exit__(None, None, None)
    # A check that was refused may be entered later.
    with checking(pretend=True), pytest.raises(RuntimeError, match="entered already"):
        entered.__enter__()
    with entered:
        pass
    with pytest.raises(RuntimeError, match="this check was entered before.*call check\\(\\) again"), entered:
        pass

    @checking(pretend=True)
    def decorated(value: int) -> int:
        return value + 1

    assert [decorated(1), decorated(2)] == [2, 3]


def test_where_no_mode_is_called_a_check_refuses() -> None:
    with (
        torch._C._DisableTorchDispatch(),
        pytest.raises(RuntimeError, match="operators cannot be observed here"),
        checking(pretend=True),
    ):
        pass
    hears_all()


@pytest.mark.parametrize("left", ["tensor", "stream", "event", "graph"])
def test_objects_of_an_earlier_check_report_nothing_to_a_later_one_when_they_die(left: str) -> None:
    def make() -> Any:
        if left == "tensor":
            return torch.ones(1000, device="cuda")
        if left == "stream":
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                return side, torch.ones(1000, device="cuda")
        if left == "event":
            return torch.cuda.current_stream().record_event()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = torch.ones(1000, device="cuda")
        return graph, made

    with sidestream.check(simulate=True):
        kept = [make() for _ in range(8)]
    with sidestream.check(simulate=True) as found:
        x = torch.randn(1000, device="cuda")
        event = torch.cuda.current_stream().record_event()
        kept.clear()
        side, right = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            _ = x + 1
        right.wait_event(event)
        with torch.cuda.stream(right):
            _ = x + 2
    # The side stream races; the one that waits does not.
    assert [race.kind for race in found.races] == ["RAW"], str(found)
