"""The cost and the findings of ``sidestream.check(simulate=True)`` on a machine without a GPU.

    python check_simulated.py             # everything, one JSON object per line
    python check_simulated.py step        # a training step on the CPU: plain, and on a simulated GPU
    python check_simulated.py planted     # the racy loops of check_gpu.py and their fixed twins
    python check_simulated.py loops       # a thousand correct steps: no race may be reported
    python check_simulated.py threads     # the extra cost of operators and queues with threads
"""

from __future__ import annotations

import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import parts
import sidestream
import torch
from check_gpu import guarded, mlp_step
from parts import say
from planted import programs, streams
from planted.loops import LOOPS

STEPS = 1000


def step_alone(device: str) -> dict[str, Any]:
    """Run the step of ``check_gpu.py``."""
    step = mlp_step(device)
    for _ in range(5):
        step()
    walls, processors = [], []
    for _ in range(9):
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(20):
            step()
        walls.append((time.perf_counter() - wall) / 20 * 1e3)
        processors.append((time.process_time() - processor) / 20 * 1e3)
    return {
        "step_ms": statistics.median(walls),
        "min_ms": min(walls),
        "processor_ms": statistics.median(processors),
    }


def steps() -> None:
    for how in ("plain", "simulated", "plain", "simulated"):

        def run(how: str = how) -> dict[str, Any]:
            ran = subprocess.run(
                [sys.executable, __file__, "step_alone", how], capture_output=True, text=True, check=False
            )
            if ran.returncode:
                return {"error": ran.stderr[-2000:]}
            result: dict[str, Any] = json.loads(ran.stdout)
            return result

        guarded("step", how, run)


def plants() -> None:
    for program in (*streams.PLANTED, *programs.PLANTED):
        kinds, reports = [], []
        for right in (False, True):
            with sidestream.check(simulate=2) as found:
                program(right)
                torch.cuda.synchronize()
            kinds.append(sorted({race.kind for race in found.races}))
            reports.append(str(found))
        ok = bool(kinds[0]) and not kinds[1]
        say(
            part="planted",
            name=program.__name__,
            ok=ok,
            racy=kinds[0],
            report="" if ok else "\n\n".join(reports),
        )


def loops() -> None:
    for loop in (*LOOPS, *programs.LOOPS):
        start = time.process_time()
        with sidestream.check(simulate=True) as found:
            loop(STEPS)
            torch.cuda.synchronize()
        took = (time.process_time() - start) / STEPS * 1e3
        ok = not found.races and found.ended is None
        say(
            part="loop",
            name=loop.__name__,
            ok=ok,
            steps=STEPS,
            operations=found.operations,
            processor_ms=took,
            report="" if ok else str(found),
        )


def threads() -> None:
    xs = [torch.ones(64) for _ in range(40)]
    items: queue.Queue[int] = queue.Queue()

    def timed(call: Callable[[int], None], count: int = 20_000) -> float:
        start = time.process_time()
        for at in range(count):
            call(at)
        return (time.process_time() - start) / count * 1e6

    def add(at: int) -> None:
        xs[at % 40].add_(xs[(at + 1) % 40])

    def pass_on(at: int) -> None:
        items.put(at)
        items.get()

    for _ in range(3):
        plain = timed(pass_on)
        with sidestream.check(simulate=True):
            xs = [x.cuda() for x in xs]
            alone = timed(add)
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            say(
                part="threads",
                operator_us=alone,
                with_threads_us=timed(add),
                queue_us=plain,
                queue_heard_us=timed(pass_on),
            )
            xs = [x.cpu() for x in xs]


def main() -> None:
    if sys.argv[1:2] != ["step_alone"]:
        sys.exit(
            parts.run({"step": steps, "planted": plants, "loops": loops, "threads": threads}, sys.argv[1:])
        )
    if sys.argv[2] == "plain":
        print(json.dumps(step_alone("cpu")))
        return
    with sidestream.check(simulate=True) as found:
        result = step_alone("cuda")
    print(json.dumps({**result, "races": len(found.races), "operations": found.operations}))


if __name__ == "__main__":
    main()
