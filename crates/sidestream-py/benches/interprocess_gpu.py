"""Whether a stream that waits for another process's event sees what that process wrote, and what the wait
costs.

    python crates/sidestream-py/benches/interprocess_gpu.py [--quick] [--two]

Two processes use one GPU, or with `--two` a GPU each. One keeps its stream busy, writes a number to memory
that both share, records an event and announces it at once. The other copies that memory on a separate stream,
without waiting and waiting in three ways (two with `--two`), and compares each value. Then both pass the
memory back and forth, ordered by events or by hosts that wait. Prints one JSON object per line; fails if a
value is not as expected.
"""

from __future__ import annotations

import json
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import sidestream
import torch
import torch.multiprocessing

ROUNDS, EXCHANGES = (3, 50) if "--quick" in sys.argv else (20, 500)
#: The GPU of the process that writes, and of the one that reads. The memory is the reader's.
WRITES = 1 if "--two" in sys.argv else 0
WRITER, READER = f"cuda:{WRITES}", "cuda:0"
VALUES = 1 << 22
# About 20 ms. A stream that does not wait completes its copy in that time.
BUSY_CYCLES = 40_000_000


def produce(pipe: Connection) -> None:
    """Write the requested values, and announce each at once or when the write is complete."""
    torch.cuda.set_device(WRITES)
    stream, local = (sidestream.Stream(WRITER), torch.empty(VALUES, device=WRITER, dtype=torch.int32))
    written = sidestream.Event(interprocess=True, device=WRITER)
    of_torch = torch.cuda.Event(interprocess=True)
    pipe.send((written.ipc_handle(), of_torch.ipc_handle()))
    memory, handle = pipe.recv()
    read = sidestream.Event.from_ipc_handle(READER, handle)
    while (asked := pipe.recv()) is not None:
        value, cycles, hosts_wait = asked
        with stream:
            if not hosts_wait:
                stream.wait_event(read)
            torch.cuda._sleep(cycles)
            memory.copy_(local.fill_(value), non_blocking=True)
            stream.record_event(written)
            stream.record_event(of_torch)
        if hosts_wait:
            stream.synchronize()
        pipe.send(value)
    stream.synchronize()


class Consumer:
    """This process: its stream, the memory, and the other process's events."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.stream = pipe, sidestream.Stream(READER)
        self.memory = torch.zeros(VALUES, device=READER, dtype=torch.int32)
        self.copied = torch.empty_like(self.memory)
        self.read = sidestream.Event(interprocess=True, device=READER)
        torch.cuda.synchronize()
        ours, of_torch = pipe.recv()
        self.written = sidestream.Event.from_ipc_handle(WRITER, ours)
        self.waits: dict[str, Any] = {
            "nothing": None,
            "our event": self.written,
            "torch's event": sidestream.Event.from_ipc_handle(WRITER, of_torch),
        }
        # PyTorch 2.11 alone ends with a segmentation fault where its stream waits for an event of another
        # process on another GPU.
        if WRITER == READER:
            opened = torch.cuda.Event.from_ipc_handle(torch.device(WRITER), ours)
            self.waits["our event, opened by torch"] = opened
        pipe.send((self.memory, self.read.ipc_handle()))
        self.value = 0

    def ask(self, cycles: int, hosts_wait: bool = False) -> int:
        """Request the next value, and return its number once the other process has announced the write."""
        self.value += 1
        self.pipe.send((self.value, cycles, hosts_wait))
        assert self.pipe.recv() == self.value
        return self.value

    def copy(self, wait: str) -> None:
        event = self.waits[wait]
        if event is not None:
            self.stream.wait_event(event)
        with self.stream:
            self.copied.copy_(self.memory)
        self.read.record(self.stream)

    def wrong_behind(self, wait: str) -> int:
        """Return the number of rounds in which the copied value is not the written one."""
        wrong = 0
        for _ in range(ROUNDS):
            value = self.ask(BUSY_CYCLES)
            self.copy(wait)
            self.stream.synchronize()
            wrong += int((self.copied != value).any())
            self.written.synchronize()
        return wrong

    def exchange_ms(self, hosts_wait: bool) -> tuple[float, int]:
        """Return the milliseconds of one round, and whether the last copied value is wrong."""
        start = time.perf_counter()
        for _ in range(EXCHANGES):
            self.ask(0, hosts_wait)
            self.copy("nothing" if hosts_wait else "our event")
            if hosts_wait:
                self.stream.synchronize()
        self.stream.synchronize()
        took = (time.perf_counter() - start) * 1e3 / EXCHANGES
        return took, int((self.copied != self.value).any())


def refused_here() -> str:
    """Return the driver's error when a process opens a handle of its own event."""
    try:
        sidestream.Event.from_ipc_handle("cuda", sidestream.Event(interprocess=True).ipc_handle())
    except sidestream.DeviceError as error:
        return str(error)
    return "it was opened"


def main() -> None:
    if torch.cuda.device_count() <= WRITES:
        sys.exit("too few GPUs; test_stream_handles.py has two processes on a driver without one")
    torch.multiprocessing.set_start_method("spawn")
    pipe, theirs = torch.multiprocessing.Pipe()
    other = torch.multiprocessing.Process(target=produce, args=(theirs,))
    other.start()
    theirs.close()  # If the other process fails, this one notices.
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    print(json.dumps({"opened in its own process": refused_here()}), flush=True)
    consumer = Consumer(pipe)
    is_right = True
    for wait in consumer.waits:
        wrong = consumer.wrong_behind(wait)
        # A value may arrive in time without a wait.
        expected = (wrong > 0) == (wait == "nothing")
        said = {"waits for": wait, "rounds": ROUNDS, "stale": wrong, "as expected": expected}
        is_right &= expected
        print(json.dumps(said), flush=True)
    for hosts_wait in (False, True, False, True):
        took, wrong = consumer.exchange_ms(hosts_wait)
        is_right &= not wrong
        said = {"ordered by": "hosts" if hosts_wait else "events", "round_ms": round(took, 4)}
        print(json.dumps(said | {"rounds": EXCHANGES, "wrong": wrong}), flush=True)
    pipe.send(None)
    other.join()
    assert other.exitcode == 0 and is_right, other.exitcode


if __name__ == "__main__":
    main()
