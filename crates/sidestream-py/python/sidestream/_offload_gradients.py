"""Gradients of layers that take turns: copied to the host as autograd makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sidestream._offload_weights import Layer, Pinned, Weight, views


class Gradients:
    """The gradients of layers, in pinned memory. They are complete when ``backward()`` returns."""

    def __init__(self, layers: list[Layer], device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        #: By layer; and those that are added to earlier ones.
        self._memory: dict[int, Pinned] = {}
        self._more: dict[int, Pinned] = {}
        self._earlier: dict[int, Tensor] = {}
        # The parameter, its gradient on the device, and where it goes.
        self._moving: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        #: Gradients of earlier passes, and what is added to them.
        self._sums: list[tuple[Tensor, Tensor]] = []
        self._at_end: list[Callable[[], None]] = []
        self._is_waiting = False
        self._hooks: list[Any] = []
        for layer in layers:
            for weight in layer.weights:
                if weight.parameter.requires_grad:
                    self._hooks.append(weight.parameter.register_hook(self._before(weight)))
                    self._hooks.append(
                        weight.parameter.register_post_accumulate_grad_hook(self._after(layer, weight))
                    )

    def _before(self, weight: Weight) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            # Autograd would add what it computes on the device to a gradient on the host.
            grad = weight.parameter.grad
            if grad is not None and not grad.is_cuda:
                self._earlier[id(weight)] = grad
                weight.parameter.grad = None
            self.at_end(None)

        return hook

    def _after(self, layer: Layer, weight: Weight) -> Callable[[nn.Parameter], None]:
        def hook(parameter: nn.Parameter) -> None:
            grad = parameter.grad
            if grad is None or not grad.is_cuda:
                return
            earlier = self._earlier.pop(id(weight), None)
            memory = self._memory if earlier is None else self._more
            if id(layer) not in memory:
                memory[id(layer)] = Pinned(layer.size)
            to = next(views(memory[id(layer)].memory, weight.offset, weight.host))
            if earlier is not None:
                self._sums.append((earlier, to))
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream), torch.no_grad():
                to.copy_(grad, non_blocking=True)
            parameter.grad = None
            self._moving.append((parameter, grad, to if earlier is None else earlier))

        return hook

    def at_end(self, call: Callable[[], None] | None) -> None:
        """Call a function when this backward pass ends, and take the gradients then."""
        if call is not None and call not in self._at_end:
            self._at_end.append(call)
        if not self._is_waiting:
            try:
                torch.autograd.Variable._execution_engine.queue_callback(self._ended)
                self._is_waiting = True
            except RuntimeError:
                # Saved tensors are read outside a backward pass: the next pass releases the layer.
                pass

    def _ended(self) -> None:
        self._is_waiting = False
        calls, self._at_end = self._at_end, []
        for call in calls:
            call()
        self.stream.synchronize()
        moving, self._moving = self._moving, []
        sums, self._sums = self._sums, []
        for earlier, more in sums:
            earlier.add_(more)
        for parameter, _, to in moving:
            parameter.grad = to

    def remove(self) -> None:
        """End this; no backward pass may be running."""
        for hook in self._hooks:
            hook.remove()
