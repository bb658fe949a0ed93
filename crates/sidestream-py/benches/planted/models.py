"""Small models, and a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def perceptron(layers: int, width: int, classes: int | None = None) -> nn.Sequential:
    """Layers of one width, each followed by a ReLU, and a last one for `classes` classes."""
    inner = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*inner, *([] if classes is None else [nn.Linear(width, classes)]))


def trained(model: Any, optimizer: Any, criterion: Any = None) -> Callable[..., Any]:
    """Make a training step that takes a batch, and its labels if there is a criterion. Without a criterion
    the loss is the mean of squares.
    """

    def step(x: Any, *y: Any) -> Any:
        optimizer.zero_grad()
        made = model(x)
        loss = made.square().mean() if criterion is None else criterion(made, *y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
