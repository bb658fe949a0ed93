"""The flow of items through the stages, which all modes share, and serial execution on the CPU."""

from __future__ import annotations

from typing import Any

from sidestream._pipeline._stage import Chain, StageError
from sidestream._pipeline._upload import PLAIN, is_plain, leaves_of
from sidestream._tree import tensors_of


class Flow:
    """Returns the input of each stage, and the result at the end."""

    def __init__(self, chain: Chain) -> None:
        """Take the levels of a chain."""
        self.stages = chain.stages
        self.levels = chain.levels
        self._before: list[tuple[tuple[int, ...], bool] | None] = []
        for level in range(len(chain.levels)):
            before = (chain.levels[level - 1], chain.branches[level - 1]) if level else None
            self._before += [before] * len(chain.levels[level])
        self._last = (chain.levels[-1], chain.branches[-1])
        self._levels = tuple(zip(chain.levels, chain.branches))

    def given(self, number: int, item: Any, values: list[Any]) -> Any:
        """Return the input of a stage: the item, or the output of the previous level."""
        before = self._before[number]
        return item if before is None else _of_level(before, values)

    def result(self, values: list[Any]) -> Any:
        """Return the output of the last level."""
        return _of_level(self._last, values)

    def through(self, item: int, value: Any) -> Any:
        """Run an item through all stages, one after another, and return the output of the last level.

        Raises:
            StageError: As ``call``.
        """
        for level, tied in self._levels:
            if tied:
                value = tuple([self.call(number, item, value) for number in level])
            else:
                value = self.call(level[0], item, value)
        return value

    def call(self, number: int, item: int, value: Any) -> Any:
        """Call a stage, and refuse results with an autograd graph.

        Raises:
            StageError: The stage raised an error, or returned a tensor that requires grad.
        """
        stage = self.stages[number]
        try:
            output = stage.call(value)
        except Exception as error:
            raise StageError(stage.name, item, f"{type(error).__name__}: {error}") from error
        if _requires_grad(output):
            raise StageError(
                stage.name,
                item,
                "it returned a tensor that requires grad, and a backward pass must not reach into another "
                "stage; return `.detach()` of it, or compute it under `torch.no_grad()`",
            )
        return output


class OnProcessor:
    """Runs the stages one after another on the CPU."""

    def __init__(self, chain: Chain) -> None:
        """Take the stages."""
        self._flow = Flow(chain)

    def issue(self, number: int, item: Any) -> tuple[Any, None]:
        """Run an item through all stages and return the result, which is complete."""
        if not is_plain(item):
            shape, leaves, changed = leaves_of(item)
            item = shape.unflatten(leaves) if changed else item
        return self._flow.through(number, item), None


def _requires_grad(output: Any) -> bool:
    # Most results do not need `tensors_of`; `is_plain` explains why it is avoided.
    kind = type(output)
    if kind is PLAIN:
        return bool(output.requires_grad)
    if kind is tuple or kind is list:
        for value in output:  # noqa: SIM110 - `any` would make a generator.
            if _requires_grad(value):
                return True
        return False
    return any(leaf.requires_grad for leaf in tensors_of(output)[0])


def _of_level(level: tuple[tuple[int, ...], bool], values: list[Any]) -> Any:
    numbers, is_tuple = level
    return tuple([values[number] for number in numbers]) if is_tuple else values[numbers[0]]
