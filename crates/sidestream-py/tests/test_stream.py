"""Streams and events, on the simulated GPU."""

from __future__ import annotations

import threading

import pytest
import sidestream
from sidestream import Event, Stream


def test_a_simulated_stream_does_all_but_hand_out_a_handle() -> None:
    one, two = Stream("sim:h200"), Stream("sim:h200", name="two")
    one.wait_stream(two)
    one.synchronize()
    assert one.query() and two.query()
    assert (one.device, two.name, one.priority) == ("sim:h200", "two", 0)
    for ask in (lambda: one.cuda_stream, one.__cuda_stream__, one.torch, one.__enter__):
        with pytest.raises(ValueError, match=r'simulated, .* open the stream on "cuda"'):
            ask()
    assert repr(two) == "<sidestream.Stream 'two' device=sim:h200 priority=0>"


def test_streams_of_a_device_opened_twice_wait_for_each_other() -> None:
    # Both streams belong to one simulated machine: for two machines, `wait_stream` would raise.
    Stream("sim:a100").wait_stream(Stream("sim:a100"))


def test_one_device_is_opened_once_however_many_threads_ask() -> None:
    streams: list[Stream] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        streams.append(Stream("sim:rtx4090"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        streams[0].wait_stream(stream)
    assert len(set(streams)) == 8


def test_a_stream_is_itself_and_no_other() -> None:
    one, two = Stream("sim:h200"), Stream("sim:h200")
    same = Stream.of(one)
    assert one == same and hash(one) == hash(same) and one != two
    assert len({one, same, two}) == 2
    assert (same.name, same.device) == (one.name, one.device)
    assert one != 1


def test_a_class_of_the_users_stays_one() -> None:
    class Mine(Stream):
        pass

    assert type(Mine("sim:h200")) is Mine
    assert type(Mine.of(Stream("sim:h200"))) is Mine


def test_priorities_are_those_of_the_device() -> None:
    assert Stream("sim:h200", priority=-1).priority == -1
    with pytest.raises(ValueError, match="priority"):
        Stream("sim:h200", priority=99)


def test_a_device_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(sidestream.DeviceError, match="sim:h200, sim:h100"):
        Stream("tpu")
    with pytest.raises(sidestream.DeviceError, match="simulated GPU that runs anywhere"):
        Stream("cuda:77")


def test_a_stream_that_a_simulated_device_does_not_have_is_refused() -> None:
    stream = Stream("sim:h200")
    for other in (7, None, object()):
        with pytest.raises(TypeError, match="accepts only a sidestream.Stream"):
            stream.wait_stream(other)
    with pytest.raises(ValueError, match="belongs to sim:a100 and not to sim:h200"):
        stream.wait_stream(Stream("sim:a100"))


def test_an_event_is_a_point_in_a_stream() -> None:
    first, second = Stream("sim:h200"), Stream("sim:h200")
    event = Event(device="sim:h200")
    assert event.query()  # It has no record yet.
    event.record(first)
    event.wait(second)
    second.wait_event(event)
    event.synchronize()
    assert event.query()
    assert first.record_event(event) is event
    made = first.record_event()
    assert isinstance(made, Event) and not made.timing
    assert repr(made) == "<sidestream.Event device=sim:h200 timing=False blocking=False>"


def test_timed_events_say_what_lies_between_them() -> None:
    stream = Stream("sim:h200")
    start, end = Event(True, device="sim:h200"), Event(True, device="sim:h200")
    for event in (start, end):
        stream.record_event(event)
    stream.synchronize()
    assert start.elapsed_time(end) == -end.elapsed_time(start) >= 0.0
    plain = stream.record_event()
    with pytest.raises((sidestream.DeviceError, ValueError), match="elapsed"):
        start.elapsed_time(plain)


def test_arguments_of_another_kind_are_refused() -> None:
    for make, why in (
        (
            lambda: Event("sim:h200"),  # type: ignore[arg-type]
            "timing is 'sim:h200'; give True or False, and the device as device=",
        ),
        (
            lambda: Stream("sim:h200", priority="high"),  # type: ignore[arg-type]
            "priority is 'high'; give a whole number",
        ),
        (lambda: Stream("sim:h200", name=5), "name is 5; give a string"),  # type: ignore[arg-type]
        (
            lambda: Event(True, device="sim:h200").elapsed_time(5),  # type: ignore[arg-type]
            "end is 5; give a sidestream.Event",
        ),
    ):
        with pytest.raises(TypeError, match=why):
            make()


def test_an_object_that_is_not_an_event_is_refused() -> None:
    stream = Stream("sim:h200")
    for use in (stream.wait_event, stream.record_event):
        with pytest.raises(TypeError, match="7 is not an event"):
            use(7)
    with pytest.raises(ValueError, match="belongs to sim:a100"):
        Event(device="sim:h200").record(Stream("sim:a100"))
    with pytest.raises(ValueError, match="simulated"):
        Event(device="sim:h200").torch()


def test_a_simulated_device_has_no_current_stream() -> None:
    with pytest.raises(TypeError, match="this is None"):
        Event(device="sim:h200").record()


def test_an_event_may_let_its_waiting_thread_sleep() -> None:
    event, stream = Event(blocking=True, device="sim:h200"), Stream("sim:h200")
    event.record(stream)
    event.synchronize()
    assert event.blocking and event.query() and not Event(device="sim:h200").blocking
    with pytest.raises(TypeError, match="blocking is 1; give True or False"):
        Event(blocking=1, device="sim:h200")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an event keeps time or lets its waiting thread sleep"):
        Event(True, blocking=True, device="sim:h200")


def test_an_event_for_other_processes_is_refused_where_there_are_none() -> None:
    handle = bytes(64)
    for make, why in (
        (lambda: Event(interprocess=True, device="sim:h200"), "sim:h200 is simulated within this process"),
        (lambda: Event.from_ipc_handle("sim:h200", handle), "sim:h200 is simulated within this process"),
        (lambda: Event.from_ipc_handle("sim:h200", handle[1:]), "handle has 63 bytes and that of an event"),
        (lambda: Event(True, interprocess=True, device="sim:h200"), "keeps no time and lets no thread sleep"),
        (lambda: Event(device="sim:h200").ipc_handle(), "only an event that was made for other processes"),
    ):
        with pytest.raises(ValueError, match=why):
            make()
    with pytest.raises(TypeError, match="handle is 'x'; give the bytes"):
        Event.from_ipc_handle("sim:h200", "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="interprocess is 1; give True or False"):
        Event(interprocess=1, device="sim:h200")  # type: ignore[arg-type]


def test_a_device_says_what_it_can_do() -> None:
    h200 = sidestream.caps("sim:h200")
    assert h200.device == "sim:h200" and h200.memory_bytes == 139 << 30
    assert (h200.memory_bytes_per_s, h200.flops_per_s, h200.link_bytes_per_s) == (4.8e12, 67e12, 55.4e9)
    most, least = h200.priorities
    assert most < least
    assert Stream("sim:h200", priority=most).priority == most
    with pytest.raises(ValueError, match="the CPU has no streams"):
        sidestream.caps("cpu")
