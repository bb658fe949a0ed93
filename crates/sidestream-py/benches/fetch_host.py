"""What a call of `fetch` and `RunningMean.update` costs the host in its own code: on a simulated GPU, beside PyTorch's calls alone. Needs no GPU.

    python crates/sidestream-py/benches/fetch_host.py [--quick]

One JSON object: microseconds of processor time a call, the least of seven turns. A simulated GPU with the check listening takes ten times as long for each
of PyTorch's calls as a real one, so what a change does counts here, and not the figures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

import sidestream

TIMES = 20 if "--quick" in sys.argv else 400


def least(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(7):
        start = time.thread_time()
        for _ in range(TIMES):
            call()
        best = min(best, (time.thread_time() - start) / TIMES)
    return round(best * 1e6, 2)


def main() -> None:
    with sidestream.check(simulate=1):
        x = torch.ones((), device="cuda", requires_grad=True) * 2
        many = [torch.ones(8, device="cuda") for _ in range(10)]
        mean, read = sidestream.RunningMean(), sidestream.RunningMean()

        def asked() -> None:
            read.update(x)
            read.value()

        rows: dict[str, Callable[[], object]] = {
            "clone": lambda: x.detach().clone(),
            "fetch": lambda: sidestream.fetch(x),
            "fetch_in_place": lambda: sidestream.fetch(x.detach(), snapshot=False),
            "fetch_ten": lambda: sidestream.fetch(many),
            "update": lambda: mean.update(x),
            "update_and_value": asked,
        }
        said = {f"{name}_us": least(call) for name, call in rows.items()}
    print(json.dumps({"part": "host", "torch": torch.__version__} | said))


if __name__ == "__main__":
    main()
