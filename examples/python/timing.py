"""The time of a function: by the clock around the call, and by events on the device.

python examples/python/timing.py

A PyTorch call returns once the work is enqueued. The clock around it measures only the enqueueing, regardless
of the size of the work. `sidestream.benchmark` measures the device with events and the host separately, which
shows which of the two is slower.
"""

from __future__ import annotations

import argparse
import time

import torch

import sidestream


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a function on the device.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument("--steps", type=count, default=20, help="how many samples")
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    size = 4096 if on_gpu else 256
    a, b = torch.randn(2, size, size, device=args.device).unbind()

    def product() -> torch.Tensor:
        return a @ b

    def small_layers() -> torch.Tensor:
        x = a[:1]
        for _ in range(20):
            x = torch.relu(x + 1)
        return x

    product()
    start = time.perf_counter()
    product()
    print(f"the clock around one product: {(time.perf_counter() - start) * 1e6:.0f} µs")
    print()
    # A product of two such matrices multiplies and adds size^3 times.
    print(sidestream.benchmark(product, repeat=args.steps, flops=2 * size**3, device=args.device))
    print()
    layers = sidestream.benchmark(small_layers, repeat=args.steps, device=args.device)
    print(layers)
    if layers.is_launch_bound:
        print("streams would gain nothing here: the host is the limit")
    if not on_gpu:
        print("this is the CPU, where the clock measures both; on a GPU the two differ")


if __name__ == "__main__":
    main()
