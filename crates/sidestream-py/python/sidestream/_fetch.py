"""Results out of the GPU while it works on: a download on a stream of its own, and a mean of losses that never stops the loop."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from sidestream import _tree
from sidestream._arguments import positive, truth

Tree = TypeVar("Tree")

#: What downloads are made with, by the device's number.
_sides: dict[int, _Side] = {}
#: Tensors of up to so many elements are copied and downloaded together: each on its own costs the host more than its bytes do.
_SMALL = 4096
#: How long a `RunningMean` that is not asked waits with the next download. To start one costs the host as much as several additions.
_REFRESH_S = 0.02


def fetch(values: Tree, *, snapshot: bool = True) -> Fetched[Tree]:
    """Download tensors of the device into pinned memory, and return a future of the same structure with tensors of the host.

    The download runs on a stream of its own behind all that the current stream was given so far. Neither the host nor the current
    stream waits for it, so this replaces ``.item()``, ``.cpu()`` and ``.tolist()`` in a loop whose next steps do not depend on the value.

    ``values`` is a tensor, or nested dictionaries and other mappings, lists, tuples, named tuples and dataclasses of them; what is
    no tensor is handed on as it is. What comes out requires no grad.

    The values are those of the moment of the call: they are copied on the device first, so that whatever the current stream does to the
    tensors later changes nothing. With ``snapshot=False`` there is no such copy. Then nothing may write to the tensors until the result is
    there; to let go of them is allowed either way.

    Args:
        values: What to download.
        snapshot: Whether the tensors are copied on the device first, which takes device memory of their size.

    Raises:
        TypeError: A tensor is sparse, nested or quantized, or ``snapshot`` is neither True nor False.
        RuntimeError: The current stream is being captured into a graph.
    """
    truth("snapshot", snapshot)
    leaves, shape = _tree.tensors_of(values)
    if not leaves:
        return Fetched(values, [])
    torch: Any = sys.modules["torch"]
    devices: dict[int, list[int]] = {}
    for at, leaf in enumerate(leaves):
        if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
            raise TypeError("a tensor is sparse, nested or quantized, and only dense ones are fetched; convert it on the device before")
        if leaf.is_cuda:
            devices.setdefault(leaf.get_device(), []).append(at)
    for at, leaf in enumerate(leaves):
        # From here on nothing is recorded for a backward pass.
        leaf = leaf.detach()
        if leaf.is_conj() or leaf.is_neg():
            leaf = leaf.resolve_conj().resolve_neg()
        leaves[at] = leaf.clone() if snapshot and not leaf.is_cuda else leaf
    events = [_download(torch, device, leaves, places, snapshot) for device, places in devices.items()]
    return Fetched(shape.unflatten(leaves), events)


def _download(torch: Any, device: int, leaves: list[Any], places: list[int], snapshot: bool) -> Any:
    """Put copies in the place of the leaves of a device, and return an event behind them.

    A loop calls this in each step, so it goes by the functions below `torch.cuda.stream`, which makes objects.
    """
    here = torch._C._cuda_getDevice()
    current = torch._C._cuda_getCurrentStream(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the current stream is being captured, and a download in a graph has no future; fetch behind the replay")
    side = _side(torch, device)
    sources = _copied(torch, leaves, places) if snapshot else [(leaves[at], [at]) for at in places]
    side.follow(torch, current)
    torch._C._cuda_setStream(*side.ids)
    try:
        for source, ats in sources:
            host = torch.empty_like(source, device="cpu", pin_memory=True)
            host.copy_(source, non_blocking=True)
            # Whoever lets go of it may do so before the copy has read it.
            source.record_stream(side.stream)
            if len(ats) == 1:
                leaves[ats[0]] = host
            else:
                begin = 0
                for at in ats:
                    like = leaves[at]
                    leaves[at] = host[begin : begin + like.numel()].view(like.shape)
                    begin += like.numel()
        done = torch.cuda.Event()
        done.record(side.stream)
    finally:
        torch._C._cuda_setStream(*current)
        if here != device:
            torch._C._cuda_setDevice(here)
    return done


def _copied(torch: Any, leaves: list[Any], places: list[int]) -> list[tuple[Any, list[int]]]:
    """Copies on the device, and which leaves each is of: small ones of a type have one together."""
    if len(places) == 1:
        return [(leaves[places[0]].clone(), places)]
    small: dict[Any, list[int]] = {}
    copies = []
    for at in places:
        leaf = leaves[at]
        if 0 < leaf.numel() <= _SMALL and leaf.is_contiguous():
            small.setdefault(leaf.dtype, []).append(at)
        else:
            copies.append((leaf.clone(), [at]))
    for ats in small.values():
        copies.append((leaves[ats[0]].clone() if len(ats) == 1 else torch.cat([leaves[at].view(-1) for at in ats]), ats))
    return copies


class _Side:
    """The stream of a device's downloads, and what waits for others there."""

    def __init__(self, torch: Any, device: int) -> None:
        self.kind = torch.cuda.Stream
        self.stream = torch.cuda.Stream(device)
        self.ids = (self.stream.stream_id, self.stream.device_index, self.stream.device_type)
        #: An event of each thread: between its record and the wait for it no other may record it.
        self._own = threading.local()

    def follow(self, torch: Any, current: tuple[int, int, int]) -> None:
        """Let the stream wait for all that another one was given so far."""
        own = self._own
        if getattr(own, "ids", None) != current:
            stream_id, device_index, device_type = current
            own.ids, own.event = current, torch.cuda.Event()
            own.stream = torch.cuda.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        own.event.record(own.stream)
        own.event.wait(self.stream)


