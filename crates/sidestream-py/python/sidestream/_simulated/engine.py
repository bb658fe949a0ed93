"""Simulates the streams of PyTorch's autograd engine in backward, since the real engine sees only CPU tensors
here.

Each node runs on the stream of its forward operation. The engine records an event after the producer of a
gradient and makes the consumer wait for it, records the consumer's stream for that gradient, adds up
gradients on the consumer's stream, and makes the stream that called backward wait for the streams of the
leaves (`input_buffer.cpp` and `engine.cpp`).
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.cuda import _gpu_trace

from sidestream._simulated.streams import Streams

#: The key under which a leaf's node keeps the streams that were current when the node was created.
_KEPT = "sidestream.streams"


class Backward:
    """One backward pass."""

    def __init__(self, streams: Streams, memory_of: Callable[[Any], Any], roots: Any, inputs: Any) -> None:
        self.streams, self.memory_of = streams, memory_of
        self.here = streams.here
        self.outer, self.caller = self.here.backward, (self.here.device, tuple(self.here.streams))
        #: For each node, by input: the event, the device, and the stream of the last gradient, which the node
        #: waits for.
        self.ready: dict[Any, dict[int, tuple[int, int, int, int]]] = {}
        self.leaves: set[tuple[int, int]] = set()
        #: The streams of the additions that the engine makes after the node that ran last.
        self.additions: deque[tuple[int, int]] = deque()
        self.now: Any = None
        self._hooks: list[Any] = []
        self._captured = inputs
        self._walk([_node(root) for root in roots])
        for root in roots:
            tensor = root if isinstance(root, torch.Tensor) else None
            memory = memory_of(tensor) if tensor is not None else None
            if memory is not None and memory.device is not None:
                producer = self.caller[1][memory.index]
                self._give(_node(root), getattr(tensor, "output_nr", 0), memory, memory.index, producer)

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
            self._hooks.append(node.register_prehook(self._begins(node)))
            self._hooks.append(node.register_hook(self._ends(node)))

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
        if node is not None and node is not self.now and node in self.of:
            self._begin(node)

    def _begins(self, node: Any) -> Callable[[Any], None]:
        def begin(_: Any) -> None:
            if node is not self.now:
                self._begin(node)

        return begin

    def _begin(self, node: Any) -> None:
        self.now = node
        self.additions.clear()
        mine = self.of[node]
        for event, device, producer, _ in self.ready.pop(node, {}).values():
            if event:
                if producer != mine[device]:
                    self.streams.wait(event, device, mine[device])
                _gpu_trace.EventDeletionCallbacks.fire_callbacks(event)
        self.here.streams[:] = mine
        self.streams.remember(self.here)

    def _ends(self, node: Any) -> Callable[[Any, Any], None]:
        edges = node.next_functions

        def end(given: Any, taken: Any) -> None:
            mine = self.of[node]
            if not edges:
                for gradient in taken:
                    memory = self.memory_of(gradient) if gradient is not None else None
                    if memory is not None and memory.device is not None:
                        self.leaves.add((memory.index, mine[memory.index]))
            for gradient, (after, at) in zip(given, edges, strict=False):
                memory = self.memory_of(gradient) if gradient is not None else None
                if memory is None or memory.device is None or after not in self.of:
                    continue
                self._give(after, at, memory, memory.index, mine[memory.index])
                if self._captured:
                    self.leaves.add((memory.index, mine[memory.index]))

        return end

    def _give(self, after: Any, at: int, memory: Any, device: int, producer: int) -> None:
        """Pass a gradient to an input of a node."""
        consumer = self.of[after][device]
        inputs = self.ready.setdefault(after, {})
        before = inputs.get(at)
        if before is None:
            event = 0
            if producer != consumer:
                memory.allocator.note(memory, consumer)
                event = self.streams.handle()
                self.streams.record(event, device, producer)
            inputs[at] = (event, device, producer, 0)
            return
        # A second gradient is added to the first, on the consumer's stream.
        if producer != consumer:
            self.streams.wait_stream(device, consumer, producer)
            memory.allocator.note(memory, consumer)
        event = before[0]
        if event:
            self.streams.wait(event, device, consumer)
            _gpu_trace.EventDeletionCallbacks.fire_callbacks(event)
        inputs[at] = (0, device, consumer, 0)
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


def run_backward(
    streams: Streams, memory_of: Callable[[Any], Any], run: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the engine's function, extended by the simulation of streams."""

    def run_with_streams(roots: Any, *args: Any, **kwargs: Any) -> Any:
        if streams.is_one:
            return run(roots, *args, **kwargs)
        inputs = args[3] if len(args) > 3 else kwargs.get("inputs")
        backward = Backward(streams, memory_of, roots, inputs)
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
