"""Several models on one input, and trained by one optimizer.

python examples/python/ensemble.py

The models of an ensemble do not depend on each other, so on a GPU that none of them fills they can run
concurrently. By hand this takes a stream for each model, waits at both ends, and `record_stream` for tensors
that are freed in the backward pass. Here one module wraps all of them.
"""

from __future__ import annotations

import argparse

import torch

import sidestream


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def model(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="An ensemble of models.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument(
        "--steps", type=count, default=0, help="how many steps of training; by default enough to measure"
    )
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    steps = args.steps or (2_000 if on_gpu else 20)

    torch.manual_seed(0)
    width = 1024 if on_gpu else 64
    ensemble = sidestream.parallel(*(model(width) for _ in range(4))).to(args.device)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    x = torch.randn(256, 64, device=args.device)
    labels = torch.randint(10, (256,), device=args.device)
    losses = sidestream.RunningMean()
    first = None
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.stack(
            [torch.nn.functional.cross_entropy(scores, labels) for scores in ensemble(x)]
        ).mean()
        loss.backward()
        optimizer.step()
        losses.update(loss)
        first = first or sidestream.fetch(loss)
    training = ensemble.choice

    with torch.no_grad():
        together = torch.stack([scores.softmax(1) for scores in ensemble(x)]).mean(0)
        alone = torch.stack([one(x).softmax(1) for one in ensemble.children()]).mean(0)
    assert first is not None
    print(
        f"{steps} steps of 4 models with one optimizer: the loss was {first.result():.3f} at first and "
        f"{losses.result():.3f} in the mean"
    )
    print(
        "the mean of the four is that of one model after the other"
        if torch.allclose(together, alone, atol=1e-5)
        else "THE RESULTS DIFFER"
    )
    print(training)
    if not on_gpu:
        print("a GPU would run the models concurrently, if a measurement shows that this is faster")


if __name__ == "__main__":
    main()