def _side(torch: Any, device: int) -> _Side:
    side = _sides.get(device)
    # A check that simulates GPUs has streams of its own.
    if side is None or side.kind is not torch.cuda.Stream:
        side = _sides[device] = _Side(torch, device)
    return side


class Fetched(Generic[Tree]):
    """Values that are on their way to the host. ``fetch`` makes these."""

    __slots__ = ("_events", "_values")

    def __init__(self, values: Tree, events: list[Any]) -> None:
        """Take what will be there, and the events behind which it is."""
        self._values = values
        self._events = events

    def done(self) -> bool:
        """Return whether the values are there. Never waits."""
        while self._events:
            if not self._events[-1].query():
                return False
            self._events.pop()
        return True

    def result(self) -> Tree:
        """Wait until the values are there, and return them, in pinned memory. Other threads of Python run meanwhile.

        The host waits for this download and what it is behind, not for what the device was given since.
        """
        for event in self._events:
            event.synchronize()
        self._events = []
        return self._values

    def __await__(self) -> Generator[Any, None, Tree]:
        """Let the tasks of ``asyncio`` go on until the values are there: a thread of the loop's executor waits."""
        if not self.done():
            import asyncio

            yield from asyncio.get_running_loop().run_in_executor(None, self.result).__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Fetched: {'there' if self.done() else 'on its way'}>"


