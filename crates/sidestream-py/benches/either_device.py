"""Shared by ``truth_gpu.py`` and ``decode_gpu.py``: a GPU or, for a smoke test, the CPU instead.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

#: One step of a loop, which takes the step's index.
Step = Callable[[int], None]


class Nothing:
    """Replaces streams and events where there is no GPU."""

    def __getattr__(self, name: str) -> Callable[..., Nothing]:
        return lambda *_args, **_named: self


class Machine:
    """The device that the option ``--device`` names: "cuda" or "cpu"."""

    def __init__(self, name: str) -> None:
        self.is_cuda = name == "cuda"
        self.device = torch.device("cuda:0" if self.is_cuda else "cpu")

    def side_stream(self) -> Any:
        return torch.cuda.Stream() if self.is_cuda else Nothing()

    def current(self) -> Any:
        return torch.cuda.current_stream() if self.is_cuda else Nothing()

    def on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream) if self.is_cuda else contextlib.nullcontext()

    def event(self) -> Any:
        return torch.cuda.Event() if self.is_cuda else Nothing()

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def busy(self, seconds: float) -> int:
        """Run Python code on the CPU for this many seconds, as the program's own work."""
        end, turns = time.perf_counter() + (seconds if self.is_cuda else 1e-5), 0
        while time.perf_counter() < end:
            turns += 1
        return turns

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """Capture the work as a graph."""
        if not self.is_cuda:
            return work
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def timed_ms(self, step: Step, warm_up: int, first: int, steps: int, windows: int) -> float:
        """Return the median step time of `windows` windows of `steps` steps each, after some warm-up
        windows.
        """
        for at in range(warm_up):
            step(at)
        self.synchronize()
        times, at = [], first
        for _ in range(windows if self.is_cuda else 1):
            begun = time.perf_counter()
            for _ in range(steps):
                step(at)
                at += 1
            self.synchronize()
            times.append((time.perf_counter() - begun) / steps * 1e3)
        return statistics.median(times)
