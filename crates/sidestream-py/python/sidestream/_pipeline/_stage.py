"""Stages, and how they stand to one another. Knows nothing of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sidestream._arguments import truth


class Stage:
    """One stage of a pipeline: a callable that takes what the stage before it returned.

    Args:
        call: What runs for each item. It may return nested tuples, lists and dictionaries of tensors that
            require no grad, and anything else. It must not keep the tensors that it is given beyond its call;
            it may keep copies.
        name: What reports and errors call it; by default the name of the callable.
        capture: Whether it is captured into CUDA graphs. Then its Python code runs only for the first items
            and the captures, and what it launched there is replayed for every further item. By default what
            the pipeline says.
    """

    def __init__(
        self, call: Callable[[Any], Any], *, name: str | None = None, capture: bool | None = None
    ) -> None:
        """Name the stage and check what it is made of."""
        if not callable(call):
            raise TypeError(f"a stage is a callable that takes one item, and this is {type(call).__name__}")
        if capture is not None:
            truth("capture", capture)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {name!r}; give a text, or leave it out")
        self.call = call
        self.name: str = name or getattr(call, "__name__", None) or type(call).__name__
        self.capture = capture

    def __repr__(self) -> str:
        return f"Stage({self.name})"


class StageError(RuntimeError):
    """A stage failed. The error that it raised is the ``__cause__``."""

    # Where users find it, and what a traceback shows.
    __module__ = "sidestream"

    def __init__(self, stage: str, item: int, what: str) -> None:
        """Name the stage and the item, counted from 0 in its run."""
        super().__init__(stage, item, what)
        self.stage = stage
        self.item = item
        self.what = what

    def add(self, more: str) -> None:
        """Say more of what went wrong."""
        self.what += more
        self.args = (self.stage, self.item, self.what)

    def __str__(self) -> str:
        return f"stage `{self.stage}`, item {self.item}: {self.what}"


@dataclass(frozen=True)
class Chain:
    """Which stages there are, numbered in the order in which they are issued, and which of them run side by
    side.
    """

    stages: tuple[Stage, ...]
    #: The numbers of the stages, level by level. A level with several is one of parallel branches.
    levels: tuple[tuple[int, ...], ...]
    #: Whether a level hands on a tuple of results, which a tuple of one stage does, too.
    branches: tuple[bool, ...]

    def __str__(self) -> str:
        return " > ".join(
            (
                f"({', '.join(self.stages[number].name for number in level)})"
                if tied
                else self.stages[level[0]].name
            )
            for level, tied in zip(self.levels, self.branches, strict=True)
        )


def chain(stages: Iterable[Any]) -> Chain:
    """Number the stages of a list in which a tuple stands for parallel branches."""
    if callable(stages) or isinstance(stages, Stage):
        raise TypeError("a pipeline takes a list of stages; put the one stage into a list")
    if not isinstance(stages, Iterable):
        raise TypeError(f"stages is {stages!r}; give a list of callables")
    flat: list[Stage] = []
    levels: list[tuple[int, ...]] = []
    branches: list[bool] = []
    for entry in stages:
        level = entry if isinstance(entry, tuple) else (entry,)
        if not level:
            raise ValueError(
                f"the tuple at place {len(levels)} of the stages is empty; a tuple holds the branches that "
                "run side by side"
            )
        first = len(flat)
        for one in level:
            if not callable(one) and not isinstance(one, Stage):
                raise TypeError(
                    f"a stage is a callable that takes one item, and the one at place {len(levels)} is "
                    f"{type(one).__name__}; a tuple in the list is a level of branches, and branches hold no "
                    "lists of their own"
                )
            flat.append(one if isinstance(one, Stage) else Stage(one))
        levels.append(tuple(range(first, len(flat))))
        branches.append(isinstance(entry, tuple))
    if not levels:
        raise ValueError("a pipeline has at least one stage, and the list is empty")
    return Chain(tuple(flat), tuple(levels), tuple(branches))