class RunningMean:
    """The mean of losses of a loop that does not wait for them.

    Each ``update`` adds on the device, in double precision, and the sum is downloaded beside the steps that follow. A number of the host
    counts at once. Losses may come from several devices, and be made on several streams.
    """

    def __init__(self) -> None:
        """Begin with no loss."""
        self.reset()

    def reset(self) -> None:
        """Forget all losses. Nothing waits."""
        #: What the host gave, and the sums on the devices with the handles of the streams that added last, and these.
        self._host = 0.0
        self._sums: dict[int, tuple[Any, int, Any]] = {}
        #: When the next download is looked at.
        self._next = 0.0
        self._weight = 0.0
        self._arrived = (0.0, 0.0)
        self._coming: tuple[Fetched[list[Any]], float, float] | None = None

    def update(self, loss: Any, weight: float = 1.0) -> None:
        """Count a loss. The host does not wait, and neither does the device.

        Args:
            loss: A tensor, of which each element counts, or a number.
            weight: For how much each counts, such as the number of samples of which it is the mean.

        Raises:
            TypeError: It is no number, and no tensor of them.
            ValueError: ``weight`` is not above 0.
            RuntimeError: The current stream is being captured into a graph.
        """
        weight = 1.0 if weight == 1.0 else positive("weight", weight, "for how much a loss counts")
        if getattr(loss, "is_cuda", False):
            self._add(loss.detach(), weight)
            count: int = loss.numel()
        elif hasattr(loss, "detach"):
            self._host += weight * float(loss.detach().double().sum())
            count = loss.numel()
        elif isinstance(loss, (int, float)) or hasattr(loss, "__float__"):
            self._host += weight * float(loss)
            count = 1
        else:
            raise TypeError(f"loss is {type(loss).__name__}; give a tensor or a number")
        self._weight += weight * count
        if self._sums and time.perf_counter() >= self._next:
            self._look()

    def value(self) -> float:
        """Return the mean of the losses that have arrived, and nan before any has. Never waits.

        As long as a download is under way, further losses wait for the next one, which `update` starts after 20 ms and this at once. So the value is a few
        steps old.
        """
        if not self._sums:
            return _mean(self._host, self._weight)
        self._look()
        return _mean(*self._arrived)

    def result(self) -> float:
        """Wait for all losses that were counted, and return their mean; nan if there are none."""
        if self._sums:
            coming = self._coming
            if coming is None or coming[2] != self._weight:
                coming = self._start()
            self._take(coming)
            return _mean(*self._arrived)
        return _mean(self._host, self._weight)

    def _add(self, loss: Any, weight: float) -> None:
        torch: Any = sys.modules["torch"]
        device = loss.get_device()
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("the current stream is being captured, and a replay would not be counted; update behind the replay")
        raw = torch._C._cuda_getCurrentRawStream(device)
        total, last, stream = self._sums.get(device, (None, raw, None))
        if total is None or last != raw:
            current = torch.cuda.current_stream(device)
            if total is None:
                # Later losses may come outside of inference mode, where none of its tensors could be added to.
                with torch.inference_mode(False):
                    total = torch.zeros((), dtype=torch.float64, device=loss.device)
            else:
                current.wait_stream(stream)
                total.record_stream(current)
            self._sums[device] = (total, raw, current)
        if loss.dim() != 0:
            loss = loss.sum(dtype=torch.float64)
        if weight == 1.0:
            total.add_(loss)
        else:
            total.add_(loss, alpha=weight)

    def _look(self) -> None:
        self._next = time.perf_counter() + _REFRESH_S
        coming = self._coming
        if coming is not None:
            if not coming[0].done():
                return
            self._take(coming)
        if self._arrived[1] != self._weight:
            self._start()

    def _start(self) -> tuple[Fetched[list[Any]], float, float]:
        torch: Any = sys.modules["torch"]
        with contextlib.ExitStack() as stack:
            # Behind the last additions, whichever streams are current now.
            for device, (_, raw, stream) in self._sums.items():
                if torch._C._cuda_getCurrentRawStream(device) != raw:
                    stack.enter_context(torch.cuda.stream(stream))
            taken = fetch([total for total, _, _ in self._sums.values()])
        self._coming = (taken, self._host, self._weight)
        return self._coming

    def _take(self, coming: tuple[Fetched[list[Any]], float, float]) -> None:
        fetched, host, weight = coming
        self._arrived = (host + sum(float(total) for total in fetched.result()), weight)
        self._coming = None

    def __float__(self) -> float:
        return self.value()

    def __repr__(self) -> str:
        return f"<RunningMean: {self.value():.6g}>"


def _mean(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
