"""Explain why a GPU idled, from a trace of PyTorch's profiler, and predict the gain of a change.

python examples/python/diagnose_trace.py
python examples/python/diagnose_trace.py my_trace.json --what-if pinned,no-sync

With a GPU and without a file, a small loop with a mistake is recorded. Without a GPU, a trace that was
recorded on an H200 is read: reading needs neither a GPU nor PyTorch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sidestream

#: An upload from pinned memory in the stream of the kernels.
RECORDED = Path(__file__).parents[1] / "traces" / "copy_bound.before.json.gz"


def recorded_here(steps: int, what_if: str | None) -> sidestream.Diagnosis | None:
    """Record a loop whose batches are not pinned, so that each copy blocks the host."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
    batch = torch.randn(4096, 2048)
    with sidestream.profile(what_if=what_if) as profile:
        for _ in range(steps):
            model(batch.to("cuda", non_blocking=True)).sum().backward()
            profile.step()
    if profile.diagnosis is None:
        print(f"{profile.problem}; reading a trace from another machine instead")
    return profile.diagnosis


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Diagnose a trace.")
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument(
        "--device", help="cuda to record a loop, cpu to read a file; by default whichever is available"
    )
    parser.add_argument("--steps", type=count, default=12, help="steps of the recorded loop")
    parser.add_argument("--what-if", help="changes to predict together, such as pinned,prefetch=2")
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    path, device = args.trace, args.device or default_device()
    report = None
    if path is None and device != "cpu":
        report = recorded_here(args.steps, args.what_if)
    if report is None:
        report = sidestream.diagnose(path or RECORDED, what_if=args.what_if)
    print(report)
    if not isinstance(report, sidestream.Diagnosis):
        return  # A folder: the summary of its traces was printed.

    # The findings are also available as values, for a program to use.
    for finding in report.findings:
        print(f"{finding.code}: worth {finding.saving_ns.likely / 1e6:.2f} ms of a step")
    for guess in report.what_if:
        print(f"with {' and '.join(guess.changes)} a step would take {100 * guess.ratio:.0f} % of its time")


def default_device() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    main()
