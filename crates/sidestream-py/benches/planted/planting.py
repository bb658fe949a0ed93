"""What the planted programs share. Each file of them has a list of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: The numbers of a tensor that is large enough to show.
N = 1 << 20


def into(programs: list[Any]) -> Callable[[Any], Any]:
    """A decorator that adds a program to a list."""

    def add(program: Any) -> Any:
        programs.append(program)
        return program

    return add


def side_and_main() -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return torch.cuda.Stream(), torch.cuda.current_stream()
