"""The loop of docs/tutorial.md on a GPU, in each of its forms: milliseconds a step, medians of rounds taken
in turn.

    python tutorial_gpu.py             # one JSON object a line
    python tutorial_gpu.py --dry       # tiny and on the processor, to see that it runs

A batch is 64 MiB of pageable memory and the step some 10 ms, so that everything the page replaces has
something to cost.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import sidestream
import torch

DRY = "--dry" in sys.argv
DEVICE = "cpu" if DRY else "cuda"
ROWS, WIDTH, LAYERS, STEPS, ROUNDS = (8, 16, 2, 3, 2) if DRY else (4096, 4096, 4, 30, 5)


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = [(torch.randn(ROWS, WIDTH), torch.randint(0, 10, (ROWS,))) for _ in range(4)]

    def loader() -> Iterable[Any]:
        return (kept[step % len(kept)] for step in range(STEPS))

    def train(batch: Any) -> torch.Tensor:
        x, y = batch
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def plain() -> float:
        total = 0.0
        for x, y in loader():
            total += train((x.to(DEVICE), y.to(DEVICE))).item()
        return total / STEPS

    def prefetched() -> float:
        total = 0.0
        for batch in sidestream.prefetch(loader(), DEVICE):
            total += train(batch).item()
        return total / STEPS

    def mean_kept() -> float:
        mean = sidestream.RunningMean()
        for batch in sidestream.prefetch(loader(), DEVICE):
            mean.update(train(batch))
        return float(mean.result())

    def no_uploads() -> float:
        batch = tuple(part.to(DEVICE) for part in kept[0])
        for _ in range(STEPS):
            train(batch)
        return 0.0

    forms: dict[str, Callable[[], float]] = {
        "plain": plain,
        "prefetch": prefetched,
        "prefetch, RunningMean": mean_kept,
        "step alone": no_uploads,
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for count in range(ROUNDS + 1):
        for name, form in forms.items():
            start = time.perf_counter()
            form()
            if not DRY:
                torch.cuda.synchronize()
            # The first round warms up.
            if count:
                times[name].append((time.perf_counter() - start) * 1e3 / STEPS)
    device = "processor" if DRY else torch.cuda.get_device_name()
    print(
        json.dumps(
            {
                "part": "tutorial",
                "device": device,
                "step_ms": {name: statistics.median(of) for name, of in times.items()},
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
