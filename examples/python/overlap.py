"""Predict the gain of overlapping copies with computation, before you write any of it.

python examples/python/overlap.py
python examples/python/overlap.py --device cuda:0 --batch 32MiB --work 16384

A job of uploads, kernels and downloads is run in every usual arrangement of streams. Without a GPU, a
simulated NVIDIA H200 runs it: describe your own job with --batch, --steps and --work, and see whether
overlapping is worth the effort.
"""

from __future__ import annotations

import argparse

import sidestream


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the gain of overlapping for a job.")
    parser.add_argument("--device", default="auto", help="a GPU if there is one, else the simulated H200")
    parser.add_argument("--steps", type=count, default=32, help="how many batches")
    parser.add_argument("--batch", default="4MiB", help="the size of a batch")
    parser.add_argument(
        "--work", type=int, default=4096, help="multiplications and additions for each four bytes"
    )
    args = parser.parse_args()
    # Python functions do not run on a simulated GPU, but this job does.
    device = "sim:h200" if args.device == "cpu" else args.device

    result = sidestream.overlap(device, batch=args.batch, count=args.steps, work=args.work)
    print(result)

    one = next(row for row in result.rows if row.layout == "streams" and row.k == 1)
    best = min(result.rows, key=lambda row: row.time_ns)
    print(f"\none stream takes {one.time_ns / 1e6:.3f} ms, the best arrangement {best.time_ns / 1e6:.3f} ms:")
    print(
        f"{one.time_ns / best.time_ns:.2f} times as fast, {100 * best.share:.0f} % of what the engines allow"
    )
    if device.startswith("sim:"):
        print("this was a simulated GPU; --device cuda:0 measures a real one")


if __name__ == "__main__":
    main()
