"""``InFlight``: a limit on the background work in flight."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sidestream


class Background(sidestream.Stream):
    """A stream whose work completes only when something waits for it."""

    pieces = 0
    log: list[str]

    def __new__(cls, log: list[str]) -> Background:
        """Create a stream on a simulated device, which PyTorch does not know."""
        stream = super().__new__(cls, "sim:h200")
        stream.log = log
        return stream

    def __enter__(self) -> Background:
        """Begin a piece of work."""
        Background.pieces += 1
        self.log.append(f"piece {Background.pieces}")
        return self

    def __exit__(self, *_: object) -> None:
        """End the piece."""

    def record_event(self, event: Any = None) -> Any:
        """Return an event that logs each wait for it."""
        number, log = Background.pieces, self.log

        class Recorded:
            def synchronize(self) -> None:
                log.append(f"wait for {number}")

        return Recorded()


@pytest.fixture
def log() -> list[str]:
    """The log of calls, in order."""
    Background.pieces = 0
    return []


def test_a_piece_waits_for_the_one_that_the_limit_says(log: list[str]) -> None:
    limit, streams = sidestream.InFlight(2), [Background(log), Background(log)]
    for at in range(5):
        # Both streams share the limit.
        with limit(streams[at % 2]) as stream:
            assert stream is streams[at % 2]
    begun = ["piece 1", "piece 2", "wait for 1", "piece 3", "wait for 2", "piece 4", "wait for 3", "piece 5"]
    assert log == begun


def test_a_piece_that_fails_gives_its_turn_back(log: list[str]) -> None:
    limit = sidestream.InFlight(1)
    with pytest.raises(ZeroDivisionError), limit(Background(log)):
        _ = 1 / 0
    with limit(Background(log)):
        pass
    assert log == ["piece 1", "wait for 1", "piece 2"]


def test_other_threads_wait_for_a_turn(log: list[str]) -> None:
    limit = sidestream.InFlight(1)

    def other() -> None:
        with limit(Background(log)):
            log.append("other thread")

    thread = threading.Thread(target=other)
    with limit(Background(log)):
        thread.start()
        log.append("first thread")
    thread.join()
    assert log == ["piece 1", "first thread", "wait for 1", "piece 2", "other thread"]


@pytest.mark.parametrize("stream", ["x", None, sidestream.Stream])
def test_an_object_that_is_not_a_stream_is_refused(stream: Any) -> None:
    with pytest.raises(TypeError, match=r"^stream is .*; give a Stream or a torch.cuda.Stream$"):
        with sidestream.InFlight(2)(stream):
            raise AssertionError("it is not entered")


def test_a_limit_that_could_never_let_go_is_refused(log: list[str]) -> None:
    limit = sidestream.InFlight(1)
    with limit(Background(log)), pytest.raises(RuntimeError, match="leave it first"), limit(Background(log)):
        pass
    with pytest.raises(ValueError, match="give at least 1"):
        sidestream.InFlight(0)
    with pytest.raises(TypeError, match="whole number"):
        sidestream.InFlight(2.0)  # type: ignore[arg-type]
