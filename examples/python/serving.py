"""Requests of one row each: one by one, over a pool of streams, and as one batch.

python examples/python/serving.py

A pool of streams that take requests in turn is often seen. It is correct if each stream waits for its
request and the caller waits for the streams. It gains little for small requests: then the host's launches are
the limit, which streams do not change. One batch of all requests does, and if they come one by one from many
callers, a `sidestream.Batcher` makes batches of those that arrive together: serve_http.py has one behind
HTTP.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import sidestream


def one_by_one(model: torch.nn.Module, requests: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([model(request) for request in requests])


def over_streams(
    model: torch.nn.Module, requests: list[torch.Tensor], pool: list[sidestream.Stream]
) -> torch.Tensor:
    caller = torch.cuda.current_stream()
    for stream in pool:
        stream.wait_stream(caller)  # The requests were made there.
    answers = []
    for at, request in enumerate(requests):
        with pool[at % len(pool)]:
            answers.append(model(request))
    for stream in pool:
        caller.wait_stream(stream.torch())
    for answer in answers:
        answer.record_stream(caller)  # It was allocated on a stream of the pool.
    return torch.cat(answers)


def batched(model: torch.nn.Module, requests: list[torch.Tensor]) -> torch.Tensor:
    return model(torch.cat(requests))


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Serving requests: streams and batching.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument("--steps", type=count, default=256, help="how many requests")
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(8)]
    model = torch.nn.Sequential(*layers).eval().requires_grad_(False).to(args.device)
    requests = [torch.randn(1, 512, device=args.device) for _ in range(args.steps)]
    expected = one_by_one(model, requests)

    def timed(name: str, answer: Callable[[], torch.Tensor]) -> float:
        answer()  # One run to select the kernels.
        start = time.perf_counter()
        answers = answer().cpu()  # Waits for the device.
        rate: float = args.steps / (time.perf_counter() - start)
        right = torch.allclose(answers, expected.cpu(), atol=1e-4)
        print(f"{name:22} {rate:10.0f} requests/s{'' if right else '  WRONG ANSWERS'}")
        return rate

    alone = timed("one by one", lambda: one_by_one(model, requests))
    for many in (2, 4, 8) if on_gpu else ():
        pool = [sidestream.Stream(args.device, name="pool") for _ in range(many)]
        timed(f"over {many} streams", lambda: over_streams(model, requests, pool))
    together = timed("one batch of all", lambda: batched(model, requests))
    print(f"batching: {together / alone:.1f} times as many requests as one by one")
    if not on_gpu:
        print("streams need a GPU: there this also measures pools of 2, 4 and 8")


if __name__ == "__main__":
    main()
