"""Times of work, including its work on the device. Without a GPU, the CPU is the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(run: Callable[[], object]) -> float:
    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - start


def medians(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each variant. Each round runs all of them, after one round that does not
    count.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for at in range(rounds + 1):
        for name, run in runs.items():
            took = seconds(run)
            if at:
                times[name].append(took)
    return {name: statistics.median(took) for name, took in times.items()}
