"""Branches of a model on streams of their own, with what autograd needs.

Which memory is safe why. `current` is the stream of the caller, `side` that of a branch.

- What a branch reads: `side` waits for `current` at the fork, and `current` for `side` at the join. So memory
  of `current` that is let go behind the join is behind its uses in the forward pass. The backward pass of a
  branch runs on `side` too and may let go of what was saved as soon as it is issued: so where gradients are
  recorded, `record_stream` notes `side` for the inputs.
- What a branch returns has memory of `side`, and is used on `current`: `record_stream` notes that.
- Gradients: PyTorch's engine waits for the streams that they come from and notes them, and at the end lets
  the stream that called it wait for the streams of all parameters. The next branch on `side` begins behind
  `current`, and so behind the optimizer.
- What autocast keeps of weights in half precision would be shared by all streams, so inside the branches it
  keeps nothing.
- The workspaces of libraries, such as cuBLAS, are one for each stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from sidestream._pipeline._choice import SERIAL, STREAMS, Choice, Chooser
from sidestream._tree import tensors_of

#: The streams by device, depth of nesting and place of the branch. Few, since PyTorch keeps memory for each.
_streams: dict[tuple[int, int, int], Any] = {}

#: Calls that do not count before the first segment of a mode.
_SETTLE = 4
_SEGMENTS = 5


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()


Results = TypeVar("Results")


class Parallel(torch.nn.Module, Generic[Results]):  # type: ignore[misc]
    """Branches that are given the same arguments and run side by side. ``sidestream.parallel`` makes
    these.
    """

    def __init__(self, branches: tuple[Any, ...], mode: str) -> None:
        """Take the branches. Those that are modules are modules of this one, by their places."""
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
        """Forget what was measured, and measure again from the next call on."""
        modes = (SERIAL, STREAMS) if self._mode == "auto" else (self._mode,)
        #: With gradients and without them.
        self._choosers = {with_grad: Chooser(modes, _SEGMENTS, _SETTLE) for with_grad in (True, False)}
        self._latest = True

    #: The tuple of what each branch returns.
    __call__: Callable[..., Results]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return what each branch returns for these arguments, for work on the current stream."""
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
            # The time between calls of one kind is not to hold calls of the other.
            self._choosers[self._latest].begin_run()
            self._latest = with_grad
        chooser = self._choosers[with_grad]
        if not chooser.measuring:
            return chooser.mode
        if torch.cuda.is_current_stream_capturing():
            # Nothing can be measured in a capture, and a graph of branches costs the host no more than one
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
        # autocast keeps the half precision of weights that it has made once, and the stream of another branch
        # would not wait for that.
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
        """How the branches run now, and why. ``print`` shows it. Calls with gradients and without them are
        measured apart: of these the last.
        """
        chooser = self._choosers[self._latest]
        mode, reason = chooser.mode, chooser.reason()
        if not self._has_run:
            reason = "not called so far"
        elif self._device is None:
            mode, reason = SERIAL, "no argument is on a CUDA device"
        elif self._mode != "auto":
            reason = "as asked for; nothing was measured"
        medians = chooser.medians()
        return Choice(
            mode=mode,
            measured=bool(medians) and not chooser.measuring,
            reason=reason,
            seconds_per_item=medians,
            segments={one: len(times) for one, times in chooser.times.items() if times},
            notes=("an item is a call with all that comes between it and the next one",) if medians else (),
        )

    def extra_repr(self) -> str:
        """Say what is no module, and how the branches run."""
        names = [
            f"{at}: {getattr(call, '__name__', type(call).__name__)}" for at, call in self._functions.items()
        ]
        return ", ".join([*names, self.choice.mode])


def _side_stream(device: int, depth: int, at: int) -> Any:
    side = _streams.get((device, depth, at))
    # A check that simulates GPUs has streams of its own.
    if side is None or type(side) is not torch.cuda.Stream:
        side = _streams[(device, depth, at)] = torch.cuda.Stream(device)
    return side
