"""Streams, on the simulated GPU."""

from __future__ import annotations

import pytest
import sidestream
from sidestream import Stream


def test_a_simulated_stream_does_all_but_hand_out_a_handle() -> None:
    one, two = Stream("sim:h200"), Stream("sim:h200", name="two")
    one.wait_stream(two)
    one.synchronize()
    assert one.query() and two.query()
    assert (one.device, two.name, one.priority) == ("sim:h200", "two", 0)
    for ask in (lambda: one.cuda_stream, one.__cuda_stream__):
        with pytest.raises(ValueError, match=r'simulated, .* open the stream on "cuda"'):
            ask()


def test_streams_of_a_device_opened_twice_wait_for_each_other() -> None:
    # Two machines could not: `wait_stream` would refuse.
    Stream("sim:a100").wait_stream(Stream("sim:a100"))


def test_a_stream_is_itself_and_no_other() -> None:
    one, two = Stream("sim:h200"), Stream("sim:h200")
    same = Stream.of(one)
    assert one == same and hash(one) == hash(same) and one != two
    assert len({one, same, two}) == 2
    assert (same.name, same.device) == (one.name, one.device)
    assert one != 1


def test_a_priority_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="priority"):
        Stream("sim:h200", priority=99)


def test_a_device_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(sidestream.DeviceError, match="sim:h200, sim:a100"):
        Stream("tpu")
    with pytest.raises(sidestream.DeviceError, match="simulated GPU that runs anywhere"):
        Stream("cuda:77")
    with pytest.raises(ValueError, match="the processor has no streams"):
        Stream("cpu")
    with pytest.raises(TypeError, match="device is 1.5; give a name such as"):
        Stream(1.5)


def test_what_is_no_stream_of_a_simulated_device_is_refused() -> None:
    stream = Stream("sim:h200")
    for other in (7, None, object()):
        with pytest.raises(TypeError, match="has only streams of sidestream.Stream"):
            stream.wait_stream(other)
    with pytest.raises(ValueError, match="belongs to sim:a100 and not to sim:h200"):
        stream.wait_stream(Stream("sim:a100"))
