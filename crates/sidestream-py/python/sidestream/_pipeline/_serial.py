"""What every way to run the stages shares, and the plainest of them: one after the other."""

from __future__ import annotations

from typing import Any

from sidestream._leaves import is_tensor
from sidestream._pipeline._stage import Chain, StageError
from sidestream._pipeline._upload import leaves_of
from sidestream._tree import flatten, unflatten


class Flow:
    """Where the input of each stage comes from, and what comes out at the end."""

    def __init__(self, chain: Chain) -> None:
        """Follow the levels of a chain."""
        self.stages = chain.stages
        self.levels = chain.levels
        self._before: list[tuple[tuple[int, ...], bool] | None] = []
        for level in range(len(chain.levels)):
            before = (chain.levels[level - 1], chain.branches[level - 1]) if level else None
            self._before += [before] * len(chain.levels[level])
        self._last = (chain.levels[-1], chain.branches[-1])

    def given(self, number: int, item: Any, values: list[Any]) -> Any:
        """Return what a stage is given: the item, or what the level before it returned."""
        before = self._before[number]
        return item if before is None else _of_level(before, values)

    def result(self, values: list[Any]) -> Any:
        """Return what the last level returned."""
        return _of_level(self._last, values)

    def call(self, number: int, item: int, value: Any) -> Any:
        """Call a stage, and refuse an autograd graph that would leave it.

        Raises:
            StageError: The stage raised an error, or returned a tensor that requires grad.
        """
        stage = self.stages[number]
        try:
            output = stage.call(value)
        except Exception as error:
            raise StageError(stage.name, item, f"{type(error).__name__}: {error}") from error
        for leaf in flatten(output, is_tensor)[0]:
            if leaf.requires_grad:
                raise StageError(
                    stage.name,
                    item,
                    "it returned a tensor that requires grad, and a backward pass must not reach into another stage; "
                    "return `.detach()` of it, or compute it under `torch.no_grad()`",
                )
        return output


class OnProcessor:
    """Runs the stages one after the other, where they are."""

    def __init__(self, chain: Chain) -> None:
        """Take the stages."""
        self._flow = Flow(chain)

    def issue(self, number: int, item: Any) -> Any:
        """Run an item through all stages and return the result."""
        shape, leaves, changed = leaves_of(item)
        item = unflatten(shape, iter(leaves)) if changed else item
        flow = self._flow
        values: list[Any] = []
        for stage in range(len(flow.stages)):
            values.append(flow.call(stage, number, flow.given(stage, item, values)))
        return flow.result(values)


def _of_level(level: tuple[tuple[int, ...], bool], values: list[Any]) -> Any:
    numbers, is_tuple = level
    return tuple([values[number] for number in numbers]) if is_tuple else values[numbers[0]]
