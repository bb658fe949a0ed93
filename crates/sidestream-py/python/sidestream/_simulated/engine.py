"""Simulates the streams of PyTorch's autograd engine in backward, since the real engine sees only CPU tensors
here.

Each node runs on the stream of its forward operation. The engine records an event after the producer of a
gradient and makes the consumer wait for it, records the consumer's stream for that gradient, adds up
gradients on the consumer's stream, and makes the stream that called backward wait for the streams of the
leaves (`input_buffer.cpp` and `engine.cpp`).
"""

from __future__ import annotations

import bisect
import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from sidestream._simulated.allocator import Memory
from sidestream._simulated.streams import Streams
from sidestream._simulated.tensor import memory_of

#: The key under which a leaf's node keeps the streams that were current when the node was created.
_KEPT = "sidestream.streams"


class Backward:
    """One backward pass."""

    def __init__(self, streams: Streams, roots: Any, inputs: Any) -> None:
        self.streams = streams
        self.here = streams.here
        self.outer, self.caller = self.here.backward, (self.here.device, tuple(self.here.streams))
        #: For each node, by input: the event that the node waits for, or 0, and the device.
        self.ready: dict[Any, dict[int, tuple[int, int]]] = {}
        self.leaves: set[tuple[int, int]] = set()
        #: The streams of the additions that the engine makes after the node that ran last.
        self.additions: deque[tuple[int, int]] = deque()
        self.now: Any = None
        self._hooks: list[Any] = []
        self._captured = inputs
        self._walk([_node(root) for root in roots])
        for root in roots:
            memory = _device_memory_of(root)
            if memory is not None:
                self._give(_node(root), root.output_nr, memory, self.caller[1][memory.index])

    def _walk(self, left: list[Any]) -> None:
        takers: dict[Any, list[int]] = {}
        nodes: dict[Any, bool] = {}
        while left:
            node = left.pop()
            if node is None or node in nodes:
                continue
            nodes[node] = True
            for after, _ in node.next_functions:
                if after is not None:
                    left.append(after)
                    takers.setdefault(after, []).append(node._sequence_nr())
        self.of = {node: self._streams_of(node, takers.get(node, ())) for node in nodes}
        for node in nodes:
            self._hooks.append(node.register_prehook(functools.partial(self._begin, node)))
            self._hooks.append(node.register_hook(functools.partial(self._end, node)))

    def _streams_of(self, node: Any, takers: Any) -> tuple[int, ...]:
        # A function may give its node an attribute `name`, which hides the method.
        if type(node).__name__ != "AccumulateGrad":
            return self._at(node._sequence_nr())
        # A leaf's node is created when the leaf is first used, and lives as long as the graph.
        kept: dict[str, tuple[int, ...]] = node.metadata
        if _KEPT not in kept:
            kept[_KEPT] = self._at(min(takers)) if takers else self.caller[1]
        return kept[_KEPT]

    def _at(self, number: int) -> tuple[int, ...]:
        history = self.here.history
        return history[max(0, bisect.bisect_right(history, number, key=lambda entry: entry[0]) - 1)][1]

    def look(self) -> None:
        """Begin the node that runs now. A tensor's hook, which runs before the hook of its node, may ask for
        the current stream.
        """
        node = torch._C._current_autograd_node()
        if node is not None and node in self.of:
            self._begin(node)

    def _begin(self, node: Any, _: Any = None) -> None:
        if node is self.now:
            return
        self.now = node
        self.additions.clear()
        mine = self.of[node]
        for event, device in self.ready.pop(node, {}).values():
            if event:
                self.streams.last_wait(event, device, mine[device])
        self.here.streams[:] = mine
        self.streams.remember(self.here)

    def _end(self, node: Any, given: Any, taken: Any) -> None:
        mine, edges = self.of[node], node.next_functions
        if not edges:
            for memory in map(_device_memory_of, taken):
                if memory is not None:
                    self.leaves.add((memory.index, mine[memory.index]))
        for gradient, (after, at) in zip(given, edges, strict=False):
            memory = _device_memory_of(gradient)
            if memory is None or after not in self.of:
                continue
            self._give(after, at, memory, mine[memory.index])
            if self._captured:
                self.leaves.add((memory.index, mine[memory.index]))

    def _give(self, after: Any, at: int, memory: Memory, producer: int) -> None:
        """Pass a gradient to an input of a node."""
        device = memory.index
        consumer = self.of[after][device]
        inputs = self.ready.setdefault(after, {})
        if at not in inputs:
            event = 0
            if producer != consumer:
                memory.allocator.note(memory, consumer)
                event = self.streams.handle()
                self.streams.record(event, device, producer)
            inputs[at] = (event, device)
            return
        # A second gradient is added to the first, on the consumer's stream.
        if producer != consumer:
            self.streams.wait_stream(device, consumer, producer)
            memory.allocator.note(memory, consumer)
        event = inputs[at][0]
        if event:
            self.streams.last_wait(event, device, consumer)
        inputs[at] = (0, device)
        self.additions.append((device, consumer))

    def end(self) -> None:
        """Make the stream that called backward wait for the streams of the leaves."""
        for hook in self._hooks:
            hook.remove()
        self.here.device, self.here.streams[:] = self.caller[0], self.caller[1]
        self.here.backward = self.outer
        self.streams.remember(self.here)
        for device, stream in sorted(self.leaves):
            if stream != self.caller[1][device]:
                self.streams.wait_stream(device, self.caller[1][device], stream)


def run_backward(streams: Streams, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the engine's function, extended by the simulation of streams."""

    def run_with_streams(roots: Any, *args: Any, **kwargs: Any) -> Any:
        if streams.is_one:
            return run(roots, *args, **kwargs)
        inputs = args[3] if len(args) > 3 else kwargs.get("inputs")
        backward = Backward(streams, roots, inputs)
        streams.here.backward = backward
        try:
            return run(roots, *args, **kwargs)
        finally:
            backward.end()

    return run_with_streams


def _node(root: Any) -> Any:
    if not isinstance(root, torch.Tensor):
        return root.node
    if root.grad_fn is not None:
        return root.grad_fn
    return torch.autograd.graph.get_gradient_edge(root).node if root.requires_grad else None


def _device_memory_of(tensor: Any) -> Memory | None:
    memory = memory_of(tensor) if isinstance(tensor, torch.Tensor) else None
    return memory if isinstance(memory, Memory) else None
