"""The stages of a pipeline, and the levels of stages that run in parallel. Does not use PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sidestream._arguments import truth


class Stage:
    """One stage of a pipeline: a callable that takes the result of the previous stage.

    **A captured stage** runs its Python code for the first three items and once for each slot; after that its
    captured kernels are replayed. Everything else that the code did is frozen: prints, counters, a learning
    rate that is a Python number, a branch that was taken. The tensors that the stage uses must keep their
    addresses: load weights with ``load_state_dict`` or ``copy_``, and do not set ``.grad = None`` from
    outside. ``.item()``, ``.cpu()`` and sizes that depend on data cannot be captured; such a stage runs
    without a graph, and ``Pipeline.choice`` says why. So does an item of another shape. Dropout draws new
    numbers at each replay; if two captured stages draw random numbers, one of them runs without a graph while
    stages overlap. SGD can be captured unchanged, Adam with ``capturable=True``. Each slot has a graph with
    its own memory, so a captured stage takes ``depth`` times the memory that it needs.

    Args:
        call: The callable that runs for each item. It may return nested tuples, lists and dictionaries of
            tensors that require no grad, and anything else. It must not keep its input tensors after the
            call, but it may keep copies.
        name: The name of the stage in reports and errors; by default the name of the callable.
        capture: Whether the stage is captured into CUDA graphs; by default as the pipeline says.
    """

    def __init__(
        self, call: Callable[[Any], Any], *, name: str | None = None, capture: bool | None = None
    ) -> None:
        """Check the arguments and name the stage."""
        if not callable(call):
            raise TypeError(f"a stage is a callable that takes one item, and this is {type(call).__name__}")
        if capture is not None:
            truth("capture", capture)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {name!r}; give a string, or leave it out")
        self.call = call
        self.name: str = name or getattr(call, "__name__", None) or type(call).__name__
        self.capture = capture

    def __repr__(self) -> str:
        return f"Stage({self.name})"


class StageError(RuntimeError):
    """A stage of a pipeline failed. The stage's own error is the ``__cause__``. The attributes are ``stage``
    (the name), ``item`` (the index of the item in its run, starting at 0) and ``what`` (the message).
    """

    # The module from which users import this class, and that tracebacks show.
    __module__ = "sidestream"

    def __init__(self, stage: str, item: int, what: str) -> None:
        """Name the stage and the item, counted from 0 in its run."""
        super().__init__(stage, item, what)
        self.stage = stage
        self.item = item
        self.what = what

    def add(self, more: str) -> None:
        """Append advice to the message."""
        self.what += more
        self.args = (self.stage, self.item, self.what)

    def __str__(self) -> str:
        return f"stage `{self.stage}`, item {self.item}: {self.what}"


@dataclass(frozen=True)
class Chain:
    """The stages of a pipeline, numbered in the order in which they are issued, and their levels."""

    stages: tuple[Stage, ...]
    #: The numbers of the stages, level by level. A level with several stages has parallel branches.
    levels: tuple[tuple[int, ...], ...]
    #: Whether a level passes on a tuple of results; a tuple with one stage does, too.
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
    """Number the stages of a list, in which a tuple is a level of parallel branches."""
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
                "run concurrently"
            )
        first = len(flat)
        for one in level:
            if not callable(one) and not isinstance(one, Stage):
                raise TypeError(
                    f"a stage is a callable that takes one item, and the one at place {len(levels)} is "
                    f"{type(one).__name__}; a tuple in the list is a level of branches, and branches contain "
                    "no lists"
                )
            flat.append(one if isinstance(one, Stage) else Stage(one))
        levels.append(tuple(range(first, len(flat))))
        branches.append(isinstance(entry, tuple))
    if not levels:
        raise ValueError("a pipeline has at least one stage, and the list is empty")
    return Chain(tuple(flat), tuple(levels), tuple(branches))
