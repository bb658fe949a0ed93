"""Saved activations on the host: the time, the memory and the bits of a training step.

    python crates/sidestream-py/benches/offload_activations.py [--json] [--simulate] [--budget BYTES]

The job is 16 times (linear 4096, GELU) on 8,192 rows in bf16. Compared are: all resident; PyTorch's
`save_on_cpu(pin_memory=True)`; `offload_activations()`; and, with a budget of half of the activations, the
last. The link is measured in both directions at once in this process. `--simulate` runs all of it on
`sim:h200` instead, with shapes only.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch

import sidestream

WIDTH, LAYERS, ROWS = 4096, 16, 8192
#: Steps that do not count: the first two are what a plan is made of.
WARM = 4
MIB = 1 << 20


def pinned_kib() -> int:
    """Return the host memory of this process that no file backs, and that it shares, in KiB."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssShmem", "RssAnon")))


def link_both(size: int = 64 * MIB, times: int = 12) -> tuple[float, float]:
    """Return the bytes a second to the host and to the device, both at once, from events on the device."""
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    host = [torch.empty(size, dtype=torch.uint8).pin_memory() for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(2)]
    torch.cuda.synchronize()
    for at in range(times):
        for way, (target, source) in enumerate(((host[0], device[0]), (device[1], host[1]))):
            with torch.cuda.stream(streams[way]):
                if at in (1, times - 1):
                    marks[way][at > 1].record()
                target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    out, back = ((times - 2) * size * 1e3 / begin.elapsed_time(end) for begin, end in marks)
    return out, back


class Job:
    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = (one for _ in range(LAYERS) for one in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()))
        self.net = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
        self.batch = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step(self, inside: Any) -> Any:
        with inside:
            loss = self.net(self.batch).float().square().mean()
        loss.backward()
        return loss.detach()

    def bits(self, inside: Any) -> list[Any]:
        """Return the loss and the gradients of a step, on the host."""
        loss = self.step(inside)
        found = [loss.cpu(), *(one.grad.cpu() for one in self.net.parameters() if one.grad is not None)]
        self.net.zero_grad(set_to_none=True)
        return found

    def times(self, context: Callable[[], Any], rounds: int) -> list[float]:
        """Return the milliseconds of steps that follow each other, by events on the device."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self.step(context())
            self.net.zero_grad(set_to_none=True)
            mark.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in zip(marks, marks[1:], strict=False)]

    def measure(self, context: Callable[[], Any], rounds: int) -> dict[str, Any]:
        gc.collect()
        torch.cuda.empty_cache()
        before = pinned_kib()
        self.times(context, WARM)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times = self.times(context, rounds)
        return {
            "step_ms": round(statistics.median(times), 3),
            "worst_ms": round(max(times), 3),
            "peak_mib": round(torch.cuda.max_memory_allocated() / MIB, 1),
            "reserved_mib": round(torch.cuda.max_memory_reserved() / MIB, 1),
            "host_growth_mib": round((pinned_kib() - before) / 1024, 1),
        }


def compare(rounds: int, budget: int | None, say: Callable[[dict[str, Any]], None]) -> None:
    job = Job()
    job.times(contextlib.nullcontext, WARM)
    expected = job.bits(contextlib.nullcontext())
    resident = job.measure(contextlib.nullcontext, rounds)
    say({"variant": "resident", **resident})
    out, back = link_both()
    say({"variant": "link both ways at once", "out_gb_s": out / 1e9, "back_gb_s": back / 1e9})
    for limit in (None, budget or LAYERS * ROWS * WIDTH * 2):
        activations = sidestream.offload_activations(limit)
        found = job.measure(lambda one=activations: one, rounds)  # type: ignore[misc]
        told = activations.report()
        bits = job.bits(activations)
        # What leaves before the end of the forward pass lowers the peak, and the link can carry no more.
        is_free = limit is None and told.moves
        window = (told.forward_ms - told.moves[0].out_begins_ms) / 1e3 if is_free else 0
        both_ways = (out + back) * found["step_ms"] / 1e3
        say(
            {
                "variant": f"offload_activations({limit or ''})",
                **found,
                "of_resident": round(found["step_ms"] / resident["step_ms"], 4),
                "moved_mib_each_way": round(told.moved_bytes / MIB, 1),
                "moves": len(told.moves),
                "percent_of_link_in_forward": window and round(100 * told.moved_bytes / (out * window), 1),
                "percent_of_link_both_ways_in_step": round(200 * told.moved_bytes / both_ways, 1),
                "pinned_per_byte": round(found["host_growth_mib"] * MIB / max(1, told.pinned_bytes), 4),
                "kept_mib": round(told.kept_bytes / MIB, 1),
                "predicted_ms": round(told.predicted_ms, 3),
                "measured_ms": told.measured_ms and round(told.measured_ms, 3),
                "compute_ms": round(told.compute_ms, 3),
                "limit_ms": round(told.limit_ms, 3),
                "recompute_ms": round(told.recompute_ms, 3),
                "bits_equal": all(map(torch.equal, bits, expected)) and len(bits) == len(expected),
                "told": str(told),
            }
        )
        del activations
    found = job.measure(lambda: torch.autograd.graph.save_on_cpu(pin_memory=True), min(rounds, 5))
    say({"variant": "save_on_cpu(pin_memory=True)", **found})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--simulate", action="store_true", help="on sim:h200, without values")
    parser.add_argument("--budget", type=int, help="bytes of the second variant; half of all by default")
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()

    def say(found: dict[str, Any]) -> None:
        if asked.json:
            print(json.dumps(found), flush=True)
            return
        told = found.pop("told", "")
        print(", ".join(f"{name} {value}" for name, value in found.items()), told, sep="\n", flush=True)

    where = sidestream.simulate("sim:h200", shapes=True) if asked.simulate else contextlib.nullcontext()
    with where:
        compare(asked.rounds, asked.budget, say)


if __name__ == "__main__":
    main()
