"""Results out of the GPU while it works on: a download on a stream of its own, and a mean of losses that
never stops the loop.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from sidestream import _sidestream, _tree
from sidestream._arguments import positive, truth

Tree = TypeVar("Tree")

#: What downloads are made with, by the device's number.
_sides: dict[int, _Side] = {}
#: A tensor of up to so many elements is small: to start a copy of its own costs the host more than its bytes
#: do.
_SMALL = 4096
#: Small results are put into pages of so many elements.
_PAGE = 1024
#: Numbers that a page of them has. Each is a tensor before it is asked for, since to make one takes as long
#: as to send it.
_NUMBERS = 128
#: Of how many losses that are under way a `RunningMean` that is not asked looks which have arrived.
_MANY = 32


def fetch(values: Tree, *, snapshot: bool = True) -> Fetched[Tree]:
    """Download tensors of the device into pinned memory, and return a future of the same structure with
    tensors of the host.

    Tensors of up to 4,096 elements are written to the host by a kernel on the current stream, larger ones
    come on a stream of their own behind all that the current stream was given so far. Neither the host nor
    the current stream waits for a download, so this replaces ``.item()``, ``.cpu()`` and ``.tolist()`` in a
    loop whose next steps do not depend on the value.

    ``values`` is a tensor, or nested dictionaries and other mappings, lists, tuples, named tuples and
    dataclasses of them; what is no tensor is handed on as it is. What comes out requires no grad.

    The values are those of the moment of the call: large ones are copied on the device first, so that
    whatever the current stream does to the tensors later changes nothing. With ``snapshot=False`` there is no
    such copy. Then nothing may write to the tensors until the result is there; to let go of them is allowed
    either way.

    Args:
        values: What to download.
        snapshot: Whether the tensors are copied on the device first, which takes device memory of their size.

    Raises:
        TypeError: A tensor is sparse, nested or quantized, or ``snapshot`` is neither True nor False.
        RuntimeError: The current stream is being captured into a graph.
    """
    if snapshot is not True:
        truth("snapshot", snapshot)
    if getattr(values, "is_cuda", False):
        alone = _posted(sys.modules["torch"], values)
        if alone is not None:
            host, posted = alone
            return Fetched(host, [posted])
    leaves, shape = _tree.tensors_of(values)
    if not leaves:
        return Fetched(values, [])
    torch: Any = sys.modules["torch"]
    devices: dict[int, list[int]] = {}
    for at, leaf in enumerate(leaves):
        if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
            raise TypeError(
                "a tensor is sparse, nested or quantized, and only dense ones are fetched; convert it on the "
                "device before"
            )
        if leaf.is_cuda:
            devices.setdefault(leaf.get_device(), []).append(at)
    for at, leaf in enumerate(leaves):
        # From here on nothing is recorded for a backward pass.
        leaf = leaf.detach()
        if leaf.is_conj() or leaf.is_neg():
            leaf = leaf.resolve_conj().resolve_neg()
        leaves[at] = leaf.clone() if snapshot and not leaf.is_cuda else leaf
    events = [
        event
        for device, places in devices.items()
        for event in _download(torch, device, leaves, places, snapshot)
    ]
    return Fetched(shape.unflatten(leaves), events)


def _download(torch: Any, device: int, leaves: list[Any], places: list[int], snapshot: bool) -> list[Any]:
    """Put copies in the place of the leaves of a device, and return what to wait for."""
    _refuse_capture(torch)
    events = []
    large = []
    for ats in _together(leaves, places) if snapshot else [[at] for at in places]:
        is_copy = len(ats) > 1
        source = torch.cat([leaves[at].view(-1) for at in ats]) if is_copy else leaves[ats[0]]
        small = _posted(torch, source)
        if small is None:
            large.append((source.clone() if snapshot and not is_copy else source, ats))
        else:
            host, posted = small
            events.append(posted)
            _placed(leaves, ats, host)
    if not large:
        return events
    here = torch._C._cuda_getDevice()
    current = torch._C._cuda_getCurrentStream(device)
    side = _side(torch, device)
    side.follow(torch, current)
    torch._C._cuda_setStream(*side.ids)
    try:
        for source, ats in large:
            host = torch.empty_like(source, device="cpu", pin_memory=True)
            host.copy_(source, non_blocking=True)
            # Whoever lets go of it may do so before the copy has read it.
            source.record_stream(side.stream)
            _placed(leaves, ats, host)
        done = torch.cuda.Event()
        done.record(side.stream)
    finally:
        torch._C._cuda_setStream(*current)
        if here != device:
            torch._C._cuda_setDevice(here)
    return [*events, done]


def _refuse_capture(torch: Any) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the current stream is being captured, and a download in a graph has no future; fetch behind the "
            "replay"
        )


def _placed(leaves: list[Any], ats: list[int], host: Any) -> None:
    """Put what came of some leaves together into their places."""
    if len(ats) == 1:
        leaves[ats[0]] = host
        return
    begin = 0
    for at in ats:
        like = leaves[at]
        leaves[at] = host[begin : begin + like.numel()].view(like.shape)
        begin += like.numel()


def _posted(torch: Any, tensor: Any) -> tuple[Any, Any] | None:
    """Copy a small tensor by a kernel on the current stream. Return where it will be and what to wait for, or
    nothing for what is no such tensor.

    A loop calls this in each step: it makes one call of PyTorch and one of the extension.
    """
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return None
    count = tensor.numel()
    if not 0 < count <= _SMALL:
        return None
    # Whoever listens to operators, such as a check, hears those of the other way. What only shows where a bit
    # of the tensor is set has no address to read.
    core = torch._C
    if (
        core._len_torch_dispatch_stack()
        or not tensor.is_contiguous()
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return None
    device = tensor.get_device()
    side = _side(torch, device)
    if side.outbox is None:
        return None
    try:
        source = tensor.data_ptr()
    except RuntimeError:
        # A transform of `torch.func` stands before it.
        return None
    _refuse_capture(torch)
    host, address = side.room(torch, tensor, count)
    stream = core._cuda_getCurrentRawStream(device)
    return host, side.outbox.post(source, address, count * host.element_size(), stream, host)


def _together(leaves: list[Any], places: list[int]) -> list[list[int]]:
    """Which leaves are copied together: small ones of a type."""
    small: dict[Any, list[int]] = {}
    groups = []
    for at in places:
        leaf = leaves[at]
        if 0 < leaf.numel() <= _SMALL and leaf.is_contiguous():
            small.setdefault(leaf.dtype, []).append(at)
        else:
            groups.append([at])
    return [*groups, *small.values()]


class _Side:
    """What leaves a device: small tensors by kernels on the caller's stream, others on a stream of
    downloads.
    """

    def __init__(self, torch: Any, device: int) -> None:
        self.kind = torch.cuda.Stream
        self.stream = torch.cuda.Stream(device)
        self.ids = (self.stream.stream_id, self.stream.device_index, self.stream.device_type)
        #: An event of each thread: between its record and the wait for it no other may record it.
        self._own = threading.local()
        #: A simulated GPU has no driver.
        self.outbox = (
            None if getattr(torch.cuda, "is_simulated", False) else _sidestream.Outbox(f"cuda:{device}")
        )
        #: By type: numbers to be, and where they lie.
        self._numbers: dict[Any, list[tuple[Any, int]]] = {}
        #: By type: memory for small results, where it lies, and how many elements of it are given away.
        self._pages: dict[Any, tuple[Any, int, int]] = {}
        self._lock = threading.Lock()

    def room(self, torch: Any, like: Any, count: int) -> tuple[Any, int]:
        """Return pinned memory for a small tensor, as a tensor and as an address. A page goes when all that
        lies in it is gone.
        """
        if count == 1 and not like.dim():
            numbers = self._numbers.setdefault(like.dtype, [])
            while True:
                try:
                    return numbers.pop()
                except IndexError:
                    numbers += self._more_numbers(torch, like.dtype)
        if count > _PAGE:
            host = torch.empty_like(like, device="cpu", pin_memory=True)
            return host, host.data_ptr()
        with self._lock:
            page, address, at = self._pages.get(like.dtype, (None, 0, _PAGE))
            if at + count > _PAGE:
                # Those of inference mode could not be changed outside of it.
                with torch.inference_mode(False):
                    page = torch.empty(_PAGE, dtype=like.dtype, device="cpu", pin_memory=True)
                address, at = page.data_ptr(), 0
            self._pages[like.dtype] = page, address, at + count
        return page.as_strided(like.shape, like.stride(), at), address + at * like.element_size()

    @staticmethod
    def _more_numbers(torch: Any, dtype: Any) -> list[tuple[Any, int]]:
        # As below; and neither could those of `no_grad`.
        with torch.inference_mode(False), torch.enable_grad():
            page = torch.empty(_NUMBERS, dtype=dtype, device="cpu", pin_memory=True)
            address, size = page.data_ptr(), page.element_size()
            return [(page.as_strided((), (), at), address + at * size) for at in range(_NUMBERS)]

    def follow(self, torch: Any, current: tuple[int, int, int]) -> None:
        """Let the stream wait for all that another one was given so far."""
        own = self._own
        if getattr(own, "ids", None) != current:
            stream_id, device_index, device_type = current
            own.ids, own.event = current, torch.cuda.Event()
            own.stream = torch.cuda.Stream(
                stream_id=stream_id, device_index=device_index, device_type=device_type
            )
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
        """Wait until the values are there, and return them, in pinned memory. Other threads of Python run
        meanwhile.

        The host waits for this download and what it is behind, not for what the device was given since.
        """
        for event in self._events:
            event.synchronize()
        self._events = []
        return self._values

    def __await__(self) -> Generator[Any, None, Tree]:
        """Let the tasks of ``asyncio`` go on until the values are there: a thread of the loop's executor
        waits.
        """
        if not self.done():
            import asyncio

            yield from asyncio.get_running_loop().run_in_executor(None, self.result).__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Fetched: {'there' if self.done() else 'on its way'}>"


class RunningMean:
    """The mean of losses of a loop that does not wait for them.

    Each ``update`` fetches the loss, and the host adds up in double precision what has arrived. A number of
    the host counts at once. Losses may come from several devices, and be made on several streams.
    """

    def __init__(self) -> None:
        """Begin with no loss."""
        self.reset()

    def reset(self) -> None:
        """Forget all losses. Nothing waits."""
        #: Of what has arrived.
        self._sum = 0.0
        self._weight = 0.0
        #: What is under way, for how much it counts, and all that is worth.
        self._coming: deque[tuple[Fetched[Any], float, float]] = deque()

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
            if loss.dtype.is_complex:
                raise TypeError("loss is complex; give a tensor of real numbers")
            count = loss.numel()
            alone = loss if count == 1 else loss.detach().sum(dtype=sys.modules["torch"].float64)
            self._coming.append((fetch(alone), weight, weight * count))
            if len(self._coming) >= _MANY:
                self._look()
            return
        if hasattr(loss, "detach"):
            self._sum += weight * float(loss.detach().double().sum())
            self._weight += weight * loss.numel()
        elif isinstance(loss, (int, float)) or hasattr(loss, "__float__"):
            self._sum += weight * float(loss)
            self._weight += weight
        else:
            raise TypeError(f"loss is {type(loss).__name__}; give a tensor or a number")

    def value(self) -> float:
        """Return the mean of the losses that have arrived, and nan before any has. Never waits."""
        self._look()
        return self._sum / self._weight if self._weight else math.nan

    def result(self) -> float:
        """Wait for all losses that were counted, and return their mean; nan if there are none."""
        while self._coming:
            self._take()
        return self.value()

    def _look(self) -> None:
        while self._coming and self._coming[0][0].done():
            self._take()

    def _take(self) -> None:
        fetched, weight, worth = self._coming.popleft()
        self._sum += weight * float(fetched.result())
        self._weight += worth

    def __float__(self) -> float:
        return self.value()

    def __repr__(self) -> str:
        return f"<RunningMean: {self.value():.6g}>"
