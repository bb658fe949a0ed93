"""Times two training steps in PyTorch plainly, under the checks of any program, and under memcheck.

A step of 20 linear layers (batch 64, 512 wide, SGD) is bound by the host, one of large fp32 products by the
accesses of its kernels. Each figure is the mean of 20 steps after 3, the best of some runs.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "programs"))
from run import execute

WARM_UP, STEPS = 3, 20
#: The command before the program, and the most that it may cost by the two steps.
MODES: dict[str, tuple[list[str], dict[str, float]]] = {
    "plain": ([], {}),
    "check --light": (["sidestream", "check", "--light", "--"], {}),
    "check": (["sidestream", "check", "--"], {}),
    "check --exact": (["sidestream", "check", "--exact", "--"], {"layers": 6, "products": 25}),
    "check --exact=first": (["sidestream", "check", "--exact=first", "--"], {"layers": 2, "products": 2}),
    "memcheck": (["compute-sanitizer", "--tool", "memcheck"], {}),
}


def layers() -> Callable[[], object]:
    """Returns an eager training step of 20 linear layers."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(20)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch, target = torch.randn(64, 512, device="cuda"), torch.randn(64, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()

    return step


def products() -> Callable[[], object]:
    """Returns a step of four large products in fp32, each through the last."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    first, by = (torch.randn(8192, 8192, device="cuda") for _ in range(2))

    def step() -> None:
        c = first
        for _ in range(4):
            c = torch.tanh((c @ by) * 1e-2)

    return step


JOBS = {"layers": layers, "products": products}


def timed(step: Callable[[], object]) -> float:
    """Returns the milliseconds of a step."""
    import torch

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / STEPS


def measured(command: list[str], job: str, runs: int) -> float | str:
    """Returns the milliseconds of a step in the best of some runs, or why there are none."""
    times = []
    for _ in range(runs):
        code, out, err = execute([*command, sys.executable, __file__, "--step", job], 580)
        if not (said := re.search(r"^step ([0-9.]+) ms$", out, re.MULTILINE)):
            return f"exit {code}: {' '.join((out + err).split())[-200:]}"
        times.append(float(said[1]))
    return min(times)


def main() -> int:
    """Prints a row for each step and mode; returns 1 if one cost more than it may, or did not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--sidestream", default="sidestream")
    parser.add_argument("--memcheck", action="store_true", help="also compute-sanitizer's memcheck")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--step", choices=JOBS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(f"step {timed(JOBS[options.step]()):.3f} ms", flush=True)
        return 0
    code = 0
    for job in options.jobs:
        plain = 0.0
        for mode, (command, bounds) in MODES.items():
            if mode == "memcheck" and not options.memcheck:
                continue
            command = [options.sidestream if word == "sidestream" else word for word in command]
            ms = measured(command, job, options.runs)
            if isinstance(ms, str):
                code, text = 1, ms
            else:
                plain = plain or ms
                bound = bounds.get(job, 0)
                is_within = not bound or ms <= bound * plain
                code |= int(not is_within)
                text = f"{ms:9.2f} ms {ms / plain:6.2f} x {f'at most {bound}' if bound else ''}"
                text += "" if is_within else " TOO MUCH"
            print(f"{job:9} {mode:20} {text}".rstrip(), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
