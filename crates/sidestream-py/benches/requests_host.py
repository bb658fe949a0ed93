"""The host's cost of a request to a `Batcher`: its own code, with a device that completes at once. Needs
PyTorch and no GPU.

    python crates/sidestream-py/benches/requests_host.py [--quick]

Prints one JSON object: microseconds of CPU time per request, over all threads, the best of five turns. The
interpreter runs one thread at a time, so this bounds what any GPU can serve. `refused_us` is a request whose
deadline has passed, `refused_late_us` one whose deadline cannot be met.

A second object is for one event loop that gets three times the requests that it can serve, with a deadline
of 20 ms and a device that takes 1 ms for a batch: the share of accepted requests that met their deadline,
and how many per second were answered in time, by a callback and by a task. These are by the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import sidestream
from sidestream import Batcher, RequestRefused

QUICK = "--quick" in sys.argv
COUNT = 512 if QUICK else 8000
WIDTH = 512
SIZES = tuple(1 << power for power in range(10))


class Stream:
    """A stream whose work completes at once."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def wait_event(self, _: object) -> None:
        pass

    wait_stream = wait_event

    def synchronize(self) -> None:
        pass


class Event(Stream):
    """An event that is recorded after the work enqueued so far."""

    #: The time at which all of that work is complete.
    device_over = 0.0
    over = 0.0

    def record(self, *_: object) -> None:
        self.over = Event.device_over

    def query(self) -> bool:
        return time.perf_counter() >= self.over

    def synchronize(self) -> None:
        left = self.over - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def elapsed_time(self, _: object) -> float:
        return 0.01


def worked(x: torch.Tensor) -> torch.Tensor:
    """Make a model that takes one millisecond of device time."""
    Event.device_over = max(Event.device_over, time.perf_counter()) + 0.001
    return x


class Torch:
    """PyTorch, with the CPU as its GPU."""

    cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        is_available=lambda: True,
        current_device=lambda: 0,
        current_stream=lambda _=None: Stream(),
        set_device=lambda _: None,
        stream=lambda _: contextlib.nullcontext(),
        device=lambda _: contextlib.nullcontext(),
        set_stream=lambda _: None,
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *shape: Any, device: Any = None, pin_memory: bool = False, **how: Any) -> Any:
        return torch.zeros(*shape, **how)

    def empty(self, *shape: Any, device: Any = None, pin_memory: bool = False, **how: Any) -> Any:
        return torch.empty(*shape, **how)


def batcher(model: Callable[..., Any] = lambda x: x, **how: Any) -> Batcher:
    sys.modules["torch"] = Torch()  # type: ignore[assignment]
    try:
        return Batcher(model, SIZES, how.pop("max_delay", 0.0005), graphs=False, device="cpu", **how)
    finally:
        sys.modules["torch"] = torch


def best(run: Callable[[], float]) -> float:
    """Return the microseconds of CPU time per request."""
    return min(run() for _ in range(1 if QUICK else 5)) * 1e6


def main() -> None:
    torch.set_num_threads(1)
    rows = rows_of(1024)
    said: dict[str, float] = {}

    def submits() -> float:
        with batcher(max_delay=1000.0) as one:
            one.submit(rows[0])
            start = time.process_time()
            for at in range(500):
                one.submit(rows[at])
            return (time.process_time() - start) / 500

    said["submit_us"] = best(submits)

    def refuses(deadline: float) -> float:
        with batcher(max_delay=1000.0) as one:
            one.submit(rows[0])
            start = time.process_time()
            for at in range(1000):
                try:
                    one.submit(rows[at], deadline=deadline)
                except RequestRefused:
                    pass
            return (time.process_time() - start) / 1000

    said["refused_us"] = best(lambda: refuses(0.0))
    said["refused_late_us"] = best(lambda: refuses(0.001))

    async def closed(one: Batcher, callers: int) -> float:
        async def caller(x: torch.Tensor) -> None:
            for _ in range(COUNT // callers):
                await one.submit(x)

        start = time.process_time()
        await asyncio.gather(*(caller(x) for x in rows[:callers]))
        return (time.process_time() - start) / (COUNT // callers * callers)

    def looped(callers: int) -> float:
        with batcher() as one:
            one.submit(rows[0]).result()
            return asyncio.run(closed(one, callers))

    for callers in (64, 256) if QUICK else (64, 256, 1024):
        said[f"asyncio_{callers}_us"] = best(lambda callers=callers: looped(callers))  # type: ignore[misc]

    def threaded() -> float:
        with batcher(max_delay=0.0001) as one:
            one.submit(rows[0]).result()

            def caller(x: torch.Tensor) -> None:
                for _ in range(COUNT // 64):
                    one.submit(x).result()

            threads = [threading.Thread(target=caller, args=(x,)) for x in rows[:64]]
            start = time.process_time()
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            took = (time.process_time() - start) / (COUNT // 64 * 64)
            said["threads_mean_batch"] = one.statistics.mean_batch
            return took

    said["threads_64_us"] = best(threaded)

    def burst() -> float:
        with batcher() as one:
            one.submit(rows[0]).result()
            start = time.process_time()
            for answer in [one.submit(x) for x in rows[:512] * (1 if QUICK else 8)]:
                answer.result()
            return (time.process_time() - start) / (one.statistics.answered - 1)

    said["one_thread_512_at_once_us"] = best(burst)
    print(
        json.dumps(
            {"part": "host", "torch": torch.__version__, "package": sidestream.__version__}
            | {k: round(v, 2) for k, v in said.items()}
        ),
        flush=True,
    )
    print(json.dumps({"part": "overload"} | overloaded()))


def overloaded() -> dict[str, Any]:
    """Requests arrive at three times the rate of the closed loop, in three turns."""
    from requests_gpu import closed_loop, open_loop

    lasting = 1.0 if QUICK else 3.0
    found: dict[str, Any] = {}
    for told in ("callback", "task"):
        turns = []
        for _ in range(1 if QUICK else 3):
            with batcher(worked, max_queue=2048) as one:
                one.submit(rows_of(1)[0]).result()
                most = asyncio.run(closed_loop(one, 256, 1.0))
                said = asyncio.run(open_loop(one, 3 * most, lasting, deadline=0.02, by_task=told == "task"))
                accepted = max(1, said["requests"] - said["refused"])
                turns.append(
                    {
                        "closed_per_s": round(most),
                        "kept": round(1 - (said["late"] + said["expired"]) / accepted, 4),
                    }
                )
                turns[-1] |= {
                    "goodput_per_s": round(said["goodput"]),
                    "accepted": accepted,
                    "refused": said["refused"],
                }
        found[told] = turns
    return found


def rows_of(count: int) -> list[torch.Tensor]:
    return list(torch.randn(count, WIDTH).unbind(0))


if __name__ == "__main__":
    main()
