"""Upload batches to the device before they are needed, with one line around any loader.

python examples/python/prefetch.py

The plain loop copies each batch when it is due, so the GPU waits for the copy. `sidestream.prefetch`
copies the next batches meanwhile, on a separate stream. The model, the optimizer and the loop do not
change, and neither do the losses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator

import torch

import sidestream

Batch = dict[str, torch.Tensor]


def loader(steps: int, batch: int) -> Iterator[Batch]:
    """Yield images and labels in pageable memory."""
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        images = torch.randint(0, 256, (batch, 3, 64, 64), dtype=torch.uint8, generator=random)
        yield {"images": images, "labels": torch.randint(0, 10, (batch,), generator=random)}


def by_hand(batches: Iterable[Batch], device: str) -> Iterator[Batch]:
    """Copy each batch when the loop requests it."""
    for batch in batches:
        yield {name: tensor.to(device) for name, tensor in batch.items()}


def train(batches: Iterable[Batch], device: str) -> tuple[list[float], float]:
    """Train a small model; return the losses and the elapsed seconds."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    ).to(device)
    model(torch.zeros(1, 3, 64, 64, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    start = time.perf_counter()
    for batch in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch["images"].float() / 255), batch["labels"])
        loss.backward()
        optimizer.step()
        # The loss stays on the device: `.item()` here would block the host in each step.
        losses.append(loss.detach())
    values = [loss.item() for loss in losses]
    return values, time.perf_counter() - start


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Prefetch batches to the device.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument("--steps", type=count, default=20)
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    batch = 256 if on_gpu else 32

    # The first run of a model selects its kernels, so it is not timed.
    train(by_hand(loader(3, batch), args.device), args.device)
    plain, plain_s = train(by_hand(loader(args.steps, batch), args.device), args.device)
    prefetched = sidestream.prefetch(loader(args.steps, batch), args.device)
    ours, ours_s = train(prefetched, args.device)

    print(f"by hand:   {args.steps / plain_s:8.1f} steps/s")
    print(f"prefetch:  {args.steps / ours_s:8.1f} steps/s")
    # Some kernels add in a different order each time.
    same = torch.allclose(torch.tensor(ours), torch.tensor(plain), rtol=1e-3)
    print("the losses are the same" if same else "THE LOSSES DIFFER")
    if on_gpu:
        print(prefetched.statistics)
    else:
        print(
            "this is the CPU: batches were read ahead, and nothing was copied; "
            "a GPU copies them meanwhile"
        )


if __name__ == "__main__":
    main()
