"""A frozen encoder and a decoder in training: the encoder works on the next batch while the decoder trains
on this one.

python examples/python/encoder_decoder.py --batch 8

By hand this takes two streams, waits in both directions and `record_stream`, and it is slower than one
stream if the batch is small. `sidestream.Pipeline` measures serial execution, streams, and CUDA graphs, and
keeps the fastest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import nn

import sidestream


def encoder(channels: list[int]) -> nn.Sequential:
    blocks = zip([3, *channels], channels)
    return nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in blocks
        )
    )


def decoder(channels: list[int], classes: int) -> nn.Sequential:
    down = channels[::-1]
    blocks = zip(down, [*down[1:], down[-1]])
    up = (
        nn.Sequential(nn.ConvTranspose2d(a, b, 2, stride=2), nn.BatchNorm2d(b), nn.ReLU()) for a, b in blocks
    )
    return nn.Sequential(*up, nn.Conv2d(down[-1], classes, 1))


def batches(steps: int, batch: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
    labels = torch.randint(0, 10, (batch, size, size))
    for _ in range(steps):
        yield images, labels


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="A frozen encoder and a decoder in training.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument("--steps", type=count, default=0, help="by default enough to measure")
    parser.add_argument("--batch", type=int, default=2)
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    steps = args.steps or (2_000 if on_gpu else 6)
    channels, size = ([32, 64, 128, 256, 512], 256) if on_gpu else ([8, 16], 32)

    torch.manual_seed(0)
    frozen = encoder(channels).eval().requires_grad_(False).to(args.device)
    trained = decoder(channels, 10).train().to(args.device)
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    def encode(item: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = item
        with torch.no_grad():
            return frozen(images.float()), labels

    def train(item: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        features, labels = item
        optimizer.zero_grad()
        loss = criterion(trained(features), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # Captured stages run their Python code only at first. SGD can be captured unchanged; see
    # docs/guide/pipelines.md.
    pipe = sidestream.Pipeline([encode, train], device=args.device, capture=on_gpu)
    start = time.perf_counter()
    losses = torch.stack(list(pipe(batches(steps, args.batch, size)))).cpu()
    seconds = time.perf_counter() - start
    print(f"{steps} steps of batch {args.batch}: {steps / seconds:.1f} a second, including the measurement")
    print(f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}")
    print(pipe.choice)
    if not on_gpu:
        print("on a GPU it measures streams and CUDA graphs as well, at the full size of the model")


if __name__ == "__main__":
    main()
