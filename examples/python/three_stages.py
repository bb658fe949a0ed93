"""Three stages of a computation, each on the result of the previous one, for a series of inputs.

python examples/python/three_stages.py

Put on three streams by hand, as is often seen, this is wrong: nothing makes the second stream wait for the
first, and PyTorch does not either. `sidestream.Pipeline` adds the waits, runs stage 1 of the next input
concurrently with stage 2 of this one, and keeps that only if a measurement shows that it is faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import sidestream


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Stages of a computation, run concurrently.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument(
        "--steps", type=count, default=0, help="how many inputs; by default enough to measure"
    )
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    steps = args.steps or (2_000 if on_gpu else 20)
    size = 512 if on_gpu else 64

    torch.manual_seed(0)
    inputs = [torch.randn(size, size) for _ in range(8)]
    inputs = [inputs[at % len(inputs)] for at in range(steps)]
    weights = [torch.randn(size, size, device=args.device) / size**0.5 for _ in range(3)]

    def stage(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.relu(x @ weight)

    stages = [sidestream.Stage(stage(weight), name=f"stage {at}") for at, weight in enumerate(weights)]
    pipe = sidestream.Pipeline(stages, device=args.device, capture=on_gpu)

    start = time.perf_counter()
    # The inputs are on the host: the pipeline uploads them. The sum is a kernel on the current stream, which
    # waits for the results.
    sums = torch.stack([result.sum() for result in pipe(inputs)]).cpu()
    seconds = time.perf_counter() - start

    expected = []
    for x in inputs:
        x = x.to(args.device)
        for one in stages:
            x = one.call(x)
        expected.append(x.sum())
    print(f"{steps} inputs through three stages: {steps / seconds:.0f} a second, including the measurement")
    same = torch.allclose(sums, torch.stack(expected).cpu(), rtol=1e-4)
    print("the results are those of a plain loop" if same else "THE RESULTS DIFFER")
    print(pipe.choice)
    if not on_gpu:
        print("a GPU would run the stages of three inputs at once, where that is faster")


if __name__ == "__main__":
    main()
