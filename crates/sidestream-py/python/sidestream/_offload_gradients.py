"""Gradients of layers that take turns: copied to the host as autograd makes them."""

from __future__ import annotations

import weakref
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
        self._earlier: dict[Weight, Tensor] = {}
        # The parameter, its gradient on the device, and where it goes.
        self._moving: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        #: Gradients of earlier passes, and what is added to them.
        self._sums: list[tuple[Tensor, Tensor]] = []
        self._at_end: list[Callable[[], None]] = []
        #: The number of the backward pass that calls back when it ends.
        self._task = -1
        #: The layers of which this pass has gradients.
        self._filled: set[tuple[int, bool]] = set()
        #: Of each copy while a pass is measured: after which event it may begin, and its begin and end.
        self.timed: list[tuple[Any, Any, Any]] | None = None
        self._hooks: list[Any] = []
        for layer in layers:
            for weight in layer.weights:
                if weight.parameter.requires_grad:
                    of_weight, of_layer = weakref.ref(weight), weakref.ref(layer)
                    before = self._hook(weakref.WeakMethod(self._before), of_weight)
                    after = self._hook(weakref.WeakMethod(self._after), of_weight, of_layer)
                    self._hooks.append(weight.parameter.register_hook(before))
                    self._hooks.append(weight.parameter.register_post_accumulate_grad_hook(after))

    @staticmethod
    def _hook(method: Any, *of: weakref.ref[Any]) -> Callable[[Tensor], None]:
        """Return a hook that keeps nothing alive: the collector does not look through a tensor's hooks."""

        def hook(_: Tensor) -> None:
            found, given = method(), [each() for each in of]
            if found is not None and None not in given:
                found(*given)

        return hook

    def _before(self, weight: Weight) -> None:
        """Take an earlier gradient away, to which autograd would add what it computes on the device."""
        grad = weight.parameter.grad
        self.at_end(None)
        if grad is not None and not grad.is_cuda:
            self._earlier[weight] = grad
            weight.parameter.grad = None

    def _after(self, weight: Weight, layer: Layer) -> None:
        """Copy a gradient to the host."""
        parameter, grad = weight.parameter, weight.parameter.grad
        if grad is None or not grad.is_cuda:
            return
        earlier = self._earlier.pop(weight, None)
        memory = self._memory if earlier is None else self._more
        key = (id(layer), earlier is None)
        if key not in self._filled and (id(layer) not in memory or memory[id(layer)].is_shared()):
            # The program may have kept gradients of an earlier pass.
            memory[id(layer)] = Pinned(layer.size)
        self._filled.add(key)
        to = next(views(memory[id(layer)].memory, weight.offset, weight.host))
        if earlier is not None:
            self._sums.append((earlier, to))
        current = torch.cuda.current_stream(self.device)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3 if self.timed is not None else 0)]
        if events:
            current.record_event(events[0])
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream), torch.no_grad():
            if events:
                self.stream.record_event(events[1])
            to.copy_(grad, non_blocking=True)
            if events:
                self.stream.record_event(events[2])
        if self.timed is not None:
            self.timed.append((events[0], events[1], events[2]))
        parameter.grad = None
        self._moving.append((parameter, grad, to if earlier is None else earlier))

    def at_end(self, call: Callable[[], None] | None) -> None:
        """Call a function when this backward pass ends, and take the gradients then."""
        # A reentrant pass inside another one leaves it to that.
        if self._task == -1 and (task := torch._C._current_graph_task_id()) != -1:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)
        if call is not None and call not in self._at_end:
            self._at_end.append(call)

    def forward_begins(self) -> None:
        """Drop what a backward pass has left that failed: its gradients are not complete."""
        if self._task == -1 or torch._C._current_graph_task_id() != -1:
            return
        self._task = -1
        self.stream.synchronize()
        for weight, grad in self._earlier.items():
            weight.parameter.grad = grad
        for left in (self._at_end, self._earlier, self._moving, self._sums, self._filled):
            left.clear()

    def _ended(self) -> None:
        self._task = -1
        self._filled.clear()
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
