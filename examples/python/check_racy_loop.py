"""A double-buffering loop with both of its waits missing, found by the checker, and its fixed form.

python examples/python/check_racy_loop.py

The loop copies the next batch on a side stream while the model reads this one. Nothing makes the model wait
for its batch, and nothing keeps the copy from overwriting a batch that is still being read. The loop may
well compute correct results, and the checker finds the races all the same. Without a GPU the loop is
checked on a simulated one, and without PyTorch as a stream program.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sidestream

#: The folder with the loop as a list of CUDA calls, for machines without PyTorch.
PROGRAMS = Path(__file__).parents[1] / "streams"


def double_buffered(steps: int, device: str, repaired: bool) -> None:
    """Run the loop in PyTorch."""
    import torch

    model = torch.nn.Linear(1024, 1024, device=device)
    batches = [torch.randn(1024, 1024).pin_memory() for _ in range(steps)]
    slots = [torch.empty(1024, 1024, device=device) for _ in range(2)]
    filled, read = ([torch.cuda.Event() for _ in slots] for _ in range(2))
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)  # The slots were allocated on main.

    def fill(step: int) -> None:
        with torch.cuda.stream(side):
            if repaired:
                side.wait_event(read[step % 2])
            slots[step % 2].copy_(batches[step], non_blocking=True)
            filled[step % 2].record(side)

    fill(0)
    for step in range(steps):
        if step + 1 < steps:
            fill(step + 1)
        if repaired:
            main.wait_event(filled[step % 2])
        model(slots[step % 2])
        read[step % 2].record(main)
    torch.cuda.synchronize()


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="A racy loop, and the report of the checker.")
    parser.add_argument("--device", help="cuda; simulated; or cpu, for the stream program")
    parser.add_argument("--steps", type=count, default=4)
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    device = args.device or default_device()
    if device == "cpu":
        print(
            "the same loop as a stream program, which needs neither a GPU nor PyTorch; "
            "--device simulated checks the loop itself\n"
        )
        for name, form in (("as it is often written", "racy"), ("repaired", "fixed")):
            program = sidestream.check_program(PROGRAMS / f"double_buffer_torch.{form}.yaml")
            print(f"{name}: {len(program.races)} races")
            print(program, end="\n\n")
        return
    for name, repaired in (("as it is often written", False), ("repaired", True)):
        with sidestream.check(simulate=device == "simulated") as report:
            double_buffered(args.steps, "cuda" if device == "simulated" else device, repaired)
        print(f"{name}: {len(report.races)} races")
        print(report, end="\n\n")


def default_device() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "simulated"


if __name__ == "__main__":
    main()
