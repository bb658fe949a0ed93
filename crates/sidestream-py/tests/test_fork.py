"""A forked child has the handles of its parent, but neither its threads nor its devices: calls raise an
error, and nothing hangs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

OnStandIn = Callable[[str], str]

#: Forks while the thread of a prefetcher takes and releases the locks of the device. A child that hangs is
#: killed by its alarm.
PROGRAM = """
import gc, os, signal, sys
import numpy as np
import sidestream

device = sys.argv[1] if len(sys.argv) > 1 else "cuda:0"

def loader():
    while True:
        yield [np.ones(2000)]

batches = sidestream.prefetch(loader(), device)
iteration = iter(batches)
held = next(iteration)
array = held[0]
event = sidestream.Event(device=device)

def refused(call):
    try:
        call()
    except (sidestream.DeviceError, RuntimeError) as error:
        assert "fork" in str(error), error
    else:
        raise AssertionError("it was not refused")

def use(streams):
    one, two = streams[:2]
    for call in (
        one.synchronize,
        one.query,
        lambda: one.wait_stream(two),
        lambda: one.wait_event(event),
        one.record_event,
    ):
        refused(call)

def look(streams):
    refused(array.numpy)
    refused(event.synchronize)
    refused(event.query)
    refused(lambda: event.record(streams[0]))
    refused(lambda: event.wait(streams[0]))
    refused(lambda: next(iteration))
    refused(lambda: iter(batches))
    refused(lambda: batches.statistics)
    array.record_stream(streams[0])
    batches.close()
    # The parent's cached memory must stay with the parent.
    sidestream.empty_cache()
    assert sidestream._sidestream.cached_bytes() == (0, 0)

def drop(streams):
    global batches, iteration, held, array, event
    streams.clear()
    batches = iteration = held = array = event = None
    gc.collect()

def anew(streams):
    if device.startswith("sim"):
        [[fresh]] = list(sidestream.prefetch([[np.arange(3)]], device))
        assert fresh.numpy().tolist() == [0, 1, 2]
        sidestream.Stream(device).synchronize()
    else:
        refused(lambda: sidestream.Stream(device))
        refused(lambda: sidestream.prefetch([], device))

def child(act, streams):
    signal.alarm(60)
    code = 1
    try:
        act(streams)
        code = 0
    except BaseException as error:
        print(act.__name__, repr(error), flush=True)
    finally:
        os._exit(code)

# The rest is cached in the parent, and the child has none of it.
list(sidestream.prefetch([np.ones(500)], device))
kept = sidestream._sidestream.cached_bytes()
assert kept[0] > 0 and kept[1] > 0
said = []
for at in range(80):
    streams = [sidestream.Stream(device) for _ in range(4)]
    act = (use, look, drop, anew)[at % 4]
    pid = os.fork()
    if pid == 0:
        child(act, streams)
    said.append((pid, act.__name__))
    held = next(iteration)
    array = held[0]
print(
    {(name, os.waitpid(pid, 0)[1]) for pid, name in said}
    == {(name, 0) for name in ("use", "look", "drop", "anew")}
)
assert (array.numpy() == 1).all() and streams[0].query() in (True, False)
assert sidestream._sidestream.cached_bytes() == kept
batches.close()
"""


def test_a_child_is_refused_and_never_hangs_on_a_simulated_gpu() -> None:
    # This limit only ends a test that has failed.
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, "sim:h200"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("True\n", "", 0)


def test_a_child_is_refused_and_never_hangs_on_the_driver(on_stand_in: OnStandIn) -> None:
    assert on_stand_in("import warnings; warnings.simplefilter('ignore')\n" + PROGRAM) == "True\n"


def test_a_child_that_ends_as_a_program_ends_says_nothing() -> None:
    code = """
import os, sys
import numpy as np
import sidestream
streams = [sidestream.Stream("sim:h200") for _ in range(3)]
batches = sidestream.prefetch([[np.ones(9)]] * 5, "sim:h200")
held = next(iter(batches))
if os.fork() == 0:
    sys.exit()
print(os.wait()[1])
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert (ran.stdout, ran.stderr) == ("0\n", "")
