"""The loop of docs/tutorial.md on a GPU, in each of its forms: milliseconds a step, medians of rounds taken
in turn.

    python tutorial_gpu.py             # one JSON object a line
    python tutorial_gpu.py --dry       # tiny and on the processor, to see that it runs

A batch is 64 MiB of pageable memory and the step some 10 ms, so that everything the page replaces has
something to cost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import sidestream
import torch
from planted.models import perceptron, trained
from timing import medians

DRY = "--dry" in sys.argv
DEVICE = "cpu" if DRY else "cuda"
ROWS, WIDTH, LAYERS, STEPS, ROUNDS = (8, 16, 2, 3, 2) if DRY else (4096, 4096, 4, 30, 5)


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = perceptron(LAYERS, WIDTH, 10).to(DEVICE)
    step = trained(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.nn.functional.cross_entropy)
    kept = [(torch.randn(ROWS, WIDTH), torch.randint(0, 10, (ROWS,))) for _ in range(4)]

    def loader() -> Iterable[Any]:
        return (kept[at % len(kept)] for at in range(STEPS))

    def plain() -> float:
        total = 0.0
        for x, y in loader():
            total += step(x.to(DEVICE), y.to(DEVICE)).item()
        return total / STEPS

    def prefetched() -> float:
        total = 0.0
        for batch in sidestream.prefetch(loader(), DEVICE):
            total += step(*batch).item()
        return total / STEPS

    def mean_kept() -> float:
        mean = sidestream.RunningMean()
        for batch in sidestream.prefetch(loader(), DEVICE):
            mean.update(step(*batch))
        return float(mean.result())

    def no_uploads() -> float:
        batch = tuple(part.to(DEVICE) for part in kept[0])
        for _ in range(STEPS):
            step(*batch)
        return 0.0

    forms: dict[str, Callable[[], float]] = {
        "plain": plain,
        "prefetch": prefetched,
        "prefetch, RunningMean": mean_kept,
        "step alone": no_uploads,
    }
    device = "processor" if DRY else torch.cuda.get_device_name()
    step_ms = {name: took * 1e3 / STEPS for name, took in medians(forms, ROUNDS).items()}
    print(json.dumps({"part": "tutorial", "device": device, "step_ms": step_ms}), flush=True)


if __name__ == "__main__":
    main()
