"""The cost and the findings of ``sidestream.check`` on a machine with a GPU.

    python check_gpu.py            # everything, one JSON object per line
    python check_gpu.py step       # the time of a training step: plain, checked, under PyTorch's sanitizer
    python check_gpu.py loops      # a thousand correct steps: no race may be reported
    python check_gpu.py planted    # racy loops and their fixed twins
    python check_gpu.py host       # the extra cost of a copy while the host's own accesses are observed

A part that fails reports that in its line; the other parts run anyway.
"""

from __future__ import annotations

import functools
import gc
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import parts
import torch
from parts import say
from planted import backward, programs, streams
from planted.loops import LOOPS
from planted.models import perceptron, trained
from timing import seconds
from torch import nn

STEPS = 1000


def guarded(part: str, name: str, run: Callable[[], dict[str, Any]]) -> None:
    try:
        say(part, name=name, **run())
    except BaseException as error:
        text = traceback.format_exc()[-1500:]
        say(part, name=name, error=f"{type(error).__name__}: {error}"[:2000], trace=text)
        if isinstance(error, KeyboardInterrupt):
            raise


# ---------------------------------------------------------------- (a) the time of a step


def mlp_step(device: str = "cuda") -> Callable[[], object]:
    """Use the foreach operators on the CPU too, as a GPU does."""
    torch.manual_seed(0)
    model = perceptron(20, 512).to(device)
    step = trained(model, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True), nn.functional.mse_loss)
    return functools.partial(step, torch.randn(64, 512, device=device), torch.randn(64, 512, device=device))


def timed(step: Callable[[], object], steps: int = 50, rounds: int = 9) -> dict[str, Any]:
    for _ in range(5):
        step()
    times = [seconds(lambda: [step() for _ in range(steps)]) / steps * 1e3 for _ in range(rounds)]
    return {"step_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}


def step_alone(how: str) -> dict[str, Any]:
    step = mlp_step()
    if how == "plain":
        return timed(step)
    if how == "csan":
        import torch.cuda._sanitizer as sanitizer

        sanitizer.enable_cuda_sanitizer()
        return timed(step, steps=5, rounds=7)
    if how == "mode":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Empty(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        with Empty():
            return timed(step)
    import sidestream

    with sidestream.check(stacks=how != "check_without_stacks", host=how != "check_without_host") as found:
        took = timed(step)
    return {
        **took,
        "host": str(found.host),
        "races": len(found.races),
        "operations": found.operations,
        "ended": found.ended,
    }


def steps() -> None:
    medians: dict[str, float] = {}
    for how in (
        "plain",
        "check",
        "check_without_stacks",
        "check_without_host",
        "mode",
        "csan",
        "plain_again",
    ):

        def run(how: str = how) -> dict[str, Any]:
            command = [sys.executable, __file__, "step_alone", how.removesuffix("_again")]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode:
                return {"error": ran.stderr[-2000:]}
            result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
            medians[how] = result["step_ms"]
            if "plain" in medians:
                result["ratio"] = result["step_ms"] / medians["plain"]
            return result

        guarded("step", how, run)


# ---------------------------------------------------------------- (b) correct programs


def loops() -> None:
    import sidestream

    for loop in (*LOOPS, *programs.LOOPS, *programs.LOOPS_ON_GPU):

        def run(loop: Callable[[int], None] = loop) -> dict[str, Any]:
            plain = seconds(lambda: loop(100)) / 100
            start = time.perf_counter()
            with sidestream.check() as found:
                loop(STEPS)
                torch.cuda.synchronize()
            took = (time.perf_counter() - start) / STEPS
            return {
                "steps": STEPS,
                "races": len(found.races),
                "ok": not found.races and found.ended is None,
                "operations": found.operations,
                "plain_step_ms": plain * 1e3,
                "checked_step_ms": took * 1e3,
                "ended": found.ended,
                "host": str(found.host),
                "lints": sorted({lint.code for lint in found.lints}),
                "report": str(found)[:6000] if found.races else "",
            }

        guarded("loop", loop.__name__, run)


# (c) the extra cost of a copy, and planted races


def host_copies() -> None:
    """Measure the extra cost of a copy whose memory is watched, and whether the copied data is right."""
    import sidestream

    for size in (512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20):

        def run(size: int = size) -> dict[str, Any]:
            host = torch.arange(size // 4, dtype=torch.int32).pin_memory()
            x = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
            back = torch.zeros(size // 4, dtype=torch.int32, pin_memory=True)
            count = 1000 if size <= 1 << 20 else 20
            result: dict[str, Any] = {"bytes": size}
            for turn in range(2):
                for how in (False, True):
                    with sidestream.check(host=how) as found:
                        times = []
                        for _ in range(count):
                            start = time.perf_counter()
                            x.copy_(host, non_blocking=True)
                            submitted = time.perf_counter()
                            torch.cuda.current_stream().synchronize()
                            times.append((submitted - start, time.perf_counter() - start))
                        back.copy_(x, non_blocking=True)
                        torch.cuda.synchronize()
                        right = bool((back.numpy() == host.numpy()).all())
                    name = "watched" if how else "plain"
                    result[f"{name}_{turn}_us"] = statistics.median(took for took, _ in times) * 1e6
                    result[f"{name}_{turn}_with_the_wait_us"] = (
                        statistics.median(took for _, took in times) * 1e6
                    )
                    result["ok"] = result.get("ok", True) and right and not found.races
                    if how:
                        result["unwatched_share"] = found.host.unwatched_bytes / max(found.host.bytes, 1)
                        result["problem"] = found.host.problem
            result["more_us"] = min(result["watched_0_us"], result["watched_1_us"]) - min(
                result["plain_0_us"], result["plain_1_us"]
            )
            return result

        guarded("host", f"{size} bytes", run)


def plants() -> None:
    import sidestream

    for program in (*streams.PLANTED, *backward.PLANTED, *programs.PLANTED, *programs.PLANTED_ON_GPU):

        def run(program: Callable[[bool], None] = program) -> dict[str, Any]:
            kinds = []
            texts = []
            for right in (False, True):
                torch.cuda.synchronize()
                gc.collect()
                with sidestream.check() as found:
                    program(right)
                    torch.cuda.synchronize()
                kinds.append(sorted({race.kind for race in found.races}))
                texts.append(str(found))
            ok = bool(kinds[0]) and not kinds[1]
            return {
                "ok": ok,
                "racy": kinds[0],
                "repaired": kinds[1],
                "report": "" if ok else "\n\n".join(texts)[:6000],
            }

        guarded("planted", program.__name__, run)


def main() -> None:
    if sys.argv[1:2] == ["step_alone"]:
        print(json.dumps(step_alone(sys.argv[2])), flush=True)
        return
    sys.exit(parts.run({"step": steps, "planted": plants, "host": host_copies, "loops": loops}, sys.argv[1:]))


if __name__ == "__main__":
    main()
