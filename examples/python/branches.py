"""Independent branches of a model, run concurrently.

python examples/python/branches.py

Two convolutions take the same input. A new stream for each of them in every `forward`, as is often seen, is
slow and wrong: the branches do not wait for the input, and the memory of one may be reused while the other
reads it. Here a tuple of stages has the branches, and the next stage gets the tuple of their results.
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Parallel branches of a model.")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu"
    )
    parser.add_argument(
        "--steps", type=count, default=0, help="how many images; by default enough to measure"
    )
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    on_gpu = args.device != "cpu"
    steps = args.steps or (1_000 if on_gpu else 10)
    size = 256 if on_gpu else 64

    torch.manual_seed(0)
    near = torch.nn.Conv2d(3, 64, kernel_size=3, padding=1).requires_grad_(False).to(args.device)
    far = torch.nn.Conv2d(3, 64, kernel_size=3, padding=2, dilation=2).requires_grad_(False).to(args.device)
    images = [torch.rand(1, 3, size, size) for _ in range(4)]

    def left(image: torch.Tensor) -> torch.Tensor:
        return near(image).relu()

    def right(image: torch.Tensor) -> torch.Tensor:
        return far(image).relu()

    def join(both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.cat(both, dim=1).mean(dim=(2, 3))

    pipe = sidestream.Pipeline([(left, right), join], device=args.device, capture=on_gpu)
    results = list(pipe(images[at % len(images)] for at in range(steps)))

    expected = [join((left(image), right(image))) for image in (image.to(args.device) for image in images)]
    close = all(torch.allclose(one, expected[at % len(images)], atol=1e-5) for at, one in enumerate(results))
    print(f"{len(results)} images through two branches and the stage that joins them")
    print("the results are those of one branch after the other" if close else "THE RESULTS DIFFER")
    print(pipe.choice)
    if not on_gpu:
        print(
            "a GPU would run both branches at once; kernels that fill it alone gain nothing, "
            "and then it says serial"
        )


if __name__ == "__main__":
    main()
