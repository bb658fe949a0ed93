"""The choice of a pipeline's mode, with a clock that the tests control."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import sidestream
from sidestream._pipeline._choice import GRAPHS, MODES, SERIAL, SERIAL_GRAPHS, STREAMS, Choice, Chooser

TWO = (SERIAL, STREAMS)


class Device:
    """Issues items that take the times in a table, and counts the items of each mode. Its host never runs
    ahead.
    """

    def __init__(self, chooser: Chooser, seconds: Mapping[str, float], drift: float = 0.0) -> None:
        self.chooser, self.seconds, self.drift = chooser, seconds, drift
        self.now = 0.0
        self.modes: list[str] = []

    def run(self, items: int) -> None:
        chooser = self.chooser
        if chooser.measuring:
            chooser.begin_run()
        for _ in range(items):
            while chooser.measuring and chooser.due(self.now):
                chooser.advance(self.now)
            self.modes.append(chooser.mode)
            self.now += self.seconds[chooser.mode] * (1 + self.drift * len(self.modes))
        if chooser.measuring:
            chooser.end_run(self.now)
        # The time between two runs is not counted.
        self.now += 1000.0


def chosen(seconds: dict[str, float], *, modes: tuple[str, ...] = TWO, drift: float = 0.0) -> Chooser:
    chooser = Chooser(modes, 5, settle=10)
    device = Device(chooser, seconds, drift)
    device.run(100_000)
    assert not chooser.measuring
    assert set(device.modes[-50:]) == {chooser.mode}
    return chooser


@pytest.mark.parametrize(
    ("streams", "mode"), [(0.5, STREAMS), (0.97, STREAMS), (0.99, SERIAL), (1.0, SERIAL), (3.0, SERIAL)]
)
def test_another_mode_has_to_be_two_percent_faster_than_serial(streams: float, mode: str) -> None:
    assert chosen({SERIAL: 1e-3, STREAMS: 1e-3 * streams}).mode == mode


def test_the_fastest_of_four_is_kept() -> None:
    times = {SERIAL: 3e-3, STREAMS: 4e-3, SERIAL_GRAPHS: 1.2e-3, GRAPHS: 1e-3}
    chooser = chosen(times, modes=MODES)
    assert chooser.mode == GRAPHS
    assert chooser.medians() == {mode: pytest.approx(times[mode]) for mode in MODES}


def test_what_is_hopeless_is_not_measured_to_the_end() -> None:
    chooser = chosen({SERIAL: 1e-3, STREAMS: 5e-3, SERIAL_GRAPHS: 9e-4, GRAPHS: 8e-4}, modes=MODES)
    assert {mode: len(times) for mode, times in chooser.times.items()} == {
        SERIAL: 2,
        STREAMS: 1,
        SERIAL_GRAPHS: 2,
        GRAPHS: 2,
    }


def test_what_is_clear_is_measured_twice_and_what_is_not_five_times() -> None:
    for streams, times in (([0.5], 2), ([1.0], 2), ([1.0, 0.95, 0.99, 0.96, 0.97], 5)):
        chooser = Chooser(TWO, 5, settle=2)

        class Seconds(dict[str, float]):
            def __missing__(self, mode: str) -> float:
                return 1e-3 * (1.0 if mode == SERIAL else streams[len(chooser.times[STREAMS]) % len(streams)])

        Device(chooser, Seconds()).run(2_000)
        assert not chooser.measuring and {len(taken) for taken in chooser.times.values()} == {times}


def test_a_host_that_is_far_ahead_does_not_make_segments_longer() -> None:
    # The clock hardly advances while items are issued: only a stall shows how long they took.
    chooser, now, over, issued = Chooser(TWO, 5, settle=2), 0.0, 0.0, 0
    while chooser.measuring and issued < 1000:
        if chooser.due(now):
            now = max(now, over)
            chooser.advance(now)
        else:
            now, issued = now + 1e-5, issued + 1
            over = max(over, now) + {SERIAL: 0.03, STREAMS: 0.02}[chooser.mode]
    assert chooser.mode == STREAMS and issued < 60


def test_a_steady_drift_decides_nothing() -> None:
    # Each item takes a little longer than the previous one, four times as long at the end.
    assert chosen({SERIAL: 1e-3, STREAMS: 1e-3}, drift=3e-3).mode == SERIAL
    assert chosen({SERIAL: 1e-3, STREAMS: 0.9e-3}, drift=3e-3).mode == STREAMS


def test_what_is_faster_in_some_rounds_only_is_not_chosen() -> None:
    # The host is busy: serial has three slow rounds of five, and streams are in fact 1 % slower.
    chooser = Chooser(TWO, 5, settle=1)

    class Seconds(dict[str, float]):
        def __missing__(self, mode: str) -> float:
            if mode == STREAMS:
                return 6.06e-3
            return 6e-3 * (1.0, 1.1, 1.0, 1.1, 1.1)[len(chooser.times[SERIAL]) % 5]

    Device(chooser, Seconds()).run(1000)
    assert not chooser.measuring and chooser.medians()[STREAMS] < 0.95 * chooser.medians()[SERIAL]
    assert chooser.mode == SERIAL
    assert chooser.reason() == "streams was 8.2 % faster in the median, but in only 3 of 5 rounds"


def test_a_segment_has_ten_items_and_fifty_milliseconds() -> None:
    chooser = Chooser(TWO, 1, settle=3)
    device = Device(chooser, {SERIAL: 0.9e-3, STREAMS: 0.1})
    device.run(3 + 5 + 56 + 3 + 10 + 1)
    # Five items show how many items take fifty milliseconds.
    assert device.modes == [SERIAL] * 64 + [STREAMS] * 13 + [SERIAL]


def test_items_of_seconds_are_not_waited_for_ten_times() -> None:
    chooser = Chooser(TWO, 5, settle=3)
    Device(chooser, {SERIAL: 4.0, STREAMS: 3.0}).run(3 + 5 + 3 + 5 + 4 * (2 + 5) * 2 + 1)
    assert chooser.mode == STREAMS and not chooser.measuring


def test_short_epochs_are_measured_across_them_and_the_time_between_them_is_not() -> None:
    chooser = Chooser(TWO, 5, settle=10)
    device = Device(chooser, {SERIAL: 2e-3, STREAMS: 1e-3})
    for _ in range(40):
        device.run(8)
    assert chooser.mode == STREAMS and not chooser.measuring
    assert chooser.medians() == {SERIAL: pytest.approx(2e-3), STREAMS: pytest.approx(1e-3)}


def test_runs_of_few_items_are_put_together() -> None:
    chooser = Chooser(TWO, 5, settle=10)
    device = Device(chooser, {SERIAL: 2e-3, STREAMS: 1e-3})
    for _ in range(60):
        device.run(3)
    assert chooser.mode == STREAMS and not chooser.measuring
    assert chooser.medians() == {SERIAL: pytest.approx(2e-3), STREAMS: pytest.approx(1e-3)}


@pytest.mark.parametrize(("pause", "measured"), [(0.0, True), (30.0, False)])
def test_a_run_that_was_left_counts_up_to_where_it_was_left(pause: float, measured: bool) -> None:
    chooser = Chooser(TWO, 1, settle=2)
    now = 0.0
    for _ in range(10):
        chooser.begin_run()
        for _ in range(8):
            while chooser.measuring and chooser.due(now):
                chooser.advance(now)
            now += {SERIAL: 2e-3, STREAMS: 1e-3}[chooser.mode]
        now += pause
        if chooser.measuring:
            chooser.end_run(now, left=now)
    assert chooser.measuring is not measured
    if measured:
        assert chooser.mode == STREAMS and chooser.medians()[SERIAL] == pytest.approx(2e-3)


def test_until_it_is_measured_nothing_is_claimed() -> None:
    chooser = Chooser(TWO, 5, settle=10)
    Device(chooser, {SERIAL: 1e-3, STREAMS: 1e-3}).run(3)
    assert chooser.measuring and chooser.medians() == {}
    assert chooser.reason() == "being measured; 0 of at most 10 segments are done"


def test_a_mode_that_turns_out_to_be_another_one_is_left_out() -> None:
    chooser = Chooser(MODES, 5, settle=10)
    device = Device(chooser, dict.fromkeys(MODES, 1e-3) | {GRAPHS: 1e-4})
    device.run(100)
    chooser.drop(GRAPHS)
    chooser.drop(SERIAL_GRAPHS)
    device.run(10_000)
    assert chooser.mode == SERIAL and set(chooser.medians()) == set(TWO)


def test_a_choice_prints_exports_and_shows_itself() -> None:
    choice = Choice(
        mode=STREAMS,
        measured=True,
        reason="the fastest <of> those measured",
        seconds_per_item={SERIAL: 2e-3, STREAMS: 5e-4},
        segments={SERIAL: 5, STREAMS: 5},
        notes=("stage `a` is not captured",),
    )
    assert str(choice).splitlines() == [
        "streams: the fastest <of> those measured",
        "  serial          2.00 ms an item      500.0 items/s  (5 segments)",
        "* streams        500.0 µs an item     2000.0 items/s  (5 segments)",
        "  note: stage `a` is not captured",
    ]
    assert json.loads(choice.json()) == choice.to_dict()
    assert choice.to_dict()["schema"] == "sidestream.pipeline/1"
    page = choice._repr_html_()
    assert "&lt;of&gt;" in page and "2000.0" in page and "<b>streams</b>" in page
    assert isinstance(choice, sidestream.Choice)
