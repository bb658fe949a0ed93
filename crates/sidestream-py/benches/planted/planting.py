"""Code that the planted programs share. Each file of programs has its own list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Number of elements of a tensor that is large enough for races to show.
N = 1 << 20


def into(programs: list[Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds a program to a list."""

    def add(program: Any) -> Any:
        programs.append(program)
        return program

    return add


def side_and_main() -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return torch.cuda.Stream(), torch.cuda.current_stream()


def side_after_main() -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the main and the side stream. The side stream is ordered after the work enqueued so far in the
    main one.
    """
    side, main = side_and_main()
    side.wait_stream(main)
    return side, main


def weights(count: int = N) -> Any:
    return torch.ones(count, device="cuda", requires_grad=True)


def use_again(*homes: torch.cuda.Stream, count: int = N) -> None:
    """Allocate on these streams, to reuse the memory that was freed there."""
    for home in homes:
        with torch.cuda.stream(home):
            for _ in range(8):
                torch.zeros(count, device="cuda")


class Doubles(torch.autograd.Function):  # type: ignore[misc]
    """An autograd function whose backward the program defines."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2
