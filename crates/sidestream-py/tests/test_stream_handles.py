"""Streams with handles, on a driver without a GPU, and with a double of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

OnStandIn = Callable[[str], str]


def test_a_handle_names_the_same_stream_here_and_elsewhere(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
from sidestream import Event, Stream
ours = Stream()
assert ours.device == "cuda:0" and ours.cuda_stream > 2 and ours.__cuda_stream__() == (0, ours.cuda_stream)
handle = ours.cuda_stream
class Other:
    def __cuda_stream__(self): return (0, handle)
for other in (handle, Other()):
    same = Stream.of(other, device="cuda:0")
    assert same == ours and hash(same) == hash(ours) and same.cuda_stream == handle
    ours.wait_stream(other)
    ours.record_event().wait(other)
Stream("cuda:0").wait_stream(ours)
event, end = Event(True), Event(True)
event.record(handle); end.record(Other())
end.synchronize()
assert event.elapsed_time(end) >= 0
print("ok")
"""
    ) == "ok\n"


def test_the_null_stream_is_taken_as_the_legacy_stream_and_never_handed_out(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
from sidestream import Stream
assert Stream.of(0) == Stream.of(1) and Stream.of(0).cuda_stream == 1
assert Stream.of(2).cuda_stream == 2
Stream().wait_stream(0)
print("ok")
"""
    ) == "ok\n"


def test_a_stream_whose_handle_is_known_elsewhere_is_never_destroyed(on_stand_in: OnStandIn) -> None:
    # The stand-in refuses destroyed handles.
    assert on_stand_in(
        """
from sidestream import Stream
stream = Stream(name="kept")
handle = stream.cuda_stream
del stream
Stream.of(handle).synchronize()
assert Stream(name="kept").cuda_stream == handle
first, second = Stream(name="kept"), Stream(name="kept")
assert first != second
print("ok")
"""
    ) == "ok\n"


def test_an_invalid_handle_is_refused(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
from sidestream import Stream
class Later:
    def __cuda_stream__(self): return (1, 5)
class Odd:
    def __cuda_stream__(self): return 5
stream = Stream()
for other, why in [(-1, "not the handle of a stream"), (1 << 64, "not the handle of a stream"),
                   ("x", "is not a stream"), (Later(), "version 1 of the protocol"),
                   (Odd(), "a pair of a version"), (Stream("cuda:1"), None)]:
    if why is None:
        continue
    try:
        stream.wait_stream(other)
    except (TypeError, ValueError) as error:
        assert why in str(error), error
    else:
        raise AssertionError(other)
try:
    Stream.of(None)
except ValueError as error:
    assert "PyTorch is not imported" in str(error), error
print("ok")
"""
    ) == "ok\n"


def test_pytorch_gets_the_same_stream_and_keeps_it(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import torch_double; torch = torch_double.install()
import gc, weakref
from sidestream import Stream
stream = Stream()
external = stream.torch()
assert type(external).__name__ == "ExternalStream" and external.cuda_stream == stream.cuda_stream
assert str(external.device) == "cuda:0"
there = weakref.ref(stream)
del stream; gc.collect()
assert there() is not None
del external; gc.collect()
assert there() is None
theirs = torch.cuda.ExternalStream(Stream().cuda_stream, "cuda:0")
assert Stream.of(theirs).torch() is theirs
assert Stream.of(None).torch() is torch.cuda.current_stream()
assert Stream.of(0).torch().cuda_stream == 0  # The default stream, by PyTorch's own name.
print("ok")
"""
    ) == "ok\n"


def test_a_with_block_makes_it_the_current_stream(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import torch_double; torch = torch_double.install()
from sidestream import Stream
outer, inner = Stream(), Stream()
current = lambda: torch.cuda.current_stream().cuda_stream
with outer as entered:
    assert entered is outer and current() == outer.cuda_stream == Stream.of(None).cuda_stream
    with inner, outer:
        assert current() == outer.cuda_stream
    try:
        with inner:
            raise KeyError
    except KeyError:
        pass
    assert current() == outer.cuda_stream
assert current() == 0
print("ok")
"""
    ) == "ok\n"


def test_events_of_pytorch_are_taken_and_given(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import torch_double; torch = torch_double.install()
from sidestream import Event, Stream
stream, theirs = Stream(), torch.cuda.Event()
stream.wait_event(theirs)
assert stream.record_event(theirs) is theirs
assert torch_double.LOG == [("wait", stream.cuda_stream), ("record", stream.cuda_stream, False)]
event = Event(timing=True)
event.record()  # In the current stream.
given = event.torch()
assert given.timing
recorded, bridge, _ = torch_double.LOG[-1]
assert recorded == "record" and bridge not in (0, stream.cuda_stream)
order = []
wait = Stream.wait_event
Stream.wait_event = lambda self, event: (
    order.append((self.cuda_stream, event, len(torch_double.LOG))),
    wait(self, event),
)
before = len(torch_double.LOG)
event.torch()
assert order == [(bridge, event, before)]  # The bridge waited before PyTorch's event was recorded in it.
print("ok")
"""
    ) == "ok\n"


def test_streams_of_two_devices_wait_for_each_other_through_pytorch(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import torch_double; torch = torch_double.install()
from sidestream import Stream
here, there = Stream("cuda:0"), Stream(torch.device("cuda:1"))
assert there.device == "cuda:1"
here.wait_stream(there)
assert torch_double.LOG == [("wait_stream", here.cuda_stream, there.cuda_stream)]
here.wait_event(there.record_event())
assert torch_double.LOG[-1] == ("wait", here.cuda_stream)
print("ok")
"""
    ) == "ok\n"


def test_a_forked_process_is_told_that_cuda_does_not_survive(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import os
from sidestream import DeviceError, Stream
Stream()
child = os.fork()
if child == 0:
    try:
        Stream()
    except DeviceError as error:
        os._exit(0 if "was forked from one that had opened a GPU" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
print("ok")
"""
    ) == "ok\n"


def test_a_stream_waits_for_what_another_process_recorded(on_stand_in: OnStandIn) -> None:
    other = """
import sys
from sidestream import Event, Stream
event = Event(interprocess=True)
print(event.ipc_handle().hex(), flush=True)
for _ in sys.stdin:
    event.record(Stream())
    print("recorded", flush=True)
    sys.stdin.readline()
    event.synchronize()
"""
    assert on_stand_in(
        f"""
import subprocess, sys
from sidestream import DeviceError, Event, Stream
other = subprocess.Popen(
    [sys.executable, "-c", {other!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
def tell():
    other.stdin.write("go\\n")
    other.stdin.flush()
event = Event.from_ipc_handle("cuda", bytes.fromhex(other.stdout.readline()))
assert event.query()  # It has no record yet.
tell()
assert other.stdout.readline() == "recorded\\n"
waits = Stream()
waits.wait_event(event)
assert not event.query() and not waits.query()
tell()
waits.synchronize()
assert event.query()
for refused in (event.record, event.ipc_handle):
    try:
        refused(waits) if refused == event.record else refused()
    except ValueError as error:
        print(error)
try:
    Event.from_ipc_handle("cuda", Event(interprocess=True).ipc_handle())
except DeviceError as error:
    print("another process than the one that made the event" in str(error))
other.stdin.close()
print(other.wait())
"""
    ).splitlines() == [
        "record: the event was opened from another process, which records it; make one for the other "
        "direction, and send its handle there",
        "ipc_handle: only an event that was made for other processes has a handle; make it by "
        "`Event::interprocess` (in Python: `Event(interprocess=True)`)",
        "True",
        "0",
    ]
