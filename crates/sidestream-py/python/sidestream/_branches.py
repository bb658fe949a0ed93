"""Branches of a model on separate streams, in forward and backward.

Why the memory of each tensor is safe. `current` is the caller's stream, `side` that of a branch.

- Inputs of a branch: `side` waits for `current` at the fork, and `current` for `side` at the join. So memory
  of `current` that is freed after the join is freed after its uses in the forward pass. The backward pass of
  a branch runs on `side` too, and may free saved tensors as soon as it is enqueued. So if gradients are
  recorded, `record_stream` records `side` for the inputs.
- Results of a branch have memory of `side` and are used on `current`, which `record_stream` records.
- Gradients: PyTorch's engine waits for the streams that gradients come from and records them, and at the end
  makes the stream that called it wait for the streams of all parameters. The next branch on `side` is ordered
  after `current`, and so after the optimizer.
- autocast's cache of weights in half precision would be shared by all streams, so it is off inside the
  branches.
- Libraries such as cuBLAS have one workspace for each stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from sidestream._pipeline._choice import SERIAL, STREAMS, Choice, Chooser
from sidestream._tree import tensors_of

#: The streams by device, depth of nesting and number of the branch. They are reused, since PyTorch keeps
#: memory for each stream.
_streams: dict[tuple[int, int, int], Any] = {}

#: Number of calls before the first segment of a mode, which do not count.
_SETTLE = 4
_SEGMENTS = 5


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()


Results = TypeVar("Results")


class Parallel(torch.nn.Module, Generic[Results]):  # type: ignore[misc]
    """Branches that are called with the same arguments and run concurrently. ``sidestream.parallel`` makes
    these.
    """

    def __init__(self, branches: tuple[Any, ...], mode: str) -> None:
        """Take the branches. Branches that are modules become submodules, named by their numbers."""
        super().__init__()
        self._functions: dict[int, Any] = {}
        self._count = len(branches)
        for at, branch in enumerate(branches):
            if isinstance(branch, torch.nn.Module):
                self.add_module(str(at), branch)
            else:
                self._functions[at] = branch
        self._mode = mode
        self._has_run = False
        self._device: Any = None
        self.remeasure()

    def remeasure(self) -> None:
        """Forget the measurement, and measure again beginning with the next call."""
        modes = (SERIAL, STREAMS) if self._mode == "auto" else (self._mode,)
        #: One chooser for calls with gradients, and one for calls without.
        self._choosers = {with_grad: Chooser(modes, _SEGMENTS, _SETTLE) for with_grad in (True, False)}
        self._latest = True

    #: Returns the tuple of the branches' results.
    __call__: Callable[..., Results]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the tuple of the branches' results for these arguments, for work on the current stream.
        """
        inputs, _ = tensors_of((args, kwargs))
        self._device = device = next((tensor.get_device() for tensor in inputs if tensor.is_cuda), None)
        self._has_run = True
        branches = [self._modules.get(str(at)) or self._functions[at] for at in range(self._count)]
        if device is None or self._count == 1 or self._mode_of(device) == SERIAL:
            return tuple(branch(*args, **kwargs) for branch in branches)
        return self._forked(device, branches, [tensor for tensor in inputs if tensor.is_cuda], args, kwargs)

    def _mode_of(self, device: int) -> str:
        with_grad = torch.is_grad_enabled()
        if with_grad is not self._latest:
            # Calls of the other kind would fall into the time between two calls of this kind.
            self._choosers[self._latest].begin_run()
            self._latest = with_grad
        chooser = self._choosers[with_grad]
        if not chooser.measuring:
            return chooser.mode
        if torch.cuda.is_current_stream_capturing():
            # Times cannot be measured in a capture, and a graph with branches costs the host no more than one
            # without.
            return STREAMS
        while chooser.measuring and chooser.due(time.perf_counter()):
            torch.cuda.synchronize(device)
            chooser.advance(time.perf_counter())
        return chooser.mode

    def _forked(
        self,
        device: int,
        branches: list[Any],
        inputs: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, ...]:
        current = torch.cuda.current_stream(device)
        depth = _nesting.depth
        sides = [_side_stream(device, depth, at) for at in range(1, self._count)]
        fork = current.record_event()
        with_grad = torch.is_grad_enabled()
        results: list[Any] = []
        begun: list[Any] = []
        _nesting.depth = depth + 1
        # autocast caches weights that it has converted, and the streams of other branches would not wait for
        # the conversion.
        keeps = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            results.append(branches[0](*args, **kwargs))
            for side, branch in zip(sides, branches[1:]):
                begun.append(side)
                side.wait_event(fork)
                if with_grad:
                    for tensor in inputs:
                        tensor.record_stream(side)
                with torch.cuda.stream(side):
                    results.append(branch(*args, **kwargs))
        finally:
            torch.set_autocast_cache_enabled(keeps)
            _nesting.depth = depth
            for side in begun:
                current.wait_stream(side)
        for tensor in tensors_of(results[1:])[0]:
            if tensor.is_cuda:
                tensor.record_stream(current)
        return tuple(results)

    @property
    def choice(self) -> Choice:
        """The mode in which the branches run now, and why. ``print`` shows it. Calls with gradients and calls
        without are measured separately; this is the result for the kind of the last call.
        """
        chooser = self._choosers[self._latest]
        mode, reason = chooser.mode, chooser.reason()
        if not self._has_run:
            reason = "not called so far"
        elif self._device is None:
            mode, reason = SERIAL, "no argument is on a CUDA device"
        elif self._mode != "auto":
            reason = "as asked for; nothing was measured"
        has_times = any(chooser.times.values())
        notes = ["an item is a call and everything until the next call"] if has_times else []
        return chooser.choice(mode, reason, notes)

    def extra_repr(self) -> str:
        """Return the branches that are not modules, and the mode."""
        names = [
            f"{at}: {getattr(call, '__name__', type(call).__name__)}" for at, call in self._functions.items()
        ]
        return ", ".join([*names, self.choice.mode])


def _side_stream(device: int, depth: int, at: int) -> Any:
    side = _streams.get((device, depth, at))
    # A check that simulates GPUs has its own class of streams.
    if side is None or type(side) is not torch.cuda.Stream:
        side = _streams[(device, depth, at)] = torch.cuda.Stream(device)
    return side
